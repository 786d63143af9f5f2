//! Alerts for an Alertmanager (API v2): each is sent when it begins, again each minute, and when it ends.
//! Events begin and end alerts; each minute they are reconciled with the current state, because not every
//! end is an event.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::time::Duration;

use api::reply::{Event, State};
use axum::body::Bytes;
use config::event_kind::{
    DROPS_BEGAN, JOIN_FAILED, LINE_DEGRADED, LINE_DOWN, LINES_DIFFER, NAME_FAILED, NOTIFY_FAILED,
    OUTPUT_DEGRADED, OUTPUT_DOWN, RULE_CHANGED, RULE_DEGRADED, RULE_DISABLED, RULE_DOWN,
    RULE_REMOVED, SKEW_EXCEEDS_WINDOW, STREAM_DEGRADED, STREAM_DOWN, STREAM_SILENT, Weight,
    ended_by, lasts, weight,
};
use config::{NotifyTarget, moment_text};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Source, is_selected};
use crate::events::{Numbered, event};
use crate::stats::Identity;
use crate::view::{RuleState, View};

/// How often active alerts are sent again.
const RESEND: Duration = Duration::from_secs(60);
/// How long an alert is valid, in seconds; a momentary event is shown for this long.
const VALID_SECONDS: u64 = 240;
/// How soon after a change of a rule its alerts are reconciled.
const SOON: Duration = Duration::from_secs(1);
/// The most alerts that are tracked, and that are sent at once.
const ALERTS_MAX: usize = 10_000;
const BATCH_MAX: usize = 500;

/// The identity of an alert: a kind of events, its subject, and the part of that.
type Key = (String, String, String);

struct Alert {
    message: String,
    starts: u64,
    ends: Option<u64>,
    /// When it was sent in its current form.
    sent_at: Option<Instant>,
}

/// The alerts for one Alertmanager.
pub(super) struct Alerts {
    all: BTreeMap<Key, Alert>,
    /// Those that are being sent.
    in_flight: Vec<Key>,
    /// When they are next reconciled with the current state.
    reconcile_at: Instant,
    /// Number of the first event after these alerts began.
    began: u64,
    /// How many did not fit.
    dropped: u64,
    labels: BTreeMap<String, String>,
}

impl Alerts {
    pub(super) fn new(source: &Source, target: &NotifyTarget, began: u64) -> Self {
        Self {
            all: BTreeMap::new(),
            in_flight: Vec::new(),
            reconcile_at: Instant::now(),
            began,
            dropped: 0,
            labels: labels(&source.identity, target),
        }
    }

    /// Begins or ends alerts by an event.
    pub(super) fn record(&mut self, Numbered { number, event }: &Numbered, target: &NotifyTarget) {
        let (kind, part) = (&event.kind, event.part.clone().unwrap_or_default());
        let key = |kind: &str| (kind.to_owned(), event.subject.clone(), part.clone());
        let at = event.at_ms / 1000;
        for begun in ended_by(kind) {
            self.all.entry(key(begun)).and_modify(|alert| alert.end(at));
        }
        if [RULE_CHANGED, RULE_REMOVED, RULE_DISABLED].contains(&kind.as_str()) {
            self.reconcile_at = self.reconcile_at.min(Instant::now() + SOON);
        }
        let is_over = !lasts(kind) && *number < self.began;
        // An event that stands for many has no subject; reconciling finds each of them.
        if !is_over && !event.subject.is_empty() && weight(kind) == Weight::Trouble {
            self.begin(key(kind), event.message.clone(), at, target);
        }
    }

    /// Reconciles the alerts with the current state, if that is due; returns how many did not fit.
    pub(super) fn reconcile(&mut self, source: &Source, target: &NotifyTarget) -> u64 {
        if self.reconcile_at <= Instant::now() {
            self.reconcile_at = Instant::now() + RESEND;
            let view = source.view.borrow().clone();
            for (key, alert) in &mut self.all {
                if lasts(&key.0) && !holds(key, &view, source) {
                    alert.end(now());
                }
            }
            for state in view.states.values() {
                for (kind, part, message) in faults(state) {
                    let key = (kind.to_owned(), state.name().to_owned(), part);
                    self.begin(key, message, now(), target);
                }
            }
        }
        take(&mut self.dropped)
    }

    /// The active alerts as events, the oldest first.
    pub(super) fn active(&self) -> Vec<Event> {
        let active = self.all.iter().filter(|(_, alert)| alert.ends.is_none());
        let events = active.map(|((kind, subject, part), alert)| Event {
            at_ms: alert.starts * 1000,
            part: Some(part.clone()).filter(|part| !part.is_empty()),
            ..event(kind, subject, alert.message.clone())
        });
        let mut events: Vec<Event> = events.collect();
        events.sort_by_key(|event| event.at_ms);
        events
    }

    /// The body to send now, if any alert is due.
    pub(super) fn due(&mut self) -> Option<Bytes> {
        let now = Instant::now();
        let is_due = |alert: &Alert| alert.sent_at.is_none_or(|at| at + RESEND <= now);
        let mut alerts = Vec::new();
        for (key, alert) in self.all.iter_mut().filter(|(_, alert)| is_due(alert)) {
            alert.sent_at = Some(now);
            self.in_flight.push(key.clone());
            alerts.push(alert.json(key, &self.labels));
            if alerts.len() == BATCH_MAX {
                break;
            }
        }
        let batch = (!alerts.is_empty()).then_some(alerts)?;
        serde_json::to_vec(&batch).ok().map(Bytes::from)
    }

    /// Completes the batch that was being sent, which the Alertmanager accepted or not.
    pub(super) fn complete(&mut self, is_accepted: bool) {
        for key in take(&mut self.in_flight) {
            let Some(alert) = self.all.get_mut(&key) else {
                continue;
            };
            // An alert that changed meanwhile is sent again.
            if alert.sent_at.is_none() {
                continue;
            }
            if !is_accepted {
                alert.sent_at = None;
            } else if alert.ends.is_some() || !lasts(&key.0) {
                self.all.remove(&key);
            }
        }
    }

    /// When something is next due; `is_free`: nothing is being sent.
    pub(super) fn next(&self, is_free: bool) -> Instant {
        let due = |alert: &Alert| alert.sent_at.map_or_else(Instant::now, |at| at + RESEND);
        let first = self.all.values().filter(|_| is_free).map(due).min();
        first.map_or(self.reconcile_at, |due| due.min(self.reconcile_at))
    }

    fn begin(&mut self, key: Key, message: String, starts: u64, target: &NotifyTarget) {
        if !is_selected(target, &key.0) {
            return;
        }
        let active = self.all.get(&key).filter(|alert| alert.ends.is_none());
        if active.is_none() && self.all.len() >= ALERTS_MAX && !self.all.contains_key(&key) {
            self.dropped += 1;
            return;
        }
        if active.is_none_or(|alert| alert.message != message) {
            let alert = Alert {
                message,
                starts: active.map_or(starts, |alert| alert.starts),
                ends: None,
                sent_at: None,
            };
            self.all.insert(key, alert);
        }
    }
}

impl Alert {
    fn end(&mut self, at: u64) {
        if self.ends.is_none() {
            self.ends = Some(at.max(self.starts));
            self.sent_at = None;
        }
    }

    fn json(&self, (kind, subject, part): &Key, labels: &BTreeMap<String, String>) -> Value {
        let mut labels = labels.clone();
        let own = [("alertname", kind), ("subject", subject), ("part", part)];
        for (name, value) in own.into_iter().filter(|(_, value)| !value.is_empty()) {
            labels.insert(name.to_owned(), value.clone());
        }
        let from = if lasts(kind) { now() } else { self.starts };
        let ends = self.ends.unwrap_or(from + VALID_SECONDS);
        json!({
            "labels": labels,
            "annotations": { "summary": self.message },
            "startsAt": moment_text(self.starts),
            "endsAt": moment_text(ends),
        })
    }
}

/// An event as a single momentary alert.
pub(super) fn momentary(identity: &Identity, target: &NotifyTarget, event: &Event) -> Value {
    let alert = Alert {
        message: event.message.clone(),
        starts: event.at_ms / 1000,
        ends: None,
        sent_at: None,
    };
    let part = event.part.clone().unwrap_or_default();
    let key = (event.kind.clone(), event.subject.clone(), part);
    alert.json(&key, &labels(identity, target))
}

fn labels(identity: &Identity, target: &NotifyTarget) -> BTreeMap<String, String> {
    let own = [
        ("severity", "warning"),
        ("instance", &identity.instance),
        ("host", &identity.host),
    ];
    let texts = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let configured = target.labels.clone().unwrap_or_default();
    texts.into_iter().chain(configured).collect()
}

fn now() -> u64 {
    sys::clock::realtime_ns() / 1_000_000_000
}

/// The current faults of a rule: kind, part and message.
fn faults(state: &RuleState) -> Vec<(&'static str, String, String)> {
    let kind = match state.state {
        State::Up | State::Disabled => return Vec::new(),
        State::Degraded => RULE_DEGRADED,
        State::Down => RULE_DOWN,
    };
    let name = state.name();
    let reason = state
        .reason
        .as_ref()
        .map_or_else(String::new, |why| format!(": {why}"));
    let words = format!("rule {name:?} is {}{reason}", state.state.as_str());
    let mut faults = vec![(kind, String::new(), words)];
    for (at, input) in state.inputs() {
        if let Some(why) = input.reason.as_ref().filter(|_| !input.joined) {
            let words = format!("rule {name:?}: input {at}: {why}");
            faults.push((JOIN_FAILED, at.to_owned(), words));
        }
    }
    for output in &state.rule.outputs {
        let to = &output.to;
        let copies = output.copies.iter().flat_map(|copies| &copies.all);
        let parts = copies.map(|copy| (format!("{to} {}", copy.address), &copy.down));
        for (part, down) in parts.chain([(to.clone(), &output.down)]) {
            if let Some(down) = down {
                let words = format!("rule {name:?}: output {part}: {}", down.text);
                faults.push((OUTPUT_DOWN, part, words));
            }
        }
    }
    faults
}

/// Whether the condition of an alert still holds, as far as that can be seen.
fn holds((kind, subject, part): &Key, view: &View, source: &Source) -> bool {
    let position = view.rules.slot(subject);
    let state = position.and_then(|position| view.states.get(&position));
    let rule = view.rules.get(subject).filter(|rule| rule.enabled);
    let is_fault = || {
        let current = state.map_or_else(Vec::new, |state| faults(state));
        let key = (kind.as_str(), part);
        current.iter().any(|(kind, part, _)| (*kind, part) == key)
    };
    let sample = || source.sampler.of(subject, &Default::default());
    let names = || {
        let one = view.host.names.keys().map(ToString::to_string);
        one.chain(view.host.all.keys().map(ToString::to_string))
            .collect::<BTreeSet<String>>()
    };
    match kind.as_str() {
        RULE_DOWN | OUTPUT_DOWN | JOIN_FAILED => is_fault(),
        RULE_DEGRADED => is_fault() || rule.is_some() && !sample().starved.is_empty(),
        OUTPUT_DEGRADED => rule.is_some() && !sample().starved.is_empty(),
        LINE_DOWN | LINE_DEGRADED | LINES_DIFFER | SKEW_EXCEEDS_WINDOW => {
            let mut troubles = sample().leg_troubles.into_iter();
            rule.is_some() && troubles.any(|(at, _)| at == *part)
        }
        STREAM_DEGRADED | STREAM_DOWN => rule.is_some_and(|rule| rule.health.is_some()),
        STREAM_SILENT => rule.is_some_and(|rule| rule.health.is_none()),
        DROPS_BEGAN => rule.is_some() || view.host.by_name(subject).is_some(),
        NAME_FAILED => names().contains(subject),
        NOTIFY_FAILED => {
            let receivers = source.notified.receivers();
            let mut named = receivers.iter().filter(|one| one.name == *subject);
            named.any(|one| one.trouble.lock().is_some())
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alerts() -> Alerts {
        Alerts {
            all: BTreeMap::new(),
            in_flight: Vec::new(),
            reconcile_at: Instant::now() + RESEND,
            began: 0,
            dropped: 0,
            labels: BTreeMap::new(),
        }
    }

    fn record(alerts: &mut Alerts, number: u64, event: Event) {
        alerts.record(&Numbered { number, event }, &NotifyTarget::default());
    }

    fn sent(alerts: &mut Alerts) -> Vec<(String, bool)> {
        let body = alerts.due().unwrap_or_else(|| Bytes::from_static(b"[]"));
        let alerts: Vec<Value> = serde_json::from_slice(&body).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let named = alerts.iter().map(|alert| {
            let name = text(&alert["labels"]["alertname"]) + &text(&alert["labels"]["part"]);
            (name, text(&alert["endsAt"]) > moment_text(now() + 1))
        });
        named.collect()
    }

    #[tokio::test]
    async fn an_alert_begins_continues_and_ends_and_is_sent_until_it_is_accepted() {
        let mut alerts = alerts();
        let record = |alerts: &mut Alerts, kind: &str, part: Option<&str>| {
            let mut event = event(kind, "cam1", kind.to_owned());
            event.part = part.map(str::to_owned);
            record(alerts, 1, event);
        };
        record(&mut alerts, "rule_added", None);
        record(&mut alerts, "output_down", Some(" a"));
        record(&mut alerts, "output_down", Some(" b"));
        let both = [
            ("output_down a".to_owned(), true),
            ("output_down b".to_owned(), true),
        ];
        assert_eq!(sent(&mut alerts), both);
        alerts.complete(false);
        assert_eq!(sent(&mut alerts), both, "nobody took it");
        // One ends while both are being sent.
        record(&mut alerts, "output_up", Some(" a"));
        alerts.complete(true);
        assert_eq!(sent(&mut alerts), [("output_down a".to_owned(), false)]);
        alerts.complete(true);
        assert_eq!(sent(&mut alerts), []);
        assert_eq!(alerts.all.len(), 1);
        record(&mut alerts, "output_up", Some(" b"));
        record(&mut alerts, "worker_restarted", None);
        assert_eq!(sent(&mut alerts).len(), 2);
        alerts.complete(true);
        assert!(alerts.all.is_empty());
    }

    /// Regardless of the clock, which may have been set back since.
    #[tokio::test]
    async fn an_earlier_momentary_event_is_no_alert() {
        let mut alerts = Alerts {
            began: 7,
            ..alerts()
        };
        let restarted = || Event {
            at_ms: 1,
            ..event("worker_restarted", "0", String::new())
        };
        record(&mut alerts, 6, restarted());
        assert_eq!(alerts.all.len(), 0);
        record(&mut alerts, 7, restarted());
        assert_eq!(alerts.all.len(), 1);
    }

    #[tokio::test]
    async fn the_number_of_alerts_is_bounded() {
        let mut alerts = alerts();
        for number in 0..ALERTS_MAX + 5 {
            let subject = format!("cam{number}");
            record(&mut alerts, 1, event("rule_down", &subject, String::new()));
        }
        assert_eq!((alerts.all.len(), alerts.dropped), (ALERTS_MAX, 5));
        assert_eq!(sent(&mut alerts).len(), BATCH_MAX);
    }
}
