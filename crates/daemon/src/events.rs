//! What is worth telling: found by comparing how things are with how they were.

use std::collections::BTreeMap;
use std::time::SystemTime;

use api::event::{Event, EventKind};
use api::reply::{Change, State};
use dataplane::counters::WorkerCounters;
use model::host::{Host, Interface};
use tokio::sync::broadcast;

use crate::view::{RuleState, View};

/// Events a slow reader may lag behind before it misses some.
const BACKLOG: usize = 1024;

/// Where events go: to every reader that is there, and into the log.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    sender: broadcast::Sender<Event>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self {
            sender: broadcast::channel(BACKLOG).0,
        }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.sender.subscribe()
    }

    pub(crate) fn tell(&self, event: Event) {
        let (kind, message) = (event.event.as_str(), &event.message);
        match event.event {
            EventKind::RuleDown
            | EventKind::OutputDown
            | EventKind::JoinFailed
            | EventKind::WorkerRestarted
            | EventKind::ReloadFailed => tracing::warn!(event = kind, "{message}"),
            EventKind::LinkChanged => tracing::debug!(event = kind, "{message}"),
            _ => tracing::info!(event = kind, "{message}"),
        }
        // Nobody listening is not an error.
        let _ = self.sender.send(event);
    }
}

/// An event that concerns nothing in particular yet.
pub(crate) fn event(kind: EventKind, message: String) -> Event {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Event {
        event: kind,
        time_ms: now.map_or(0, |now| now.as_millis() as u64),
        rule: None,
        endpoint: None,
        interface: None,
        worker: None,
        message,
    }
}

fn of_rule(kind: EventKind, rule: &str, message: String) -> Event {
    Event {
        rule: Some(rule.to_owned()),
        ..event(kind, message)
    }
}

/// A worker was started again.
pub(crate) fn worker_restarted(worker: &WorkerCounters) -> Event {
    let message = format!(
        "worker {} ended and was started again, {} times so far",
        worker.id, worker.restarts
    );
    Event {
        worker: Some(worker.id),
        ..event(EventKind::WorkerRestarted, message)
    }
}

/// The events of a change of rules.
pub(crate) fn of_change(change: &Change) -> Vec<Event> {
    let kinds = [
        (EventKind::RuleRemoved, &change.removed, "removed"),
        (EventKind::RuleAdded, &change.added, "added"),
        (EventKind::RuleChanged, &change.changed, "changed"),
    ];
    let events = kinds.into_iter().flat_map(|(kind, names, verb)| {
        let tell = move |name: &String| of_rule(kind, name, format!("rule {name:?} {verb}"));
        names.iter().map(tell)
    });
    events.collect()
}

/// The events that lead from one view to the next.
pub(crate) fn between(old: &View, new: &View) -> Vec<Event> {
    let before: BTreeMap<&str, &RuleState> = old
        .states
        .iter()
        .map(|state| (state.name.as_str(), state))
        .collect();
    let mut events = of_links(&old.host, &new.host);
    for state in &new.states {
        let before = before.get(state.name.as_str()).copied();
        if before != Some(state) {
            of_state(before, state, &mut events);
        }
    }
    events
}

fn of_state(before: Option<&RuleState>, now: &RuleState, events: &mut Vec<Event>) {
    let rule = &now.name;
    let mut tell = |kind, at: Option<&str>, message: String| {
        events.push(Event {
            endpoint: at.map(str::to_owned),
            ..of_rule(kind, rule, message)
        });
    };
    for (index, input) in now.inputs.iter().enumerate() {
        let same = |b: &&RuleState| b.inputs.get(index).is_some_and(|b| b == input);
        if before.is_some_and(|b| same(&b)) {
            continue;
        }
        let at = &input.at;
        match (&input.reason, input.joined) {
            (Some(reason), false) => tell(
                EventKind::JoinFailed,
                Some(at),
                format!("rule {rule:?}: input {at}: {reason}"),
            ),
            _ if input.joined => tell(
                EventKind::Joined,
                Some(at),
                format!("rule {rule:?}: input {at}: joined"),
            ),
            _ => {}
        }
    }
    for (index, output) in now.outputs.iter().enumerate() {
        let was = before.and_then(|before| before.outputs.get(index));
        if was.is_some_and(|was| was == output) {
            continue;
        }
        let to = &output.to;
        match &output.down {
            Some(reason) => tell(
                EventKind::OutputDown,
                Some(to),
                format!("rule {rule:?}: output {to}: {reason}"),
            ),
            None => tell(
                EventKind::OutputUp,
                Some(to),
                format!("rule {rule:?}: output {to}: up"),
            ),
        }
    }
    if before.map(|before| before.state) != Some(now.state) {
        let (kind, word) = match now.state {
            State::Up => (EventKind::RuleUp, "up"),
            State::Degraded => (EventKind::RuleDegraded, "degraded"),
            State::Down => (EventKind::RuleDown, "down"),
        };
        let reason = now.reason.as_ref().map(|reason| format!(": {reason}"));
        let message = format!("rule {rule:?} is {word}{}", reason.unwrap_or_default());
        tell(kind, None, message);
    }
}

fn of_links(old: &Host, new: &Host) -> Vec<Event> {
    let mut events = Vec::new();
    let mut tell = |link: &Interface, what: String| {
        events.push(Event {
            interface: Some(link.name.clone()),
            ..event(
                EventKind::LinkChanged,
                format!("interface {}: {what}", link.name),
            )
        });
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
    parts.join(", ")
}
