//! The streams of all rules, and which of them have to be sampled: those that received packets, and those
//! that time alone may change. Streams at rest cost nothing, however many there are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use rules::rule::Rule;
use rules::ruleset::{RuleSet, Slot};
use rules::shared_map::SharedMap;

use super::history::{Ring, Span};
use super::stream::{Rest, Stream};

/// The streams of rules, by the positions of the rules.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) rules: Arc<RuleSet>,
    /// A rule that never received anything and is not watched has none.
    streams: BTreeMap<Slot, Stream>,
    /// Those that are read with every sample.
    awake: BTreeSet<Slot>,
    /// Those at rest that change without a packet, and when, in nanoseconds of `CLOCK_MONOTONIC`.
    due: BTreeSet<(u64, Slot)>,
    /// The time of the request of a reading in progress: streams that fall due later are not in it.
    requested_ns: Option<u64>,
    /// When rules were added, in nanoseconds of `CLOCK_MONOTONIC`: those that never received anything.
    added_ns: BTreeMap<Slot, u64>,
    /// The times of the first and the last reading: counts until the first are not reported.
    pub(super) read_ns: Option<(u64, u64)>,
    /// The history of all rules together.
    pub(super) all: Ring,
}

impl Streams {
    /// Adapts to `rules`; the streams of rules whose names remain continue.
    pub(super) fn follow(&mut self, rules: &Arc<RuleSet>, now_ns: u64) {
        if Arc::ptr_eq(rules, &self.rules) {
            return;
        }
        let before = std::mem::replace(&mut self.rules, Arc::clone(rules));
        let difference = SharedMap::difference(before.rules(), rules.rules());
        let mut removed: HashMap<&str, (Stream, Option<u64>)> = HashMap::new();
        for (position, rule) in &difference.removed {
            let taken = self.take(**position);
            let added_ns = self.added_ns.remove(*position);
            let stream = taken.unwrap_or_else(|| self.silent(added_ns));
            removed.insert(&rule.name, (stream, added_ns));
        }
        for (position, rule) in &difference.added {
            let (stream, added_ns) = removed.remove(rule.name.as_str()).unwrap_or_default();
            self.streams.insert(**position, stream);
            self.added_ns.insert(**position, added_ns.unwrap_or(now_ns));
            self.awake.insert(**position);
        }
    }

    fn take(&mut self, position: Slot) -> Option<Stream> {
        self.awake.remove(&position);
        let mut stream = self.streams.remove(&position)?;
        self.cancel(position, &mut stream);
        Some(stream)
    }

    fn cancel(&mut self, position: Slot, stream: &mut Stream) {
        if let Some(due_ns) = stream.due_ns.take() {
            self.due.remove(&(due_ns, position));
        }
    }

    /// A stream that existed at the last reading and never had a packet.
    fn silent(&self, added_ns: Option<u64>) -> Stream {
        match self.read_ns {
            Some((_, read_ns)) => Stream::silent(added_ns.unwrap_or(0), read_ns),
            None => Stream::default(),
        }
    }

    /// Begins a reading: the rules to read, whether they received packets or not.
    pub(super) fn request(&mut self, now_ns: u64) -> BTreeSet<Slot> {
        self.requested_ns = Some(now_ns);
        self.attended(now_ns)
    }

    /// The rules of the reading in progress, which ends with this.
    pub(super) fn requested(&mut self, now_ns: u64) -> BTreeSet<Slot> {
        let requested_ns = self.requested_ns.take().unwrap_or(now_ns);
        self.attended(requested_ns)
    }

    fn attended(&self, now_ns: u64) -> BTreeSet<Slot> {
        let due = self.due.iter().take_while(|(due_ns, _)| *due_ns <= now_ns);
        let awake = self.awake.iter().copied();
        awake.chain(due.map(|(_, position)| *position)).collect()
    }

    /// When the next of those at rest is due, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| *due_ns)
    }

    /// Whether some are read with every sample.
    pub(super) fn is_any_awake(&self) -> bool {
        !self.awake.is_empty()
    }

    /// Begins a sample; returns the time since the previous one.
    pub(super) fn begin(&mut self, now_ns: u64) -> Span {
        let (begun_ns, before_ns) = self.read_ns.unwrap_or((now_ns, now_ns));
        self.read_ns = Some((begun_ns, now_ns));
        Span::new(begun_ns, before_ns, now_ns)
    }

    /// Calls `sample` with a stream, updated as if it had been in the last reading, at `before_ns`, too;
    /// afterwards the stream rests if it may.
    pub(super) fn sample(
        &mut self,
        (position, before_ns): (Slot, u64),
        sample: impl FnOnce(&Rule, &mut Stream),
    ) {
        let is_awake = self.awake.contains(&position);
        let mut stream = match self.take(position) {
            Some(mut stream) if !is_awake => {
                stream.wake(before_ns);
                stream
            }
            Some(stream) => stream,
            None => {
                let added_ns = self.added_ns.get(&position).copied();
                Stream::silent(added_ns.unwrap_or(0), before_ns)
            }
        };
        let rules = Arc::clone(&self.rules);
        let rule = &rules[position];
        sample(rule, &mut stream);
        if stream.counted().is_some_and(|counted| counted.packets > 0) {
            self.added_ns.remove(&position);
        }
        match stream.rest(rule) {
            Rest::No => drop(self.awake.insert(position)),
            Rest::Until(due_ns) => {
                stream.due_ns = Some(due_ns);
                self.due.insert((due_ns, position));
            }
            Rest::Forgettable => return,
            Rest::Yes => {}
        }
        self.streams.insert(position, stream);
    }

    /// The rule of that name, and its stream if there is one.
    pub(super) fn of(&self, rule: &str) -> Option<(&Rule, Option<&Stream>)> {
        let position = self.rules.slot(rule)?;
        Some((&self.rules[position], self.streams.get(&position)))
    }

    /// When a rule was added that never received anything, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) fn added_ns(&self, rule: &str) -> Option<u64> {
        self.added_ns.get(&self.rules.slot(rule)?).copied()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }
}

#[cfg(test)]
mod tests {
    use dataplane::counters::{HealthCounters, Received, Traffic};
    use proptest::prelude::*;
    use rules::document::{HealthDocument, RuleDocument};
    use rules::ruleset::Policy;

    use super::super::stream::Stream;
    use super::*;
    use crate::stats::Sampler;

    const HALF_NS: u64 = 500_000_000;

    fn rules(health: Option<&str>) -> Arc<RuleSet> {
        let document = RuleDocument {
            name: "a".to_owned(),
            inputs: vec!["239.1.1.1%eth0:5001".to_owned()],
            outputs: vec!["10.9.9.9:7000".into()],
            health: health.map(|keys| HealthDocument::from_text(keys).unwrap()),
            ..RuleDocument::default()
        };
        Arc::new(RuleSet::from_documents(&[document], Policy::default()).unwrap())
    }

    /// Phases in half seconds, each with the packets that arrive in every half second of it.
    fn phases() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let length = prop_oneof![1u64..6, 15u64..30, 40u64..90];
        prop::collection::vec((length, prop_oneof![Just(0u64), 1u64..500]), 1..7)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// A stream that is sampled only when necessary always has the state of one that is sampled
        /// continuously, and reports the same changes at the same time.
        #[test]
        fn rest_changes_nothing_that_is_reported(
            phases in phases(),
            keys in prop_oneof![
                Just(None),
                Just(Some("silence=2s")),
                Just(Some("silence=20s,rate_min=100pps")),
                Just(Some("rate_max=300pps")),
            ],
        ) {
            let (rules, sampler) = (rules(keys), Sampler::default());
            let rule = rules.get("a").unwrap();
            let mut always = Stream::default();
            let (mut counted, mut now_ns) = (Received::default(), 0);
            for (length, packets) in phases {
                for _ in 0..length {
                    now_ns += HALF_NS;
                    if packets > 0 {
                        counted.traffic.add(Traffic::new(packets, packets * 100));
                        let mut inspected = HealthCounters::default();
                        inspected.arrivals.last_ns = now_ns - 1000;
                        counted.health = Some(Box::new(inspected));
                    }
                    let change = always.sample(now_ns, rule.health.as_ref(), &counted);
                    let is_attended = !sampler.attended(now_ns, &rules).is_empty();
                    let is_read = packets > 0 || is_attended;
                    let all = [(Arc::from("a"), counted.clone())].into_iter();
                    let arrived = all.filter(|_| is_read).collect();
                    let changes = sampler.sample(now_ns, &rules, &arrived);
                    prop_assert_eq!(changes.streams.len(), usize::from(change.is_some()));
                    let streams = sampler.streams.lock();
                    let (_, stream) = streams.of("a").unwrap();
                    let inspected = counted.health.as_deref().copied().unwrap_or_default();
                    let rates = stream.map_or_else(Default::default, Stream::rates);
                    prop_assert_eq!(rates, always.rates(), "at {}", now_ns);
                    let health = stream.and_then(|stream| stream.health(now_ns, &inspected));
                    prop_assert_eq!(health, always.health(now_ns, &inspected), "at {}", now_ns);
                }
            }
        }
    }

    #[test]
    fn a_new_rule_is_read_once_and_one_with_a_packet_for_ten_seconds() {
        let (rules, sampler) = (rules(None), Sampler::default());
        let readings = |from: u64, count: u64, packets: u64| {
            let half_seconds = from..from + count;
            let read = half_seconds.filter(|half_second| {
                let now_ns = half_second * HALF_NS;
                let attended = sampler.attended(now_ns, &rules);
                let counted = Received {
                    traffic: Traffic::new(packets, 0),
                    ..Received::default()
                };
                let is_read = !attended.is_empty() || packets > 0 && *half_second == from;
                let all = [(Arc::from("a"), counted)].into_iter();
                sampler.sample(now_ns, &rules, &all.filter(|_| is_read).collect());
                is_read
            });
            read.count()
        };
        assert_eq!(readings(1, 100, 0), 1);
        assert_eq!(
            sampler.streams.lock().len(),
            0,
            "nothing is remembered of it"
        );
        let after_a_packet = readings(101, 100, 1);
        assert!((20..=24).contains(&after_a_packet), "{after_a_packet}");
    }

    #[test]
    fn what_falls_due_during_a_reading_waits_for_the_next() {
        let (rules, sampler) = (rules(Some("silence=60s")), Sampler::default());
        let mut counted = Received::default();
        counted.traffic.add(Traffic::new(7, 700));
        let arrived = || [(Arc::from("a"), counted.clone())].into_iter().collect();
        let mut half_second = 1;
        while half_second == 1 || !sampler.attended(half_second * HALF_NS, &rules).is_empty() {
            sampler.sample(half_second * HALF_NS, &rules, &arrived());
            half_second += 1;
        }
        let due_ns = sampler.streams.lock().next_due_ns().unwrap();
        assert!(sampler.attended(due_ns - 1, &rules).is_empty());
        let changes = sampler.sample(due_ns + 1, &rules, &Default::default());
        assert_eq!(changes.streams.len(), 0);
        assert_eq!(sampler.attended(due_ns + 2, &rules).len(), 1);
        let changes = sampler.sample(due_ns + 2, &rules, &arrived());
        assert_eq!(changes.streams.len(), 1);
        let streams = sampler.streams.lock();
        let (_, stream) = streams.of("a").unwrap();
        assert_eq!(stream.unwrap().counted(), Some(counted.traffic));
    }

    #[test]
    fn silence_of_a_stream_at_rest_is_reported_when_it_is_due() {
        let (rules, sampler) = (rules(Some("silence=60s")), Sampler::default());
        let (mut readings, mut reported) = (0, Vec::new());
        for half_second in 1..=200 {
            let now_ns = half_second * HALF_NS;
            let attended = sampler.attended(now_ns, &rules);
            readings += attended.len();
            let changes = sampler.sample(now_ns, &rules, &Default::default());
            reported.extend(changes.streams.iter().map(|_| half_second));
        }
        assert_eq!(reported, [121], "a minute behind the first sample");
        assert!(readings < 50, "{readings}");
        let (streams, due) = (sampler.streams.lock(), |streams: &Streams| {
            streams.due.len()
        });
        assert_eq!(due(&streams), 0);
    }
}
