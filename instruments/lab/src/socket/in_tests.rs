//! Sending and receiving for tests only: payloads that carry their number and reveal damage.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use super::{Receiver, Sender, bound};
use crate::link::End;
use crate::namespace::Namespace;
use crate::wait;

const MAGIC: &[u8; 4] = b"LAB1";

/// One received datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Its sender.
    pub from: SocketAddr,
    /// Its UDP payload.
    pub payload: Vec<u8>,
}

/// Waits until no UDP socket of the calling thread's namespace has a port: a child that another thread of
/// this process has forked still has sockets dropped here until it executes its program.
///
/// # Errors
/// When one has it for long.
pub fn wait_until_free(port: u16) -> Result<()> {
    let entry = format!(":{port:04X} ");
    let is_free = |table| {
        let sockets = fs::read_to_string(format!("/proc/thread-self/net/{table}"));
        sockets.is_ok_and(|sockets| !sockets.contains(&entry))
    };
    let what = format!("nothing has port {port}");
    wait::until(&what, || ["udp", "udp6"].into_iter().all(is_free))
}

/// Makes a payload of `size` bytes (at least 12) that carries its number and reveals damage.
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
/// When it is not one of those or is damaged.
pub fn number(bytes: &[u8]) -> Result<u64> {
    ensure!(bytes.starts_with(MAGIC), "not a payload of the lab");
    let encoded = bytes.get(4..12).context("payload is too short")?;
    let number = u64::from_be_bytes(encoded.try_into()?);
    let mut damaged = (12..).zip(&bytes[12..]);
    if let Some((at, _)) = damaged.find(|(at, byte)| **byte != pattern(number, *at)) {
        bail!("payload {number} is damaged at byte {at}");
    }
    Ok(number)
}

fn pattern(number: u64, at: usize) -> u8 {
    (number as u8).wrapping_mul(31).wrapping_add(at as u8)
}

impl Sender {
    /// Opens a socket that sends by one interface, within its VRF, with multicast loopback to this host, as
    /// most programs have.
    ///
    /// # Errors
    /// When a socket call fails.
    pub fn with_loopback((namespace, name): End<'_>, source: IpAddr) -> Result<Self> {
        namespace.run(|| {
            let at = SocketAddr::new(source, 0);
            let socket = Socket::new(Domain::for_address(at), Type::DGRAM, None)?;
            socket.bind_device(Some(name.as_bytes()))?;
            socket.bind(&at.into())?;
            match source {
                IpAddr::V4(_) => socket.set_multicast_ttl_v4(16)?,
                IpAddr::V6(_) => socket.set_multicast_hops_v6(16)?,
            }
            Ok(Self(socket.into()))
        })
    }
}

impl Receiver {
    /// Listens on a unicast address and port.
    ///
    /// # Errors
    /// When a socket call fails.
    pub fn bind(namespace: &Namespace, address: SocketAddr) -> Result<Self> {
        namespace.run(|| Ok(Self(bound(address)?.into())))
    }

    /// Waits for one datagram; `None` if none arrives within `patience`.
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

    /// Collects `count` datagrams, or as many as arrive before `patience` runs out.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn collect(&self, count: usize, patience: Duration) -> Result<Vec<Datagram>> {
        let deadline = Instant::now() + wait::scaled(patience);
        let mut collected = Vec::new();
        let mut buffer = vec![0; 65536];
        while collected.len() < count {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let Some(datagram) = self.receive_by(&mut buffer, remaining)? else {
                break;
            };
            collected.push(datagram);
        }
        Ok(collected)
    }

    /// Collects the payloads `0..count` of [`payload`] and requires that each arrives once, in order and
    /// undamaged. Returns the sender's address of each.
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
        let received = datagrams
            .iter()
            .map(|datagram| number(&datagram.payload))
            .collect::<Result<Vec<_>>>()?;
        if !received.iter().copied().eq(numbers.clone()) {
            let distinct: BTreeSet<u64> = received.iter().copied().collect();
            let missing = numbers.clone().filter(|one| !distinct.contains(one));
            bail!(
                "expected payloads {numbers:?} in order, got {} of them, missing {:?}; came: {:?}",
                received.len(),
                missing.take(20).collect::<Vec<_>>(),
                received.iter().take(100).collect::<Vec<_>>()
            );
        }
        Ok(datagrams.iter().map(|datagram| datagram.from).collect())
    }

    /// Requires that nothing arrives for as long as `silence`.
    ///
    /// # Errors
    /// When something arrives.
    pub fn expect_nothing(&self, silence: Duration) -> Result<()> {
        match self.receive(silence)? {
            Some(datagram) => bail!("expected silence, got a datagram from {}", datagram.from),
            None => Ok(()),
        }
    }
}

impl Sender {
    /// The port it sends from.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn port(&self) -> Result<u16> {
        Ok(self.0.local_addr()?.port())
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

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
