//! The messages between supervisor and worker: postcard behind a length, on a socket pair that
//! carries descriptors too.
//!
//! The supervisor sends, the worker only confirms. Both sides keep the order, so a confirmation also means
//! that every earlier message has been carried out.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use bpf::layout::Failover;
use compile::diff::BudgetChange;
use compile::table::{Egress, LinkHeader, OwnAddresses, Route, RouteKey};
use rules::health::Inspect;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sys::descriptor::{receive_with, send_with};
use sys::packet_socket::RingSize;

use super::flows::FlowOwner;
use super::layout::{InputSlot, OutputSlot, RuleSlot};
use crate::failover;

/// A message of the supervisor above this size is a mistake: 10,000 routes take about 3 MiB.
pub(crate) const MAX_MESSAGE: usize = 256 << 20;
/// A worker's messages are short, and a compromised worker may send anything.
pub(crate) const MAX_CONFIRMATION: usize = 64;
/// Bytes of the length in front of each message.
const PREFIX: usize = 4;

/// A message of the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToWorker {
    /// The first message; it carries the region of the counters, and the [`ToWorker::State`],
    /// [`ToWorker::Merges`] and [`ToWorker::Gates`] that follow carry those of the state, the merges and the
    /// gates.
    Hello {
        /// Number of the worker.
        worker: u32,
        /// Core to pin to.
        cpu: u32,
        /// What it may use of the kernel.
        means: Means,
    },
    /// Carries the region of the state by which all workers decide.
    State,
    /// Carries the region of the windows of merged rules.
    Merges,
    /// Carries the region of the gates of shares.
    Gates,
    /// Carries an egress socket for these copies; for those by [`Way::Routed`] the end that
    /// [`super::routed::supply`] returns.
    Egress(Way),
    /// No route sends such copies any more.
    DropEgress(Way),
    /// Changes the table, which is empty at first.
    Change(TableChange),
    /// Carries a tap. It is still closed; the supervisor opens it once the worker has confirmed.
    Tap {
        /// The interface it listens on.
        interface: u32,
        /// Whether packets carry an Ethernet header there.
        ethernet: bool,
        /// Frames of its ring.
        frames: usize,
        /// Bytes of a frame.
        frame_bytes: usize,
    },
    /// No route listens on that interface any more.
    DropTap {
        /// The interface.
        interface: u32,
    },
    /// Asks for a confirmation with this number.
    Confirm(u64),
}

/// How copies leave, each by a socket of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Way {
    /// By the interface of this index.
    Link(u32),
    /// The same, where the kernel puts the link header in front: one datagram at a time.
    Framed(u32),
    /// To sockets of this host, over IPv4.
    HostIpv4,
    /// To sockets of this host, over IPv6.
    HostIpv6,
    /// As this host's stack routes them, by a socket for each source port.
    Routed,
}

impl Way {
    /// The interface that packet sockets send by.
    pub(crate) const fn interface(self) -> Option<u32> {
        match self {
            Self::Link(interface) | Self::Framed(interface) => Some(interface),
            Self::HostIpv4 | Self::HostIpv6 | Self::Routed => None,
        }
    }

    /// The way of an output's copies.
    pub(crate) fn of(egress: &Egress) -> Self {
        match (egress.link, egress.destination.address) {
            (LinkHeader::Routed { .. }, _) => Self::Routed,
            (LinkHeader::Host, IpAddr::V4(_)) => Self::HostIpv4,
            (LinkHeader::Host, IpAddr::V6(_)) => Self::HostIpv6,
            _ if egress.framed => Self::Framed(egress.interface.0),
            _ => Self::Link(egress.interface.0),
        }
    }
}

/// The optional kernel features that a worker may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Means {
    /// Packet sockets send super-packets.
    pub super_packets: bool,
    /// Batches leave through io_uring, if it lets them.
    pub io_uring: bool,
    /// Landlock closes the file system.
    pub landlock: bool,
}

/// What changes in the worker's table.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TableChange {
    /// Keys to take out.
    pub removed: Vec<RouteKey>,
    /// Routes to put in or to replace.
    pub set: Vec<(RouteKey, CountedRoute)>,
    /// This host's addresses, if they are others.
    pub own: Option<OwnAddresses>,
    /// Keys of the kernel path that no longer take packets of the worker's groups.
    pub elsewhere_removed: Vec<RouteKey>,
    /// Keys of the kernel path that take such packets from now on.
    pub elsewhere_added: Vec<RouteKey>,
    /// The budget, if it is another one.
    pub budget: Option<BudgetChange>,
    /// No route changes paths any more.
    pub ends_turns: bool,
}

/// A route with the names of its counters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CountedRoute {
    /// The route.
    pub route: Route,
    /// Its rule's counters.
    pub rule: RuleSlot,
    /// Its input's, where the rule has several.
    pub input: Option<InputSlot>,
    /// Those of all its rule's inputs, where the rule fails over between them, the preferred first, or
    /// merges them.
    pub lines: Vec<InputSlot>,
    /// Where its input's packets are judged, where they are merged.
    pub leg: Option<MergeLeg>,
    /// The gate that its packets pass by, where its rule has a share.
    pub gate: Option<u16>,
    /// Whether each worker sees the whole of any stream that it sees. With a merged rule, whose lines may
    /// reach several workers, it does not: what one of them lacks another may have passed.
    pub is_seen_whole: bool,
    /// Which packets are this path's, while the route changes paths.
    pub turn: Option<Turn>,
    /// The owner of the flows that are counted, for a range.
    pub flows: FlowOwner,
    /// Its outputs' counters, in their order.
    pub outputs: Vec<OutputSlot>,
}

/// Which packets of a route are this path's, by the time of its hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Turn {
    /// Those that arrived before.
    Until,
    /// Those that arrive since.
    Since,
}

/// A line of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MergeLeg {
    /// The number of the merge.
    pub merge: u32,
    /// The line's position in it.
    pub position: u32,
}

impl CountedRoute {
    /// How its rule fails over, if it does.
    pub(crate) fn failover(&self) -> Option<Failover> {
        failover::of_route(&self.route, self.lines.iter().map(|line| line.0))
    }

    /// What workers are to look for in its packets.
    pub(crate) fn inspect(&self) -> Option<Inspect> {
        self.route.inspect.filter(|_| self.is_seen_whole)
    }
}

/// A message of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromWorker {
    /// Everything before [`ToWorker::Confirm`] with this number has been carried out.
    Done(u64),
}

/// What went wrong between supervisor and worker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The socket failed, or did not take or give a message in time.
    #[error("control socket: {0}")]
    Socket(#[from] io::Error),
    /// The other side is closed.
    #[error("control socket: closed by the other side")]
    Closed,
    /// Bytes that are no message.
    #[error("control socket: not a message: {0}")]
    Encoding(#[from] postcard::Error),
    /// A message came without its descriptor.
    #[error("control socket: a descriptor is missing")]
    DescriptorMissing,
}

/// Size of a tap's ring, as a message carries it.
#[must_use]
pub(crate) const fn ring_size(frames: usize, frame_bytes: usize) -> RingSize {
    RingSize {
        frames,
        frame_bytes,
    }
}

/// One end of the conversation.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: UnixStream,
    max_bytes: usize,
    incoming: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    unclaimed: VecDeque<OwnedFd>,
}

impl Channel {
    /// Sends and receives over `stream`, whose own blocking mode and time limits hold, and takes messages of
    /// up to `max_bytes`.
    #[must_use]
    pub(crate) const fn new(stream: UnixStream, max_bytes: usize) -> Self {
        Self {
            stream,
            max_bytes,
            incoming: Vec::new(),
            descriptors: Vec::new(),
            unclaimed: VecDeque::new(),
        }
    }

    /// The stream, to wait on.
    #[must_use]
    pub(crate) const fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends one message, with or without a descriptor.
    ///
    /// # Errors
    /// [`Error::Socket`], also where the other side does not read within the stream's time limit.
    pub(crate) fn send(
        &mut self,
        message: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        let mut bytes = postcard::to_extend(message, vec![0; PREFIX])?;
        let length = u32::try_from(bytes.len() - PREFIX).unwrap_or(u32::MAX);
        bytes[..PREFIX].copy_from_slice(&length.to_le_bytes());
        let mut descriptors = descriptor.as_slice();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match send_with(&self.stream, rest, descriptors) {
                Ok(0) => return Err(Error::Closed),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            descriptors = &[];
        }
        Ok(())
    }

    /// Reads what has arrived; `Ok(false)` if that is nothing.
    ///
    /// # Errors
    /// [`Error::Closed`] at the end of the stream.
    pub(crate) fn fill(&mut self) -> Result<bool, Error> {
        let mut chunk = [0; 1 << 16];
        match receive_with(&self.stream, &mut chunk, &mut self.descriptors) {
            Ok(0) => Err(Error::Closed),
            Ok(read) => {
                self.incoming.extend_from_slice(&chunk[..read]);
                self.unclaimed.extend(self.descriptors.drain(..));
                Ok(true)
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the next whole message out of what was read.
    ///
    /// # Errors
    /// [`Error::Encoding`]; the conversation is over then.
    pub(crate) fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, Error> {
        let Some(prefix) = self.incoming.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > self.max_bytes {
            return Err(postcard::Error::DeserializeBadEncoding.into());
        }
        let Some(body) = self.incoming.get(PREFIX..PREFIX + length) else {
            return Ok(None);
        };
        let message = postcard::from_bytes(body)?;
        self.incoming.drain(..PREFIX + length);
        Ok(Some(message))
    }

    /// Takes the oldest descriptor that was received.
    ///
    /// # Errors
    /// [`Error::DescriptorMissing`].
    pub(crate) fn take_descriptor(&mut self) -> Result<OwnedFd, Error> {
        self.unclaimed.pop_front().ok_or(Error::DescriptorMissing)
    }
}

/// Reads bytes as messages of a supervisor, and of a worker. For fuzzers and tests.
#[cfg(feature = "rehearsal")]
pub(crate) fn read_all(bytes: &[u8]) {
    let receive = |max_bytes| {
        let (stream, _) = UnixStream::pair().ok()?;
        let mut channel = Channel::new(stream, max_bytes);
        channel.incoming = bytes.to_vec();
        Some(channel)
    };
    if let Some(mut worker) = receive(MAX_MESSAGE) {
        while let Ok(Some(_)) = worker.next::<ToWorker>() {}
    }
    if let Some(mut supervisor) = receive(MAX_CONFIRMATION) {
        while let Ok(Some(FromWorker::Done(_))) = supervisor.next() {}
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn messages_and_descriptors_arrive_in_order() {
        let (here, there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        let mut here = Channel::new(here, MAX_CONFIRMATION);
        let mut there = Channel::new(there, MAX_MESSAGE);
        let file = tempfile();
        here.send(&ToWorker::Egress(Way::Link(7)), Some(file.as_fd()))
            .unwrap();
        here.send(&ToWorker::Confirm(9), None).unwrap();
        while there.fill().unwrap() {}
        let first: ToWorker = there.next().unwrap().unwrap();
        assert!(matches!(first, ToWorker::Egress(Way::Link(7))));
        there.take_descriptor().unwrap();
        let second: ToWorker = there.next().unwrap().unwrap();
        assert!(matches!(second, ToWorker::Confirm(9)));
        assert!(there.next::<ToWorker>().unwrap().is_none());
        assert!(matches!(
            there.take_descriptor(),
            Err(Error::DescriptorMissing)
        ));
    }

    #[test]
    fn the_end_of_the_stream_is_an_error() {
        let (here, there) = UnixStream::pair().unwrap();
        drop(here);
        assert!(matches!(
            Channel::new(there, MAX_MESSAGE).fill(),
            Err(Error::Closed)
        ));
    }

    #[test]
    fn a_message_that_claims_to_be_long_is_refused() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let mut there = Channel::new(there, MAX_CONFIRMATION);
        io::Write::write_all(&mut here, &65u32.to_le_bytes()).unwrap();
        there.fill().unwrap();
        assert!(matches!(
            there.next::<FromWorker>(),
            Err(Error::Encoding(_))
        ));
    }

    fn tempfile() -> OwnedFd {
        UnixStream::pair().unwrap().0.into()
    }
}
