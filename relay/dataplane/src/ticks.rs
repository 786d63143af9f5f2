//! Which of the kernel path's counters changed since the last reading.

use std::collections::BTreeSet;

use bpf::layout::{self, ACTIVITY_TICKS, activity_entries};
use sys::memory::Array;

/// The last reading of the kernel path's counters.
#[derive(Debug, Default)]
pub(crate) struct Ticks {
    entries: Vec<layout::Activity>,
    /// Counters that had changed in the last reading: they may have changed again in the same timer tick,
    /// which does not show.
    again: Vec<u32>,
}

impl Ticks {
    /// Lists those of the first `used` counters in which packets may have been counted since the last
    /// reading.
    pub(crate) fn changed(
        &mut self,
        used: u32,
        entry: impl Fn(u32) -> layout::Activity,
    ) -> BTreeSet<u32> {
        let mut changed: BTreeSet<u32> = std::mem::take(&mut self.again).into_iter().collect();
        let entries = activity_entries(used) as usize;
        self.entries
            .resize_with(entries.max(self.entries.len()), Default::default);
        for (index, seen) in (0..).zip(&mut self.entries) {
            let now = entry(index);
            if now == *seen {
                continue;
            }
            let ticks = (index * ACTIVITY_TICKS..).zip(now.ticks.iter().zip(&seen.ticks));
            let differing = ticks.filter(|(_, (now, seen))| now != seen);
            self.again.extend(differing.map(|(counter, _)| counter));
            *seen = now;
        }
        changed.extend(&self.again);
        changed
    }

    /// Returns whether a reading would list nothing.
    pub(crate) fn is_quiet(&self, used: u32, activity: &Array<layout::Activity>) -> bool {
        let entries = (0..).zip(&self.entries);
        let mut behind = self.entries.len() as u32..activity_entries(used);
        self.again.is_empty()
            && entries
                .into_iter()
                .all(|(index, seen)| activity.read(index) == *seen)
            && behind.all(|index| activity.read(index) == layout::Activity::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(counters: &[(u32, u32)]) -> impl Fn(u32) -> layout::Activity {
        let counters = counters.to_vec();
        move |index| {
            let mut entry = layout::Activity::default();
            for (counter, tick) in &counters {
                if counter / ACTIVITY_TICKS == index {
                    entry.ticks[(counter % ACTIVITY_TICKS) as usize] = *tick;
                }
            }
            entry
        }
    }

    #[test]
    fn a_changed_counter_is_listed_once_more_and_then_no_longer() {
        let mut seen = Ticks::default();
        let mut changed = |counters: &[(u32, u32)]| -> Vec<u32> {
            seen.changed(100, ticks(counters)).into_iter().collect()
        };
        assert!(changed(&[]).is_empty());
        assert_eq!(changed(&[(0, 7), (99, 7)]), [0, 99]);
        assert_eq!(changed(&[(0, 7), (17, 8), (99, 7)]), [0, 17, 99]);
        assert_eq!(changed(&[(0, 7), (17, 8), (99, 7)]), [17]);
        assert!(changed(&[(0, 7), (17, 8), (99, 7)]).is_empty());
        assert_eq!(changed(&[(0, 9), (17, 8), (99, 7)]), [0]);
    }

    #[test]
    fn counters_that_come_into_use_are_listed() {
        let mut seen = Ticks::default();
        assert!(seen.changed(1, ticks(&[])).is_empty());
        assert_eq!(seen.changed(40, ticks(&[(39, 1)])), BTreeSet::from([39]));
    }
}
