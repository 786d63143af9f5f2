//! Failover: which of several legs passes, the active one until it falls silent. The packets themselves decide,
//! so no process has to watch: a packet of a standby leg makes its own leg active, by one compare-and-swap of
//! a word that all share. `bpf/src/relay/failover.h` does the same.
//!
//! A standby leg takes over when the active one has been silent for `silence` *and* it has itself delivered for
//! as long: so when all begin at once, or begin again, the active one is waited for. Of several that could
//! take over, the first does.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds that the recorded time of a leg's last packet may lag behind: a word that all read is not written
/// for each packet. A silence is that much longer, never shorter.
pub const GRAIN_NS: u64 = 1 << 16;

/// Bits of [`Choice::active`] that name the leg.
const NAME_BITS: u32 = 24;
/// Unit of the time above them: 2^20 ns, a good millisecond.
const TIME_SHIFT: u32 = 20;

/// When another leg takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failover<'a> {
    /// Time without a packet of the active leg, in nanoseconds.
    pub silence_ns: u64,
    /// How long a leg before the active one must deliver to take over again, in nanoseconds; 0 for never.
    pub revert_ns: u64,
    /// The legs' names, below 2^24 - 1, the preferred first.
    pub lines: &'a [u32],
}

/// When the packets of a leg arrived, in nanoseconds of the clock that the decision uses.
#[derive(Debug, Default)]
pub struct Line {
    /// The last, or at most [`GRAIN_NS`] before it; 0 if none arrived.
    pub last_ns: AtomicU64,
    /// The first since its last silence.
    pub since_ns: AtomicU64,
}

/// Which leg passes, and how often another has taken over.
#[derive(Debug, Default)]
pub struct Choice {
    /// Name plus one, and above it when it took over; 0 if none did.
    pub active: AtomicU64,
    /// Times another leg took over.
    pub changes: AtomicU64,
}

/// The words of a [`Choice`] or of a [`Line`] in memory.
pub type Pair = [AtomicU64; 2];

impl Failover<'_> {
    /// Returns whether a packet of leg `name` that arrives at `now_ns` passes. `line` returns the words of a leg:
    /// `last_ns`, `since_ns`; `choice` are `active` and `changes`.
    #[inline]
    pub fn passes<'m>(
        &self,
        name: u32,
        now_ns: u64,
        [active, changes]: &Pair,
        line: impl Fn(u32) -> Option<&'m Pair>,
    ) -> bool {
        let Some(own) = line(name) else {
            return true;
        };
        let since_ns = self.note(own, now_ns);
        let before = active.load(Ordering::Relaxed);
        if active_of(before) == Some(name) {
            return true;
        }
        if !self.takes_over(name, (since_ns, now_ns), active_of(before), line) {
            return false;
        }
        let order = Ordering::Relaxed;
        match active.compare_exchange(before, choice(name, now_ns), order, order) {
            Ok(_) => {
                changes.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(other) => active_of(other) == Some(name),
        }
    }

    /// Notes a packet of a leg; returns since when it has delivered.
    #[inline]
    fn note(&self, [last, since]: &Pair, now_ns: u64) -> u64 {
        let last_ns = last.load(Ordering::Relaxed);
        if self.is_silent(last_ns, now_ns) {
            since.store(now_ns, Ordering::Relaxed);
        }
        if ahead(now_ns, last_ns) > GRAIN_NS as i64 {
            last.store(now_ns, Ordering::Relaxed);
        }
        since.load(Ordering::Relaxed)
    }

    fn takes_over<'m>(
        &self,
        name: u32,
        (since_ns, now_ns): (u64, u64),
        active: Option<u32>,
        line: impl Fn(u32) -> Option<&'m Pair>,
    ) -> bool {
        let lasted = |since_ns, time: u64| ahead(now_ns, since_ns) >= time as i64;
        let is_silent = |[last, _]: &Pair| self.is_silent(last.load(Ordering::Relaxed), now_ns);
        let Some(rank) = self.lines.iter().position(|line| *line == name) else {
            return false;
        };
        let (earlier, later) = self.lines.split_at(rank);
        let active_line = active.and_then(&line);
        if !active_line.is_none_or(is_silent) {
            let is_preferred = active.is_some_and(|active| later.contains(&active));
            return is_preferred && self.revert_ns > 0 && lasted(since_ns, self.revert_ns);
        }
        let could = |other: &u32| {
            let other = line(*other).filter(|_| Some(*other) != active);
            other.is_some_and(|other| {
                let since_ns = other[1].load(Ordering::Relaxed);
                !is_silent(other) && lasted(since_ns, self.silence_ns)
            })
        };
        lasted(since_ns, self.silence_ns) && !earlier.iter().any(could)
    }

    /// Returns whether a leg whose last packet arrived at `last_ns` is silent by now.
    #[inline]
    pub const fn is_silent(&self, last_ns: u64, now_ns: u64) -> bool {
        ahead(now_ns, last_ns) > (self.silence_ns + GRAIN_NS) as i64
    }
}

/// How much later `a` is than `b`: the clocks of CPUs and batches may differ, so it may be negative.
const fn ahead(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b).cast_signed()
}

/// The leg that a word of [`Choice::active`] names.
#[inline]
pub const fn active_of(word: u64) -> Option<u32> {
    ((word & ((1 << NAME_BITS) - 1)) as u32).checked_sub(1)
}

/// When the leg that the word names took over, in nanoseconds, a good millisecond exact.
pub const fn since_ns(word: u64) -> u64 {
    word >> NAME_BITS << TIME_SHIFT
}

/// The word of a leg that took over.
#[inline]
pub const fn choice(name: u32, now_ns: u64) -> u64 {
    now_ns >> TIME_SHIFT << NAME_BITS | (name as u64 + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;
    const START: u64 = 5_000 * MS;

    struct Rule {
        lines: Vec<u32>,
        silence_ns: u64,
        revert_ns: u64,
        choice: Pair,
        state: Vec<Pair>,
    }

    impl Rule {
        /// Legs 0, 1 and so on, the first of them active as of the start.
        fn new(lines: u32, silence_ms: u64, revert_ms: u64) -> Self {
            let state: Vec<Pair> = (0..lines).map(|_| Pair::default()).collect();
            let active = choice(0, START);
            if let Some([last, since]) = state.first() {
                last.store(START, Ordering::Relaxed);
                since.store(START, Ordering::Relaxed);
            }
            Self {
                lines: (0..lines).collect(),
                silence_ns: silence_ms * MS,
                revert_ns: revert_ms * MS,
                choice: [AtomicU64::new(active), AtomicU64::new(0)],
                state,
            }
        }

        fn passes(&self, line: u32, at_ns: u64) -> bool {
            let failover = Failover {
                silence_ns: self.silence_ns,
                revert_ns: self.revert_ns,
                lines: &self.lines,
            };
            let state = |name: u32| self.state.get(name as usize);
            failover.passes(line, START + at_ns, &self.choice, state)
        }

        /// The milliseconds of `span` in which a leg passes, with a packet of each of `sends` in each.
        fn run(&self, span: std::ops::Range<u64>, sends: &[u32]) -> Vec<(u64, u32)> {
            let mut passed = Vec::new();
            for ms in span {
                for line in sends {
                    if self.passes(*line, ms * MS) {
                        passed.push((ms, *line));
                    }
                }
            }
            passed
        }

        fn changes(&self) -> u64 {
            self.choice[1].load(Ordering::Relaxed)
        }
    }

    fn lines_of(passed: &[(u64, u32)]) -> Vec<u32> {
        let mut lines: Vec<u32> = passed.iter().map(|(_, line)| *line).collect();
        lines.dedup();
        lines
    }

    #[test]
    fn the_next_line_takes_over_after_the_silence_and_stays() {
        let rule = Rule::new(2, 100, 0);
        assert_eq!(lines_of(&rule.run(0..500, &[0, 1])), [0]);
        let passed = rule.run(500..1000, &[1]);
        assert_eq!(
            passed.first(),
            Some(&(600, 1)),
            "499 was the last, 100 ms on"
        );
        assert_eq!(lines_of(&rule.run(1000..5000, &[0, 1])), [1]);
        assert_eq!(rule.changes(), 1);
    }

    #[test]
    fn the_first_line_takes_over_again_once_it_has_been_steady_long_enough() {
        let rule = Rule::new(2, 100, 1000);
        rule.run(0..500, &[0, 1]);
        rule.run(500..1000, &[1]);
        let passed = rule.run(1000..3000, &[0, 1]);
        let back = passed.iter().find(|(_, line)| *line == 0);
        assert_eq!(back, Some(&(2000, 0)));
        assert_eq!(lines_of(&passed), [1, 0]);
    }

    #[test]
    fn a_line_that_flaps_does_not_take_over_again() {
        let rule = Rule::new(2, 100, 1000);
        rule.run(0..500, &[0, 1]);
        rule.run(500..1000, &[1]);
        for flap in 0..20 {
            let from = 1000 + flap * 1200;
            assert_eq!(lines_of(&rule.run(from..from + 900, &[0, 1])), [1]);
            assert_eq!(lines_of(&rule.run(from + 900..from + 1200, &[1])), [1]);
        }
        assert_eq!(rule.changes(), 1);
    }

    #[test]
    fn of_lines_that_begin_together_the_first_passes_whichever_was_quicker() {
        let rule = Rule::new(3, 100, 0);
        // All were silent for long; then leg 2 is the first to deliver.
        assert!(!rule.passes(2, 60_000 * MS));
        assert!(rule.passes(0, 60_001 * MS));
        assert!(!rule.passes(1, 60_002 * MS));
        assert_eq!(rule.changes(), 0);
    }

    #[test]
    fn the_first_of_those_that_could_takes_over() {
        let rule = Rule::new(3, 100, 0);
        rule.run(0..500, &[0, 1, 2]);
        assert_eq!(lines_of(&rule.run(500..1000, &[2, 1])), [1]);
        assert_eq!(lines_of(&rule.run(1000..2000, &[2])), [2]);
        assert_eq!(rule.changes(), 2);
    }

    #[test]
    fn a_standby_alone_from_the_start_passes_after_the_silence() {
        let rule = Rule::new(2, 100, 0);
        assert_eq!(rule.run(0..500, &[1]).first(), Some(&(101, 1)));
    }

    #[test]
    fn clocks_a_little_apart_do_no_harm() {
        let rule = Rule::new(2, 1, 0);
        assert!(rule.passes(0, 10 * MS));
        assert!(!rule.passes(1, 10 * MS - 50_000));
        assert!(rule.passes(0, 10 * MS - 30_000));
        assert!(!rule.passes(1, 10 * MS + 900_000));
        assert_eq!(rule.changes(), 0);
    }

    #[test]
    fn the_word_holds_the_leg_and_its_time() {
        let word = choice(81_919, 3 << 40);
        assert_eq!(active_of(word), Some(81_919));
        assert_eq!(since_ns(word), 3 << 40);
        assert_eq!(active_of(0), None);
    }

    proptest! {
        /// Whatever comes: one leg passes at a time, another only after the silence or the wait of
        /// the way back, and never longer than both of a leg's own silence and the time to be
        /// trusted is nothing passed of a leg that delivers.
        #[test]
        fn one_line_passes_at_a_time(
            silence_ms in 1_u64..50,
            revert_ms in prop_oneof![Just(0_u64), 50_u64..200],
            gaps in proptest::collection::vec((0_u32..3, 0_u64..30_000), 1..400),
        ) {
            let rule = Rule::new(3, silence_ms, revert_ms);
            let (mut now_us, mut last_pass, mut active) = (0, 0, 0);
            let mut last = [None::<u64>; 3];
            // Since when each has delivered, at the latest and at the earliest: the last packet is known
            // to a grain.
            let (mut since, mut earliest) = ([0; 3], [0; 3]);
            for (line, gap_us) in gaps {
                now_us += gap_us;
                let (now, at) = (now_us * 1000, line as usize);
                if last[at].is_none_or(|last| now - last > silence_ms * MS) {
                    since[at] = now;
                }
                let surely_silent = silence_ms * MS + GRAIN_NS;
                if last[at].is_none_or(|last| now - last > surely_silent) {
                    earliest[at] = now;
                }
                last[at] = Some(now);
                if rule.passes(line, now) {
                    if line != active {
                        let waited = now - last_pass >= silence_ms * MS;
                        let is_back = line < active && revert_ms > 0
                            && now - earliest[at] >= revert_ms * MS;
                        prop_assert!(waited || is_back);
                    }
                    (active, last_pass) = (line, now);
                } else {
                    // It is not trusted yet, or the active leg, or one before it, is there.
                    let grace = silence_ms * MS + GRAIN_NS;
                    let others = (0..3).filter(|other| *other != at);
                    let alone = others.clone().all(|other| {
                        last[other].is_none_or(|last| now - last > grace) && now > grace
                    });
                    prop_assert!(!(alone && now - since[at] > 2 * grace));
                }
            }
        }
    }
}
