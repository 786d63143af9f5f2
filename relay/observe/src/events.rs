//! Events: what operators want to know about, published to subscribers and to the log.

mod batch;
mod clock_step;
mod coalesce;
mod compare;
mod event;
mod event_log;
mod subscriber;
mod throttle;

use std::sync::Arc;
use std::time::Instant;

use api::reply::{Event, Reload};
use parking_lot::Mutex;
use tracing::Level;

pub use batch::Numbered;
pub use clock_step::ClockStep;
use coalesce::{Coalesced, coalesce};
pub use compare::{between, of_change, of_host};
pub use config::event_kind as kind;
pub(crate) use event::pause;
pub use event::{done_by, event, not_saved, not_used, saved, stream, worker_restarted};
use event_log::EventLog;
pub use event_log::{Begin, KEPT};
use kind::{RELOAD_FAILED, RELOADED, Weight, weight};
pub use subscriber::{Delivery, Subscriber};
use throttle::{Line, Throttle};

/// Where events go: to every subscriber, and into the log.
#[derive(Clone, Debug, Default)]
pub struct Events {
    event_log: EventLog,
    last_reload: Arc<Mutex<Option<Reload>>>,
    throttle: Arc<Mutex<Throttle>>,
}

impl Events {
    /// The outcome of the last reload.
    pub fn last_reload(&self) -> Option<Reload> {
        self.last_reload.lock().clone()
    }

    /// Subscribes to each event, or to events that arrive together `coalesced` into one.
    pub fn subscribe(&self, begin: Begin, coalesced: bool) -> Subscriber {
        self.event_log.subscribe(begin, coalesced)
    }

    /// Publishes an event.
    pub fn publish(&self, event: Event) {
        if let RELOADED | RELOAD_FAILED = event.kind.as_str() {
            *self.last_reload.lock() = Some(Reload {
                at_ms: event.at_ms,
                succeeded: event.kind == RELOADED,
            });
        }
        self.publish_all(vec![event]);
    }

    /// Publishes events that belong together: each one to every subscriber, coalesced to the log and to
    /// later subscribers.
    pub fn publish_all(&self, events: Vec<Event>) {
        let coalesced = coalesce(&events);
        coalesced.iter().for_each(|event| self.log(event));
        self.event_log.append(events, coalesced);
    }

    /// Writes a line, unless the subject has written too many.
    fn log(&self, coalesced: &Coalesced) {
        let event = &coalesced.event;
        let subject = match coalesced.count {
            1 => &event.subject,
            _ => &event.kind,
        };
        self.log_held_back();
        // What only `mcr log debug` shows is wanted in full, and a line that the level suppresses does
        // not count.
        let may_log = weight(&event.kind) == Weight::Detail
            || is_enabled(&event.kind)
                && self
                    .throttle
                    .lock()
                    .admit(subject, event.into(), Instant::now());
        if may_log {
            log(event, coalesced.count);
        }
    }

    /// Logs what was held back of subjects whose minute is over. Call it periodically: when all is quiet
    /// again, the log must not end with a state of a minute ago.
    pub fn log_held_back(&self) {
        let held_back = self.throttle.lock().take_held_back(Instant::now());
        for held in held_back {
            let (subject, lines, last) = (held.subject, held.lines, held.last);
            let message = format!("{} (the last line held back)", last.message);
            if last.is_trouble {
                tracing::warn!(subject, held = lines, "{message}");
            } else {
                tracing::info!(subject, held = lines, "{message}");
            }
        }
    }
}

/// The same events as readers of the log get them, if there are many.
pub(crate) fn brief(events: &[Event]) -> Vec<Event> {
    let coalesced = coalesce(events).into_iter();
    coalesced.map(|coalesced| coalesced.event).collect()
}

impl From<&Event> for Line {
    fn from(event: &Event) -> Self {
        Self {
            message: event.message.clone(),
            is_trouble: weight(&event.kind) == Weight::Trouble,
        }
    }
}

/// Whether a line about an event of this kind is written at the current level.
fn is_enabled(kind: &str) -> bool {
    match weight(kind) {
        Weight::Trouble => tracing::enabled!(Level::WARN),
        Weight::News | Weight::Detail => tracing::enabled!(Level::INFO),
    }
}

fn log(event: &Event, count: u64) {
    let (kind, message) = (event.kind.as_str(), &event.message);
    // An event that stands for many has no subject.
    let subject = (count == 1).then_some(event.subject.as_str());
    let count = (count > 1).then_some(count);
    let actor = event.by.as_ref().map(ToString::to_string);
    let (by, why) = (actor.as_deref(), event.why.as_deref());
    match weight(kind) {
        Weight::Trouble => tracing::warn!(event = kind, subject, count, by, why, "{message}"),
        Weight::News => tracing::info!(event = kind, subject, count, by, why, "{message}"),
        Weight::Detail => tracing::debug!(event = kind, subject, count, by, why, "{message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::kind::RULE_UP;
    use super::*;

    #[test]
    fn the_last_reload_is_remembered() {
        let events = Events::default();
        assert_eq!(events.last_reload(), None);
        for (kind, succeeded) in [(RELOADED, true), (RELOAD_FAILED, false)] {
            events.publish(event(kind, "configuration", String::new()));
            let last = events.last_reload().unwrap();
            assert_eq!(last.succeeded, succeeded);
            assert!(last.at_ms > 0);
        }
        events.publish(event(RULE_UP, "cam1", String::new()));
        assert!(!events.last_reload().unwrap().succeeded);
    }
}
