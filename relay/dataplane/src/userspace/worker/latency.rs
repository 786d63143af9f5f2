//! The time that packets spend on the userspace path: a few of each batch are picked, and counted
//! when its copies have left.
//!
//! It begins with the kernel's receive timestamp, which the ring holds anyway. It ends with one
//! reading of the clock for all that were picked.

use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::layout::RuleSlot;

/// The most that are picked from one batch.
const MOST: usize = 16;
/// The distance between two picked packets is random, from 1 to twice this: so streams that alternate are
/// all sampled.
const EVERY_SHIFT: u32 = 5;

/// The packets picked from this batch.
#[derive(Debug)]
pub(super) struct Samples {
    /// Packets until the next one is picked.
    wait: u32,
    chance: u32,
    picked: [(RuleSlot, u64); MOST],
    count: usize,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            wait: 1,
            chance: 0,
            picked: [(RuleSlot(0), 0); MOST],
            count: 0,
        }
    }
}

impl Samples {
    /// Returns whether this packet is to be picked.
    #[inline]
    pub(super) const fn is_due(&mut self) -> bool {
        self.wait = self.wait.wrapping_sub(1);
        self.wait == 0
    }

    /// Picks a packet of a rule, and chooses the distance to the next.
    #[cold]
    pub(super) fn pick(&mut self, rule: RuleSlot, received_ns: u64) {
        // Numerical Recipes' generator; its high bits are the better ones.
        self.chance = self
            .chance
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.wait = 1 + (self.chance >> (u32::BITS - EVERY_SHIFT - 1));
        if let Some(entry) = self.picked.get_mut(self.count) {
            *entry = (rule, received_ns);
            self.count += 1;
        }
    }

    /// Counts what was picked, now that its copies have left. Packets that a step of the host's clock has put
    /// into the future are skipped.
    #[inline]
    pub(super) fn record(&mut self, counters: &SharedCounters) {
        let picked = self.picked.get(..self.count).unwrap_or_default();
        if picked.is_empty() {
            return;
        }
        let now = sys::clock::realtime_ns();
        for (rule, received_ns) in picked {
            if let Some(stayed) = now.checked_sub(*received_ns).filter(|_| *received_ns > 0) {
                counters.record_latency(*rule, stayed);
            }
        }
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use sys::shared_memory::Region;

    use super::*;
    use crate::owners::name::Kind;

    #[test]
    fn picks_the_first_and_then_one_in_about_32() {
        let mut samples = Samples::default();
        assert!(samples.is_due());
        samples.pick(RuleSlot(0), 1);
        let picked = (0..100_000).filter(|_| {
            let is_due = samples.is_due();
            if is_due {
                samples.pick(RuleSlot(0), 1);
            }
            is_due
        });
        let picked = picked.count();
        assert!((2_800..3_400).contains(&picked), "{picked}");
        assert_eq!(samples.count, MOST);
    }

    #[test]
    fn records_what_was_picked_once() {
        let (_region, counters) = SharedCounters::create().unwrap();
        let mut samples = Samples::default();
        let now = sys::clock::realtime_ns();
        samples.pick(RuleSlot(2), now - 200_000_000);
        samples.pick(RuleSlot(2), now + 1_000_000_000_000);
        samples.pick(RuleSlot(3), 0);
        samples.record(&counters);
        samples.record(&counters);
        let seen = counters.counted(Kind::Rule, 2).latency;
        assert_eq!((seen.samples(), seen.stamped), (1, 1));
        assert!(seen.sum_ns >= 200_000_000);
        assert_eq!(counters.counted(Kind::Rule, 3).latency.samples(), 0);
    }
}
