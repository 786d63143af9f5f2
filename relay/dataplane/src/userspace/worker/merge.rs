//! The verdict on packets of a rule that merges: the first copy of each passes, whichever leg and worker
//! receives it.
//!
//! A datagram in fragments is judged by its first, which the others follow as long as no leg has delivered
//! all of it. Each segment of a super-packet is judged by itself, and those that are first copies leave.

use std::net::IpAddr;

use bpf::merge::Windows;
use packet::datagram::{Datagram, Part};
use packet::fragment::Fragment;
use packet::fragment_cache::FragmentCache;
use packet::udp;
use packet::verdict::{DropReason, Verdict};

use sys::packet_socket::VnetHeader;

use super::coalesce::is_intact;
use super::segments::Segments;
use crate::userspace::shared::messages::MergeLeg;

/// The fragments received so far, and which fragment a packet is, if it is one.
pub(super) type Pieces<'a> = (&'a mut FragmentCache, Option<(u32, Fragment)>);

/// A leg's judge of a packet that arrived at `arrived_ns`.
#[derive(Clone, Copy)]
pub(super) struct Judge<'a> {
    leg: (u32, u32),
    merges: &'a Windows,
    arrived_ns: u64,
}

impl<'a> Judge<'a> {
    #[inline]
    pub(super) const fn of(leg: MergeLeg, merges: &'a Windows, arrived_ns: u64) -> Self {
        Self {
            leg: (leg.merge, leg.position),
            merges,
            arrived_ns,
        }
    }

    /// Judges a packet that is no super-packet.
    #[inline]
    pub(super) fn verdict(
        self,
        (datagram, vnet, bytes): (&Datagram, VnetHeader, &[u8]),
        pieces: Pieces<'_>,
    ) -> Verdict {
        if datagram.part == Part::Whole {
            // A damaged copy must not exclude a good one.
            if !is_intact(datagram, vnet, bytes) {
                return Verdict::Dropped(DropReason::Malformed);
            }
            return verdict(self.judge(datagram, payload(datagram, bytes)));
        }
        self.follow((datagram, bytes), pieces)
    }

    /// The same of a fragment.
    #[cold]
    fn follow(
        self,
        (datagram, bytes): (&Datagram, &[u8]),
        (memory, fragment): Pieces<'_>,
    ) -> Verdict {
        let Some((interface, fragment)) = fragment else {
            return Verdict::Dropped(DropReason::FragmentUnknown);
        };
        let payload = payload(datagram, bytes);
        let is_later = datagram.part == Part::Later;
        let header = if is_later { 0 } else { udp::HEADER };
        let mut position = (payload.len() + header) as u64 | u64::from(fragment.offset) << 16;
        if !fragment.more {
            position |= bpf::merge::PIECE_LAST;
        }
        let mut from = sender(datagram);
        if is_later {
            position |= bpf::merge::PIECE_LATER;
            from ^= fragment.key.id;
        }
        let received = memory.pieces(interface, fragment.key, sys::clock::monotonic_ns());
        let pieces = Some((received, position));
        let packet = (payload, from);
        verdict(
            self.merges
                .judge_piece(self.leg, packet, self.arrived_ns, pieces),
        )
    }

    /// Judges the segments of a super-packet and gives `each` run of those that share a verdict, in
    /// their order.
    ///
    /// # Errors
    /// Those of `each`.
    pub(super) fn each_run<E>(
        self,
        (datagram, payload, size): (&Datagram, &[u8], usize),
        mut each: impl FnMut(Segments, Verdict) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut run = Segments::default();
        let mut fate = Verdict::Forwarded;
        // One without payload is a datagram too.
        for offset in (0..payload.len().max(1)).step_by(size.max(1)) {
            let end = payload.len().min(offset.saturating_add(size));
            let segment = payload.get(offset..end).unwrap_or_default();
            let verdict = verdict(self.judge(datagram, segment));
            if run.count > 0 && verdict != fate {
                each(run, fate)?;
                run = run.following();
            }
            fate = verdict;
            run.count += 1;
            run.bytes += segment.len();
        }
        each(run, fate)
    }

    #[inline]
    fn judge(self, datagram: &Datagram, payload: &[u8]) -> bpf::merge::Verdict {
        let packet = (payload, sender(datagram));
        self.merges.judge(self.leg, packet, self.arrived_ns)
    }
}

/// The UDP payload of a packet, as far as it is present.
#[inline]
pub(super) fn payload<'p>(datagram: &Datagram, bytes: &'p [u8]) -> &'p [u8] {
    let payload = bytes.get(datagram.payload_offset()..).unwrap_or_default();
    payload.get(..datagram.payload_bytes()).unwrap_or(payload)
}

/// A value that represents a datagram's sender, including its port.
#[inline]
fn sender(datagram: &Datagram) -> u32 {
    let address = match datagram.source {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => {
            let [a, b, c, d] = parts(address.to_bits());
            a ^ b ^ c ^ d
        }
    };
    address ^ u32::from(datagram.source_port).wrapping_mul(0x9e37_79b1)
}

/// The words of an IPv6 address.
const fn parts(address: u128) -> [u32; 4] {
    [
        address as u32,
        (address >> 32) as u32,
        (address >> 64) as u32,
        (address >> 96) as u32,
    ]
}

#[inline]
const fn verdict(judged: bpf::merge::Verdict) -> Verdict {
    use bpf::merge::Verdict as Judged;
    match judged {
        Judged::First => Verdict::Forwarded,
        Judged::Duplicate | Judged::Repeated => Verdict::Dropped(DropReason::Duplicate),
        Judged::Late => Verdict::Dropped(DropReason::Late),
        Judged::Stray => Verdict::Dropped(DropReason::Stray),
        Judged::Exceeded => Verdict::Dropped(DropReason::StreamsExceeded),
    }
}
