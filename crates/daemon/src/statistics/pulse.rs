//! Looks at the counters twice a second: rates of every rule, and the state of each stream that is
//! watched. Every view shows what is found here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::reply::{Event, HealthStats, Rates};
use dataplane::counters::{Arrived, HealthCounters};
use model::ruleset::RuleSet;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::stream::Stream;
use crate::engine::Engine;
use crate::events::{self, Events};
use crate::view::View;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// The streams of all rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse {
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
        let known = |name: &str| self.rules.position(name);
        let places: Vec<Option<usize>> = rules.iter().map(|rule| known(&rule.name)).collect();
        let mut stream = |place: Option<usize>| Some(std::mem::take(self.streams.get_mut(place?)?));
        let streams = places.into_iter().map(|at| stream(at).unwrap_or_default());
        self.streams = streams.collect();
        self.rules = Arc::clone(rules);
    }

    fn of(&self, rule: &str) -> Option<&Stream> {
        self.streams.get(self.rules.position(rule)?)
    }
}

impl Pulse {
    /// Looks for as long as the daemon runs.
    pub(crate) async fn follow(
        self,
        engine: Engine,
        view: watch::Receiver<Arc<View>>,
        events: Events,
    ) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            events.tell_held();
            let Ok(arrived) = engine.arrived().await else {
                // It has its own ways to complain.
                continue;
            };
            let rules = Arc::clone(&view.borrow().rules);
            let told = self.look(sys::clock::monotonic_ns(), &rules, &arrived);
            events.tell_all(told);
        }
    }

    /// Takes in one reading and tells what changed.
    fn look(&self, now_ns: u64, rules: &Arc<RuleSet>, arrived: &Arrived) -> Vec<Event> {
        let mut streams = self.lock();
        streams.follow(rules);
        let mut told = Vec::new();
        let none = Default::default();
        for (rule, stream) in rules.iter().zip(&mut streams.streams) {
            let counted = arrived.get(rule.name.as_str()).unwrap_or(&none);
            if let Some((state, reason)) = stream.look(now_ns, rule.health.as_ref(), counted) {
                told.push(events::stream(&rule.name, state, reason.as_deref()));
            }
        }
        told
    }

    /// What a rule receives, and how its stream does if it is watched; `found` is what was found in
    /// its packets by now, so that these numbers are as new as the other counters.
    pub(crate) fn of(&self, rule: &str, found: &HealthCounters) -> (Rates, Option<HealthStats>) {
        let now_ns = sys::clock::monotonic_ns();
        let streams = self.lock();
        let stream = streams.of(rule);
        stream.map_or_else(Default::default, |stream| {
            (stream.rates(), stream.health(now_ns, found))
        })
    }

    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
