//! Watches the rings for a moment before the worker sleeps, if packets follow each other so closely
//! that it would be woken at once: waking up takes longer than relaying a packet.
//!
//! A worker whose packets come slowly sleeps at once, so it takes no more of its core than it needs. So
//! does one that watches in vain, because whatever would bring the packets needs the same core: the
//! more often that happened, the more rarely it watches.

/// Longest watch, and longest sleep that makes a watch worthwhile.
const WATCH_NS: u64 = 20_000;
/// Time between two readings of the clock in which another task must have had the core.
const GAP_NS: u64 = 20_000;
/// Short sleeps after which packets count as following each other closely.
const CLOSE: u32 = 4;
/// The same, after another task had the core: a task that is not woken gets it back at the next tick at best.
const HELD_OFF: u32 = 256;
/// The most short sleeps from one watch in vain to the next.
const SELDOM: u32 = 1024;

/// Decides when to watch, and when to sleep at once.
#[derive(Debug)]
pub(super) struct Spin {
    /// Short sleeps until the next watch.
    sleeps: u32,
    /// The same, after the next watch in vain.
    penalty: u32,
}

impl Default for Spin {
    fn default() -> Self {
        Self {
            sleeps: CLOSE,
            penalty: CLOSE,
        }
    }
}

impl Spin {
    /// Watches until `arrived` reports a packet, if one is to be expected soon; `false` if there is none and
    /// the worker is to sleep. `clock` returns nanoseconds.
    #[inline]
    pub(super) fn watch(
        &mut self,
        mut clock: impl FnMut() -> u64,
        mut arrived: impl FnMut() -> bool,
    ) -> bool {
        if self.sleeps > 0 {
            return false;
        }
        let begun_ns = clock();
        let mut before_ns = begun_ns;
        while !arrived() {
            let now_ns = clock();
            if now_ns.saturating_sub(before_ns) > GAP_NS {
                self.sleeps = HELD_OFF.max(self.penalty);
                return false;
            }
            if now_ns.saturating_sub(begun_ns) > WATCH_NS {
                self.sleeps = self.penalty;
                self.penalty = (2 * self.penalty).min(SELDOM);
                return false;
            }
            before_ns = now_ns;
            std::hint::spin_loop();
        }
        self.penalty = CLOSE;
        true
    }

    /// Records how long the worker slept.
    #[inline]
    pub(super) fn slept(&mut self, slept_ns: u64) {
        self.sleeps = if slept_ns > WATCH_NS {
            self.sleeps.max(CLOSE)
        } else {
            self.sleeps.saturating_sub(1)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch with a packet after `packet_ns`, on a clock that advances by `step_ns` at each reading; how
    /// long it took, and whether it saw the packet.
    fn watch(spin: &mut Spin, packet_ns: u64, step_ns: u64) -> (u64, bool) {
        let now_ns = std::cell::Cell::new(0);
        let clock = || now_ns.replace(now_ns.get() + step_ns);
        let has_arrived = spin.watch(clock, || now_ns.get() >= packet_ns);
        (now_ns.get(), has_arrived)
    }

    fn close() -> Spin {
        let mut spin = Spin::default();
        (0..CLOSE).for_each(|_| spin.slept(1000));
        spin
    }

    #[test]
    fn does_not_watch_where_packets_arrive_slowly() {
        let mut spin = Spin::default();
        assert_eq!(watch(&mut spin, 0, 100), (0, false), "at the start");
        for _ in 0..100 {
            spin.slept(WATCH_NS + 1);
            spin.slept(1000);
            assert_eq!(watch(&mut spin, 0, 100), (0, false));
        }
    }

    #[test]
    fn watches_where_they_follow_each_other_closely() {
        let mut spin = close();
        for _ in 0..100 {
            assert_eq!(watch(&mut spin, 15_000, 100), (15_000, true));
        }
    }

    #[test]
    fn a_watch_has_an_end() {
        let mut spin = close();
        let (took_ns, has_arrived) = watch(&mut spin, u64::MAX, 100);
        assert!(!has_arrived && took_ns <= WATCH_NS + 300, "{took_ns}");
        assert_eq!(watch(&mut spin, 0, 100), (0, false), "it sleeps then");
    }

    #[test]
    fn a_watch_ends_when_another_task_had_the_core() {
        let mut spin = close();
        let (took_ns, has_arrived) = watch(&mut spin, u64::MAX, GAP_NS + 1);
        assert!(!has_arrived && took_ns <= 2 * (GAP_NS + 1), "{took_ns}");
        let mut sleeps = 0;
        while !watch(&mut spin, 100, 100).1 {
            spin.slept(1000);
            sleeps += 1;
        }
        assert_eq!(sleeps, HELD_OFF);
    }

    #[test]
    fn watches_in_vain_become_rare_until_one_sees_a_packet() {
        let mut spin = close();
        let mut in_vain = 0;
        for _ in 0..100_000 {
            in_vain += u32::from(watch(&mut spin, u64::MAX, 100).0 > 0);
            spin.slept(1000);
        }
        assert!((100..120).contains(&in_vain), "{in_vain}");
        while !watch(&mut spin, 100, 100).1 {
            spin.slept(1000);
        }
        let _ = watch(&mut spin, u64::MAX, 100);
        (0..CLOSE).for_each(|_| spin.slept(1000));
        assert!(watch(&mut spin, 100, 100).1);
    }
}
