//! One socket per group and port: bound to the group, so that only its own datagrams arrive, and to
//! the interface; one membership each, so that no per-socket limit on memberships is ever met.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, Socket, Type};
use sys::udp::option;

use super::Error;
use crate::endpoint::Listen;

/// Sources joined per socket (net.ipv4.igmp_max_msf is 10 by default).
const SOURCES_PER_SOCKET: usize = 10;
/// Receive buffers of all sockets together, in bytes; each gets its share.
const BUFFERS: usize = 512 << 20;
const LARGEST_BUFFER: usize = 64 << 20;
const SMALLEST_BUFFER: usize = 1 << 20;

/// A socket and where it listens.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: Socket,
    pub(super) slot: Slot,
}

/// An endpoint, and one of its addresses, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) endpoint: usize,
    pub(super) address: usize,
}

/// What the sockets are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To receive.
    Datagrams,
    /// To hold memberships. Without timestamps and offload, which would slow down the host's
    /// whole receive path for nothing.
    Membership,
}

/// Opens and joins everything.
pub(super) fn listen(endpoints: &[Listen], purpose: Purpose) -> Result<Vec<Listener>, Error> {
    let sockets: usize = endpoints.iter().map(sockets_of).sum();
    if sockets == 0 {
        return Err(Error::NoEndpoint);
    }
    crate::endpoint::raise_descriptor_limit(sockets);
    let share = (BUFFERS / sockets).clamp(SMALLEST_BUFFER, LARGEST_BUFFER);
    let buffer = (purpose == Purpose::Datagrams).then_some(share);
    let mut listeners = Vec::with_capacity(sockets);
    for (number, endpoint) in endpoints.iter().enumerate() {
        let ifindex = endpoint.ifindex()?;
        for (index, &address) in endpoint.addresses.iter().enumerate() {
            let shares = endpoint.sources.chunks(SOURCES_PER_SOCKET);
            let any = endpoint.sources.is_empty().then_some(&[][..]);
            for sources in any.into_iter().chain(shares) {
                let socket = open(endpoint, ifindex, address, sources, buffer)?;
                let slot = Slot {
                    endpoint: number,
                    address: index,
                };
                listeners.push(Listener { socket, slot });
            }
        }
    }
    Ok(listeners)
}

fn sockets_of(endpoint: &Listen) -> usize {
    let shares = endpoint.sources.len().div_ceil(SOURCES_PER_SOCKET).max(1);
    endpoint.addresses.len() * shares
}

fn open(
    endpoint: &Listen,
    ifindex: Option<u32>,
    address: SocketAddr,
    sources: &[IpAddr],
    buffer: Option<usize>,
) -> Result<Socket, Error> {
    let failed = |action| {
        move |source: std::io::Error| Error::Socket {
            at: endpoint.at.clone(),
            action,
            address,
            source,
        }
    };
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))
        .map_err(failed("open a socket for"))?;
    set_options(&socket, address).map_err(failed("set the options for"))?;
    if let Some(bytes) = buffer {
        prepare_to_receive(&socket, bytes).map_err(failed("set the options for"))?;
    }
    if let Some(interface) = &endpoint.interface {
        socket
            .bind_device(Some(interface.as_bytes()))
            .map_err(failed("bind to the interface for"))?;
    }
    socket.bind(&address.into()).map_err(failed("bind to"))?;
    if address.ip().is_multicast() {
        let needed = || Error::InterfaceNeeded {
            at: endpoint.at.clone(),
        };
        let ifindex = ifindex.ok_or_else(needed)?;
        join(&socket, ifindex, address.ip(), sources).map_err(failed("join"))?;
    }
    Ok(socket)
}

fn set_options(socket: &Socket, address: SocketAddr) -> std::io::Result<()> {
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    match address {
        SocketAddr::V4(_) => socket.set_multicast_all_v4(false),
        SocketAddr::V6(_) => {
            socket.set_only_v6(true)?;
            socket.set_multicast_all_v6(false)
        }
    }
}

fn prepare_to_receive(socket: &Socket, buffer: usize) -> std::io::Result<()> {
    option::force_receive_buffer(socket.as_fd(), buffer)?;
    option::enable_timestamps(socket.as_fd())?;
    option::enable_receive_offload(socket.as_fd())
}

fn join(socket: &Socket, ifindex: u32, group: IpAddr, sources: &[IpAddr]) -> std::io::Result<()> {
    if sources.is_empty() {
        return option::join(socket.as_fd(), ifindex, group, None);
    }
    sources
        .iter()
        .try_for_each(|&source| option::join(socket.as_fd(), ifindex, group, Some(source)))
}
