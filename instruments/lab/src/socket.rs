//! Real UDP sockets in namespaces: receivers that join groups and check payloads, senders with and
//! without segmentation offload.

#[cfg(feature = "test-support")]
mod in_tests;
#[cfg(feature = "test-support")]
pub use in_tests::{Datagram, number, payload, wait_until_free};

use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use crate::link;
use crate::namespace::Namespace;

const BUFFER: usize = 8 << 20;

/// A UDP socket that receives.
#[derive(Debug)]
pub struct Receiver(UdpSocket);

impl Receiver {
    /// Joins `group` on an interface and listens on its port, to that group only.
    ///
    /// # Errors
    /// When the interface is unknown or a socket call fails.
    pub fn join(end: link::End<'_>, group: IpAddr, port: u16) -> Result<Self> {
        let index = link::index(end)?;
        end.0.run(|| {
            // A link-local group needs the link's index.
            let at = match group {
                IpAddr::V4(_) => SocketAddr::new(group, port),
                IpAddr::V6(group) => SocketAddrV6::new(group, port, 0, index).into(),
            };
            let socket = bound(at)?;
            match group {
                IpAddr::V4(group) => {
                    socket.set_multicast_all_v4(false)?;
                    socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(index))?;
                }
                IpAddr::V6(group) => {
                    socket.set_multicast_all_v6(false)?;
                    socket.join_multicast_v6(&group, index)?;
                }
            }
            Ok(Self(socket.into()))
        })
    }

    /// The socket itself, for callers that need more of a datagram.
    pub(crate) const fn socket(&self) -> &UdpSocket {
        &self.0
    }
}

/// A UDP socket that sends.
#[derive(Debug)]
pub struct Sender(UdpSocket);

impl Sender {
    /// Opens a socket that sends from a local address out of one interface. TTL is 16.
    ///
    /// # Errors
    /// When a socket call fails.
    pub fn open(end: link::End<'_>, source: IpAddr) -> Result<Self> {
        let index = link::index(end)?;
        end.0.run(|| {
            let socket = bound(SocketAddr::new(source, 0))?;
            match source {
                IpAddr::V4(source) => {
                    socket.set_multicast_if_v4(&source)?;
                    socket.set_multicast_ttl_v4(16)?;
                    socket.set_multicast_loop_v4(false)?;
                }
                IpAddr::V6(_) => {
                    socket.set_multicast_if_v6(index)?;
                    socket.set_multicast_hops_v6(16)?;
                    socket.set_multicast_loop_v6(false)?;
                }
            }
            Ok(Self(socket.into()))
        })
    }

    /// Sends one datagram.
    ///
    /// # Errors
    /// When the socket refuses.
    pub fn send(&self, to: IpAddr, port: u16, payload: &[u8]) -> Result<()> {
        self.0
            .send_to(payload, (to, port))
            .with_context(|| format!("send to {to} port {port}"))?;
        Ok(())
    }
}

/// UDP counters of a namespace, from `/proc/net/snmp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Datagrams that programs have read from sockets.
    pub delivered: u64,
    /// Datagrams refused for a wrong checksum.
    pub bad_checksums: u64,
    /// Datagrams lost to a full socket.
    pub buffer_errors: u64,
}

/// Reads the UDP counters of a namespace (IPv4).
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn udp_counters(namespace: &Namespace) -> Result<UdpCounters> {
    let text = namespace.read_proc_net("snmp")?;
    let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
    let names = lines.next().context("snmp: no Udp names")?;
    let values = lines.next().context("snmp: no Udp values")?;
    let value = |name: &str| -> Result<u64> {
        let mut pairs = names.split_whitespace().zip(values.split_whitespace());
        let (_, value) = pairs
            .find(|(key, _)| *key == name)
            .with_context(|| format!("snmp: no {name}"))?;
        Ok(value.parse()?)
    };
    Ok(UdpCounters {
        delivered: value("InDatagrams")?,
        bad_checksums: value("InCsumErrors")?,
        buffer_errors: value("RcvbufErrors")?,
    })
}

fn bound(address: SocketAddr) -> Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    socket.set_reuse_address(true)?;
    // Root may go beyond rmem_max, so that no test needs a sysctl.
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
    setsockopt(&socket, sockopt::SndBufForce, &BUFFER)?;
    socket
        .bind(&address.into())
        .with_context(|| format!("bind {address}"))?;
    Ok(socket)
}
