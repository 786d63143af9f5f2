//! Samples the counters twice a second: from them come the rates of every rule and the state of each
//! stream that is watched, the same for every view.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::reply::{Event, HealthStats, Rates};
use dataplane::counters::{Arrived, HealthCounters};
use model::rule::Rule;
use model::ruleset::RuleSet;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::stream::Stream;
use crate::dataplane_thread::DataplaneThread;
use crate::events::{self, Events};
use crate::view::View;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_millis(500);

/// The streams of all rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sampler {
    streams: Arc<Mutex<Streams>>,
}

/// One stream of each rule, in their order.
#[derive(Debug, Default)]
struct Streams {
    rules: Arc<RuleSet>,
    streams: Vec<Stream>,
}

impl Streams {
    /// Makes them those of `rules`; streams of rules that stay by name go on.
    fn follow(&mut self, rules: &Arc<RuleSet>) {
        if Arc::ptr_eq(rules, &self.rules) {
            return;
        }
        let (at, gone, come) = rules.difference_to(&self.rules);
        let old = self.rules.names().skip(at).take(gone);
        let mut known: HashMap<&str, Stream> = old.zip(self.streams.drain(at..at + gone)).collect();
        let mut stream = |rule: &&Rule| known.remove(rule.name.as_str()).unwrap_or_default();
        let new: Vec<Stream> = come.iter().map(&mut stream).collect();
        self.streams.splice(at..at, new);
        self.rules = Arc::clone(rules);
    }

    fn of(&self, rule: &str) -> Option<&Stream> {
        let place = self.rules.place(rule)?;
        self.streams.get(self.rules.position(place))
    }
}

impl Sampler {
    /// Samples for as long as the daemon runs.
    pub(crate) async fn run(
        self,
        dataplane: DataplaneThread,
        view: watch::Receiver<Arc<View>>,
        events: Events,
    ) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            events.log_held_back();
            let Ok(arrived) = dataplane.arrived().await else {
                // It has its own ways to complain.
                continue;
            };
            let rules = Arc::clone(&view.borrow().rules);
            let news = self.sample(sys::clock::monotonic_ns(), &rules, &arrived);
            events.publish_all(news);
        }
    }

    /// Takes in one reading; returns the events that follow from it.
    fn sample(&self, now_ns: u64, rules: &Arc<RuleSet>, arrived: &Arrived) -> Vec<Event> {
        let mut streams = self.lock();
        streams.follow(rules);
        let mut news = Vec::new();
        let none = Default::default();
        for (rule, stream) in rules.iter().zip(&mut streams.streams) {
            let counted = arrived.get(rule.name.as_str()).unwrap_or(&none);
            let watched = rule.health.as_ref().filter(|_| rule.enabled);
            if let Some((state, reason)) = stream.sample(now_ns, watched, counted) {
                news.push(events::stream(&rule.name, state, reason.as_deref()));
            }
        }
        news
    }

    /// The rates of a rule, and the health of its stream if it is watched. `inspected` counts what was
    /// found in its packets by now, so that these numbers are as new as the other counters.
    pub(crate) fn of(
        &self,
        rule: &str,
        inspected: &HealthCounters,
    ) -> (Rates, Option<HealthStats>) {
        let now_ns = sys::clock::monotonic_ns();
        let streams = self.lock();
        let stream = streams.of(rule);
        stream.map_or_else(Default::default, |stream| {
            (stream.rates(), stream.health(now_ns, inspected))
        })
    }

    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use dataplane::counters::{Received, Traffic};
    use model::document::RuleDocument;
    use model::ruleset::Policy;

    use super::*;

    fn rules(names: &[&str]) -> Arc<RuleSet> {
        let documents = names.iter().map(|name| RuleDocument {
            name: (*name).to_owned(),
            inputs: vec![format!("239.1.1.{}%eth0:5001", name.as_bytes()[0])],
            outputs: vec!["10.9.9.9:7000".into()],
            ..RuleDocument::default()
        });
        let documents: Vec<RuleDocument> = documents.collect();
        Arc::new(RuleSet::from_documents(&documents, Policy::default()).unwrap())
    }

    /// What each rule's packets come to, a hundred for each letter since `a`.
    fn arrived(rules: &RuleSet, samples: u64) -> Arrived {
        let received = |name: &str| Received {
            traffic: Traffic::new(samples * 100 * u64::from(name.as_bytes()[0] - b'a' + 1), 0),
            health: None,
        };
        rules
            .names()
            .map(|name| (name.into(), received(name)))
            .collect()
    }

    #[test]
    fn streams_go_on_wherever_their_rules_come_to_stand() {
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
            let before = sampler.lock().rules.clone();
            let now = rules(names);
            sample(samples, &now);
            assert_eq!(sampler.lock().streams.len(), names.len());
            for name in names {
                let rate = sampler.of(name, &HealthCounters::default()).0.packets_1s;
                let per_sample = 100.0 * f64::from(name.as_bytes()[0] - b'a' + 1);
                // One that has just come has been sampled once.
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
}
