//! What a slot counts, as values: read from shared memory, added up over workers, and taken off for
//! an owner that came later.

use packet::health::Arrivals;
use packet::latency::{self, Latency};
use packet::verdict::DropReason;

use crate::counters::{Drops, HealthCounters, Traffic};

/// Words of [`Counted::words`] that an output or an input has, and those that only a rule has.
pub(crate) const WORDS: usize = 2 + DropReason::SLOTS;
pub(crate) const WORDS_OF_A_RULE: usize = WORDS + 12 + 1 + latency::WORDS;

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
    /// What is written down of an owner's base, in words: what all count, then what only rules do.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        let Self {
            traffic,
            drops,
            health,
            latency,
        } = self;
        [traffic.packets, traffic.bytes]
            .into_iter()
            .chain(drops.0)
            .chain(health.sums())
            .chain([health.arrivals.last_ns])
            .chain(latency.words())
    }

    /// Reads what was written down; words that are missing are 0.
    pub(crate) fn from_words(mut words: impl Iterator<Item = u64>) -> Self {
        let mut counted = Self::default();
        let mut fill = |word: &mut u64| *word = words.next().unwrap_or_default();
        fill(&mut counted.traffic.packets);
        fill(&mut counted.traffic.bytes);
        counted.drops.0.iter_mut().for_each(&mut fill);
        counted.health.sums_mut().into_iter().for_each(&mut fill);
        fill(&mut counted.health.arrivals.last_ns);
        counted.latency.words_mut().for_each(fill);
        counted
    }

    /// Adds what another worker counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.traffic.add(other.traffic);
        self.drops.add(&other.drops);
        self.health.add(&other.health);
        self.latency.add(&other.latency);
    }

    /// Takes off what was counted before, for a slot that had another owner.
    #[must_use]
    pub(crate) fn since(&self, base: &Self) -> Self {
        let mut since = self.clone();
        since.traffic = self.traffic.since(base.traffic);
        for (mine, theirs) in since.drops.0.iter_mut().zip(base.drops.0) {
            *mine = mine.saturating_sub(theirs);
        }
        since.health = self.health.since(&base.health);
        if self.health.arrivals.last_ns <= base.health.arrivals.last_ns {
            // Nothing has come since: times, jitter and source are the other owner's.
            since.health.arrivals = Arrivals::default();
            since.health.jitter_ns = 0;
            since.health.source = None;
        }
        since.latency = self.latency.since(&base.latency);
        since
    }
}
