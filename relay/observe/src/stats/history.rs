//! What was received and dropped in the last hour, in steps of ten seconds. A ring has a fixed size,
//! and only what had traffic has one; steps in which nothing came cost nothing until somebody asks.

use std::ops::Range;

use api::reply::Steps;
use dataplane::counters::{Lost, Received, Traffic};

use crate::alarms;

/// Length of a step.
pub const STEP_SECONDS: u32 = 10;
const STEP_NS: u64 = STEP_SECONDS as u64 * 1_000_000_000;
/// Steps that can be asked for: an hour of them.
pub const STEPS: u32 = 360;
/// Those, and the one that goes on.
const KEPT: usize = STEPS as usize + 1;

/// The past of one rule.
#[derive(Debug, Default)]
pub(super) struct Past {
    ring: Option<Box<Ring>>,
    /// All that the rule and its outputs had dropped by the last reading.
    dropped: u64,
}

/// What came between two readings, and what of it was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    packets: u64,
    bytes: u64,
    dropped: u64,
}

/// The time between two readings, since the first one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    from_ns: u64,
    to_ns: u64,
}

/// The steps of the last hour.
#[derive(Debug)]
pub(super) struct Ring {
    /// The step that was added to last, counted since the first reading.
    newest: u64,
    came: Box<[Came]>,
    /// Only where anything was dropped.
    dropped: Option<Box<[u32]>>,
}

/// What came in a step, in 8 bytes: there may be ten thousand rules.
#[derive(Clone, Copy, Debug, Default)]
struct Came {
    packets: u32,
    bytes: f32,
}

impl Past {
    /// Takes in a reading; gives what came since the one before, which had counted `before`.
    /// `adopted`: what was counted until then is of another time.
    pub(super) fn sample(
        &mut self,
        span: Span,
        before: Option<Traffic>,
        counted: &Received,
        adopted: bool,
    ) -> Amount {
        let now = counted.traffic;
        let is_quiet = before.is_some_and(|before| before.packets == now.packets);
        if is_quiet && counted.lost.is_none() {
            return Amount::default();
        }
        let lost = counted.lost.as_deref().map_or(0, total);
        let lost_before = std::mem::replace(&mut self.dropped, lost);
        if before.is_none() && adopted {
            return Amount::default();
        }
        // Fewer than before: counters that began anew.
        let before = before.filter(|before| before.packets <= now.packets);
        let new = now.since(before.unwrap_or_default());
        let amount = Amount {
            packets: new.packets,
            bytes: new.bytes,
            dropped: lost.checked_sub(lost_before).unwrap_or(lost),
        };
        if amount != Amount::default() {
            self.ring.get_or_insert_default().add(span, amount);
        }
        amount
    }

    /// Whether nothing ever came and nothing was dropped.
    pub(super) const fn is_empty(&self) -> bool {
        self.ring.is_none() && self.dropped == 0
    }

    /// Steps that have ended.
    pub(super) fn steps(&self, ended: Range<u64>) -> Steps {
        match &self.ring {
            Some(ring) => ring.steps(ended),
            None => Ring::default().steps(ended),
        }
    }
}

fn total(lost: &Lost) -> u64 {
    let outputs = lost.outputs.values().map(|output| &output.dropped);
    alarms::lost([&lost.dropped].into_iter().chain(outputs))
}

impl Amount {
    pub(super) const fn add(&mut self, other: Self) {
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.dropped = self.dropped.saturating_add(other.dropped);
    }

    /// So much of it as `part` is of `whole`.
    fn share(self, part: u64, whole: u64) -> Self {
        let share = |n: u64| (u128::from(n) * u128::from(part) / u128::from(whole.max(1))) as u64;
        Self {
            packets: share(self.packets),
            bytes: share(self.bytes),
            dropped: share(self.dropped),
        }
    }
}

impl Span {
    /// The time between two readings, where the first one was then.
    pub(super) const fn new(first_ns: u64, from_ns: u64, to_ns: u64) -> Self {
        Self {
            from_ns: from_ns.saturating_sub(first_ns),
            to_ns: to_ns.saturating_sub(first_ns),
        }
    }

    /// The steps that ended before its end, but no more than so many.
    pub(super) fn ended(self, steps: u32) -> Range<u64> {
        let now = self.to_ns / STEP_NS;
        now.saturating_sub(u64::from(steps.min(STEPS)))..now
    }

    /// When the last of them ended.
    pub(super) const fn until_ns(self) -> u64 {
        self.to_ns / STEP_NS * STEP_NS
    }
}

impl Ring {
    /// Adds what came within a time, to each step that it falls into as much of it as of the time.
    pub(super) fn add(&mut self, span: Span, amount: Amount) {
        let whole = span.to_ns.saturating_sub(span.from_ns);
        let last = span.to_ns.saturating_sub(1) / STEP_NS;
        let first = (span.from_ns / STEP_NS).clamp(last.saturating_sub(STEPS.into()), last);
        let mut given = Amount::default();
        for step in first..=last {
            let until = if step == last {
                amount
            } else {
                amount.share((step + 1) * STEP_NS - span.from_ns, whole)
            };
            self.add_to(
                step,
                until.packets - given.packets,
                until.bytes - given.bytes,
            );
            self.drop_in(step, until.dropped - given.dropped);
            given = until;
        }
    }

    fn add_to(&mut self, step: u64, packets: u64, bytes: u64) {
        // What the steps since the newest one held is an hour old.
        let passed = (self.newest + 1..=step).take(KEPT);
        for step in passed {
            self.came[place(step)] = Came::default();
            if let Some(dropped) = &mut self.dropped {
                dropped[place(step)] = 0;
            }
        }
        self.newest = self.newest.max(step);
        let came = &mut self.came[place(step)];
        came.packets = came.packets.saturating_add(narrow(packets));
        came.bytes += bytes as f32;
    }

    fn drop_in(&mut self, step: u64, packets: u64) {
        if packets > 0 {
            let none = || vec![0; KEPT].into();
            let dropped = &mut self.dropped.get_or_insert_with(none)[place(step)];
            *dropped = dropped.saturating_add(narrow(packets));
        }
    }

    pub(super) fn steps(&self, ended: Range<u64>) -> Steps {
        let came = |step: u64| {
            if self.has(step) {
                self.came[place(step)]
            } else {
                Came::default()
            }
        };
        let dropped = |step: u64| match &self.dropped {
            Some(dropped) if self.has(step) => dropped[place(step)],
            _ => 0,
        };
        Steps {
            packets: ended
                .clone()
                .map(|step| came(step).packets.into())
                .collect(),
            bytes: ended.clone().map(|step| came(step).bytes as u64).collect(),
            dropped: ended.map(|step| dropped(step).into()).collect(),
        }
    }

    const fn has(&self, step: u64) -> bool {
        step <= self.newest && self.newest - step < KEPT as u64
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            newest: 0,
            came: vec![Came::default(); KEPT].into(),
            dropped: None,
        }
    }
}

const fn place(step: u64) -> usize {
    (step % KEPT as u64) as usize
}

fn narrow(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn reading(from: f64, to: f64) -> Span {
        let ns = |seconds: f64| (seconds * SECOND_NS as f64) as u64;
        Span::new(0, ns(from), ns(to))
    }

    fn packets(packets: u64) -> Received {
        Received {
            traffic: Traffic::new(packets, packets * 1000),
            ..Received::default()
        }
    }

    fn lost(packets: u64, mut counted: Received) -> Received {
        let mut drops = dataplane::counters::Drops::default();
        drops.0[0] = packets;
        counted.add_dropped(&drops);
        counted.add_output(0, Traffic::default(), &drops);
        counted
    }

    /// A past after readings of these sums, each half a second after the one before.
    fn past(sums: impl IntoIterator<Item = u64>) -> (Past, Span) {
        let (mut past, mut before, mut at) = (Past::default(), None, 0.0);
        for sum in sums {
            let counted = packets(sum);
            past.sample(reading(at, at + 0.5), before, &counted, before.is_none());
            (before, at) = (Some(counted.traffic), at + 0.5);
        }
        (past, reading(at - 0.5, at))
    }

    #[test]
    fn a_step_has_what_came_in_its_ten_seconds() {
        let (past, now) = past((0..=60).map(|reading| reading * 500));
        let steps = past.steps(now.ended(STEPS));
        // What the first reading counted had come before.
        assert_eq!(steps.packets, [9_500, 10_000, 10_000]);
        assert_eq!(steps.bytes, [9_500_000, 10_000_000, 10_000_000]);
        assert_eq!(steps.dropped, [0, 0, 0]);
        assert_eq!(past.steps(now.ended(1)).packets, [10_000]);
    }

    #[test]
    fn what_comes_around_a_steps_end_is_shared_by_time() {
        let mut past = Past::default();
        let came = Some(Traffic::default());
        let amount = past.sample(reading(9.0, 13.0), came, &lost(200, packets(1000)), false);
        assert_eq!(amount.dropped, 400);
        let steps = past.steps(reading(13.0, 20.0).ended(STEPS));
        assert_eq!(steps.packets, [250, 750]);
        assert_eq!(steps.dropped, [100, 300]);
        assert_eq!(steps.packets.iter().sum::<u64>(), amount.packets);
    }

    #[test]
    fn an_hour_is_kept_and_silence_is_zeros() {
        let mut past = Past::default();
        past.sample(
            reading(1.0, 1.5),
            Some(Traffic::default()),
            &packets(7),
            false,
        );
        let before = Some(packets(7).traffic);
        past.sample(
            reading(3600.5, 3601.0),
            before,
            &lost(1, packets(10)),
            false,
        );
        let steps = past.steps(reading(3609.5, 3610.0).ended(STEPS));
        assert_eq!(steps.packets.len(), 360);
        assert_eq!((steps.packets[0], steps.packets[359]), (0, 3));
        assert_eq!(steps.packets.iter().sum::<u64>(), 3);
        let steps = past.steps(reading(3600.5, 3601.0).ended(STEPS));
        assert_eq!((steps.packets[0], steps.packets[359]), (7, 0));
        let steps = past.steps(reading(9000.0, 9000.5).ended(STEPS));
        assert_eq!(steps.packets.iter().sum::<u64>(), 0);
        // The ring goes round in silence as well.
        let before = Some(packets(10).traffic);
        past.sample(reading(9000.0, 9000.5), before, &packets(11), false);
        let steps = past.steps(reading(9010.0, 9010.0).ended(STEPS));
        assert_eq!(
            (steps.packets[359], steps.packets.iter().sum::<u64>()),
            (1, 1)
        );
    }

    #[test]
    fn counters_that_begin_anew_count_from_zero() {
        let mut past = Past::default();
        let sample = |past: &mut Past, before, now, adopted| {
            past.sample(reading(0.0, 1.0), before, &now, adopted)
        };
        let before = |sum| Some(packets(sum).traffic);
        let new = sample(&mut past, None, lost(5, packets(100)), false);
        assert_eq!((new.packets, new.dropped), (100, 10));
        let new = sample(&mut past, before(100), lost(2, packets(30)), false);
        assert_eq!((new.packets, new.dropped), (30, 4));
        let adopted = sample(&mut Past::default(), None, lost(5, packets(100)), true);
        assert_eq!(adopted, Amount::default());
    }

    #[test]
    fn memory_is_bounded_and_only_for_what_had_traffic() {
        assert!(size_of::<Past>() <= 16);
        let quiet = past([0, 0, 0]).0;
        assert!(quiet.ring.is_none());
        let (busy, _) = past((0..100_000).map(|reading| reading * 10));
        let ring = busy.ring.unwrap();
        assert!(ring.dropped.is_none());
        let bytes = size_of::<Ring>() + size_of_val(&*ring.came);
        // As the documents say.
        assert!(bytes <= 2_950, "{bytes}");
        assert!(bytes + KEPT * size_of::<u32>() <= 4_400);
    }
}
