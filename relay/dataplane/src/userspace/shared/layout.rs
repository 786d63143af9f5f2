//! The entries of the memory that a worker counts in, and how many there are of each; `counters` defines
//! their order, `counted` holds the same as values.

use bpf::layout::Drops;
use zerocopy::{FromBytes, IntoBytes};

use crate::counters::{HealthCounters, Traffic};
use crate::owners::name::Kind;

/// Rules whose counters fit.
pub(crate) const MAX_RULES: u32 = 131_072;
/// Inputs, of all rules with several together, whose counters fit.
pub(crate) const MAX_INPUTS: u32 = 262_144;
/// Outputs, of all rules together, whose counters fit.
pub(crate) const MAX_OUTPUTS: u32 = 262_144;
/// Flows of ranges that are recorded, a power of two.
pub(super) const FLOWS: usize = 4096;

/// The number of slots for names of a kind.
pub(crate) const fn limit(kind: Kind) -> u32 {
    match kind {
        Kind::Rule => MAX_RULES,
        Kind::Output => MAX_OUTPUTS,
        Kind::Input => MAX_INPUTS,
    }
}

/// What a rule or an input received, or an output sent, and what it dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes)]
pub(super) struct Slot {
    pub(super) traffic: Traffic,
    pub(super) drops: Drops,
}

/// The health of a rule's packets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes)]
pub(super) struct Health {
    /// In the order of [`HealthCounters::sums`].
    pub(super) sums: [u64; 12],
    pub(super) latest: LatestHealth,
}

/// What is replaced instead of added up.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes)]
pub(super) struct LatestHealth {
    last_ns: u64,
    epoch: u64,
    gap_ns: u64,
    gap_before_ns: u64,
    jitter_ns: u64,
    /// Bit 63: there is one; payload type, then SSRC.
    source: u64,
}

impl LatestHealth {
    pub(super) fn of(health: &HealthCounters) -> Self {
        let arrivals = &health.arrivals;
        Self {
            last_ns: arrivals.last_ns,
            epoch: arrivals.epoch,
            gap_ns: arrivals.gap_ns,
            gap_before_ns: arrivals.gap_before_ns,
            jitter_ns: health.jitter_ns,
            source: health.source.map_or(0, |(ssrc, payload_type)| {
                1 << 63 | u64::from(payload_type) << 32 | u64::from(ssrc)
            }),
        }
    }
}

impl From<Health> for HealthCounters {
    fn from(Health { sums, latest }: Health) -> Self {
        let mut health = Self::default();
        for (mine, sum) in health.sums_mut().into_iter().zip(sums) {
            *mine = sum;
        }
        let arrivals = &mut health.arrivals;
        arrivals.last_ns = latest.last_ns;
        arrivals.epoch = latest.epoch;
        arrivals.gap_ns = latest.gap_ns;
        arrivals.gap_before_ns = latest.gap_before_ns;
        health.jitter_ns = latest.jitter_ns;
        let source = (latest.source as u32, (latest.source >> 32) as u8);
        health.source = (latest.source >> 63 == 1).then_some(source);
        health
    }
}

/// What was seen of one group and port of a range.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes)]
pub(super) struct FlowSlot {
    /// The owner, and the port; 0 without an owner.
    pub(super) key: u64,
    pub(super) group: [u64; 2],
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// When it was seen, in frames taken.
    pub(super) seen: u64,
}

/// Words that count for the worker as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum WorkerWord {
    /// Grows as long as the worker's loop runs.
    Heartbeat = 0,
    /// Ring frames taken, super-packets as one; together with the kernel's statistics this shows
    /// what a dying worker left behind.
    Frames = 1,
    /// Datagrams read from the taps.
    Received = 2,
    /// Datagrams that took a route.
    Matched = 3,
    /// Datagrams that took none.
    NotMatched = 4,
    /// Copies sent.
    Forwarded = 5,
    /// Datagrams lost in the worker for want of a buffer.
    BufferExhausted = 6,
    /// Failed receives.
    ReceiveErrors = 7,
    /// Failed sends.
    TransmitErrors = 8,
    /// Grows when a worker that lost its supervisor has forwarded what it had and takes no more.
    StoodDown = 9,
    /// Datagrams in the frames taken beyond the first of each: those of super-packets.
    Hidden = 10,
    /// Written by the supervisor: datagrams lost at full rings and in the rings of dead workers.
    Lost = 16,
    /// Written by the supervisor: times the worker was started again.
    Restarts = 17,
    /// Written by the next supervisor: grows when its workers are to take over, at the time of the hand-over.
    Relieved = 18,
}

/// Names one rule's counters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub(crate) struct RuleSlot(pub u32);

/// Names the counters of one of a rule's several inputs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub(crate) struct InputSlot(pub u32);

/// Names one output's counters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub(crate) struct OutputSlot(pub u32);
