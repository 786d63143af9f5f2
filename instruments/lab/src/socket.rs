//! Real UDP sockets in namespaces: receivers that join groups and check payloads, senders with and
//! without segmentation offload.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use crate::link;
use crate::namespace::Namespace;
use crate::wait;

const MAGIC: &[u8; 4] = b"LAB1";
const BUFFER: usize = 8 << 20;

/// One datagram as a socket got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Its sender.
    pub from: SocketAddr,
    /// Its UDP payload.
    pub payload: Vec<u8>,
}

/// Makes a payload of `size` bytes (at least 12) that says which one it is and shows damage.
#[must_use]
pub fn payload(number: u64, size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&number.to_be_bytes());
    let start = bytes.len();
    bytes.extend((start..size).map(|at| pattern(number, at)));
    bytes
}

/// Reads the number of a payload that [`payload`] made.
///
/// # Errors
/// When it was made otherwise or is damaged.
pub fn number(bytes: &[u8]) -> Result<u64> {
    ensure!(bytes.starts_with(MAGIC), "not a payload of the lab");
    let number = bytes.get(4..12).context("payload is too short")?;
    let number = u64::from_be_bytes(number.try_into()?);
    let damaged = (12..).zip(&bytes[12..]);
    if let Some((at, _)) = { damaged }.find(|(at, byte)| **byte != pattern(number, *at)) {
        bail!("payload {number} is damaged at byte {at}");
    }
    Ok(number)
}

fn pattern(number: u64, at: usize) -> u8 {
    (number as u8).wrapping_mul(31).wrapping_add(at as u8)
}

/// A UDP socket that receives.
#[derive(Debug)]
pub struct Receiver(UdpSocket);

impl Receiver {
    /// Joins `group` on an interface and listens on its port: to that group alone.
    ///
    /// # Errors
    /// When the interface is unknown or a socket call fails.
    pub fn join(end: link::End<'_>, group: IpAddr, port: u16) -> Result<Self> {
        let index = link::index(end)?;
        end.0.run(|| {
            // A group that stays on its link is one of that link.
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

    /// Listens on a unicast address and port.
    ///
    /// # Errors
    /// When a socket call fails.
    pub fn bind(namespace: &Namespace, address: SocketAddr) -> Result<Self> {
        namespace.run(|| Ok(Self(bound(address)?.into())))
    }

    /// The socket itself, for what only its reader wants to know of a datagram.
    pub(crate) const fn socket(&self) -> &UdpSocket {
        &self.0
    }

    /// Waits for one datagram; `None` if none comes within `patience`.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn receive(&self, patience: Duration) -> Result<Option<Datagram>> {
        self.receive_by(&mut [0; 65536], patience)
    }

    fn receive_by(&self, buffer: &mut [u8], patience: Duration) -> Result<Option<Datagram>> {
        let patience = patience.max(Duration::from_millis(1));
        self.0.set_read_timeout(Some(patience))?;
        match self.0.recv_from(buffer) {
            Ok((length, from)) => Ok(Some(Datagram {
                from,
                payload: buffer[..length].to_vec(),
            })),
            Err(error) if is_timeout(&error) => Ok(None),
            Err(error) => Err(error).context("receive"),
        }
    }

    /// Collects `count` datagrams, or as many as come before `patience` runs out.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn collect(&self, count: usize, patience: Duration) -> Result<Vec<Datagram>> {
        let deadline = Instant::now() + wait::scaled(patience);
        let mut collected = Vec::new();
        let mut buffer = vec![0; 65536];
        while collected.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(datagram) = self.receive_by(&mut buffer, left)? else {
                break;
            };
            collected.push(datagram);
        }
        Ok(collected)
    }

    /// Collects the payloads `0..count` of [`payload`] and insists that each came once, in order
    /// and undamaged. Returns the sender's address of each.
    ///
    /// # Errors
    /// When one is missing, doubled, out of order or damaged.
    pub fn expect(&self, count: u64, patience: Duration) -> Result<Vec<SocketAddr>> {
        self.expect_these(0..count, patience)
    }

    /// The same for a part of the payloads: those that `numbers` names.
    ///
    /// # Errors
    /// When one is missing, doubled, out of order or damaged.
    pub fn expect_these(&self, numbers: Range<u64>, patience: Duration) -> Result<Vec<SocketAddr>> {
        let count = usize::try_from(numbers.end - numbers.start)?;
        let datagrams = self.collect(count, patience)?;
        let came = datagrams.iter().map(|datagram| number(&datagram.payload));
        let came = came.collect::<Result<Vec<_>>>()?;
        if !came.iter().copied().eq(numbers.clone()) {
            let there: BTreeSet<u64> = came.iter().copied().collect();
            let missing = numbers.clone().filter(|one| !there.contains(one));
            bail!(
                "expected payloads {numbers:?} in order, got {} of them, missing {:?}",
                came.len(),
                missing.take(20).collect::<Vec<_>>()
            );
        }
        Ok(datagrams.iter().map(|datagram| datagram.from).collect())
    }

    /// Insists that nothing comes for as long as `silence`.
    ///
    /// # Errors
    /// When something comes.
    pub fn expect_nothing(&self, silence: Duration) -> Result<()> {
        match self.receive(silence)? {
            Some(datagram) => bail!("expected silence, got a datagram from {}", datagram.from),
            None => Ok(()),
        }
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

    /// The port it sends from.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn port(&self) -> Result<u16> {
        Ok(self.0.local_addr()?.port())
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

    /// Sends the payloads `0..count` of [`payload`], `size` bytes each.
    ///
    /// # Errors
    /// When the socket refuses.
    pub fn send_numbered(&self, to: IpAddr, port: u16, count: u64, size: usize) -> Result<()> {
        (0..count).try_for_each(|number| self.send(to, port, &payload(number, size)))
    }

    /// Sends the payloads `first..first + count`, `size` bytes each, as one super-packet that the
    /// kernel segments as late as it can (`UDP_SEGMENT`).
    ///
    /// # Errors
    /// When the socket refuses.
    pub fn send_segmented(
        &self,
        to: IpAddr,
        port: u16,
        first: u64,
        count: u64,
        size: usize,
    ) -> Result<()> {
        let whole: Vec<u8> = (first..first + count)
            .flat_map(|number| payload(number, size))
            .collect();
        setsockopt(&self.0, sockopt::UdpGsoSegment, &i32::try_from(size)?)?;
        let sent = self.send(to, port, &whole);
        setsockopt(&self.0, sockopt::UdpGsoSegment, &0)?;
        sent
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
            .find(|(have, _)| *have == name)
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

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
