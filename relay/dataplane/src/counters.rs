//! What both paths counted, as the control side reads it: the upward half of the seam.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bpf::layout::{self, Tally};
use compile::table::Path;
use packet::health::Arrivals;
use rules::net::Ifindex;

pub use counters::{FlowStats, LineStats, MergeStats, Seconds, Traffic, WorkerStats};
pub use packet::latency::{Latency, bound_ns};
pub use packet::verdict::DropReason;

/// A snapshot of everything both paths counted, summed over cores, workers and restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Per rule, by name.
    pub rules: BTreeMap<String, RuleCounters>,
    /// Per worker of the userspace path.
    pub workers: Vec<WorkerStats>,
    /// Packets of each interface that were handed to devices at XDP, of those that may be.
    pub taken_at_xdp: BTreeMap<Ifindex, u64>,
}

/// One rule's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleCounters {
    /// Packets that took one of the rule's routes.
    pub received: Traffic,
    /// The same per input, by the endpoint as the rule writes it: of one input since it has been one
    /// of several, of a rule's only one not at all. Removed inputs may be among them.
    pub inputs: BTreeMap<String, InputCounters>,
    /// Which of them is active, where they stand by for each other.
    pub failover: Option<Box<FailoverCounters>>,
    /// What its legs delivered, where they are merged.
    pub merge: Option<Box<MergeCounters>>,
    /// Packets dropped before the outputs.
    pub dropped: Drops,
    /// Per output, by its index in the rule; most rules have one, and a map has room for eleven.
    pub outputs: BTreeMap<u64, Box<OutputCounters>>,
    /// The health of its packets, if anything was found: most rules are not watched.
    pub health: Option<Box<HealthCounters>>,
    /// How long a sample of its packets stayed, by the path that relayed them.
    pub latency: BTreeMap<Path, Latency>,
}

impl RuleCounters {
    /// Adds what another path found in its packets, if it found anything.
    pub fn add_health(&mut self, health: &HealthCounters) {
        if *health != HealthCounters::default() {
            self.health.get_or_insert_default().add(health);
        }
    }
}

/// The arrivals of one rule: the part of [`RuleCounters`] that is read all the time, however many rules
/// there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Packets that took one of the rule's routes.
    pub traffic: Traffic,
    /// Their health, if anything was found: most rules are not watched.
    pub health: Option<Box<HealthCounters>>,
    /// What was dropped, if anything: most rules drop nothing.
    pub lost: Option<Box<Lost>>,
    /// The traffic of each leg, if the rule fails over between its inputs.
    pub lines: Option<Box<LinesSeen>>,
    /// What its legs delivered, if they are merged, with the time of each one's last packet.
    pub merge: Option<Box<MergeSeen>>,
}

/// The legs of a merged rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeSeen {
    /// What they delivered.
    pub counters: MergeCounters,
    /// Arrival of each one's last packet, in nanoseconds of `CLOCK_MONOTONIC`; 0 if there was none.
    pub last_ns: BTreeMap<String, u64>,
}

/// The legs of a rule that fails over between its inputs, as the rule writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinesSeen {
    /// The one that is relayed.
    pub active: String,
    /// Times another leg has become active.
    pub changes: u64,
    /// The traffic of each.
    pub came: BTreeMap<String, Traffic>,
}

/// What a rule dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Packets dropped before the outputs.
    pub dropped: Drops,
    /// The outputs that dropped anything, by their index in the rule.
    pub outputs: BTreeMap<u64, OutputCounters>,
}

impl Received {
    /// Adds what another path counted for the same rule.
    pub fn add(&mut self, traffic: Traffic, health: &HealthCounters) {
        self.traffic.add(traffic);
        if *health != HealthCounters::default() {
            self.health.get_or_insert_default().add(health);
        }
    }

    /// Adds what a path dropped before the outputs.
    pub fn add_dropped(&mut self, dropped: &Drops) {
        if dropped.total() > 0 {
            self.lost.get_or_insert_default().dropped.add(dropped);
        }
    }

    /// Adds what a path dropped at an output, and what it sent there.
    pub fn add_output(&mut self, index: u64, sent: Traffic, dropped: &Drops) {
        if dropped.total() > 0 {
            let lost = self.lost.get_or_insert_default();
            let output = lost.outputs.entry(index).or_default();
            output.sent.add(sent);
            output.dropped.add(dropped);
        }
    }
}

/// What each rule received, by name.
pub type Arrived = HashMap<Arc<str>, Received>;

/// What a rule's packets show of its streams: sums, and the times, jitter and source of the stream whose
/// packet arrived last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthCounters {
    /// When packets arrived, in nanoseconds of `CLOCK_MONOTONIC`.
    pub arrivals: Arrivals,
    /// RTP packets, each once.
    pub rtp_packets: u64,
    /// RTP packets that never arrived.
    pub lost: u64,
    /// RTP packets that arrived after a later one.
    pub reordered: u64,
    /// RTP packets that arrived again.
    pub duplicated: u64,
    /// RTP sequences that began anew.
    pub restarts: u64,
    /// Times another RTP source took over.
    pub ssrc_changes: u64,
    /// RTP interarrival jitter.
    pub jitter_ns: u64,
    /// RTP source and payload type.
    pub source: Option<(u32, u8)>,
    /// MPEG-TS packets.
    pub ts_packets: u64,
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

impl HealthCounters {
    /// Adds what was found in another stream. Sums wrap: their values may come from pinned maps, which
    /// another process may have written to.
    pub fn add(&mut self, other: &Self) {
        self.add_sums(other);
        if other.arrivals.last_ns > self.arrivals.last_ns {
            self.arrivals = other.arrivals;
            self.jitter_ns = other.jitter_ns;
            self.source = other.source;
        }
    }

    /// Adds what only grows.
    pub fn add_sums(&mut self, other: &Self) {
        for (mine, theirs) in self.sums_mut().into_iter().zip(other.sums()) {
            *mine = mine.wrapping_add(theirs);
        }
    }

    /// Subtracts what was counted before, for a slot that had another owner.
    #[must_use]
    pub fn since(&self, base: &Self) -> Self {
        let mut since = *self;
        for (mine, theirs) in since.sums_mut().into_iter().zip(base.sums()) {
            *mine = mine.saturating_sub(theirs);
        }
        since
    }

    /// What only grows, in the order of the fields; then the number of PIDs.
    #[must_use]
    pub const fn sums(&self) -> [u64; 12] {
        [
            self.rtp_packets,
            self.lost,
            self.reordered,
            self.duplicated,
            self.restarts,
            self.ssrc_changes,
            self.ts_packets,
            self.continuity_errors,
            self.transport_errors,
            self.sync_errors,
            self.unrecognised,
            self.pids,
        ]
    }

    /// The same, to change.
    pub const fn sums_mut(&mut self) -> [&mut u64; 12] {
        [
            &mut self.rtp_packets,
            &mut self.lost,
            &mut self.reordered,
            &mut self.duplicated,
            &mut self.restarts,
            &mut self.ssrc_changes,
            &mut self.ts_packets,
            &mut self.continuity_errors,
            &mut self.transport_errors,
            &mut self.sync_errors,
            &mut self.unrecognised,
            &mut self.pids,
        ]
    }
}

/// The counters of one of a rule's several inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputCounters {
    /// Packets that arrived by it.
    pub received: Traffic,
    /// Those of them that the rule dropped because they arrived by it.
    pub dropped: Drops,
}

/// Which of a rule's inputs is active.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailoverCounters {
    /// The endpoint as the rule writes it.
    pub active: String,
    /// When it became so, in nanoseconds of `CLOCK_MONOTONIC`, a millisecond exact.
    pub since_ns: u64,
    /// Times another leg has become active.
    pub changes: u64,
}

/// What the legs of a merged rule delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeCounters {
    /// All together.
    pub together: MergeStats,
    /// Each leg by the endpoint as the rule writes it.
    pub lines: BTreeMap<String, LineStats>,
}

impl MergeCounters {
    /// Adds what the same legs delivered on another path.
    pub(crate) fn add(&mut self, other: &Self) {
        self.together.lost += other.together.lost;
        self.together.streams += other.together.streams;
        self.together.unsettled += other.together.unsettled;
        for (at, other) in &other.lines {
            let line = self.lines.entry(at.clone()).or_default();
            *line = LineStats {
                first: line.first + other.first,
                duplicate: line.duplicate + other.duplicate,
                repeated: line.repeated + other.repeated,
                late: line.late + other.late,
                stray: line.stray + other.stray,
                still: line.still + other.still,
                exceeded: line.exceeded + other.exceeded,
                differently_cut: line.differently_cut + other.differently_cut,
                missed: line.missed + other.missed,
                skew_seconds: line.skew_seconds.max(other.skew_seconds),
                skew_max_seconds: line.skew_max_seconds.max(other.skew_max_seconds),
            };
        }
    }

    /// The counts of a merge, with the names of its legs and their positions.
    pub(crate) fn of<'a>(
        counts: &bpf::merge::Counts,
        lines: impl Iterator<Item = (&'a String, usize)>,
    ) -> Self {
        let of_position = |(at, position): (&String, usize)| {
            let line = counts.lines.get(position)?;
            let [first, duplicate, repeated, late, stray] = line.packets;
            let counts = LineStats {
                first,
                duplicate,
                repeated,
                late,
                stray,
                still: line.still,
                exceeded: line.exceeded,
                differently_cut: line.cut,
                missed: line.missed,
                skew_seconds: Seconds::from_ns(line.skew_ns),
                skew_max_seconds: Seconds::from_ns(line.skew_max_ns),
            };
            Some((at.clone(), counts))
        };
        Self {
            together: MergeStats {
                lost: counts.lost,
                streams: counts.streams,
                unsettled: counts.unsettled,
            },
            lines: lines.filter_map(of_position).collect(),
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

/// Converts a rule's latency from memory.
pub(crate) const fn latency(counted: &layout::Latency) -> Latency {
    Latency {
        buckets: counted.buckets,
        sum_ns: counted.sum_ns,
        stamped: counted.stamped,
    }
}

/// What the kernel path counted.
pub(crate) fn of_tally(tally: Tally) -> Traffic {
    let last_ns = match tally.last_ns {
        0 => 0,
        last => sys::clock::from_kernel_ns(last),
    };
    Traffic::from_words([tally.packets, tally.bytes, last_ns, tally.answers])
}

/// Drop counts, indexed by [`DropReason`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops(pub [u64; DropReason::SLOTS]);

impl Drops {
    /// Adds, reason by reason.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.wrapping_add(theirs);
        }
    }

    /// Subtracts what was counted before.
    #[must_use]
    pub fn since(&self, base: &Self) -> Self {
        let since = |reason: usize| self.0[reason].saturating_sub(base.0[reason]);
        Self(std::array::from_fn(since))
    }

    /// The reasons that occurred, with their counts.
    pub fn occurred(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        let count = |reason: DropReason| self.0[reason as usize];
        DropReason::ALL
            .into_iter()
            .map(move |reason| (reason, count(reason)))
            .filter(|(_, n)| *n > 0)
    }

    /// All drops together; as sums of [`HealthCounters`] do, this wraps.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().copied().fold(0, u64::wrapping_add)
    }
}
