//! The source of updates: two threads that query the daemon, and retry while it is unreachable.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use api::client::StreamItem;
use api::query::StatsQuery;
use api::reply::Event;
use api::request::HISTORY_RULES_MAX;
use parking_lot::{Condvar, Mutex};

use super::history;
use super::hosts::Hosts;
use super::update::Update;
use crate::control::Control;
use crate::global::Global;

/// How long to wait before querying a daemon again that did not answer.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Earlier events that are shown.
const RECENT: u32 = 200;

/// Delivers updates as they arrive.
pub(crate) struct Feed {
    updates: Receiver<Update>,
    request: Arc<Request>,
}

/// What to query next.
struct Request {
    /// The query, and whether the screen waits for its answer.
    query: Mutex<(StatsQuery, bool)>,
    changed: Condvar,
}

impl Request {
    fn query(&self) -> StatsQuery {
        let mut query = self.query.lock();
        query.1 = false;
        query.0.clone()
    }

    /// Waits for the pause, or until the screen waits for another answer than the one just given.
    fn wait(&self, pause: Duration, answered: &StatsQuery) {
        let has_time = |query: &mut (StatsQuery, bool)| !query.1 || query.0 == *answered;
        let mut query = self.query.lock();
        self.changed.wait_while_for(&mut query, has_time, pause);
    }
}

impl Feed {
    /// Starts to query these daemons for what `query` selects.
    pub(crate) fn start(daemons: &[Global], interval: Duration, query: StatsQuery) -> Self {
        let (sender, updates) = channel();
        let request = Arc::new(Request {
            query: Mutex::new((query, false)),
            changed: Condvar::new(),
        });
        if let [global] = daemons {
            follow(global, interval, &request, &sender);
            return Self { updates, request };
        }
        let names: Vec<String> = daemons
            .iter()
            .map(|global| global.host.clone().unwrap_or_default())
            .collect();
        let hosts = Hosts::new(&names);
        for (global, name) in daemons.iter().zip(names) {
            let (host_sender, host_updates) = channel();
            follow(global, interval, &request, &host_sender);
            let (hosts, all) = (Arc::clone(&hosts), sender.clone());
            thread::spawn(move || hosts.pass_on(&name, &host_updates, &all));
        }
        Self { updates, request }
    }

    /// Queries for what `query` selects from now on, at once if the screen waits for it.
    pub(crate) fn ask(&self, query: StatsQuery, is_waiting: bool) {
        let mut current = self.request.query.lock();
        *current = (query, is_waiting);
        self.request.changed.notify_one();
    }

    /// The updates that arrived since the last call.
    pub(crate) fn take(&self) -> impl Iterator<Item = Update> + '_ {
        self.updates.try_iter()
    }
}

/// Starts the threads that query one daemon and follow its events.
fn follow(global: &Global, interval: Duration, request: &Arc<Request>, updates: &Sender<Update>) {
    let (for_stats, for_events) = (global.clone(), global.clone());
    let (request, stats, events) = (Arc::clone(request), updates.clone(), updates.clone());
    thread::spawn(move || while query_stats(&for_stats, interval, &request, &stats).is_some() {});
    let mut shown = VecDeque::new();
    thread::spawn(move || while follow_events(&for_events, &events, &mut shown).is_some() {});
}

/// Queries once per interval; `None` when nobody receives the updates any more.
fn query_stats(
    global: &Global,
    interval: Duration,
    request: &Request,
    updates: &Sender<Update>,
) -> Option<()> {
    let control = Control::open(global).ok()?.quietly();
    let mut before = BTreeSet::new();
    loop {
        let began = Instant::now();
        let query = request.query();
        let stats = control.selected_stats(&query);
        let passed_on = match stats.and_then(|stats| Ok((stats, control.status()?))) {
            Ok((stats, status)) => {
                let rules = stats.rules.iter();
                let names: Vec<String> = rules.map(|rule| rule.name.clone()).collect();
                let (stats, status) = (Box::new(stats), Box::new(status));
                updates
                    .send(Update::Stats(
                        Box::new(query.clone()),
                        stats,
                        status,
                        Vec::new(),
                    ))
                    .ok()?;
                let is_new = |name: &&String| !before.contains(*name);
                let new_rules: Vec<String> = names.iter().filter(is_new).cloned().collect();
                before = names.into_iter().collect();
                query_past(&control, interval, &new_rules, updates)
            }
            Err(failure) => updates.send(Update::Unreachable(failure.to_string())).ok(),
        };
        passed_on?;
        // An answer about many rules takes long, and the daemon has other work.
        request.wait(interval.max(2 * began.elapsed()), &query);
    }
}

/// Queries the past of rules, as many at a time as allowed. A daemon without a history returns none.
fn query_past(
    control: &Control,
    interval: Duration,
    names: &[String],
    updates: &Sender<Update>,
) -> Option<()> {
    let seconds = interval.as_secs_f64() * history::SAMPLES_MAX as f64;
    for chunk in names.chunks(HISTORY_RULES_MAX) {
        let chunk: Vec<&str> = chunk.iter().map(String::as_str).collect();
        // If a rule has been removed by now, its whole chunk begins without a past.
        if let Ok(past) = control.history(&chunk, seconds.clamp(1.0, 3600.0) as u32) {
            updates.send(Update::Past(Box::new(past), interval)).ok()?;
        }
    }
    Some(())
}

/// Follows events until the daemon ends. Events among `shown` are not passed on again.
fn follow_events(
    global: &Global,
    updates: &Sender<Update>,
    shown: &mut VecDeque<Event>,
) -> Option<()> {
    let control = Control::open(global).ok()?.quietly();
    let shown_before = shown.clone();
    if let Ok(mut events) = control.events(RECENT, true) {
        while let Ok(Some(item)) = control.next_event(&mut events, None) {
            let item = match item {
                StreamItem::Event(event) if shown_before.contains(&event) => continue,
                StreamItem::Event(event) => {
                    shown.truncate(RECENT as usize - 1);
                    shown.push_front(event.clone());
                    Update::Event(event)
                }
                StreamItem::Missed(missed) => Update::Missed(missed),
            };
            updates.send(item).ok()?;
        }
    }
    thread::sleep(RETRY_PAUSE);
    Some(())
}
