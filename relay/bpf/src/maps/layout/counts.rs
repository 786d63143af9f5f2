//! Counters, their owners, and the buckets that limit them.

use packet::verdict::DropReason;
use zerocopy::{FromBytes, IntoBytes};

/// Packets and UDP payload bytes, on one CPU or summed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Tally {
    /// Datagrams; segments of a super-packet each count.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
    /// When a packet was counted last, `CLOCK_MONOTONIC` as of the timer tick; 0 if none was.
    pub last_ns: u64,
    /// The program's own note: that tick.
    pub tick: u64,
    /// The program's own note: the sender of the last lookup of a local socket.
    pub sender: u64,
    /// The program's own note: group and port, time and result of that lookup.
    pub asked: u64,
    /// Of the packets, those returned to a requester.
    pub answers: u64,
}

impl Tally {
    /// Adds what another CPU counted; the program's notes stay each CPU's own.
    #[must_use]
    pub fn with(self, other: &Self) -> Self {
        Self {
            packets: self.packets.wrapping_add(other.packets),
            bytes: self.bytes.wrapping_add(other.bytes),
            last_ns: self.last_ns.max(other.last_ns),
            answers: self.answers.wrapping_add(other.answers),
            ..self
        }
    }
}

/// Counters in an [`Activity`].
pub const ACTIVITY_TICKS: u32 = 16;

/// Entry of `activity`: when packets were last counted in each of as many counters of rules.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Activity {
    /// The timer tick of the last packet that was the first of its tick on its CPU, lower half; a change shows
    /// that packets arrived.
    pub ticks: [u32; ACTIVITY_TICKS as usize],
}

/// Entries of `activity` for a number of counters.
pub const fn activity_entries(counters: u32) -> u32 {
    counters.div_ceil(ACTIVITY_TICKS)
}

/// Key of `flows`: one group and port of a rule's ranges.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes,
)]
pub struct FlowKey {
    /// The rule's counter.
    pub counter: u32,
    /// Destination port, network order.
    pub port: [u8; 2],
    /// 1 if the destination is of IPv6.
    pub ipv6: u16,
    /// Group or address; IPv4 in the first four bytes.
    pub group: [u8; 16],
}

/// Packets and UDP payload bytes of a flow, on one CPU or summed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Flow {
    /// Datagrams; segments of a super-packet each count.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
}

/// Entry of `drops`: packets by [`DropReason`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Drops {
    /// Indexed by reason.
    pub packets: [u64; DropReason::SLOTS],
}

/// Entry of `limits`: a token bucket as `packet::limit` defines it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Limit {
    /// Nanoseconds per token, times 2^20.
    pub per_token: u64,
    /// Nanoseconds in which an empty bucket fills up.
    pub depth_ns: u64,
    /// State: when the bucket will be full again.
    pub due_ns: u64,
    /// 1 if a token is a bit of payload; 0 if it is a packet.
    pub bits: u64,
}

/// Entry of `identities`: the owner of a counter.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Identity {
    /// Hash of the rule's, the input's or the output's identity; zero without an owner.
    pub hash: [u64; 2],
    /// Packets in the per-CPU values when the counter was given out.
    pub packets: u64,
    /// Bytes, likewise.
    pub bytes: u64,
    /// Answers, likewise.
    pub answers: u64,
    /// For an input's counter: its rule's counter.
    pub rule: u32,
    /// For an input's counter: what decides whether its packets pass, `ARBITER_*` or [`merge_arbiter`].
    pub arbiter: u32,
}

/// Bits of the kind of arbiter; 0 for none.
pub const ARBITER_KIND: u32 = 0xf;
/// The rule fails over between its inputs.
pub const ARBITER_FAILOVER: u32 = 1;
/// The rule's inputs are merged.
pub const ARBITER_MERGE: u32 = 2;
/// Shift of the leg's position, for a merge.
pub const ARBITER_LINE_SHIFT: u32 = 4;
/// Shift of the number of the merge, plus one.
pub const ARBITER_MERGE_SHIFT: u32 = 8;

/// The arbiter of the leg at position `line` of merge `merge`.
pub const fn merge_arbiter(merge: u32, line: u32) -> u32 {
    (merge + 1) << ARBITER_MERGE_SHIFT | line << ARBITER_LINE_SHIFT | ARBITER_MERGE
}

/// The merge of an arbiter, if it is one.
pub const fn merge_of(arbiter: u32) -> Option<u32> {
    match arbiter & ARBITER_KIND {
        ARBITER_MERGE => (arbiter >> ARBITER_MERGE_SHIFT).checked_sub(1),
        _ => None,
    }
}
