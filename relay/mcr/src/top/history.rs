//! Rates that the daemon does not compute itself: of inputs, outputs and drops, and the past of what rules
//! receive. A rate is the difference of two samples of the statistics over the daemon's own time between
//! them, so a late answer changes nothing. The daemon supplies the past before the first sample.

use std::collections::{BTreeMap, VecDeque};

use api::reply::{self, RuleStats, Stats, Traffic};
use packet::verdict::DropReason;

/// Samples that are retained, each of the rules that the daemon sent.
pub(super) const SAMPLES_MAX: usize = 121;

/// Rules that the daemon does not send at present and whose past is retained.
const PASTS_MAX: usize = 4096;

/// Packets and bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    pub(crate) packets: f64,
    pub(crate) bits: f64,
}

impl Rate {
    /// Packets, bits.
    pub(crate) const fn pair(self) -> (f64, f64) {
        (self.packets, self.bits)
    }
}

/// Successive statistics, the newest last.
#[derive(Debug, Default)]
pub(crate) struct History {
    samples: VecDeque<Sample>,
    last: Option<Stats>,
    /// What rules received before the first sample.
    past: BTreeMap<String, Past>,
    /// The requested seconds between two samples.
    interval: f64,
}

/// What a rule received before the first sample.
#[derive(Debug)]
struct Past {
    /// When the newest step ended, in seconds of the daemon's uptime.
    until: f64,
    step: f64,
    /// Packets per second since then, and in each step, the newest first.
    rates: Vec<f64>,
}

/// The counters of one answer.
#[derive(Debug)]
struct Sample {
    at: f64,
    rules: BTreeMap<String, Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    received: Traffic,
    dropped: u64,
    /// By input, if there are several.
    inputs: Vec<Traffic>,
    outputs: Vec<Traffic>,
}

impl History {
    /// Adds one answer. An answer of another daemon, or of the same after a restart, starts anew.
    pub(crate) fn add(&mut self, stats: Stats) {
        let at = stats.uptime_seconds;
        if self.samples.back().is_some_and(|last| at < last.at) {
            self.samples.clear();
            self.past.clear();
        }
        let rules = stats.rules.iter();
        let counted = rules.map(|rule| (rule.name.clone(), counted(rule)));
        self.samples.push_back(Sample {
            at,
            rules: counted.collect(),
        });
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
        if self.past.len() > stats.rules.len() + PASTS_MAX {
            let newest = self.samples.back().map(|sample| &sample.rules);
            self.past
                .retain(|name, _| newest.is_some_and(|rules| rules.contains_key(name)));
        }
        self.last = Some(stats);
    }

    /// Adds the daemon's record of the time before the newest sample. Samples are `interval` seconds
    /// apart.
    pub(crate) fn begin(&mut self, record: &reply::History, interval: f64) {
        let Some(stats) = &self.last else {
            return;
        };
        let step = f64::from(record.step_seconds.max(1));
        self.interval = interval;
        // Both have the same order, so one pass is enough: ten thousand rules come in many parts.
        let mut rules = stats.rules.iter();
        for rule in &record.rules {
            let newest = rules.find(|newest| newest.name == rule.name);
            let steps = rule.steps.packets.iter().rev();
            let now = newest.map_or(0.0, |newest| newest.rates.packets_10s);
            let past = Past {
                until: stats.uptime_seconds - record.age_seconds,
                step,
                rates: [now]
                    .into_iter()
                    .chain(steps.map(|packets| *packets as f64 / step))
                    .collect(),
            };
            self.past.insert(rule.name.clone(), past);
        }
    }

    /// The newest statistics.
    pub(crate) const fn last(&self) -> Option<&Stats> {
        self.last.as_ref()
    }

    /// What one of a rule's several inputs receives, over about the last `seconds`.
    pub(crate) fn input_rate(&self, rule: &str, input: usize, seconds: f64) -> Rate {
        self.rate(seconds, |sample| {
            sample.rules.get(rule)?.inputs.get(input).copied()
        })
    }

    /// What an output of a rule sends, over about the last `seconds`.
    pub(crate) fn output_rate(&self, rule: &str, output: usize, seconds: f64) -> Rate {
        self.rate(seconds, |sample| {
            sample.rules.get(rule)?.outputs.get(output).copied()
        })
    }

    /// Drops of a rule and its outputs per second, over about the last `seconds`.
    pub(crate) fn drop_rate(&self, rule: &str, seconds: f64) -> f64 {
        let of = |sample: &Sample| {
            let packets = sample.rules.get(rule)?.dropped;
            Some(Traffic::new(packets, 0))
        };
        self.rate(seconds, of).packets
    }

    /// Packets per second that a rule received between each two samples, the newest last. Before the first
    /// sample, and where samples lack the rule, they are those of the daemon's steps.
    pub(crate) fn trail(&self, rule: &str, length: usize) -> Vec<u64> {
        let samples: Vec<_> = self.samples.iter().rev().take(length + 1).collect();
        let of = |sample: &Sample| sample.rules.get(rule).map(|counted| counted.received);
        let past = self.past.get(rule);
        let rate = |pair: &[&Sample]| match (of(pair[1]), of(pair[0])) {
            (Some(then), Some(now)) => between(pair[1], pair[0], Some(then), Some(now)).packets,
            _ => {
                let middle = f64::midpoint(pair[1].at, pair[0].at);
                past.and_then(|past| past.rate(middle)).unwrap_or_default()
            }
        };
        let mut rates: Vec<u64> = samples.windows(2).map(|pair| rate(pair) as u64).collect();
        let first = self.samples.front().map_or(0.0, |first| first.at);
        if let Some(past) = past {
            let missing = 0..length.saturating_sub(rates.len());
            let before = missing.map(|n| first - (n as f64 + 0.5) * self.interval);
            rates.extend(before.map_while(|at| past.rate(at)).map(|rate| rate as u64));
        }
        rates.reverse();
        rates
    }

    fn rate(&self, seconds: f64, of: impl Fn(&Sample) -> Option<Traffic>) -> Rate {
        let Some(now) = self.samples.back() else {
            return Rate::default();
        };
        // The newest sample that is old enough, with some tolerance; else the oldest since the daemon
        // has sent it without a break.
        let mut before = now;
        for sample in self.samples.iter().rev() {
            if of(sample).is_none() {
                break;
            }
            before = sample;
            if now.at - sample.at >= seconds * 0.9 {
                break;
            }
        }
        between(before, now, of(before), of(now))
    }
}

impl Past {
    fn rate(&self, at: f64) -> Option<f64> {
        let steps = ((self.until - at) / self.step).max(-1.0).floor();
        self.rates.get((steps + 1.0) as usize).copied()
    }
}

fn between(before: &Sample, now: &Sample, then: Option<Traffic>, counted: Option<Traffic>) -> Rate {
    let seconds = now.at - before.at;
    let (Some(then), Some(counted), true) = (then, counted, seconds > 0.0) else {
        return Rate::default();
    };
    // A rule that was replaced counts from zero again.
    let difference = |a: u64, b: u64| a.saturating_sub(b) as f64 / seconds;
    Rate {
        packets: difference(counted.packets, then.packets),
        bits: difference(counted.bytes, then.bytes) * 8.0,
    }
}

fn counted(rule: &RuleStats) -> Counted {
    let several = Some(&rule.inputs).filter(|inputs| inputs.len() > 1);
    let inputs = several.into_iter().flatten().map(|input| input.received);
    Counted {
        inputs: inputs.collect(),
        received: rule.received,
        dropped: dropped(rule),
        outputs: rule.outputs.iter().map(|output| output.sent).collect(),
    }
}

/// Drops of a rule and all its outputs by reason.
pub(crate) fn drops(rule: &RuleStats) -> BTreeMap<&str, u64> {
    let mut sums = BTreeMap::new();
    let outputs = rule.outputs.iter().flat_map(|output| &output.dropped);
    for (reason, count) in rule.dropped.iter().chain(outputs) {
        if *count > 0 {
            *sums.entry(reason.as_str()).or_default() += count;
        }
    }
    sums
}

/// Packets that a rule and its outputs lost, without those dropped on purpose, as duplicates are.
pub(crate) fn dropped(rule: &RuleStats) -> u64 {
    let is_intended = |name: &str| {
        let mut all = DropReason::ALL.into_iter();
        all.any(|reason| reason.is_intended() && reason.as_str() == name)
    };
    let lost = drops(rule)
        .into_iter()
        .filter(|(name, _)| !is_intended(name));
    lost.map(|(_, count)| count).sum()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Statistics with rules `(name, packets received)`, in the last second; each has one output
    /// that sent as many.
    pub(in crate::top) fn stats(at: f64, rules: &[(&str, u64)]) -> Stats {
        let rule = |(name, packets): &(&str, u64)| {
            let (bytes, bits) = (packets * 1000, packets * 8000);
            format!(
                r#"{{"name":"{name}","state":"up","path":"kernel","path_reason":"fits",
                "inputs":[{{"at":"239.1.1.1%eth0:5001","joined":true}}],
                "received":{{"packets":{packets},"bytes":{bytes}}},"dropped":{{}},
                "rates":{{"packets_1s":{packets},"bits_1s":{bits},"packets_10s":0,"bits_10s":0}},
                "outputs":[{{"to":"239.10.1.1%eth1:6001","state":"up",
                "sent":{{"packets":{packets},"bytes":{bytes}}},"dropped":{{"too_big":3}}}}]}}"#
            )
        };
        let rules: Vec<String> = rules.iter().map(rule).collect();
        let text = format!(
            r#"{{"instance":"default","version":"1","uptime_seconds":{at},"workers":[],
            "rules":[{}]}}"#,
            rules.join(",")
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_rate_is_taken_over_the_daemons_own_time() {
        let mut history = History::default();
        for (at, packets) in [(0.0, 0), (9.0, 900), (10.0, 1000), (11.2, 3400)] {
            history.add(stats(at, &[("a", packets)]));
        }
        let rate = history.output_rate("a", 0, 1.0);
        assert!((rate.packets - 2000.0).abs() < 1e-6, "{rate:?}");
        assert!((rate.bits - 16e6).abs() < 1e-3, "{rate:?}");
        let long = history.output_rate("a", 0, 10.0).packets;
        assert!((long - 3400.0 / 11.2).abs() < 1e-6, "{long}");
        assert_eq!(history.trail("a", 9), [100, 100, 2000]);
        assert_eq!(history.output_rate("a", 1, 1.0), Rate::default());
        assert_eq!(history.output_rate("b", 0, 1.0), Rate::default());
    }

    #[test]
    fn the_trail_begins_with_the_daemons_record() {
        let mut history = History::default();
        let record = |age_seconds| reply::History {
            step_seconds: 10,
            age_seconds,
            rules: vec![reply::RuleHistory {
                name: "a".to_owned(),
                steps: reply::Steps {
                    packets: vec![10, 20, 30],
                    ..reply::Steps::default()
                },
            }],
            ..reply::History::default()
        };
        history.begin(&record(0.0), 1.0);
        assert!(history.trail("a", 9).is_empty(), "no sample yet");
        let mut first = stats(100.0, &[("a", 5000)]);
        first.rules[0].rates.packets_10s = 9.0;
        history.add(first);
        history.begin(&record(2.0), 1.0);
        let trail = history.trail("a", 15);
        assert_eq!(trail[..3], [2; 3]);
        assert_eq!(trail[3..13], [3; 10]);
        assert_eq!(trail[13..], [9, 9]);
        assert_eq!(history.trail("a", 1000).len(), 32);
        history.add(stats(101.0, &[("a", 5100)]));
        assert_eq!(history.trail("a", 4), [3, 9, 9, 100]);
        // Samples that are further apart.
        history.begin(&record(3.0), 5.0);
        assert_eq!(history.trail("a", 6), [1, 2, 2, 3, 3, 100]);
        history.add(stats(1.0, &[("a", 0)]));
        assert!(history.trail("a", 9).is_empty(), "of another daemon");
    }

    #[test]
    fn a_daemon_that_started_again_has_no_old_rates() {
        let mut history = History::default();
        history.add(stats(100.0, &[("a", 5000)]));
        history.add(stats(1.0, &[("a", 100)]));
        assert_eq!(history.output_rate("a", 0, 1.0), Rate::default());
        history.add(stats(2.0, &[("a", 50)]));
        assert_eq!(history.output_rate("a", 0, 1.0), Rate::default());
    }
}
