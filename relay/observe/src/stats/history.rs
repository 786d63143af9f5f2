//! Traffic and drops of the last hour, in steps of ten seconds. A ring has a fixed size, and only rules
//! with traffic have one; steps without traffic cost nothing until they are requested.

use std::ops::Range;

use api::reply::Steps;
use dataplane::counters::{Lost, Received, Traffic};

use crate::alarms;

/// Length of a step.
pub const STEP_SECONDS: u32 = 10;
const STEP_NS: u64 = STEP_SECONDS as u64 * 1_000_000_000;
/// Steps that can be requested: an hour of them.
pub const STEPS: u32 = 360;
/// Those, and the current one.
const SLOTS: usize = STEPS as usize + 1;

/// The history of one rule.
#[derive(Debug, Default)]
pub(super) struct TrafficHistory {
    ring: Option<Box<Ring>>,
    /// Packets that the rule and its outputs had dropped by the last reading.
    dropped: u64,
}

/// Traffic between two readings, and how much of it was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    packets: u64,
    bytes: u64,
    dropped: u64,
}

/// The time between two readings, relative to the first one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    from_ns: u64,
    to_ns: u64,
}

/// The steps of the last hour.
#[derive(Debug)]
pub(super) struct Ring {
    /// The latest step with traffic, counted from the first reading.
    newest: u64,
    received: Box<[StepTraffic]>,
    /// `None` if nothing was dropped.
    dropped: Option<Box<[u32]>>,
}

/// The traffic of a step, in 8 bytes: there may be ten thousand rules.
#[derive(Clone, Copy, Debug, Default)]
struct StepTraffic {
    packets: u32,
    bytes: f32,
}

impl TrafficHistory {
    /// Records a reading; returns the amount since the previous one, which had counted `before`.
    /// `adopted`: the first reading's counts are from before this history.
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
        // Counters that are less than before have restarted from zero.
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

    /// Whether nothing was ever received or dropped.
    pub(super) const fn is_empty(&self) -> bool {
        self.ring.is_none() && self.dropped == 0
    }

    /// The data of complete steps.
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

    /// The fraction `part / whole` of it.
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
    /// The time between two readings; the first reading of all was at `first_ns`.
    pub(super) const fn new(first_ns: u64, from_ns: u64, to_ns: u64) -> Self {
        Self {
            from_ns: from_ns.saturating_sub(first_ns),
            to_ns: to_ns.saturating_sub(first_ns),
        }
    }

    /// The steps that ended before its end, at most `steps`.
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
    /// Adds the amount of a span, distributed by time over the steps that it covers.
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
            self.add_received(
                step,
                until.packets - given.packets,
                until.bytes - given.bytes,
            );
            self.add_dropped(step, until.dropped - given.dropped);
            given = until;
        }
    }

    fn add_received(&mut self, step: u64, packets: u64, bytes: u64) {
        // The slots of the steps since the newest one hold data that is an hour old.
        let passed = (self.newest + 1..=step).take(SLOTS);
        for step in passed {
            self.received[slot(step)] = StepTraffic::default();
            if let Some(dropped) = &mut self.dropped {
                dropped[slot(step)] = 0;
            }
        }
        self.newest = self.newest.max(step);
        let received = &mut self.received[slot(step)];
        received.packets = received.packets.saturating_add(narrow(packets));
        received.bytes += bytes as f32;
    }

    fn add_dropped(&mut self, step: u64, packets: u64) {
        if packets > 0 {
            let none = || vec![0; SLOTS].into();
            let dropped = &mut self.dropped.get_or_insert_with(none)[slot(step)];
            *dropped = dropped.saturating_add(narrow(packets));
        }
    }

    pub(super) fn steps(&self, ended: Range<u64>) -> Steps {
        let received = |step: u64| {
            if self.has(step) {
                self.received[slot(step)]
            } else {
                StepTraffic::default()
            }
        };
        let dropped = |step: u64| match &self.dropped {
            Some(dropped) if self.has(step) => dropped[slot(step)],
            _ => 0,
        };
        Steps {
            packets: ended
                .clone()
                .map(|step| received(step).packets.into())
                .collect(),
            bytes: ended
                .clone()
                .map(|step| received(step).bytes as u64)
                .collect(),
            dropped: ended.map(|step| dropped(step).into()).collect(),
        }
    }

    const fn has(&self, step: u64) -> bool {
        step <= self.newest && self.newest - step < SLOTS as u64
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            newest: 0,
            received: vec![StepTraffic::default(); SLOTS].into(),
            dropped: None,
        }
    }
}

const fn slot(step: u64) -> usize {
    (step % SLOTS as u64) as usize
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
    fn history(sums: impl IntoIterator<Item = u64>) -> (TrafficHistory, Span) {
        let (mut history, mut before, mut at) = (TrafficHistory::default(), None, 0.0);
        for sum in sums {
            let counted = packets(sum);
            history.sample(reading(at, at + 0.5), before, &counted, before.is_none());
            (before, at) = (Some(counted.traffic), at + 0.5);
        }
        (history, reading(at - 0.5, at))
    }

    #[test]
    fn a_step_has_the_traffic_of_its_ten_seconds() {
        let (history, now) = history((0..=60).map(|reading| reading * 500));
        let steps = history.steps(now.ended(STEPS));
        // The counts of the first reading are from before.
        assert_eq!(steps.packets, [9_500, 10_000, 10_000]);
        assert_eq!(steps.bytes, [9_500_000, 10_000_000, 10_000_000]);
        assert_eq!(steps.dropped, [0, 0, 0]);
        assert_eq!(history.steps(now.ended(1)).packets, [10_000]);
    }

    #[test]
    fn traffic_across_a_steps_end_is_distributed_by_time() {
        let mut history = TrafficHistory::default();
        let before = Some(Traffic::default());
        let amount = history.sample(reading(9.0, 13.0), before, &lost(200, packets(1000)), false);
        assert_eq!(amount.dropped, 400);
        let steps = history.steps(reading(13.0, 20.0).ended(STEPS));
        assert_eq!(steps.packets, [250, 750]);
        assert_eq!(steps.dropped, [100, 300]);
        assert_eq!(steps.packets.iter().sum::<u64>(), amount.packets);
    }

    #[test]
    fn an_hour_is_retained_and_silence_is_zeros() {
        let mut history = TrafficHistory::default();
        history.sample(
            reading(1.0, 1.5),
            Some(Traffic::default()),
            &packets(7),
            false,
        );
        let before = Some(packets(7).traffic);
        history.sample(
            reading(3600.5, 3601.0),
            before,
            &lost(1, packets(10)),
            false,
        );
        let steps = history.steps(reading(3609.5, 3610.0).ended(STEPS));
        assert_eq!(steps.packets.len(), 360);
        assert_eq!((steps.packets[0], steps.packets[359]), (0, 3));
        assert_eq!(steps.packets.iter().sum::<u64>(), 3);
        let steps = history.steps(reading(3600.5, 3601.0).ended(STEPS));
        assert_eq!((steps.packets[0], steps.packets[359]), (7, 0));
        let steps = history.steps(reading(9000.0, 9000.5).ended(STEPS));
        assert_eq!(steps.packets.iter().sum::<u64>(), 0);
        // The ring goes round in silence as well.
        let before = Some(packets(10).traffic);
        history.sample(reading(9000.0, 9000.5), before, &packets(11), false);
        let steps = history.steps(reading(9010.0, 9010.0).ended(STEPS));
        assert_eq!(
            (steps.packets[359], steps.packets.iter().sum::<u64>()),
            (1, 1)
        );
    }

    #[test]
    fn counters_that_restart_count_from_zero() {
        let mut history = TrafficHistory::default();
        let sample = |history: &mut TrafficHistory, before, now, adopted| {
            history.sample(reading(0.0, 1.0), before, &now, adopted)
        };
        let before = |sum| Some(packets(sum).traffic);
        let new = sample(&mut history, None, lost(5, packets(100)), false);
        assert_eq!((new.packets, new.dropped), (100, 10));
        let new = sample(&mut history, before(100), lost(2, packets(30)), false);
        assert_eq!((new.packets, new.dropped), (30, 4));
        let mut fresh = TrafficHistory::default();
        let adopted = sample(&mut fresh, None, lost(5, packets(100)), true);
        assert_eq!(adopted, Amount::default());
    }

    #[test]
    fn memory_is_bounded_and_only_for_what_had_traffic() {
        assert!(size_of::<TrafficHistory>() <= 16);
        let quiet = history([0, 0, 0]).0;
        assert!(quiet.ring.is_none());
        let (busy, _) = history((0..100_000).map(|reading| reading * 10));
        let ring = busy.ring.unwrap();
        assert!(ring.dropped.is_none());
        let bytes = size_of::<Ring>() + size_of_val(&*ring.received);
        // The documents promise this.
        assert!(bytes <= 2_950, "{bytes}");
        assert!(bytes + SLOTS * size_of::<u32>() <= 4_400);
    }
}
