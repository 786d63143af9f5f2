//! The legs of failover and merge rules: which is relayed, and which are silent, lose, lag or bring
//! something else. Drops because another leg was first are as they should be, and are not reported.

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
use super::{Alarms, Pauses, Report, SECOND_NS, Turn, grown, nanoseconds, silence};
use crate::events::event;
use crate::events::kind::{INPUT_SWITCHED, STREAM_RESTARTED};
pub(super) use rows::ROWS;
use rows::{EPOCH_NS, Reading};

/// Shortest silence that is reported: the counters are read twice a second.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// What is known of a rule's legs.
#[derive(Debug, Default)]
pub(crate) struct Legs {
    legs: BTreeMap<String, Leg>,
    /// Where they stand by for each other, the relayed one and how often another became so.
    active: Option<String>,
    changes: u64,
    /// How they do, if they are left for their quality too.
    quality: Quality,
    /// Where they are merged, the streams begun by the last reading; none before the first.
    streams: Option<u64>,
}

#[derive(Debug)]
struct Leg {
    /// When its last packet came, or when it was first read.
    last_ns: u64,
    /// When it was last read.
    read_ns: u64,
    /// Only of merged ones.
    pauses: Pauses,
    counts: LineStats,
    epoch: Epoch,
    read: Reading,
    /// By their rows.
    alarms: Alarms<usize>,
}

/// Since when losses are counted, and what stood there then.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    since_ns: u64,
    missed: u64,
    numbers: u64,
}

impl Legs {
    /// Whether a rule has legs of which this was read.
    pub(crate) const fn has(rule: &Rule, counted: &Received) -> bool {
        let stand_by = rule.failover.is_some() && counted.lines.is_some();
        let are_merged = rule.merge.is_some() && counted.merge.is_some();
        rule.enabled && (stand_by || are_merged)
    }

    /// Takes in a reading. What was counted before the first is not reported, nor is, if it is `adopted`,
    /// what was switched.
    pub(crate) fn sample(
        &mut self,
        now_ns: u64,
        rule: &Rule,
        counted: &Received,
        adopted: bool,
    ) -> Vec<Event> {
        let mut told: Vec<(Option<String>, Report)> = Vec::new();
        if let (Some(failover), Some(seen)) = (&rule.failover, &counted.lines) {
            let switched = self.switched(seen).filter(|_| !adopted);
            told.extend(switched.map(|switched| (None, switched)));
            let legs = seen.came.iter();
            let legs = legs.map(|(at, came)| (at, came.last_ns, LineStats::default()));
            let limits = Reading {
                silence: Silence::After(failover.silence.max(SILENCE_MIN)),
                window_ns: u64::MAX,
                ..Reading::default()
            };
            told.extend(self.judge(now_ns, legs.collect(), limits));
        }
        if let (Some(merge), Some(seen)) = (&rule.merge, &counted.merge) {
            let legs = seen.counters.lines.iter();
            let last_ns = |at| seen.last_ns.get(at).copied().unwrap_or_default();
            let legs = legs.map(|(at, counts)| (at, last_ns(at), *counts));
            let health = rule.health.as_ref();
            let streams = seen.counters.together.streams;
            let before = self.streams.replace(streams);
            let limits = Reading {
                silence: health.map_or(Silence::After(DEFAULT_SILENCE), |health| health.silence),
                window_ns: nanoseconds(merge.window),
                // The first packet of each was held back until a second confirmed it.
                stray: streams.saturating_sub(before.unwrap_or(streams)),
                ..Reading::default()
            };
            told.extend(self.judge(now_ns, legs.collect(), limits));
            let restarted = restarted(before, streams);
            told.extend(restarted.map(|restarted| (None, restarted)));
        }
        let name = &rule.name;
        let events = told.into_iter().map(|(part, (kind, what))| Event {
            part,
            ..event(kind, name, format!("rule {name:?}: {what}"))
        });
        events.collect()
    }

    /// The leg to switch to, if the relayed one is to be left for its quality.
    pub(crate) fn leave(&mut self, now_ns: u64, rule: &Rule, counted: &Received) -> Option<String> {
        if rule
            .failover
            .is_none_or(|failover| failover.on != On::Degraded)
        {
            self.quality = Quality::default();
            return None;
        }
        let seen = counted.lines.as_ref()?;
        let inspected = counted.health.as_deref();
        let leave = self.quality.sample(now_ns, rule, seen, inspected)?;
        Some(leave.to)
    }

    /// What is wrong with which legs, in words that go on from the leg's name.
    pub(crate) fn troubles(&self) -> Vec<(String, String)> {
        let trouble = |leg: &Leg| {
            let (row, standing) = leg.alarms.standing().next()?;
            ROWS[row].stands.map(|words| words(&leg.read, standing))
        };
        let troubles = self
            .legs
            .iter()
            .filter_map(|(at, leg)| Some((at.clone(), trouble(leg)?)));
        troubles.collect()
    }

    /// Whether they are merged and nothing comes by any.
    pub(crate) fn none_delivers(&self) -> bool {
        let all_silent = self.legs.values().all(|leg| leg.read.silent_ns.is_some());
        self.streams.is_some() && !self.legs.is_empty() && all_silent
    }

    fn switched(&mut self, seen: &LinesSeen) -> Option<Report> {
        let to = &seen.active;
        let from = self.active.replace(to.clone());
        // Where a leg goes that was relayed, nothing is switched.
        if seen.changes <= mem::replace(&mut self.changes, seen.changes) {
            return None;
        }
        let from = from.filter(|from| from != to);
        let from = from.map_or_else(String::new, |from| format!(", {from} was"));
        let why = self.quality.why(to);
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        Some((
            INPUT_SWITCHED,
            format!("input {to} is relayed now{from}{why}"),
        ))
    }

    /// Judges legs, of which each is read when its last packet came and what it brought, by `limits`.
    /// Those that are not read have gone.
    fn judge(
        &mut self,
        now_ns: u64,
        read: Vec<(&String, u64, LineStats)>,
        limits: Reading,
    ) -> Vec<(Option<String>, Report)> {
        let mut told = Vec::new();
        // What each number came by first: all of them together.
        let numbers = read.iter().map(|(_, _, counts)| counts.first);
        let numbers = numbers.fold(0, u64::wrapping_add);
        let mut before = mem::take(&mut self.legs);
        for (at, last_ns, counts) in read {
            let new = || (at.clone(), Leg::new(now_ns, counts, numbers));
            let (at, mut leg) = before.remove_entry(at).unwrap_or_else(new);
            leg.read(now_ns, last_ns, counts, (numbers, limits));
            let words = leg.judge(now_ns).into_iter();
            let words = words.map(|(kind, what)| (kind, format!("input {at} {what}")));
            told.extend(words.map(|told| (Some(at.clone()), told)));
            self.legs.insert(at, leg);
        }
        told
    }
}

/// A stream that began where another was merged before.
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
            read: Reading::default(),
            alarms: Alarms::default(),
        }
    }

    fn read(
        &mut self,
        now_ns: u64,
        last_ns: u64,
        counts: LineStats,
        (numbers, limits): (u64, Reading),
    ) {
        let before = mem::replace(&mut self.counts, counts);
        let came = counts.brought().saturating_sub(before.brought());
        let read_ns = mem::replace(&mut self.read_ns, now_ns);
        self.pauses.note(came, last_ns, (read_ns, self.last_ns));
        self.last_ns = self.last_ns.max(last_ns);
        let longest_ns = self.pauses.longest_ns(limits.silence);
        let age_ns = now_ns.saturating_sub(self.epoch.since_ns);
        let repeated = grown(counts.repeated, before.repeated);
        let is_new = came > repeated;
        self.read = Reading {
            silent_ns: longest_ns.and_then(|most_ns| silence(now_ns, self.last_ns, most_ns)),
            late: grown(counts.late, before.late),
            stray: grown(counts.stray, before.stray).saturating_sub(limits.stray),
            still: grown(counts.still, before.still),
            exceeded: grown(counts.exceeded, before.exceeded),
            cut: grown(counts.differently_cut, before.differently_cut),
            repeated: if is_new {
                0
            } else {
                self.read.repeated + repeated
            },
            ..limits
        };
        // Its silence explains all that a silent leg lacks.
        if self.read.silent_ns.is_none() {
            self.read.skew_ns = counts.skew_seconds.ns;
            // Numbers that are still on their way weigh alike at the begin and at the end.
            self.read.of = numbers.saturating_sub(self.epoch.numbers);
            if age_ns >= SECOND_NS {
                self.read.missed = counts.missed.saturating_sub(self.epoch.missed);
            }
        }
        if age_ns >= EPOCH_NS {
            self.epoch = Epoch::new(now_ns, counts.missed, numbers);
        }
    }

    fn judge(&mut self, now_ns: u64) -> Vec<Report> {
        let read = &self.read;
        let levels = ROWS.iter().map(|row| (row.condition)(read)).enumerate();
        let turns = self.alarms.sample(now_ns, levels).into_iter();
        // Of a silent leg the end of nothing else is reported.
        let is_news = |turn: &Turn| *turn == Turn::Begins || read.silent_ns.is_none();
        let news = turns.filter(|(_, turn)| is_news(turn));
        news.filter_map(|(row, turn)| ROWS[row].told(read, &turn))
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
