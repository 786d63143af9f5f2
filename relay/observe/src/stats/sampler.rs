//! Samples those counters that may have changed. The samples give the rates of every rule, the state of each
//! watched stream and the reports of drops, the same for every reader.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::reply::{Event, HealthStats, History, Rates, RuleHistory};
use dataplane::counters::{Arrived, DropReason, HealthCounters, Received};
use host::tick;
use parking_lot::Mutex;
use rules::health::Silence;
use rules::rule::Rule;
use rules::ruleset::RuleSet;

use super::addresses::Addresses;
use super::egress::Egress;
use super::history::{self, Amount, Span, TrafficHistory};
use super::stream::Stream;
use super::streams::Streams;
use crate::alarms::{DropChange, Legs, Pause};
use crate::events;
use crate::view::View;

/// Time between two samples.
pub const INTERVAL: Duration = tick::HALF_SECOND;
/// The same while no packets arrive and nothing is due.
const IDLE_INTERVAL: Duration = tick::SECOND;

/// The streams of all rules.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    pub(super) streams: Arc<Mutex<Streams>>,
    pub(super) egress: Egress,
    addresses: Addresses,
    /// How long a stream that its rule does not watch may pause.
    silence: Silence,
}

/// The state of a rule by its samples.
#[derive(Debug, Default)]
pub struct Sample {
    /// What it receives per second.
    pub rates: Rates,
    /// The health of its stream, if it is watched.
    pub health: Option<HealthStats>,
    /// What drops everything and why: the rule itself, and its outputs.
    pub starved: Vec<(Option<u64>, DropReason)>,
    /// The legs in trouble and why, under failover or merge.
    pub leg_troubles: Vec<(String, String)>,
    /// Whether its legs are merged and all silent.
    pub none_delivers: bool,
    /// How long its stream may pause; `None` if it is watched or may pause for ever.
    pub longest_ns: Option<u64>,
    /// When it was first seen, if nothing has arrived since, in nanoseconds of `CLOCK_MONOTONIC`.
    pub added_ns: Option<u64>,
}

/// The changes that follow from a reading.
#[derive(Debug, Default)]
pub struct SampleChanges {
    /// Events of watched streams.
    pub(super) streams: Vec<Event>,
    /// Pauses of other streams, each with its rule.
    pauses: Vec<(String, Pause)>,
    /// Changes of drops, each with its rule.
    drops: Vec<(String, DropChange)>,
    /// Events of legs.
    legs: Vec<Event>,
    /// Rules whose relayed leg is to be switched, each with the leg to switch to.
    pub leaves: Vec<(String, String)>,
}

/// The circumstances of a sample: when it is taken, and whether it is the first (`adopted`).
#[derive(Clone, Copy)]
struct Context {
    now_ns: u64,
    span: Span,
    adopted: bool,
    silence: Silence,
}

impl SampleChanges {
    /// All of its events, given the state of the rules in a view.
    #[must_use]
    pub fn events(self, view: &View) -> Vec<Event> {
        let state = |rule: &str| {
            let position = view.rules.slot(rule)?;
            view.states.get(&position)
        };
        let is_idle = |rule: &str| state(rule).is_some_and(|state| state.is_idle());
        let mut events = self.legs;
        events.extend(self.streams);
        for (rule, pause) in self.pauses {
            // A stream that nobody listens to is not requested.
            if !is_idle(&rule) {
                events.push(events::pause(&rule, pause));
            }
        }
        for (rule, change) in self.drops {
            if let Some(state) = state(&rule) {
                events.extend(change.events(state, &view.host));
            }
        }
        events
    }

    /// Adds the changes of one rule by its reading; returns the amount since the previous one.
    fn add(&mut self, at: Context, rule: &Rule, stream: &mut Stream, counted: &Received) -> Amount {
        let Context {
            now_ns, adopted, ..
        } = at;
        stream.follow(now_ns, rule.enabled);
        let watched = rule.health.as_ref().filter(|_| rule.enabled);
        let before = stream.counted();
        if let Some((state, reason)) = stream.sample(now_ns, watched, counted) {
            let event = events::stream(&rule.name, state, reason.as_deref());
            self.streams.push(event);
        }
        // Merged legs are reported one by one, and a rule that reflects expects nothing.
        let is_judged =
            rule.enabled && rule.health.is_none() && rule.reflect.is_none() && rule.merge.is_none();
        if let Some(pause) = stream.pause(now_ns, Some(at.silence).filter(|_| is_judged), adopted) {
            self.pauses.push((rule.name.clone(), pause));
        }
        let amount = stream.history.sample(at.span, before, counted, adopted);
        if Legs::has(rule, counted) {
            let legs = stream.legs.get_or_insert_default();
            self.legs
                .extend(legs.sample(now_ns, rule, counted, adopted));
            let to = legs.switch_for_quality(now_ns, rule, counted);
            self.leaves.extend(to.map(|to| (rule.name.clone(), to)));
        } else {
            stream.legs = None;
        }
        if let Some(lost) = &counted.lost {
            let losses = stream.losses.get_or_insert_default();
            let reading = (counted.traffic, &**lost);
            for change in losses.sample(now_ns, rule, reading, adopted) {
                self.drops.push((rule.name.clone(), change));
            }
        }
        amount
    }
}

impl Sampler {
    /// A sampler under which a stream that its rule does not watch may pause for this long.
    #[must_use]
    pub fn new(silence: Silence) -> Self {
        Self {
            silence,
            ..Self::default()
        }
    }

    /// Whether streams that their rules do not watch may be silent for ever.
    pub(crate) fn ignores_silence(&self) -> bool {
        self.silence == Silence::Off
    }

    /// Reads the drops of devices, unless they were read within the last second; returns the resulting
    /// events.
    pub async fn read_egress(&self, view: &Arc<View>) -> Vec<Event> {
        let now_ns = sys::clock::monotonic_ns();
        self.egress.sample(now_ns, view, false).await
    }

    /// The same with each sample, and address conflicts; `is_quiet` while no packets arrive.
    pub async fn devices(&self, now_ns: u64, view: &Arc<View>, is_quiet: bool) -> Vec<Event> {
        self.egress.connect();
        let mut events = self.egress.sample(now_ns, view, is_quiet).await;
        events.extend(self.addresses.sample(now_ns, view));
        events
    }

    /// Addresses of this host that others on the link have too.
    pub fn conflicts(&self) -> Vec<String> {
        self.addresses.conflicts()
    }

    /// The names of the rules that are to be read whether they received packets or not.
    pub fn attended(&self, now_ns: u64, rules: &Arc<RuleSet>) -> Vec<Arc<str>> {
        let mut streams = self.streams.lock();
        streams.follow(rules, now_ns);
        let attended = streams.request(now_ns).into_iter();
        attended
            .map(|position| Arc::from(rules[position].name.as_str()))
            .collect()
    }

    /// How long until the next sample: longer while all streams are at rest.
    #[must_use]
    pub fn pause(&self, now_ns: u64) -> Duration {
        let streams = self.streams.lock();
        let is_near = |due_ns: u64| due_ns < now_ns + IDLE_INTERVAL.as_nanos() as u64;
        if streams.is_any_awake() || streams.next_due_ns().is_some_and(is_near) {
            INTERVAL
        } else {
            IDLE_INTERVAL
        }
    }

    /// Records a reading; returns the changes that follow from it.
    pub fn sample(&self, now_ns: u64, rules: &Arc<RuleSet>, arrived: &Arrived) -> SampleChanges {
        let mut streams = self.streams.lock();
        streams.follow(rules, now_ns);
        let adopted = streams.read_ns.is_none();
        let before_ns = streams.read_ns.map_or(now_ns, |(_, before_ns)| before_ns);
        let span = streams.begin(now_ns);
        let mut positions = streams.requested(now_ns);
        positions.extend(arrived.keys().filter_map(|rule| rules.slot(rule)));
        let mut changes = SampleChanges::default();
        let mut all = Amount::default();
        let none = Received::default();
        let context = Context {
            now_ns,
            span,
            adopted,
            silence: self.silence,
        };
        for position in positions {
            streams.sample((position, before_ns), |rule, stream| {
                let counted = arrived.get(rule.name.as_str()).unwrap_or(&none);
                all.add(changes.add(context, rule, stream, counted));
            });
        }
        streams.all.add(span, all);
        changes
    }

    /// What all rules together, and each of these, received and dropped in the last `seconds`; an unknown
    /// rule has an empty history.
    pub fn history(&self, rules: &[String], seconds: u32) -> History {
        let now_ns = sys::clock::monotonic_ns();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let streams = self.streams.lock();
        let (begun_ns, read_ns) = streams.read_ns.unwrap_or((now_ns, now_ns));
        let span = Span::new(begun_ns, begun_ns, read_ns);
        let ended = span.ended(seconds.div_ceil(history::STEP_SECONDS));
        let age = Duration::from_nanos(now_ns.saturating_sub(begun_ns + span.until_ns()));
        let rule = |name: &String| RuleHistory {
            name: name.clone(),
            steps: match streams.of(name) {
                Some((_, Some(stream))) => stream.history.steps(ended.clone()),
                _ => TrafficHistory::default().steps(ended.clone()),
            },
        };
        History {
            step_seconds: history::STEP_SECONDS,
            until_ms: now.unwrap_or_default().saturating_sub(age).as_millis() as u64,
            age_seconds: age.as_millis() as f64 / 1e3,
            all: streams.all.steps(ended.clone()),
            rules: rules.iter().map(rule).collect(),
        }
    }

    /// The state of a rule by its samples. `inspected` are the current counters of its inspected packets, so
    /// that these numbers are as recent as the other counters.
    pub fn of(&self, rule: &str, inspected: &HealthCounters) -> Sample {
        let now_ns = sys::clock::monotonic_ns();
        let streams = self.streams.lock();
        let added_ns = streams.added_ns(rule);
        let Some((rule, Some(stream))) = streams.of(rule) else {
            return Sample {
                added_ns,
                ..Sample::default()
            };
        };
        let losses = stream.losses.as_ref();
        let legs = stream.legs.as_ref();
        Sample {
            added_ns,
            longest_ns: stream.longest_ns(),
            leg_troubles: legs.map_or_else(Vec::new, |legs| legs.troubles()),
            none_delivers: legs.is_some_and(|legs| legs.none_delivers()),
            rates: stream.rates(),
            health: stream.health(now_ns, inspected),
            starved: losses.map_or_else(Vec::new, |losses| losses.starved(rule)),
        }
    }

    /// The rates at which a rule receives.
    pub fn rates(&self, rule: &str) -> Rates {
        let streams = self.streams.lock();
        let stream = streams.of(rule).and_then(|(_, stream)| stream);
        stream.map_or_else(Rates::default, Stream::rates)
    }

    /// When the counters were last read, and when the last packet of a rule had arrived by then, in
    /// nanoseconds of `CLOCK_MONOTONIC`; 0: none.
    pub fn last_packet(&self, rule: &str) -> (u64, u64) {
        let streams = self.streams.lock();
        let read_ns = streams.read_ns.map_or(0, |(_, read_ns)| read_ns);
        let counted = streams.of(rule).and_then(|(_, stream)| stream?.counted());
        (read_ns, counted.map_or(0, |counted| counted.last_ns))
    }
}

#[cfg(test)]
mod tests {
    use dataplane::counters::{Received, Traffic};
    use rules::document::RuleDocument;
    use rules::ruleset::Policy;

    use super::*;

    fn rules(names: &[&str]) -> Arc<RuleSet> {
        let document = |name: &&str| RuleDocument {
            name: (*name).to_owned(),
            inputs: vec![format!("239.1.1.{}%eth0:5001", name.as_bytes()[0])],
            outputs: vec!["10.9.9.9:7000".into()],
            ..RuleDocument::default()
        };
        let documents: Vec<RuleDocument> = names.iter().map(document).collect();
        Arc::new(RuleSet::from_documents(&documents, Policy::default()).unwrap())
    }

    /// The counters of each rule: a hundred packets per sample for each letter since `a`.
    fn arrived(rules: &RuleSet, samples: u64) -> Arrived {
        let received = |name: &str| Received {
            traffic: Traffic::new(samples * 100 * u64::from(name.as_bytes()[0] - b'a' + 1), 0),
            ..Received::default()
        };
        rules
            .names()
            .map(|name| (name.into(), received(name)))
            .collect()
    }

    #[test]
    fn streams_continue_whatever_the_position_of_their_rules() {
        let sampler = Sampler::default();
        let sample = |samples: u64, rules: &Arc<RuleSet>| {
            sampler.sample(samples * 500_000_000, rules, &arrived(rules, samples));
        };
        let first = rules(&["a", "b", "c", "d"]);
        sample(1, &first);
        sample(2, &first);
        let orders: [&[&str]; 6] = [
            &["a", "b", "c", "d", "e"],
            &["b", "c", "e", "d"],
            &["d", "e", "c", "b"],
            &["f", "d", "e", "c", "b"],
            &[],
            &["b"],
        ];
        for (samples, names) in (3..).zip(orders) {
            let before = sampler.streams.lock().rules.clone();
            let now = rules(names);
            sample(samples, &now);
            assert_eq!(sampler.streams.lock().len(), names.len());
            for name in names {
                let rate = sampler
                    .of(name, &HealthCounters::default())
                    .rates
                    .packets_1s;
                let per_sample = 100.0 * f64::from(name.as_bytes()[0] - b'a' + 1);
                // A rule that was just added has been sampled once.
                let expected = if before.get(name).is_some() {
                    2.0 * per_sample
                } else {
                    0.0
                };
                assert!(
                    (rate - expected).abs() < 1e-6,
                    "{name} among {names:?}: {rate}"
                );
            }
        }
    }

    #[test]
    fn history_is_retained_by_name_and_for_all_rules_together() {
        let sampler = Sampler::default();
        let first = rules(&["a", "b"]);
        let mut at = 0;
        let mut sample = |samples: u64, rules: &Arc<RuleSet>| {
            for _ in 0..samples {
                at += 1;
                sampler.sample(at * 500_000_000, rules, &arrived(rules, at));
            }
        };
        sample(41, &first);
        let history = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            sampler.history(&names, 3600)
        };
        let both = history(&["b", "a"]);
        let packets = |history: &History| -> Vec<Vec<u64>> {
            let rules = history.rules.iter();
            rules.map(|rule| rule.steps.packets.clone()).collect()
        };
        // Two letters of a hundred and two hundred a sample, twenty samples a step.
        assert_eq!(packets(&both), [[4000, 4000], [2000, 2000]]);
        assert_eq!(both.all.packets, [6000, 6000]);
        assert_eq!((both.step_seconds, both.rules[0].name.as_str()), (10, "b"));
        // Added and removed rules move the others; removed ones remain in the sum.
        sample(20, &rules(&["c", "b"]));
        let one = history(&["b"]);
        assert_eq!(packets(&one), [[4000, 4000, 4000]]);
        assert_eq!(one.all.packets[..2], [6000, 6000]);
        assert!(one.all.packets[2] >= 10_000, "{one:?}");
        assert_eq!(sampler.history(&[], 10).all.packets.len(), 1);
    }
}
