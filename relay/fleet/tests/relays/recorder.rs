//! A data plane that forwards nothing and records everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use api::reply::FleetCounters;
use fleet::host::{BoxFuture, Event, Fitness, Host};
use rules::document::RuleDocument;
use sys::clock::boottime_ns;

/// A gate was set: when, and until when packets pass.
pub(crate) type Set = (u64, u64);

#[derive(Default)]
pub(crate) struct Recorder {
    gates: Mutex<BTreeMap<String, Vec<Set>>>,
    installed: Mutex<BTreeSet<String>>,
    events: Mutex<Vec<Event>>,
    hangs: AtomicBool,
    refuses_rules: AtomicBool,
    was_emptied: AtomicBool,
}

impl Recorder {
    /// The gates as last set.
    pub(crate) fn gates(&self) -> BTreeMap<String, u64> {
        let gates = self.gates.lock().unwrap();
        let last = |sets: &Vec<Set>| sets.last().map_or(0, |(_, until)| *until);
        gates
            .iter()
            .map(|(share, sets)| (share.clone(), last(sets)))
            .collect()
    }

    /// Shares whose packets pass now.
    pub(crate) fn open(&self) -> BTreeSet<String> {
        let now = boottime_ns();
        let open = self.gates().into_iter().filter(|(_, until)| *until > now);
        open.map(|(share, _)| share).collect()
    }

    /// Whether every gate that was ever opened has stayed so, up to now.
    pub(crate) fn never_shut(&self) -> bool {
        let gates = self.gates.lock().unwrap();
        let opened = gates
            .iter()
            .filter(|(_, sets)| sets.iter().any(|set| set.1 > 0));
        opened
            .into_iter()
            .all(|(share, _)| spans(&gates[share]).len() == 1)
            && gates.values().all(|sets| {
                sets.last()
                    .is_none_or(|set| set.1 > boottime_ns() || set.1 == 0)
            })
    }

    pub(crate) fn installed(&self) -> BTreeSet<String> {
        self.installed.lock().unwrap().clone()
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// Whether a refusal of something with this name was reported.
    pub(crate) fn refuses(&self, name: &str) -> bool {
        let is_it = |event: &Event| matches!(event, Event::RulesRefused { what, .. } if what.contains(name));
        self.events.lock().unwrap().iter().any(is_it)
    }

    /// Whether all rules were removed at once.
    pub(crate) fn was_emptied(&self) -> bool {
        self.was_emptied.load(Ordering::Relaxed)
    }

    /// The next rules are not installed.
    pub(crate) fn refuse_rules(&self) {
        self.refuses_rules.store(true, Ordering::Relaxed);
    }

    /// The data plane stops answering.
    pub(crate) fn hang(&self) {
        self.hangs.store(true, Ordering::Relaxed);
    }
}

/// When packets passed, as separate spans of time.
fn spans(sets: &[Set]) -> Vec<(u64, u64)> {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for (index, (at, until)) in sets.iter().enumerate() {
        let next = sets.get(index + 1).map_or(u64::MAX, |next| next.0);
        let end = (*until).min(next);
        if end <= *at {
            continue;
        }
        match spans.last_mut() {
            Some(last) if last.1 == *at => last.1 = end,
            _ => spans.push((*at, end)),
        }
    }
    spans
}

/// Asserts that at no instant the gates of two of these were open for one share.
pub(crate) fn never_two(recorders: &[&Recorder]) {
    let mut all: BTreeMap<String, Vec<(u64, u64, usize)>> = BTreeMap::new();
    for (number, recorder) in recorders.iter().enumerate() {
        for (share, sets) in recorder.gates.lock().unwrap().iter() {
            let spans = spans(sets).into_iter().map(|(from, to)| (from, to, number));
            all.entry(share.clone()).or_default().extend(spans);
        }
    }
    for (share, mut spans) in all {
        spans.sort_unstable();
        for pair in spans.windows(2) {
            let apart = pair[0].2 == pair[1].2 || pair[0].1 <= pair[1].0;
            assert!(apart, "{share}: {pair:?}");
        }
    }
}

impl Host for Recorder {
    fn install(
        &self,
        rules: Vec<RuleDocument>,
        _by: Option<String>,
    ) -> BoxFuture<'_, Result<BTreeMap<String, String>, String>> {
        if self.refuses_rules.swap(false, Ordering::Relaxed) {
            return Box::pin(async { Err("the table is full".to_owned()) });
        }
        let shares: BTreeSet<String> = rules.into_iter().filter_map(|rule| rule.share).collect();
        let mut installed = self.installed.lock().unwrap();
        if shares.is_empty() && !installed.is_empty() {
            self.was_emptied.store(true, Ordering::Relaxed);
        }
        *installed = shares;
        Box::pin(async { Ok(BTreeMap::new()) })
    }

    fn set_gate(&self, share: &str, until_ns: u64) {
        let set = (boottime_ns(), until_ns);
        let mut gates = self.gates.lock().unwrap();
        gates.entry(share.to_owned()).or_default().push(set);
    }

    fn fitness(&self) -> Fitness {
        Fitness::default()
    }

    fn counters(&self) -> BoxFuture<'_, BTreeMap<String, FleetCounters>> {
        let one = FleetCounters {
            relayed: 1,
            ..FleetCounters::default()
        };
        let shares = self.installed().into_iter();
        let counters = shares.map(|share| (share, one)).collect();
        Box::pin(async { counters })
    }

    fn alive(&self) -> BoxFuture<'_, ()> {
        if self.hangs.load(Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        Box::pin(async {})
    }

    fn tell(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}
