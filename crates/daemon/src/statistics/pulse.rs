//! Looks at the counters twice a second: rates of every rule, and the state of each stream that is
//! watched. Every view shows what is found here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::reply::{Event, HealthStats, Rates};
use dataplane::counters::{Counters, HealthCounters};
use model::health::Health;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::stream::Stream;
use crate::engine::Engine;
use crate::events::{self, Events};
use crate::view::View;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// The streams of all rules, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse {
    streams: Arc<Mutex<BTreeMap<String, Stream>>>,
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
            let Ok(counters) = engine.counters().await else {
                // It has its own ways to complain.
                continue;
            };
            let view = view.borrow().clone();
            let rules = view.rules.iter();
            let rules = rules.map(|rule| (rule.name.as_str(), rule.health));
            let told = self.look(sys::clock::monotonic_ns(), rules, &counters);
            events.tell_all(told);
        }
    }

    /// Takes in one reading and tells what changed.
    fn look<'a>(
        &self,
        now_ns: u64,
        rules: impl Iterator<Item = (&'a str, Option<Health>)>,
        counters: &Counters,
    ) -> Vec<Event> {
        let mut streams = self.lock();
        let mut before = std::mem::take(&mut *streams);
        let mut told = Vec::new();
        let none = Default::default();
        for (name, health) in rules {
            let known = before.remove_entry(name);
            let (name, mut stream) = known.unwrap_or_else(|| (name.to_owned(), Stream::default()));
            let counted = counters.rules.get(&name).unwrap_or(&none);
            if let Some((state, reason)) = stream.look(now_ns, health.as_ref(), counted) {
                told.push(events::stream(&name, state, reason.as_deref()));
            }
            streams.insert(name, stream);
        }
        told
    }

    /// What a rule receives, and how its stream does if it is watched; `found` is what was found in
    /// its packets by now, so that these numbers are as new as the other counters.
    pub(crate) fn of(&self, rule: &str, found: &HealthCounters) -> (Rates, Option<HealthStats>) {
        let now_ns = sys::clock::monotonic_ns();
        let streams = self.lock();
        let stream = streams.get(rule);
        stream.map_or_else(Default::default, |stream| {
            (stream.rates(), stream.health(now_ns, found))
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
