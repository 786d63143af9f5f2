//! Where updates come from: two threads that ask the daemon, and keep asking after it is gone.

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

/// How long to wait before asking a daemon again that did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// Events of before that are shown.
const RECENT: u32 = 200;

/// News as they come.
pub(crate) struct Feed {
    updates: Receiver<Update>,
    wish: Arc<Wish>,
}

/// What is to be asked next.
struct Wish {
    /// The query, and whether its answer is waited for.
    query: Mutex<(StatsQuery, bool)>,
    changed: Condvar,
}

impl Wish {
    fn query(&self) -> StatsQuery {
        let mut asked = self.query.lock();
        asked.1 = false;
        asked.0.clone()
    }

    /// Waits for so long, or until somebody waits for another answer than the one just given.
    fn wait(&self, pause: Duration, answered: &StatsQuery) {
        let has_time = |asked: &mut (StatsQuery, bool)| !asked.1 || asked.0 == *answered;
        let mut asked = self.query.lock();
        self.changed.wait_while_for(&mut asked, has_time, pause);
    }
}

impl Feed {
    /// Starts to ask these for what `query` selects.
    pub(crate) fn start(asked: &[Global], interval: Duration, query: StatsQuery) -> Self {
        let (sender, updates) = channel();
        let wish = Arc::new(Wish {
            query: Mutex::new((query, false)),
            changed: Condvar::new(),
        });
        if let [global] = asked {
            follow(global, interval, &wish, &sender);
            return Self { updates, wish };
        }
        let names = asked
            .iter()
            .map(|global| global.host.clone().unwrap_or_default());
        let names: Vec<String> = names.collect();
        let hosts = Hosts::new(&names);
        for (global, name) in asked.iter().zip(names) {
            let (of_host, told) = channel();
            follow(global, interval, &wish, &of_host);
            let (hosts, all) = (Arc::clone(&hosts), sender.clone());
            thread::spawn(move || hosts.pass_on(&name, &told, &all));
        }
        Self { updates, wish }
    }

    /// Asks for what `query` selects from now on, at once if that is waited for.
    pub(crate) fn ask(&self, query: StatsQuery, is_waiting: bool) {
        let mut asked = self.wish.query.lock();
        *asked = (query, is_waiting);
        self.wish.changed.notify_one();
    }

    /// What came since the last time.
    pub(crate) fn take(&self) -> impl Iterator<Item = Update> + '_ {
        self.updates.try_iter()
    }
}

/// Has one daemon asked, and its events followed.
fn follow(global: &Global, interval: Duration, wish: &Arc<Wish>, updates: &Sender<Update>) {
    let (for_stats, for_events) = (global.clone(), global.clone());
    let (asked, stats, events) = (Arc::clone(wish), updates.clone(), updates.clone());
    thread::spawn(move || while query_stats(&for_stats, interval, &asked, &stats).is_some() {});
    let mut told = VecDeque::new();
    thread::spawn(move || while follow_events(&for_events, &events, &mut told).is_some() {});
}

/// Asks once a turn; `None` when nobody wants to know any more.
fn query_stats(
    global: &Global,
    interval: Duration,
    wish: &Wish,
    updates: &Sender<Update>,
) -> Option<()> {
    let control = Control::open(global).ok()?.quietly();
    let mut before = BTreeSet::new();
    loop {
        let began = Instant::now();
        let query = wish.query();
        let stats = control.selected_stats(&query);
        let told = match stats.and_then(|stats| Ok((stats, control.status()?))) {
            Ok((stats, status)) => {
                let names = stats.rules.iter().map(|rule| rule.name.clone());
                let names: Vec<String> = names.collect();
                let (stats, status) = (Box::new(stats), Box::new(status));
                updates
                    .send(Update::Stats(Box::new(query.clone()), stats, status))
                    .ok()?;
                let come = names.iter().filter(|name| !before.contains(*name));
                let come: Vec<String> = come.cloned().collect();
                before = names.into_iter().collect();
                query_past(&control, interval, &come, updates)
            }
            Err(failure) => updates.send(Update::Gone(failure.to_string())).ok(),
        };
        told?;
        // An answer about many rules takes long, and the daemon has other work.
        wish.wait(interval.max(2 * began.elapsed()), &query);
    }
}

/// Asks for the past of rules, as many at a time as may be; a daemon that knows none has told all.
fn query_past(
    control: &Control,
    interval: Duration,
    names: &[String],
    updates: &Sender<Update>,
) -> Option<()> {
    let kept = interval.as_secs_f64() * history::KEPT as f64;
    for names in names.chunks(HISTORY_RULES_MAX) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // A rule that is gone by now takes the others of its chunk along, which begin without a past.
        if let Ok(past) = control.history(&names, kept.clamp(1.0, 3600.0) as u32) {
            updates.send(Update::Past(Box::new(past), interval)).ok()?;
        }
    }
    Some(())
}

/// Follows events until the daemon ends; those that were `told` before are not told again.
fn follow_events(
    global: &Global,
    updates: &Sender<Update>,
    told: &mut VecDeque<Event>,
) -> Option<()> {
    let control = Control::open(global).ok()?.quietly();
    let told_before = told.clone();
    if let Ok(mut events) = control.events(RECENT, true) {
        while let Ok(Some(item)) = control.next_event(&mut events, None) {
            let item = match item {
                StreamItem::Event(event) if told_before.contains(&event) => continue,
                StreamItem::Event(event) => {
                    told.truncate(RECENT as usize - 1);
                    told.push_front(event.clone());
                    Update::Event(event)
                }
                StreamItem::Missed(missed) => Update::Missed(missed),
            };
            updates.send(item).ok()?;
        }
    }
    thread::sleep(AGAIN);
    Some(())
}
