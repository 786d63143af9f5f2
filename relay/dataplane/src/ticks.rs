//! Which of the kernel path's counters changed since the last reading.

use std::collections::BTreeSet;

use bpf::layout::{self, ACTIVITY_TICKS, activity_entries};
use sys::memory::Array;

/// What has been seen of the kernel path's counters.
#[derive(Debug, Default)]
pub(crate) struct Ticks {
    entries: Vec<layout::Activity>,
    /// Counters that had been counted in the last time: in the same timer tick they may have been
    /// once more, which does not show.
    again: Vec<u32>,
}

impl Ticks {
    /// Lists those of the first `used` counters in which packets may have been counted since the last
    /// look.
    pub(crate) fn look(
        &mut self,
        used: u32,
        entry: impl Fn(u32) -> layout::Activity,
    ) -> BTreeSet<u32> {
        let mut touched: BTreeSet<u32> = std::mem::take(&mut self.again).into_iter().collect();
        let entries = activity_entries(used) as usize;
        self.entries
            .resize_with(entries.max(self.entries.len()), Default::default);
        for (index, seen) in (0..).zip(&mut self.entries) {
            let now = entry(index);
            if now == *seen {
                continue;
            }
            let ticks = (index * ACTIVITY_TICKS..).zip(now.ticks.iter().zip(&seen.ticks));
            let changed = ticks.filter(|(_, (now, seen))| now != seen);
            self.again.extend(changed.map(|(counter, _)| counter));
            *seen = now;
        }
        touched.extend(&self.again);
        touched
    }

    /// Says whether a look would find nothing.
    pub(crate) fn is_quiet(&self, used: u32, activity: &Array<layout::Activity>) -> bool {
        let looked_at = (0..).zip(&self.entries);
        let mut behind = self.entries.len() as u32..activity_entries(used);
        self.again.is_empty()
            && looked_at
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
    fn what_was_counted_is_looked_at_once_more_and_then_left() {
        let mut seen = Ticks::default();
        let mut look = |counters: &[(u32, u32)]| {
            let touched = seen.look(100, ticks(counters));
            touched.into_iter().collect::<Vec<_>>()
        };
        assert!(look(&[]).is_empty());
        assert_eq!(look(&[(0, 7), (99, 7)]), [0, 99]);
        assert_eq!(look(&[(0, 7), (17, 8), (99, 7)]), [0, 17, 99]);
        assert_eq!(look(&[(0, 7), (17, 8), (99, 7)]), [17]);
        assert!(look(&[(0, 7), (17, 8), (99, 7)]).is_empty());
        assert_eq!(look(&[(0, 9), (17, 8), (99, 7)]), [0]);
    }

    #[test]
    fn counters_that_come_into_use_are_looked_at() {
        let mut seen = Ticks::default();
        assert!(seen.look(1, ticks(&[])).is_empty());
        assert_eq!(seen.look(40, ticks(&[(39, 1)])), BTreeSet::from([39]));
    }
}
