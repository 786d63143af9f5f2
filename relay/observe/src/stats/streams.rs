//! The streams of all rules, and which of them have to be sampled: those that received packets, and
//! those that time alone may change. Streams at rest cost nothing, however many there are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use rules::rule::Rule;
use rules::ruleset::{Place, RuleSet};
use rules::shared_map::SharedMap;

use super::history::{Ring, Span};
use super::stream::{Rest, Stream};

/// The streams of rules, by their places.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) rules: Arc<RuleSet>,
    /// Of a rule that nothing ever came for, and that is not watched, there is none.
    streams: BTreeMap<Place, Stream>,
    /// Those that are read with every sample.
    awake: BTreeSet<Place>,
    /// Those at rest that something becomes of without a packet, and when, in nanoseconds of
    /// `CLOCK_MONOTONIC`.
    due: BTreeSet<(u64, Place)>,
    /// Until when those due are read, where a reading goes on: one that falls due meanwhile is not read.
    asked_ns: Option<u64>,
    /// When rules came, in nanoseconds of `CLOCK_MONOTONIC`: of those that nothing ever came for.
    made_ns: BTreeMap<Place, u64>,
    /// When the first reading and the last one were: what was counted until the first is not reported.
    pub(super) read_ns: Option<(u64, u64)>,
    /// The past of all rules together.
    pub(super) all: Ring,
}

impl Streams {
    /// Makes them those of `rules`; streams of rules that stay by name go on.
    pub(super) fn follow(&mut self, rules: &Arc<RuleSet>, now_ns: u64) {
        if Arc::ptr_eq(rules, &self.rules) {
            return;
        }
        let before = std::mem::replace(&mut self.rules, Arc::clone(rules));
        let difference = SharedMap::difference(before.rules(), rules.rules());
        let mut known: HashMap<&str, (Stream, Option<u64>)> = HashMap::new();
        for (place, rule) in &difference.removed {
            let stream = self.take(**place);
            let made_ns = self.made_ns.remove(*place);
            let stream = stream.unwrap_or_else(|| self.silent(made_ns));
            known.insert(&rule.name, (stream, made_ns));
        }
        for (place, rule) in &difference.added {
            let (stream, made_ns) = known.remove(rule.name.as_str()).unwrap_or_default();
            self.streams.insert(**place, stream);
            self.made_ns.insert(**place, made_ns.unwrap_or(now_ns));
            self.awake.insert(**place);
        }
    }

    fn take(&mut self, place: Place) -> Option<Stream> {
        self.awake.remove(&place);
        let mut stream = self.streams.remove(&place)?;
        self.cancel(place, &mut stream);
        Some(stream)
    }

    fn cancel(&mut self, place: Place, stream: &mut Stream) {
        if let Some(due_ns) = stream.due_ns.take() {
            self.due.remove(&(due_ns, place));
        }
    }

    /// One that was there at the last reading and had never had a packet.
    fn silent(&self, made_ns: Option<u64>) -> Stream {
        match self.read_ns {
            Some((_, read_ns)) => Stream::silent(made_ns.unwrap_or(0), read_ns),
            None => Stream::default(),
        }
    }

    /// The rules that have to be read by then, whether packets came for them or not.
    pub(super) fn ask(&mut self, now_ns: u64) -> BTreeSet<Place> {
        self.asked_ns = Some(now_ns);
        self.attended(now_ns)
    }

    /// Those that were asked for.
    pub(super) fn asked(&mut self, now_ns: u64) -> BTreeSet<Place> {
        let asked_ns = self.asked_ns.take().unwrap_or(now_ns);
        self.attended(asked_ns)
    }

    fn attended(&self, now_ns: u64) -> BTreeSet<Place> {
        let due = self.due.iter().take_while(|(due_ns, _)| *due_ns <= now_ns);
        let due = due.map(|(_, place)| *place);
        self.awake.iter().copied().chain(due).collect()
    }

    /// When the next of those at rest is due, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| *due_ns)
    }

    /// Says whether some are read with every sample.
    pub(super) fn is_any_awake(&self) -> bool {
        !self.awake.is_empty()
    }

    /// Begins a sample; gives the time since the one before.
    pub(super) fn begin(&mut self, now_ns: u64) -> Span {
        let (begun_ns, before_ns) = self.read_ns.unwrap_or((now_ns, now_ns));
        self.read_ns = Some((begun_ns, now_ns));
        Span::new(begun_ns, before_ns, now_ns)
    }

    /// Has a stream read by `sample`, as if it had been at the last reading, at `before_ns`, too;
    /// afterwards it rests if it may.
    pub(super) fn look(
        &mut self,
        (place, before_ns): (Place, u64),
        sample: impl FnOnce(&Rule, &mut Stream),
    ) {
        let is_awake = self.awake.contains(&place);
        let mut stream = match self.take(place) {
            Some(mut stream) if !is_awake => {
                stream.wake(before_ns);
                stream
            }
            Some(stream) => stream,
            None => {
                let made_ns = self.made_ns.get(&place).copied();
                Stream::silent(made_ns.unwrap_or(0), before_ns)
            }
        };
        let rules = Arc::clone(&self.rules);
        let rule = &rules[place];
        sample(rule, &mut stream);
        if stream.counted().is_some_and(|counted| counted.packets > 0) {
            self.made_ns.remove(&place);
        }
        match stream.rest(rule) {
            Rest::No => drop(self.awake.insert(place)),
            Rest::Until(due_ns) => {
                stream.due_ns = Some(due_ns);
                self.due.insert((due_ns, place));
            }
            Rest::Forgettable => return,
            Rest::Yes => {}
        }
        self.streams.insert(place, stream);
    }

    /// The rule of that name, and its stream if there is one.
    pub(super) fn of(&self, rule: &str) -> Option<(&Rule, Option<&Stream>)> {
        let place = self.rules.place(rule)?;
        Some((&self.rules[place], self.streams.get(&place)))
    }

    /// When a rule came that nothing has come for, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) fn made_ns(&self, rule: &str) -> Option<u64> {
        self.made_ns.get(&self.rules.place(rule)?).copied()
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

    /// Times without a packet and with some, in half seconds, and how many come in each of those.
    fn phases() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let length = prop_oneof![1u64..6, 15u64..30, 40u64..90];
        prop::collection::vec((length, prop_oneof![Just(0u64), 1u64..500]), 1..7)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// What is looked at only when it has to be says at any time what a stream says that is
        /// sampled without a pause, and tells the same at the same time.
        #[test]
        fn rest_changes_nothing_that_is_told(
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
                        let mut found = HealthCounters::default();
                        found.arrivals.last_ns = now_ns - 1000;
                        counted.health = Some(Box::new(found));
                    }
                    let told = always.sample(now_ns, rule.health.as_ref(), &counted);
                    let is_attended = !sampler.attended(now_ns, &rules).is_empty();
                    let is_read = packets > 0 || is_attended;
                    let read = [(Arc::from("a"), counted.clone())].into_iter();
                    let news = sampler.sample(now_ns, &rules, &read.filter(|_| is_read).collect());
                    prop_assert_eq!(news.streams.len(), usize::from(told.is_some()));
                    let streams = sampler.streams.lock();
                    let (_, stream) = streams.of("a").unwrap();
                    let found = counted.health.as_deref().copied().unwrap_or_default();
                    let rates = stream.map_or_else(Default::default, Stream::rates);
                    prop_assert_eq!(rates, always.rates(), "at {}", now_ns);
                    let health = stream.and_then(|stream| stream.health(now_ns, &found));
                    prop_assert_eq!(health, always.health(now_ns, &found), "at {}", now_ns);
                }
            }
        }
    }

    #[test]
    fn a_new_rule_is_looked_at_once_and_one_with_a_packet_for_ten_seconds() {
        let (rules, sampler) = (rules(None), Sampler::default());
        let looks = |from: u64, count: u64, packets: u64| {
            let half_seconds = from..from + count;
            let looked = half_seconds.filter(|half_second| {
                let now_ns = half_second * HALF_NS;
                let attended = sampler.attended(now_ns, &rules);
                let counted = Received {
                    traffic: Traffic::new(packets, 0),
                    ..Received::default()
                };
                let is_read = !attended.is_empty() || packets > 0 && *half_second == from;
                let read = [(Arc::from("a"), counted)].into_iter();
                sampler.sample(now_ns, &rules, &read.filter(|_| is_read).collect());
                is_read
            });
            looked.count()
        };
        assert_eq!(looks(1, 100, 0), 1);
        assert_eq!(
            sampler.streams.lock().len(),
            0,
            "nothing is remembered of it"
        );
        let after_a_packet = looks(101, 100, 1);
        assert!((20..=24).contains(&after_a_packet), "{after_a_packet}");
    }

    #[test]
    fn what_falls_due_during_a_reading_waits_for_the_next() {
        let (rules, sampler) = (rules(Some("silence=60s")), Sampler::default());
        let mut counted = Received::default();
        counted.traffic.add(Traffic::new(7, 700));
        let read = || [(Arc::from("a"), counted.clone())].into_iter().collect();
        let mut half_second = 1;
        while half_second == 1 || !sampler.attended(half_second * HALF_NS, &rules).is_empty() {
            sampler.sample(half_second * HALF_NS, &rules, &read());
            half_second += 1;
        }
        let due_ns = sampler.streams.lock().next_due_ns().unwrap();
        assert!(sampler.attended(due_ns - 1, &rules).is_empty());
        let news = sampler.sample(due_ns + 1, &rules, &Default::default());
        assert_eq!(news.streams.len(), 0);
        assert_eq!(sampler.attended(due_ns + 2, &rules).len(), 1);
        let news = sampler.sample(due_ns + 2, &rules, &read());
        assert_eq!(news.streams.len(), 1);
        let streams = sampler.streams.lock();
        let (_, stream) = streams.of("a").unwrap();
        assert_eq!(stream.unwrap().counted(), Some(counted.traffic));
    }

    #[test]
    fn silence_is_told_of_a_stream_at_rest_when_it_is_due() {
        let (rules, sampler) = (rules(Some("silence=60s")), Sampler::default());
        let (mut looks, mut told) = (0, Vec::new());
        for half_second in 1..=200 {
            let now_ns = half_second * HALF_NS;
            let attended = sampler.attended(now_ns, &rules);
            looks += attended.len();
            let news = sampler.sample(now_ns, &rules, &Default::default());
            told.extend(news.streams.iter().map(|_| half_second));
        }
        assert_eq!(told, [121], "a minute behind the first sample");
        assert!(looks < 50, "{looks}");
        let (streams, due) = (sampler.streams.lock(), |streams: &Streams| {
            streams.due.len()
        });
        assert_eq!(due(&streams), 0);
    }
}
