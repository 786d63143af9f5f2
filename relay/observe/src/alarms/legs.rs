//! The legs of failover and merge rules: which one is relayed, and which are silent, lose packets, lag or
//! carry another stream. Drops because another leg was first are expected and not reported.

mod rows;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use api::reply::Event;
use dataplane::counters::{LineStats, LinesSeen, Received};
use rules::failover::On;
use rules::health::{DEFAULT_SILENCE, Silence};
use rules::rule::Rule;

use super::quality::Quality;
use super::{Alarms, Edge, Pauses, Report, SECOND_NS, grown, nanoseconds, silence};
use crate::events::event;
use crate::events::kind::{INPUT_SWITCHED, STREAM_RESTARTED};
pub(super) use rows::ROWS;
use rows::{EPOCH_NS, Reading};

/// Shortest silence that is reported: the counters are read twice a second.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// The state of a rule's legs.
#[derive(Debug, Default)]
pub(crate) struct Legs {
    legs: BTreeMap<String, Leg>,
    /// Under failover, the relayed leg and the number of switches.
    active: Option<String>,
    changes: u64,
    /// Their quality, if the rule fails over for quality too.
    quality: Quality,
    /// Under merge, the streams begun by the last reading; `None` before the first.
    streams: Option<u64>,
}

#[derive(Debug)]
struct Leg {
    /// When its last packet arrived, or when it was first read.
    last_ns: u64,
    /// When it was last read.
    read_ns: u64,
    /// Only of merged legs.
    pauses: Pauses,
    counts: LineStats,
    epoch: Epoch,
    reading: Reading,
    /// By the index of their row.
    alarms: Alarms<usize>,
}

/// Since when losses are counted, and the counters at that time.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    since_ns: u64,
    missed: u64,
    numbers: u64,
}

impl Legs {
    /// Whether a rule has legs and these counters cover them.
    pub(crate) const fn has(rule: &Rule, counted: &Received) -> bool {
        let has_failover = rule.failover.is_some() && counted.lines.is_some();
        let has_merge = rule.merge.is_some() && counted.merge.is_some();
        rule.enabled && (has_failover || has_merge)
    }

    /// Records a reading. Counts before the first reading are not reported, nor, if it is `adopted`, are
    /// switches.
    pub(crate) fn sample(
        &mut self,
        now_ns: u64,
        rule: &Rule,
        counted: &Received,
        adopted: bool,
    ) -> Vec<Event> {
        let mut reports: Vec<(Option<String>, Report)> = Vec::new();
        if let (Some(failover), Some(seen)) = (&rule.failover, &counted.lines) {
            let switched = self.switched(seen).filter(|_| !adopted);
            reports.extend(switched.map(|switched| (None, switched)));
            let traffic = seen.came.iter();
            let legs = traffic.map(|(at, of_leg)| (at, of_leg.last_ns, LineStats::default()));
            let limits = Reading {
                silence: Silence::After(failover.silence.max(SILENCE_MIN)),
                window_ns: u64::MAX,
                ..Reading::default()
            };
            reports.extend(self.judge(now_ns, legs.collect(), limits));
        }
        if let (Some(merge), Some(seen)) = (&rule.merge, &counted.merge) {
            let counters = seen.counters.lines.iter();
            let last_ns = |at| seen.last_ns.get(at).copied().unwrap_or_default();
            let legs = counters.map(|(at, counts)| (at, last_ns(at), *counts));
            let health = rule.health.as_ref();
            let streams = seen.counters.together.streams;
            let before = self.streams.replace(streams);
            let limits = Reading {
                silence: health.map_or(Silence::After(DEFAULT_SILENCE), |health| health.silence),
                window_ns: nanoseconds(merge.window),
                // The first packet of each stream was held back until a second confirmed it.
                stray: streams.saturating_sub(before.unwrap_or(streams)),
                ..Reading::default()
            };
            reports.extend(self.judge(now_ns, legs.collect(), limits));
            let restarted = restarted(before, streams);
            reports.extend(restarted.map(|restarted| (None, restarted)));
        }
        let name = &rule.name;
        let events = reports.into_iter().map(|(part, (kind, what))| Event {
            part,
            ..event(kind, name, format!("rule {name:?}: {what}"))
        });
        events.collect()
    }

    /// The leg to switch to, if the quality of the relayed one calls for it.
    pub(crate) fn switch_for_quality(
        &mut self,
        now_ns: u64,
        rule: &Rule,
        counted: &Received,
    ) -> Option<String> {
        if rule
            .failover
            .is_none_or(|failover| failover.on != On::Degraded)
        {
            self.quality = Quality::default();
            return None;
        }
        let seen = counted.lines.as_ref()?;
        let inspected = counted.health.as_deref();
        let switch = self.quality.sample(now_ns, rule, seen, inspected)?;
        Some(switch.to)
    }

    /// The legs in trouble, each with a phrase that follows the leg's name.
    pub(crate) fn troubles(&self) -> Vec<(String, String)> {
        let trouble = |leg: &Leg| {
            let (row, standing) = leg.alarms.standing().next()?;
            ROWS[row].stands.map(|words| words(&leg.reading, standing))
        };
        let troubles = self
            .legs
            .iter()
            .filter_map(|(at, leg)| Some((at.clone(), trouble(leg)?)));
        troubles.collect()
    }

    /// Whether they are merged and all silent.
    pub(crate) fn none_delivers(&self) -> bool {
        let mut legs = self.legs.values();
        let are_silent = legs.all(|leg| leg.reading.silent_ns.is_some());
        self.streams.is_some() && !self.legs.is_empty() && are_silent
    }

    fn switched(&mut self, seen: &LinesSeen) -> Option<Report> {
        let to = &seen.active;
        let from = self.active.replace(to.clone());
        // If the relayed leg is removed, nothing is switched.
        if seen.changes <= mem::replace(&mut self.changes, seen.changes) {
            return None;
        }
        let mut message = format!("input {to} is relayed now");
        if let Some(from) = from.filter(|from| from != to) {
            message += &format!(", {from} was");
        }
        if let Some(why) = self.quality.why(to) {
            message += &format!(": {why}");
        }
        Some((INPUT_SWITCHED, message))
    }

    /// Judges the legs by `limits`; a reading has the time of the leg's last packet and its counters.
    /// Legs without a reading have been removed.
    fn judge(
        &mut self,
        now_ns: u64,
        readings: Vec<(&String, u64, LineStats)>,
        limits: Reading,
    ) -> Vec<(Option<String>, Report)> {
        let mut reports = Vec::new();
        // All legs together: each number arrives first by exactly one of them.
        let first = readings.iter().map(|(_, _, counts)| counts.first);
        let numbers = first.fold(0, u64::wrapping_add);
        let mut before = mem::take(&mut self.legs);
        for (at, last_ns, counts) in readings {
            let new = || (at.clone(), Leg::new(now_ns, counts, numbers));
            let (at, mut leg) = before.remove_entry(at).unwrap_or_else(new);
            leg.record(now_ns, last_ns, counts, (numbers, limits));
            for (kind, what) in leg.judge(now_ns) {
                reports.push((Some(at.clone()), (kind, format!("input {at} {what}"))));
            }
            self.legs.insert(at, leg);
        }
        reports
    }
}

/// The report of a stream that began where another was merged before.
fn restarted(before: Option<u64>, streams: u64) -> Option<Report> {
    (1..streams).contains(&before?).then(|| {
        let text = format!(
            "a stream began: another source or session, or numbers that do not go on; {streams} so far"
        );
        (STREAM_RESTARTED, text)
    })
}

impl Leg {
    fn new(now_ns: u64, counts: LineStats, numbers: u64) -> Self {
        Self {
            last_ns: now_ns,
            read_ns: now_ns,
            pauses: Pauses::default(),
            counts,
            epoch: Epoch::new(now_ns, counts.missed, numbers),
            reading: Reading::default(),
            alarms: Alarms::default(),
        }
    }

    fn record(
        &mut self,
        now_ns: u64,
        last_ns: u64,
        counts: LineStats,
        (numbers, limits): (u64, Reading),
    ) {
        let before = mem::replace(&mut self.counts, counts);
        let arrived = counts.brought().saturating_sub(before.brought());
        let read_ns = mem::replace(&mut self.read_ns, now_ns);
        self.pauses.note(arrived, last_ns, (read_ns, self.last_ns));
        self.last_ns = self.last_ns.max(last_ns);
        let longest_ns = self.pauses.longest_ns(limits.silence);
        let age_ns = now_ns.saturating_sub(self.epoch.since_ns);
        let repeated = grown(counts.repeated, before.repeated);
        let has_new = arrived > repeated;
        self.reading = Reading {
            silent_ns: longest_ns.and_then(|most_ns| silence(now_ns, self.last_ns, most_ns)),
            late: grown(counts.late, before.late),
            stray: grown(counts.stray, before.stray).saturating_sub(limits.stray),
            still: grown(counts.still, before.still),
            exceeded: grown(counts.exceeded, before.exceeded),
            cut: grown(counts.differently_cut, before.differently_cut),
            repeated: if has_new {
                0
            } else {
                self.reading.repeated + repeated
            },
            ..limits
        };
        // Silence explains everything that a silent leg misses.
        if self.reading.silent_ns.is_none() {
            self.reading.skew_ns = counts.skew_seconds.ns;
            // Numbers still in flight weigh the same at the beginning and at the end.
            self.reading.of = numbers.saturating_sub(self.epoch.numbers);
            if age_ns >= SECOND_NS {
                self.reading.missed = counts.missed.saturating_sub(self.epoch.missed);
            }
        }
        if age_ns >= EPOCH_NS {
            self.epoch = Epoch::new(now_ns, counts.missed, numbers);
        }
    }

    fn judge(&mut self, now_ns: u64) -> Vec<Report> {
        let reading = &self.reading;
        let levels = ROWS.iter().map(|row| (row.condition)(reading)).enumerate();
        let edges = self.alarms.sample(now_ns, levels).into_iter();
        // While a leg is silent, the end of its other alarms is not reported.
        let is_reported = |edge: &Edge| *edge == Edge::Begins || reading.silent_ns.is_none();
        let reported = edges.filter(|(_, edge)| is_reported(edge));
        reported
            .filter_map(|(row, edge)| ROWS[row].report(reading, &edge))
            .collect()
    }
}

impl Epoch {
    const fn new(since_ns: u64, missed: u64, numbers: u64) -> Self {
        Self {
            since_ns,
            missed,
            numbers,
        }
    }
}
