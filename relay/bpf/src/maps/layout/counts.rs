//! What is counted, whose it is, and the buckets that limit it.

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
    /// When a packet was counted last, `CLOCK_MONOTONIC` as of the timer tick; 0: none was.
    pub last_ns: u64,
    /// The program's own note: that tick.
    pub tick: u64,
    /// The program's own note: for which sender it last looked for a local socket.
    pub sender: u64,
    /// The program's own note: for which group and port, when, and the answer.
    pub asked: u64,
    /// Of the packets, those sent back to who asked.
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
    /// The timer tick of the last packet that was the first of its tick on its CPU, lower half; one
    /// that is not as it was says that packets came.
    pub ticks: [u32; ACTIVITY_TICKS as usize],
}

/// Entries of `activity` for so many counters.
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
    /// 1: a token is a bit of payload; 0: a packet.
    pub bits: u64,
}

/// Entry of `identities`: whose counter it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Identity {
    /// Hash of the rule's, the input's or the output's identity; zero: nobody's.
    pub hash: [u64; 2],
    /// Packets the per-CPU values stood at when the counter was given out.
    pub packets: u64,
    /// Bytes, likewise.
    pub bytes: u64,
    /// Answers, likewise.
    pub answers: u64,
    /// Of an input's counter: its rule's.
    pub rule: u32,
    /// Of an input's counter: what decides whether its packets pass, `ARBITER_*` or [`merge_arbiter`].
    pub arbiter: u32,
}

/// Bits that say what kind of arbiter it is; 0: none.
pub const ARBITER_KIND: u32 = 0xf;
/// The rule's inputs stand by for each other.
pub const ARBITER_FAILOVER: u32 = 1;
/// The rule's inputs are merged.
pub const ARBITER_MERGE: u32 = 2;
/// Where the leg's place stands then.
pub const ARBITER_LINE_SHIFT: u32 = 4;
/// Where the number of the merge stands, plus one.
pub const ARBITER_MERGE_SHIFT: u32 = 8;

/// What decides about packets of a leg that has place `line` in merge `merge`.
pub const fn merge_arbiter(merge: u32, line: u32) -> u32 {
    (merge + 1) << ARBITER_MERGE_SHIFT | line << ARBITER_LINE_SHIFT | ARBITER_MERGE
}

/// The merge that an arbiter leads to, if it is one.
pub const fn merge_of(arbiter: u32) -> Option<u32> {
    match arbiter & ARBITER_KIND {
        ARBITER_MERGE => (arbiter >> ARBITER_MERGE_SHIFT).checked_sub(1),
        _ => None,
    }
}
