//! The counts of a slot, as values: read from shared memory, added up over workers, and subtracted for a
//! later owner.

use packet::health::Arrivals;
use packet::latency::Latency;

use crate::counters::{Drops, HealthCounters, Traffic};

/// The values of one slot's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Packets received or sent, and their bytes.
    pub traffic: Traffic,
    /// Packets dropped.
    pub drops: Drops,
    /// Of a rule: the health of its packets.
    pub health: HealthCounters,
    /// Of a rule: the latency of a sample of its packets.
    pub latency: Latency,
}

impl Counted {
    /// Adds what another worker counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.traffic.add(other.traffic);
        self.drops.add(&other.drops);
        self.health.add(&other.health);
        self.latency.add(&other.latency);
    }

    /// Subtracts what was counted before, for a slot that had another owner.
    #[must_use]
    pub(crate) fn since(&self, base: &Self) -> Self {
        let mut since = self.clone();
        since.traffic = self.traffic.since(base.traffic);
        since.drops = self.drops.since(&base.drops);
        since.health = self.health.since(&base.health);
        if self.health.arrivals.last_ns <= base.health.arrivals.last_ns {
            // Nothing has arrived since: times, jitter and source are the other owner's.
            since.health.arrivals = Arrivals::default();
            since.health.jitter_ns = 0;
            since.health.source = None;
        }
        since.latency = self.latency.since(&base.latency);
        since
    }
}
