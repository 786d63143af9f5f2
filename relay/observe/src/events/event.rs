//! Constructors of events that several parts of the daemon publish.

use std::fmt::Display;

use api::reply::{By, Event, State};
use dataplane::counters::WorkerStats;
use rules::printable::{printable, things};

use super::kind::*;
use crate::alarms::pauses::Pause;

/// Something that happened just now.
pub fn event(kind: &str, subject: &str, message: String) -> Event {
    Event {
        at_ms: sys::clock::realtime_ms(),
        kind: kind.to_owned(),
        subject: subject.to_owned(),
        message: printable(&message).into_owned(),
        ..Event::default()
    }
}

/// Adds to an event who caused it, and why.
pub fn done_by(mut event: Event, by: &By, why: Option<&str>) -> Event {
    event.by = Some(Box::new(by.clone()));
    event.why = why.map(str::to_owned);
    event
}

/// The configuration exists and cannot be used.
pub fn not_used(why: &dyn Display) -> Event {
    let message = format!("configuration not used, the rules stay: {why}");
    event(RELOAD_FAILED, "configuration", message)
}

/// The running rules are not saved.
pub fn not_saved(why: &str) -> Event {
    event(NOT_SAVED, "daemon", why.to_owned())
}

/// The running rules are saved again.
pub fn saved() -> Event {
    let message = "the running rules are written down again".to_owned();
    event(SAVED, "daemon", message)
}

/// A worker was started again.
pub fn worker_restarted(worker: &WorkerStats) -> Event {
    let (id, times) = (worker.id, things(worker.restarts, "time"));
    let message = format!("worker {id} ended and was started again, {times} so far");
    event(WORKER_RESTARTED, &id.to_string(), message)
}

/// A stream that its rule does not watch has stopped, or is back.
pub(crate) fn pause(rule: &str, pause: Pause) -> Event {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let (kind, what) = match pause {
        Pause::Silent(ns) => (
            STREAM_SILENT,
            format!("silent: no packet for {:.1} s", seconds(ns)),
        ),
        Pause::Back(ns) => (STREAM_BACK, format!("back after {:.1} s", seconds(ns))),
    };
    event(kind, rule, format!("rule {rule:?}: the stream is {what}"))
}

/// The state of a watched stream has changed.
pub fn stream(rule: &str, state: State, reason: Option<&str>) -> Event {
    let kind = match state {
        State::Up | State::Disabled => STREAM_UP,
        State::Degraded => STREAM_DEGRADED,
        State::Down => STREAM_DOWN,
    };
    let mut message = format!("rule {rule:?}: the stream is {}", state.as_str());
    if let Some(reason) = reason {
        message += &format!(": {reason}");
    }
    event(kind, rule, message)
}
