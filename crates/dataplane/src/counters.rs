//! What the paths counted: the seam's upward half.

use std::collections::BTreeMap;

use packet::verdict::DropReason;

/// A snapshot of everything both paths counted, summed over cores, workers and restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Per rule, by name.
    pub rules: BTreeMap<String, RuleCounters>,
    /// Per worker of the userspace path.
    pub workers: Vec<WorkerCounters>,
}

/// One rule's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleCounters {
    /// Packets that took one of the rule's routes.
    pub received: Traffic,
    /// Packets dropped before the outputs.
    pub dropped: Drops,
    /// Per output, by its index in the rule.
    pub outputs: BTreeMap<u32, OutputCounters>,
}

impl RuleCounters {
    /// Adds what another path counted for the same rule.
    pub fn add(&mut self, other: &Self) {
        self.received.add(other.received);
        self.dropped.add(&other.dropped);
        for (index, theirs) in &other.outputs {
            let mine = self.outputs.entry(*index).or_default();
            mine.sent.add(theirs.sent);
            mine.dropped.add(&theirs.dropped);
        }
    }
}

/// One output's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputCounters {
    /// Copies handed to the egress device.
    pub sent: Traffic,
    /// Copies dropped.
    pub dropped: Drops,
}

/// Packets and UDP payload bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Datagrams; a GSO super-packet counts as its segments.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
}

impl Traffic {
    /// Adds packets and bytes.
    pub const fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Drop counts, indexed by [`DropReason`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops(pub [u64; DropReason::SLOTS]);

impl Drops {
    /// Adds, reason by reason.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// The reasons that occurred, with their counts.
    pub fn occurred(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        let count = |reason: DropReason| self.0[reason as usize];
        DropReason::ALL
            .into_iter()
            .map(move |reason| (reason, count(reason)))
            .filter(|(_, n)| *n > 0)
    }

    /// All drops together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// One worker's state and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Number, from 0.
    pub id: u32,
    /// Core it is pinned to.
    pub cpu: u32,
    /// Process id, 0 while it is not running.
    pub pid: u32,
    /// Times it was started again.
    pub restarts: u64,
    /// Packets read from its tap.
    pub received: u64,
    /// Packets that took a route.
    pub matched: u64,
    /// Packets that took none.
    pub not_matched: u64,
    /// Copies handed to egress devices.
    pub forwarded: u64,
    /// Packets lost for want of a buffer or at a full ring.
    pub buffer_exhausted: u64,
    /// Failed receives.
    pub receive_errors: u64,
    /// Failed sends.
    pub transmit_errors: u64,
}
