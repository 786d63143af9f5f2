//! What an Alertmanager is told (API v2): each alert as it begins, again each minute, and its end. Events
//! say when; each minute what is said is held against how things are, for not every end is an event.

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

use super::{Source, is_meant};
use crate::events::Numbered;
use crate::stats::Identity;
use crate::view::{RuleState, View};

/// How often it is told what goes on.
const AGAIN: Duration = Duration::from_secs(60);
/// How long it believes it, in seconds; what happens and does not last it shows for so long.
const BELIEVED: u64 = 240;
/// How soon the alerts of a rule are held against what the rule has become.
const SOON: Duration = Duration::from_secs(1);
/// The most that are known, and that are told at once.
const ALERTS_MAX: usize = 10_000;
const AT_ONCE: usize = 500;

/// What an alert is of: a kind of events, its subject, and which part of that.
type Key = (String, String, String);

struct Alert {
    message: String,
    starts: u64,
    ends: Option<u64>,
    /// When it was told as it is.
    told: Option<Instant>,
}

/// The alerts that one Alertmanager has to know.
pub(super) struct Alerts {
    all: BTreeMap<Key, Alert>,
    /// Those on their way.
    flying: Vec<Key>,
    /// When they are held against how things are.
    look: Instant,
    /// Number of the first event that is no older than these are.
    began: u64,
    /// Those that did not fit.
    dropped: u64,
    labels: BTreeMap<String, String>,
}

impl Alerts {
    pub(super) fn new(source: &Source, target: &NotifyTarget, began: u64) -> Self {
        Self {
            all: BTreeMap::new(),
            flying: Vec::new(),
            look: Instant::now(),
            began,
            dropped: 0,
            labels: labels(&source.identity, target),
        }
    }

    /// Takes in what an event begins or ends.
    pub(super) fn hear(&mut self, Numbered { number, event }: &Numbered, target: &NotifyTarget) {
        let (kind, part) = (&event.kind, event.part.clone().unwrap_or_default());
        let key = |kind: &str| (kind.to_owned(), event.subject.clone(), part.clone());
        let at = event.at_ms / 1000;
        for begun in ended_by(kind) {
            self.all.entry(key(begun)).and_modify(|alert| alert.end(at));
        }
        if [RULE_CHANGED, RULE_REMOVED, RULE_DISABLED].contains(&kind.as_str()) {
            self.look = self.look.min(Instant::now() + SOON);
        }
        let is_over = !lasts(kind) && *number < self.began;
        // What stands for many is of nobody; how things are says it of each.
        if !is_over && !event.subject.is_empty() && weight(kind) == Weight::Trouble {
            self.begin(key(kind), event.message.clone(), at, target);
        }
    }

    /// Holds what is known against how things are, where that is due; says how many did not fit.
    pub(super) fn look(&mut self, source: &Source, target: &NotifyTarget) -> u64 {
        if self.look <= Instant::now() {
            self.look = Instant::now() + AGAIN;
            let view = source.view.borrow().clone();
            for (key, alert) in &mut self.all {
                if lasts(&key.0) && !stands(key, &view, source) {
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

    /// What is to be told by now.
    pub(super) fn due(&mut self) -> Option<Bytes> {
        let now = Instant::now();
        let is_due = |alert: &Alert| alert.told.is_none_or(|told| told + AGAIN <= now);
        let mut body = Vec::new();
        for (key, alert) in self.all.iter_mut().filter(|(_, alert)| is_due(alert)) {
            alert.told = Some(now);
            self.flying.push(key.clone());
            body.push(alert.json(key, &self.labels));
            if body.len() == AT_ONCE {
                break;
            }
        }
        let body = (!body.is_empty()).then_some(body)?;
        serde_json::to_vec(&body).ok().map(Bytes::from)
    }

    /// Learns whether what was on its way was taken.
    pub(super) fn landed(&mut self, taken: bool) {
        for key in take(&mut self.flying) {
            let Some(alert) = self.all.get_mut(&key) else {
                continue;
            };
            // What changed meanwhile is told as it is now.
            match alert.told.is_some() {
                true if !taken => alert.told = None,
                true if alert.ends.is_some() || !lasts(&key.0) => drop(self.all.remove(&key)),
                _ => {}
            }
        }
    }

    /// When something is to be done; `is_free`: nothing is on its way.
    pub(super) fn next(&self, is_free: bool) -> Instant {
        let due = self.all.values().filter(|_| is_free);
        let due = due.map(|alert| alert.told.map_or_else(Instant::now, |told| told + AGAIN));
        due.min().map_or(self.look, |due| due.min(self.look))
    }

    fn begin(&mut self, key: Key, message: String, starts: u64, target: &NotifyTarget) {
        if !is_meant(target, &key.0) {
            return;
        }
        let known = self.all.get(&key).filter(|alert| alert.ends.is_none());
        if known.is_none() && self.all.len() >= ALERTS_MAX && !self.all.contains_key(&key) {
            self.dropped += 1;
            return;
        }
        if known.is_none_or(|alert| alert.message != message) {
            let alert = Alert {
                message,
                starts: known.map_or(starts, |alert| alert.starts),
                ends: None,
                told: None,
            };
            self.all.insert(key, alert);
        }
    }
}

impl Alert {
    fn end(&mut self, at: u64) {
        if self.ends.is_none() {
            self.ends = Some(at.max(self.starts));
            self.told = None;
        }
    }

    fn json(&self, (kind, subject, part): &Key, labels: &BTreeMap<String, String>) -> Value {
        let mut labels = labels.clone();
        let own = [("alertname", kind), ("subject", subject), ("part", part)];
        for (name, value) in own.into_iter().filter(|(_, value)| !value.is_empty()) {
            labels.insert(name.to_owned(), value.clone());
        }
        let from = if lasts(kind) { now() } else { self.starts };
        let ends = self.ends.unwrap_or(from + BELIEVED);
        json!({
            "labels": labels,
            "annotations": { "summary": self.message },
            "startsAt": moment_text(self.starts),
            "endsAt": moment_text(ends),
        })
    }
}

/// An event as an alert of its own, which does not last.
pub(super) fn alone(identity: &Identity, target: &NotifyTarget, event: &Event) -> Value {
    let alert = Alert {
        message: event.message.clone(),
        starts: event.at_ms / 1000,
        ends: None,
        told: None,
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
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let asked = target.labels.clone().unwrap_or_default();
    own.into_iter().chain(asked).collect()
}

fn now() -> u64 {
    sys::clock::realtime_ns() / 1_000_000_000
}

/// What of a rule does not work by now: kind, part and words.
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
        let copies = copies.map(|copy| (format!("{to} {}", copy.address), &copy.down));
        for (part, down) in copies.chain([(to.clone(), &output.down)]) {
            if let Some(down) = down {
                let words = format!("rule {name:?}: output {part}: {}", down.text);
                faults.push((OUTPUT_DOWN, part, words));
            }
        }
    }
    faults
}

/// Whether what an alert says goes on, as far as that can be seen.
fn stands((kind, subject, part): &Key, view: &View, source: &Source) -> bool {
    let place = view.rules.place(subject);
    let state = place.and_then(|place| view.states.get(&place));
    let rule = view.rules.get(subject).filter(|rule| rule.enabled);
    let is_fault = || {
        let faults = state.map_or_else(Vec::new, |state| faults(state));
        let mut faults = faults.into_iter();
        faults.any(|(known, of, _)| (known, &of) == (kind.as_str(), part))
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
            let mut receivers = receivers.iter();
            receivers.any(|one| one.name == *subject && one.trouble.lock().is_some())
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::event;

    fn alerts() -> Alerts {
        Alerts {
            all: BTreeMap::new(),
            flying: Vec::new(),
            look: Instant::now() + AGAIN,
            began: 0,
            dropped: 0,
            labels: BTreeMap::new(),
        }
    }

    fn hear(alerts: &mut Alerts, number: u64, event: Event) {
        alerts.hear(&Numbered { number, event }, &NotifyTarget::default());
    }

    fn told(alerts: &mut Alerts) -> Vec<(String, bool)> {
        let body = alerts.due().unwrap_or_else(|| Bytes::from_static(b"[]"));
        let body: Vec<Value> = serde_json::from_slice(&body).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let told = body.iter().map(|alert| {
            let name = text(&alert["labels"]["alertname"]) + &text(&alert["labels"]["part"]);
            (name, text(&alert["endsAt"]) > moment_text(now() + 1))
        });
        told.collect()
    }

    #[tokio::test]
    async fn an_alert_begins_goes_on_and_ends_and_is_told_until_it_is_taken() {
        let mut alerts = alerts();
        let hear = |alerts: &mut Alerts, kind: &str, part: Option<&str>| {
            let mut event = event(kind, "cam1", kind.to_owned());
            event.part = part.map(str::to_owned);
            hear(alerts, 1, event);
        };
        hear(&mut alerts, "rule_added", None);
        hear(&mut alerts, "output_down", Some(" a"));
        hear(&mut alerts, "output_down", Some(" b"));
        let both = [
            ("output_down a".to_owned(), true),
            ("output_down b".to_owned(), true),
        ];
        assert_eq!(told(&mut alerts), both);
        alerts.landed(false);
        assert_eq!(told(&mut alerts), both, "nobody took it");
        // One ends while both are on their way.
        hear(&mut alerts, "output_up", Some(" a"));
        alerts.landed(true);
        assert_eq!(told(&mut alerts), [("output_down a".to_owned(), false)]);
        alerts.landed(true);
        assert_eq!(told(&mut alerts), []);
        assert_eq!(alerts.all.len(), 1);
        hear(&mut alerts, "output_up", Some(" b"));
        hear(&mut alerts, "worker_restarted", None);
        assert_eq!(told(&mut alerts).len(), 2);
        alerts.landed(true);
        assert!(alerts.all.is_empty());
    }

    /// Whatever the clock says, which may have been set back since.
    #[tokio::test]
    async fn what_happened_before_and_does_not_last_is_no_alert() {
        let mut alerts = Alerts {
            began: 7,
            ..alerts()
        };
        let restarted = || Event {
            at_ms: 1,
            ..event("worker_restarted", "0", String::new())
        };
        hear(&mut alerts, 6, restarted());
        assert_eq!(alerts.all.len(), 0);
        hear(&mut alerts, 7, restarted());
        assert_eq!(alerts.all.len(), 1);
    }

    #[tokio::test]
    async fn no_more_are_known_than_so_many() {
        let mut alerts = alerts();
        for number in 0..ALERTS_MAX + 5 {
            let subject = format!("cam{number}");
            hear(&mut alerts, 1, event("rule_down", &subject, String::new()));
        }
        assert_eq!((alerts.all.len(), alerts.dropped), (ALERTS_MAX, 5));
        assert_eq!(told(&mut alerts).len(), AT_ONCE);
    }
}
