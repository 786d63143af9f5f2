//! What is worth telling: found by comparing how things are with how they were.

mod coalesce;
mod event_log;
mod subscriber;
mod throttle;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use api::reply::{Change, Event, Reload, State};
use coalesce::{Brief, brief};
use dataplane::counters::WorkerCounters;
pub(crate) use event_log::{Begin, Board, KEPT, Numbered};
use model::host::{Host, Interface, NextHop};
use model::shared_map::SharedMap;
pub(crate) use subscriber::{Heard, Listening};
use throttle::{Held, Line, Quota};
use tracing::Level;

use crate::view::{RuleState, View};

/// Where events go: to every reader that is there, and into the log.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    board: Board,
    last_reload: Arc<Mutex<Option<Reload>>>,
    quota: Arc<Mutex<Quota>>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self {
            board: Board::new(),
            last_reload: Arc::default(),
            quota: Arc::default(),
        }
    }

    /// What became of the last reload.
    pub(crate) fn last_reload(&self) -> Option<Reload> {
        let last = self.last_reload.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where they can be read.
    pub(crate) fn board(&self) -> Board {
        self.board.clone()
    }

    pub(crate) fn tell(&self, event: Event) {
        if let RELOADED | RELOAD_FAILED = event.kind.as_str() {
            let last = self.last_reload.lock();
            *last.unwrap_or_else(PoisonError::into_inner) = Some(Reload {
                at_ms: event.at_ms,
                succeeded: event.kind == RELOADED,
            });
        }
        self.tell_all(vec![event]);
    }

    /// Tells what came together: each event to who listens, in few words to the log and to who comes
    /// later.
    pub(crate) fn tell_all(&self, events: Vec<Event>) {
        let brief = brief(&events);
        brief.iter().for_each(|brief| self.log(brief));
        self.board.tell(events, brief);
    }

    /// Writes a line, if the subject has not written too many.
    fn log(&self, brief: &Brief) {
        let event = &brief.event;
        let subject = match brief.count {
            1 => &event.subject,
            _ => &event.kind,
        };
        self.tell_held();
        // What only `mcr log debug` shows is wanted in full, and a line that the level leaves out
        // uses nothing up.
        let may_log = is_detail(&event.kind)
            || is_enabled(&event.kind) && self.quota().admit(subject, event.into(), Instant::now());
        if may_log {
            log(event, brief.count);
        }
    }

    /// Logs what was held back of subjects whose minute is over. To be called now and then: when all
    /// is quiet again the log must not end with what was true a minute ago.
    pub(crate) fn tell_held(&self) {
        let settled = self.quota().settle(Instant::now());
        for Held {
            subject,
            lines,
            last,
        } in settled
        {
            let message = format!("{} (the last line held back)", last.message);
            if last.is_trouble {
                tracing::warn!(subject, held = lines, "{message}");
            } else {
                tracing::info!(subject, held = lines, "{message}");
            }
        }
    }

    fn quota(&self) -> MutexGuard<'_, Quota> {
        self.quota.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<&Event> for Line {
    fn from(event: &Event) -> Self {
        Self {
            message: event.message.clone(),
            is_trouble: is_trouble(&event.kind),
        }
    }
}

/// Says whether a line about an event of this kind is written at the level of now.
fn is_enabled(kind: &str) -> bool {
    if is_trouble(kind) {
        tracing::enabled!(Level::WARN)
    } else {
        tracing::enabled!(Level::INFO)
    }
}

fn is_detail(kind: &str) -> bool {
    matches!(kind, LINK_CHANGED | OUTPUT_UP | JOINED)
}

/// Says whether an event of this kind tells of something that went wrong.
fn is_trouble(kind: &str) -> bool {
    matches!(
        kind,
        RULE_DOWN
            | RULE_DEGRADED
            | OUTPUT_DOWN
            | STREAM_DOWN
            | STREAM_DEGRADED
            | JOIN_FAILED
            | WORKER_RESTARTED
            | RELOAD_FAILED
    )
}

fn log(event: &Event, count: u64) {
    let (kind, message) = (event.kind.as_str(), &event.message);
    // What stands for many is about none of them.
    let subject = (count == 1).then_some(event.subject.as_str());
    let count = (count > 1).then_some(count);
    if is_trouble(kind) {
        tracing::warn!(event = kind, subject, count, "{message}");
    } else if is_detail(kind) {
        tracing::debug!(event = kind, subject, count, "{message}");
    } else {
        tracing::info!(event = kind, subject, count, "{message}");
    }
}

const RULE_ADDED: &str = "rule_added";
const RULE_REMOVED: &str = "rule_removed";
const RULE_CHANGED: &str = "rule_changed";
const SETTINGS_CHANGED: &str = "settings_changed";
const RULE_UP: &str = "rule_up";
const RULE_DEGRADED: &str = "rule_degraded";
const RULE_DOWN: &str = "rule_down";
const OUTPUT_UP: &str = "output_up";
const OUTPUT_DOWN: &str = "output_down";
const JOINED: &str = "joined";
const JOIN_FAILED: &str = "join_failed";
const STREAM_UP: &str = "stream_up";
const STREAM_DEGRADED: &str = "stream_degraded";
const STREAM_DOWN: &str = "stream_down";
const WORKER_RESTARTED: &str = "worker_restarted";
const LINK_CHANGED: &str = "link_changed";
const NEXT_HOP_CHANGED: &str = "next_hop_changed";
/// The configuration was read again.
pub(crate) const RELOADED: &str = "reloaded";
/// The configuration could not be read again.
pub(crate) const RELOAD_FAILED: &str = "reload_failed";

/// Something that happened just now.
pub(crate) fn event(kind: &str, subject: &str, message: String) -> Event {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Event {
        at_ms: now.map_or(0, |now| now.as_millis() as u64),
        kind: kind.to_owned(),
        subject: subject.to_owned(),
        message,
    }
}

/// A worker was started again.
pub(crate) fn worker_restarted(worker: &WorkerCounters) -> Event {
    let (id, restarts) = (worker.id, worker.restarts);
    let message = format!("worker {id} ended and was started again, {restarts} times so far");
    event(WORKER_RESTARTED, &id.to_string(), message)
}

/// A watched stream is in another state.
pub(crate) fn stream(rule: &str, state: State, reason: Option<&str>) -> Event {
    let (kind, word) = match state {
        State::Up => (STREAM_UP, "up"),
        State::Degraded => (STREAM_DEGRADED, "degraded"),
        State::Down => (STREAM_DOWN, "down"),
    };
    let reason = reason.map(|reason| format!(": {reason}"));
    let reason = reason.unwrap_or_default();
    event(
        kind,
        rule,
        format!("rule {rule:?}: the stream is {word}{reason}"),
    )
}

/// The events of a change of rules and settings.
pub(crate) fn of_change(change: &Change) -> Vec<Event> {
    let kinds = [
        (RULE_REMOVED, &change.removed, "removed"),
        (RULE_ADDED, &change.added, "added"),
        (RULE_CHANGED, &change.changed, "changed"),
    ];
    let events = kinds.into_iter().flat_map(|(kind, names, verb)| {
        let tell = move |name: &String| event(kind, name, format!("rule {name:?} {verb}"));
        names.iter().map(tell)
    });
    let settings = change.settings.iter().map(|said| {
        let message = format!("settings changed: {said}");
        event(SETTINGS_CHANGED, "configuration", message)
    });
    events.chain(settings).collect()
}

/// The events that lead from one view to the next.
pub(crate) fn between(old: &View, new: &View) -> Vec<Event> {
    let mut events = of_links(&old.host, &new.host);
    events.extend(of_next_hops(&old.host, &new.host));
    // States are shared between views, so most need no look at their names.
    let difference = SharedMap::difference(&old.states, &new.states);
    let before = difference.removed.into_iter();
    let before: BTreeMap<&str, &Arc<RuleState>> =
        before.map(|(_, state)| (state.name(), state)).collect();
    for (_, state) in difference.added {
        let before = before.get(state.name()).copied();
        if before != Some(state) {
            of_state(before.map(AsRef::as_ref), state, &mut events);
        }
    }
    events
}

fn of_state(before: Option<&RuleState>, now: &RuleState, events: &mut Vec<Event>) {
    let rule = now.name();
    let mut tell = |kind, message: String| {
        events.push(event(kind, rule, format!("rule {rule:?}{message}")));
    };
    for (index, (at, input)) in now.inputs().enumerate() {
        if before.and_then(|before| before.inputs().nth(index)) == Some((at, input)) {
            continue;
        }
        match &input.reason {
            Some(reason) if !input.joined => tell(JOIN_FAILED, format!(": input {at}: {reason}")),
            _ if input.joined => tell(JOINED, format!(": input {at}: joined")),
            _ => {}
        }
    }
    for (index, (to, down)) in now.outputs().enumerate() {
        if before.and_then(|before| before.outputs().nth(index)) == Some((to, down)) {
            continue;
        }
        match down {
            Some(reason) => tell(OUTPUT_DOWN, format!(": output {to}: {reason}")),
            None => tell(OUTPUT_UP, format!(": output {to}: up")),
        }
    }
    if before.map(|before| before.state) == Some(now.state) {
        return;
    }
    let (kind, word) = match now.state {
        State::Up => (RULE_UP, "up"),
        State::Degraded => (RULE_DEGRADED, "degraded"),
        State::Down => (RULE_DOWN, "down"),
    };
    let reason = now.reason.as_ref().map(|reason| format!(": {reason}"));
    tell(kind, format!(" is {word}{}", reason.unwrap_or_default()));
}

fn of_links(old: &Host, new: &Host) -> Vec<Event> {
    let mut events = Vec::new();
    let mut tell = |link: &Interface, what: String| {
        let message = format!("interface {}: {what}", link.name);
        events.push(event(LINK_CHANGED, &link.name, message));
    };
    for (index, link) in &new.interfaces {
        match old.interfaces.get(index) {
            None => tell(link, "is there".to_owned()),
            Some(before) if before != link => tell(link, difference(before, link)),
            Some(_) => {}
        }
    }
    for (index, link) in &old.interfaces {
        if !new.interfaces.contains_key(index) {
            tell(link, "is gone".to_owned());
        }
    }
    events
}

/// Unicast destinations that are reached in another way than before.
fn of_next_hops(old: &Host, new: &Host) -> Vec<Event> {
    let mut events = Vec::new();
    for (query, now) in &new.next_hops {
        let NextHop::Resolved {
            interface,
            via,
            mac,
        } = now
        else {
            continue;
        };
        if old.next_hops.get(query).is_none_or(|before| before == now) {
            continue;
        }
        let link = new.interfaces.get(interface);
        let link = link.map_or_else(|| interface.0.to_string(), |link| link.name.clone());
        let at = mac.map_or_else(String::new, |mac| format!(" at {mac}"));
        let destination = query.destination.to_string();
        let message = format!("{destination} is now reached by {link} via {via}{at}");
        events.push(event(NEXT_HOP_CHANGED, &destination, message));
    }
    events
}

fn difference(before: &Interface, now: &Interface) -> String {
    let mut parts = Vec::new();
    if before.name != now.name {
        parts.push(format!("was called {}", before.name));
    }
    if before.up != now.up {
        parts.push(if now.up { "is up" } else { "is down" }.to_owned());
    }
    if before.mtu != now.mtu {
        parts.push(format!("MTU {} was {}", now.mtu, before.mtu));
    }
    if before.mac != now.mac {
        parts.push("has another Ethernet address".to_owned());
    }
    if before.addresses != now.addresses {
        let addresses: Vec<String> = now.addresses.iter().map(ToString::to_string).collect();
        parts.push(format!("addresses: {}", addresses.join(" ")));
    }
    if before.gro_list != now.gro_list {
        let switched = if now.gro_list { "on" } else { "off" };
        parts.push(format!("rx-gro-list is {switched}"));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reload_is_remembered() {
        let events = Events::new();
        assert_eq!(events.last_reload(), None);
        for (kind, succeeded) in [(RELOADED, true), (RELOAD_FAILED, false)] {
            events.tell(event(kind, "configuration", String::new()));
            let last = events.last_reload().unwrap();
            assert_eq!(last.succeeded, succeeded);
            assert!(last.at_ms > 0);
        }
        events.tell(event(RULE_UP, "cam1", String::new()));
        assert!(!events.last_reload().unwrap().succeeded);
    }
}
