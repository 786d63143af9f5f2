//! One connected UDP socket per stream: the route is looked up once.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use nix::net::if_::if_nametoindex;
use socket2::{Domain, Protocol, Socket, Type};
use sys::udp::option;
use sys::udp::send::{Message, SendBatch};

use super::error::Error;
use super::group::{BATCH, Group};
use super::option::{Method, Options};
use super::outcome::Outcome;
use crate::endpoint::Destination;

/// Send buffer asked for per socket, in bytes.
const SEND_BUFFER: usize = 4 << 20;

/// The streams' sockets.
pub(super) struct Sockets {
    sockets: Vec<(SocketAddr, Socket)>,
    batch: SendBatch,
    messages: Vec<Message>,
    pub(super) outcome: Outcome,
}

impl Sockets {
    pub(super) fn open(options: &Options) -> Result<Self, Error> {
        crate::endpoint::raise_descriptor_limit(options.destinations.len());
        let sockets = options
            .destinations
            .iter()
            .map(|destination| {
                let socket = open(destination, options)?;
                Ok::<_, Error>((destination.address, socket))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            sockets,
            batch: SendBatch::new(BATCH),
            messages: Vec::with_capacity(BATCH),
            outcome: Outcome::default(),
        })
    }

    /// Sends the groups, a system call for each run of one stream.
    pub(super) fn send(&mut self, buffer: &[u8], groups: &[Group]) {
        for run in groups.chunk_by(|a, b| a.stream == b.stream) {
            self.send_run(buffer, run);
        }
    }

    fn send_run(&mut self, buffer: &[u8], mut groups: &[Group]) {
        let (destination, socket) = &self.sockets[groups[0].stream];
        self.messages.clear();
        self.messages.extend(groups.iter().map(|group| Message {
            bytes: group.bytes.clone(),
            segment: group.slot as u16,
        }));
        let mut retried = false;
        while !groups.is_empty() {
            let messages = &self.messages[self.messages.len() - groups.len()..];
            match self.batch.send(socket.as_fd(), buffer, messages) {
                Ok(count) => {
                    let (done, rest) = groups.split_at(count.max(1));
                    for group in done {
                        self.outcome.sent.packets += group.datagrams();
                        self.outcome.sent.bytes += group.bytes.len() as u64;
                    }
                    groups = rest;
                    retried = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // An ICMP error of an earlier datagram is reported once, in place of a send.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && !retried => {
                    retried = true;
                }
                Err(error) => {
                    let refused = groups[0].datagrams();
                    let method = if refused > 1 {
                        Method::Gso
                    } else {
                        Method::Sockets
                    };
                    self.outcome.refused(refused, *destination, method, &error);
                    groups = &groups[1..];
                }
            }
        }
    }
}

fn open(destination: &Destination, options: &Options) -> Result<Socket, Error> {
    let address = destination.address;
    let failed = |action| {
        move |source: io::Error| Error::Socket {
            action,
            destination: address,
            source,
        }
    };
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )
    .map_err(failed("open a socket"))?;
    set_options(&socket, address.ip(), options).map_err(failed("set TTL and DSCP"))?;
    if let Some(name) = &destination.interface {
        let index =
            if_nametoindex(name.as_str()).map_err(|_| Error::no_interface(address, name))?;
        choose_interface(&socket, address.ip(), name, index)
            .map_err(failed("choose the interface"))?;
    }
    if options.source.is_some() || options.source_port.is_some() {
        socket
            .bind(&source_address(address.ip(), options).into())
            .map_err(failed("take the source address or port"))?;
    }
    socket
        .connect(&address.into())
        .map_err(failed("find a route"))?;
    Ok(socket)
}

fn set_options(socket: &Socket, peer: IpAddr, options: &Options) -> io::Result<()> {
    let (ttl, tos) = (u32::from(options.ttl), u32::from(options.dscp) << 2);
    socket.set_reuse_address(true)?;
    option::force_send_buffer(socket.as_fd(), SEND_BUFFER)?;
    match peer {
        IpAddr::V4(_) => {
            socket.set_broadcast(true)?;
            socket.set_ttl_v4(ttl)?;
            socket.set_multicast_ttl_v4(ttl)?;
            socket.set_tos_v4(tos)
        }
        IpAddr::V6(_) => {
            socket.set_unicast_hops_v6(ttl)?;
            socket.set_multicast_hops_v6(ttl)?;
            socket.set_tclass_v6(tos)
        }
    }
}

fn choose_interface(socket: &Socket, peer: IpAddr, name: &str, index: u32) -> io::Result<()> {
    if peer.is_multicast() {
        option::set_multicast_interface(socket.as_fd(), peer, index)?;
    }
    socket.bind_device(Some(name.as_bytes()))
}

fn source_address(peer: IpAddr, options: &Options) -> SocketAddr {
    let any = match peer {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(
        options.source.unwrap_or(any),
        options.source_port.unwrap_or(0),
    )
}
