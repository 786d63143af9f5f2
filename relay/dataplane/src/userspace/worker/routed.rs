//! The sockets of copies that this host's stack sends, one for each source port and family, opened
//! when the first packet asks for it.

use std::io::ErrorKind;
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
use crate::userspace::shared::routed::ask;

/// Sockets that are kept; the oldest has to go then.
const MOST: usize = 256;
/// Sockets that are asked for in a batch. Senders that use a port for each packet are not to hold up
/// the others.
const ASKED_AT_ONCE: u32 = 8;
/// When to ask again for what there was none of.
const AGAIN_NS: u64 = 1_000_000_000;

/// A worker's sockets.
#[derive(Debug, Default)]
pub(super) struct RoutedSockets {
    supply: Option<UnixStream>,
    open: Vec<(SocketKind, Result<OwnedFd, RefusedAt>)>,
}

/// When there was none to be had.
#[derive(Debug)]
struct RefusedAt(u64);

impl RoutedSockets {
    /// Has sockets supplied from now on.
    pub(super) fn supply(&mut self, supply: OwnedFd) {
        self.supply = Some(supply.into());
    }

    /// Closes all.
    pub(super) fn close(&mut self) {
        *self = Self::default();
    }

    /// Says whether there may be some.
    pub(super) const fn is_used(&self) -> bool {
        self.supply.is_some()
    }

    /// Opens those of `wanted` that are not open.
    #[cold]
    pub(super) fn open(&mut self, wanted: impl Iterator<Item = SocketKind>, now_ns: u64) {
        let Some(supply) = &self.supply else {
            return;
        };
        let mut asked = 0;
        for kind in wanted {
            let known = self.open.iter().position(|(other, _)| *other == kind);
            match known.and_then(|at| self.open.get(at)) {
                Some((_, Ok(_))) => continue,
                Some((_, Err(RefusedAt(then)))) if now_ns < then + AGAIN_NS => continue,
                _ if asked == ASKED_AT_ONCE => return,
                _ => asked += 1,
            }
            let gone = known.or((self.open.len() >= MOST).then_some(0));
            if let Some(gone) = gone {
                drop(self.open.remove(gone));
            }
            let socket = ask(supply, kind).map_err(|error| {
                let is_refused = error.kind() == ErrorKind::NotFound;
                if !is_refused {
                    tracing::warn!(
                        "worker: nobody opens a socket for port {}: {error}",
                        kind.port
                    );
                }
                RefusedAt(now_ns)
            });
            self.open.push((kind, socket));
        }
    }

    /// The socket of a kind.
    pub(super) fn get(&self, kind: SocketKind) -> Option<BorrowedFd<'_>> {
        let mut open = self.open.iter();
        let (_, socket) = open.find(|(other, _)| *other == kind)?;
        socket.as_ref().ok().map(OwnedFd::as_fd)
    }
}

/// What a socket takes of a datagram's copy, which begins with these headers, and its payload.
///
/// # Errors
/// Why no socket can send it: a fragment, or a checksum that is wrong and would be right then.
pub(super) fn told<'p>(
    datagram: &Datagram,
    (ip, udp): (&[u8], &[u8]),
    payload: &'p [u8],
    sending: &Sending,
) -> Result<(routed_socket::Headers, &'p [u8]), DropReason> {
    if datagram.part != Part::Whole {
        return Err(DropReason::EgressError);
    }
    let (source, destination, ttl, traffic_class) = match datagram.source.is_ipv4() {
        true => {
            let ip = ipv4::Header::parse(ip).map_err(|_| DropReason::EgressError)?;
            let ends = (ip.source().into(), ip.destination().into());
            (ends.0, ends.1, ip.ttl(), ip.traffic_class())
        }
        false => {
            let ip = ipv6::Header::parse(ip).map_err(|_| DropReason::EgressError)?;
            let ends = (ip.source().into(), ip.destination().into());
            (ends.0, ends.1, ip.hop_limit(), ip.traffic_class())
        }
    };
    let udp = udp
        .first_chunk::<{ udp::HEADER }>()
        .ok_or(DropReason::EgressError)?;
    // What is behind the end that the UDP header names is no payload.
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
