//! The state of streams: which leg is relayed, the health of their packets, and their latency.

use packet::latency;
use zerocopy::{FromBytes, IntoBytes};

/// Inputs that a [`Failover`] decides between.
pub const FAILOVER_LINES: usize = rules::failover::LINES_MAX;

/// Value of `failovers`: [`packet::failover::Failover`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Failover {
    /// Time without a packet of the active leg, in nanoseconds.
    pub silence_ns: u64,
    /// How long a leg before the active one must deliver to take over again; 0 for never.
    pub revert_ns: u64,
    /// How many legs there are.
    pub count: u32,
    /// The inputs' counters, the preferred first.
    pub lines: [u32; FAILOVER_LINES],
    /// Zero.
    pub pad: u32,
}

/// Entry of `lines`: [`packet::failover::Line`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Line {
    /// When its last packet arrived.
    pub last_ns: u64,
    /// When the first since its last silence arrived.
    pub since_ns: u64,
}

/// Entry of `choices`: [`packet::failover::Choice`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Choice {
    /// The active leg, and since when.
    pub active: u64,
    /// Times another leg took over.
    pub changes: u64,
}

/// Entry of `health`: a [`packet::health::Watch`], ordered by cache lines.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Health {
    /// [`packet::health::Content`].
    pub content: u64,
    /// Nanoseconds per tick of the RTP clock, times 2^16.
    pub per_tick: u64,
    /// Arrival of the last packet, `CLOCK_MONOTONIC`; 0 if none arrived.
    pub last_ns: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Longest gap that ended in this epoch.
    pub gap_ns: u64,
    /// RTP packets of the source, each once.
    pub rtp_packets: u64,
    /// The program's: which of the last 64 sequence numbers arrived.
    pub window: u64,
    /// The program's: arrival that goes with `timestamp`.
    pub rtp_ns: u64,
    /// Interarrival jitter in nanoseconds, times 16.
    pub jitter_ns_16: u64,
    /// The source.
    pub ssrc: u32,
    /// The program's: last RTP timestamp.
    pub timestamp: u32,
    /// The program's: highest sequence number.
    pub highest: u16,
    /// The program's: sequence number that would confirm the candidate.
    pub candidate_next: u16,
    /// Whether a source is followed.
    pub followed: u16,
    /// The program's: whether there is a candidate.
    pub has_candidate: u16,
    /// The program's: source that may take over.
    pub candidate_ssrc: u32,
    /// Payload type of the last packet.
    pub payload_type: u32,
    /// RTP packets that never arrived.
    pub lost: u64,
    /// RTP packets that arrived after a later one.
    pub reordered: u64,
    /// RTP packets that arrived again.
    pub duplicated: u64,
    /// MPEG-TS packets.
    pub ts_packets: u64,
    /// The program's: the PIDs seen last.
    pub known: [u16; 32],
    /// Longest gap that ended in the epoch before.
    pub gap_before_ns: u64,
    /// Sequences that began anew.
    pub restarts: u64,
    /// Times another source took over.
    pub ssrc_changes: u64,
    /// MPEG-TS packets that do not continue from the last one of their PID.
    pub continuity_errors: u64,
    /// MPEG-TS packets marked broken by the sender.
    pub transport_errors: u64,
    /// MPEG-TS packets without the sync byte.
    pub sync_errors: u64,
    /// PIDs seen.
    pub pids: u64,
    /// Datagrams that are not of the form looked for.
    pub unrecognised: u64,
}

/// Value of `pids`: a byte for each PID that is not among those seen last.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Pids {
    /// The program's.
    pub state: [u8; 8192],
}

impl Default for Pids {
    fn default() -> Self {
        Self { state: [0; 8192] }
    }
}

/// Value of `past_health`: the health of a rule's removed routes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct PastHealth {
    /// The sums, in an order of user space's own.
    pub sums: [u64; 12],
}

/// Value of `latency`: the latency of a sample of a rule's packets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Latency {
    /// Packets by their latency.
    pub buckets: [u64; latency::BUCKETS],
    /// The sum of all times.
    pub sum_ns: u64,
    /// Packets that had the kernel's receive timestamp.
    pub stamped: u64,
}
