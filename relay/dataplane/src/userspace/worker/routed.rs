//! The sockets of copies that this host's stack sends, one for each source port and family, opened
//! when the first packet needs it.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use packet::checksum;
use packet::datagram::{Datagram, Part};
use packet::parse::ChecksumState;
use packet::udp;
use packet::verdict::DropReason;
use packet::{ipv4, ipv6};
use sys::routed_socket::{self, SocketKind};

use super::rewrite::Sending;
use crate::userspace::shared::routed::{PATIENCE, receive, request};

/// Sockets that are kept open, unless more are needed at once; the least recently used are closed first.
const MOST: usize = 256;
/// When to request a refused socket again.
const AGAIN_NS: u64 = 1_000_000_000;

/// A worker's sockets.
#[derive(Debug, Default)]
pub(super) struct RoutedSockets {
    supply: Option<UnixStream>,
    entries: Vec<Entry>,
    /// Counts the groups of packets that leave together.
    round: u64,
}

#[derive(Debug)]
struct Entry {
    kind: SocketKind,
    state: State,
    /// The round that needed it last.
    used: u64,
}

#[derive(Debug)]
enum State {
    Wanted,
    Requested,
    Open(OwnedFd),
    /// When the request was refused.
    Refused(u64),
}

impl RoutedSockets {
    /// Sets the supply of sockets from now on.
    pub(super) fn supply(&mut self, supply: OwnedFd) {
        self.supply = Some(supply.into());
    }

    /// Closes all.
    pub(super) fn close(&mut self) {
        *self = Self::default();
    }

    /// Returns whether there may be any.
    pub(super) const fn is_used(&self) -> bool {
        self.supply.is_some()
    }

    /// Reserves entries for the sockets that packets which leave together need, one part after the other;
    /// returns how many parts have theirs. The first always has.
    pub(super) fn reserve(
        &mut self,
        parts: impl Iterator<Item = impl Iterator<Item = SocketKind>>,
        now_ns: u64,
    ) -> usize {
        self.round += 1;
        for (index, mut wanted) in parts.enumerate() {
            if !wanted.all(|kind| self.reserve_one(kind, index == 0, now_ns)) {
                return index;
            }
        }
        usize::MAX
    }

    fn reserve_one(&mut self, kind: SocketKind, grows: bool, now_ns: u64) -> bool {
        let round = self.round;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.kind == kind) {
            entry.used = round;
            if matches!(entry.state, State::Refused(then) if now_ns >= then + AGAIN_NS) {
                entry.state = State::Wanted;
            }
            return true;
        }
        if self.entries.len() >= MOST {
            let unused = self
                .entries
                .iter()
                .enumerate()
                .filter(|(_, one)| one.used != round);
            match unused.min_by_key(|(_, one)| one.used) {
                Some((oldest, _)) => drop(self.entries.swap_remove(oldest)),
                None if !grows => return false,
                None => {}
            }
        }
        self.entries.push(Entry {
            kind,
            state: State::Wanted,
            used: round,
        });
        true
    }

    /// Opens those that have an entry and are not open: all at once, because each would cost a change of
    /// threads otherwise.
    pub(super) fn open(&mut self, now_ns: u64) {
        let Some(supply) = &self.supply else {
            return;
        };
        let round = self.round;
        let is_pending = |it: &Entry| it.used == round && matches!(it.state, State::Requested);
        let wanted = self
            .entries
            .iter_mut()
            .filter(|one| matches!(one.state, State::Wanted));
        let kinds: Vec<SocketKind> = wanted
            .map(|entry| {
                entry.state = State::Requested;
                entry.kind
            })
            .collect();
        let mut missing = self.entries.iter().filter(|it| is_pending(it)).count();
        if missing == 0 {
            return;
        }
        let mut error = request(supply, &kinds).err();
        // Senders that use a port for each packet are not to hold up the others for long; the first reply is
        // waited for as long as it takes where processors are scarce.
        let begun_ns = sys::clock::monotonic_ns();
        let is_over = |answered| {
            answered && sys::clock::monotonic_ns() >= begun_ns + PATIENCE.as_nanos() as u64
        };
        let mut answered = false;
        while missing > 0 && error.is_none() && !is_over(answered) {
            match receive(supply) {
                // It may be one that an earlier wait gave up on.
                Ok((kind, socket)) => {
                    answered = true;
                    let mut entries = self.entries.iter_mut();
                    if let Some(entry) = entries.find(|entry| entry.kind == kind) {
                        missing -= usize::from(is_pending(entry));
                        entry.state = socket.map_or(State::Refused(now_ns), State::Open);
                    }
                }
                Err(failure) => error = Some(failure),
            }
        }
        if let Some(error) = error {
            tracing::warn!("worker: nobody opens {missing} sockets: {error}");
            for entry in self.entries.iter_mut().filter(|it| is_pending(it)) {
                entry.state = State::Refused(now_ns);
            }
        }
    }

    /// The socket of a kind.
    pub(super) fn get(&self, kind: SocketKind) -> Option<BorrowedFd<'_>> {
        let entry = self.entries.iter().find(|entry| entry.kind == kind)?;
        match &entry.state {
            State::Open(socket) => Some(socket.as_fd()),
            State::Wanted | State::Requested | State::Refused(_) => None,
        }
    }
}

/// The headers and the payload with which a socket sends a datagram's copy, which begins with these headers.
///
/// # Errors
/// Why no socket can send it: it is a fragment, or it has a wrong checksum that a socket would correct.
pub(super) fn for_socket<'p>(
    datagram: &Datagram,
    (ip, udp): (&[u8], &[u8]),
    payload: &'p [u8],
    sending: &Sending,
) -> Result<(routed_socket::Headers, &'p [u8]), DropReason> {
    if datagram.part != Part::Whole {
        return Err(DropReason::EgressError);
    }
    let (source, destination, ttl, traffic_class) = if datagram.source.is_ipv4() {
        let ip = ipv4::Header::parse(ip).map_err(|_| DropReason::EgressError)?;
        let ends = (ip.source().into(), ip.destination().into());
        (ends.0, ends.1, ip.ttl(), ip.traffic_class())
    } else {
        let ip = ipv6::Header::parse(ip).map_err(|_| DropReason::EgressError)?;
        let ends = (ip.source().into(), ip.destination().into());
        (ends.0, ends.1, ip.hop_limit(), ip.traffic_class())
    };
    let udp = udp
        .first_chunk::<{ udp::HEADER }>()
        .ok_or(DropReason::EgressError)?;
    // Bytes after the length in the UDP header are no payload.
    let length = usize::from(datagram.udp_length) - udp::HEADER;
    let payload = payload.get(..length).ok_or(DropReason::EgressError)?;
    let [.., high, low] = udp;
    if datagram.checksum != ChecksumState::Partial && (*high, *low) != (0, 0) {
        let pseudo = checksum::pseudo_header(source, destination, datagram.udp_length);
        let sums = [pseudo, checksum::sum(udp), checksum::sum(payload)].map(u32::from);
        if checksum::fold(sums.iter().sum()) != 0xffff {
            return Err(DropReason::EgressError);
        }
    }
    let port = u16::from_be_bytes([udp[2], udp[3]]);
    let headers = routed_socket::Headers {
        source: match (source, sending.finds_source) {
            (IpAddr::V4(_), true) => Ipv4Addr::UNSPECIFIED.into(),
            _ => source,
        },
        to: (destination, port).into(),
        by: sending.by,
        ttl,
        traffic_class,
    };
    Ok((headers, payload))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::iter;
    use std::thread;

    use super::*;
    use crate::userspace::shared::routed::supply_by;

    #[test]
    fn sockets_of_a_slow_supplier_are_waited_for() {
        let kinds = [5001, 5002].map(|port| SocketKind {
            ipv4: true,
            port,
            cut: false,
        });
        let slow = |_| {
            thread::sleep(PATIENCE * 5 / 4);
            Ok(File::open("/dev/null")?.into())
        };
        let mut sockets = RoutedSockets::default();
        sockets.supply(supply_by(slow).unwrap());
        for kind in kinds {
            sockets.reserve(iter::once(iter::once(kind)), 0);
            sockets.open(0);
            assert!(sockets.get(kind).is_some(), "{kind:?}");
        }
    }
}
