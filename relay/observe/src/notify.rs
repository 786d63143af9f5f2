//! Delivers events to the webhook and each `[[notify.target]]`: a task for each, in order, with retries.
//! The queue for a target that does not answer is bounded, what does not fit is counted as dropped, and
//! nothing else waits for it.

mod alerts;
mod body;
mod outbox;
mod post;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::reply::{NotifyStatus, NotifyTested, State};
use config::event_kind::{NOTIFY_FAILED, NOTIFY_TEST, NOTIFY_WORKS, Weight, weight};
use config::{NotifyFormat, NotifyTarget};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, interval, sleep_until};

use crate::events::{Begin, Delivery, Events, KEPT, Numbered, Subscriber, brief, event};
use crate::stats::{Identity, Sampler};
use crate::view::View;
use alerts::Alerts;
use outbox::{Outbox, Outcome};
use post::Destination;
pub use post::try_files;

/// Shortest time between two reports of an unreachable target: the report itself goes to other targets.
/// The files of a target are tried as often, at once when it is new and at a reload.
const INTERVAL: Duration = Duration::from_secs(60);

/// The receivers of notifications, and their status.
#[derive(Debug, Default)]
pub struct Notified {
    wanted: watch::Sender<Vec<NotifyTarget>>,
    /// The webhook first, if there is one.
    receivers: Mutex<Vec<Arc<Receiver>>>,
    /// Delivery counters of the webhook, whatever its URL.
    webhook: Arc<Posted>,
}

/// Delivery counters.
#[derive(Debug, Default)]
pub struct Posted {
    /// Events that were accepted.
    pub sent: AtomicU64,
    /// Events that did not fit, were refused, or were retried for too long.
    pub dropped: AtomicU64,
}

impl Posted {
    fn note_dropped(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }
}

/// A receiver of notifications.
#[derive(Debug)]
pub struct Receiver {
    /// `webhook`, or the number of the target in the configuration.
    pub name: String,
    destination: Arc<Destination>,
    /// Its delivery counters.
    pub posted: Arc<Posted>,
    /// Why it does not accept events, while it does not.
    trouble: Mutex<Option<String>>,
}

/// What a receiver gets of what happened before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// All events: the daemon has just started.
    Everything,
    /// What is wrong: the target is new.
    Troubles,
    /// Nothing: the target has another number only.
    Nothing,
}

/// What notifications of a relay are made from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The receivers.
    pub notified: Arc<Notified>,
    /// Where events come from.
    pub events: Events,
    /// The state that they are about.
    pub view: watch::Receiver<Arc<View>>,
    /// The state of streams.
    pub sampler: Sampler,
    /// Which relay it is.
    pub identity: Identity,
}

impl Notified {
    /// Notifies these targets from now on.
    pub fn set(&self, targets: Vec<NotifyTarget>) {
        self.wanted.send_replace(targets);
    }

    /// The current receivers.
    pub fn receivers(&self) -> MutexGuard<'_, Vec<Arc<Receiver>>> {
        self.receivers.lock()
    }

    /// Delivery counters of the webhook.
    pub const fn webhook(&self) -> &Arc<Posted> {
        &self.webhook
    }

    /// The status of each receiver.
    pub fn status(&self) -> Vec<NotifyStatus> {
        let receivers = self.receivers();
        receivers.iter().map(|receiver| receiver.status()).collect()
    }

    /// Sends each receiver a test event; returns which accepted it.
    pub async fn test(&self, identity: &Identity) -> Vec<NotifyTested> {
        let message = "somebody asked for a test, all is well".to_owned();
        let event = event(NOTIFY_TEST, "daemon", message);
        let number = event.at_ms;
        let numbered = Numbered { number, event };
        let mut testing = JoinSet::new();
        for (index, receiver) in self.receivers().iter().enumerate() {
            let body = body::of(identity, &receiver.destination.target, &numbered);
            let name = receiver.name.clone();
            let destination = Arc::clone(&receiver.destination);
            testing.spawn(async move {
                let posted = destination.post(body).await;
                let tested = NotifyTested {
                    name,
                    to: destination.target.url.origin(),
                    error: posted.err().map(|why| why.to_string()),
                };
                (index, tested)
            });
        }
        let mut results = testing.join_all().await;
        results.sort_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, tested)| tested).collect()
    }
}

impl Receiver {
    fn new(name: String, target: NotifyTarget, posted: Arc<Posted>) -> Self {
        Self {
            name,
            destination: Arc::new(Destination::new(target)),
            posted,
            trouble: Mutex::default(),
        }
    }

    fn target(&self) -> &NotifyTarget {
        &self.destination.target
    }

    fn has_files(&self) -> bool {
        let target = self.target();
        let files = [&target.ca, &target.headers_file, &target.secret_file];
        files.iter().any(|file| file.is_some())
    }

    /// Its status.
    pub fn status(&self) -> NotifyStatus {
        let reason = self.trouble.lock().clone();
        NotifyStatus {
            name: self.name.clone(),
            to: self.target().url.origin(),
            format: self.target().format.unwrap_or_default().to_string(),
            state: match reason {
                None => State::Up,
                Some(_) => State::Degraded,
            },
            reason,
            sent: self.posted.sent.load(Ordering::Relaxed),
            dropped: self.posted.dropped.load(Ordering::Relaxed),
        }
    }
}

/// Notifies the targets of the current settings for as long as the daemon runs.
pub async fn run(mut source: Source) {
    let notified = Arc::clone(&source.notified);
    let mut wanted = notified.wanted.subscribe();
    let mut running: Vec<(Arc<Receiver>, JoinHandle<()>)> = Vec::new();
    let mut is_start = true;
    loop {
        let url = source
            .view
            .borrow_and_update()
            .settings
            .notify
            .webhook
            .clone();
        let targets = wanted.borrow_and_update().clone();
        let webhook = url.map(|url| {
            let target = NotifyTarget {
                url: url.0,
                severity: Some(Weight::Detail),
                ..NotifyTarget::default()
            };
            ("webhook".to_owned(), target)
        });
        let numbered = targets.into_iter().zip(1..);
        let targets = numbered.map(|(target, number)| (format!("target {number}"), target));
        let mut before = std::mem::take(&mut running);
        for (name, target) in webhook.into_iter().chain(targets) {
            let is_same =
                |(one, _): &(Arc<Receiver>, _)| (&one.name, one.target()) == (&name, &target);
            running.push(match before.iter().position(is_same) {
                Some(index) => before.swap_remove(index),
                None => {
                    let posted = match name.as_str() {
                        "webhook" => Arc::clone(&notified.webhook),
                        _ => Arc::default(),
                    };
                    let is_known = before.iter().any(|(one, _)| one.target() == &target);
                    let gets = if is_start {
                        Before::Everything
                    } else if is_known {
                        Before::Nothing
                    } else {
                        Before::Troubles
                    };
                    let receiver = Arc::new(Receiver::new(name, target, posted));
                    let delivery = deliver(source.clone(), Arc::clone(&receiver), gets);
                    (receiver, tokio::spawn(delivery))
                }
            });
        }
        is_start = false;
        before.iter().for_each(|(_, task)| task.abort());
        let receivers = running.iter().map(|(receiver, _)| Arc::clone(receiver));
        *notified.receivers() = receivers.collect();
        tokio::select! {
            changed = source.view.changed() => if changed.is_err() {
                return;
            },
            _ = wanted.changed() => {}
        }
    }
}

/// Delivers events to one receiver.
async fn deliver(source: Source, receiver: Arc<Receiver>, gets: Before) {
    let (target, posted) = (receiver.target(), &receiver.posted);
    let is_alertmanager = target.format == Some(NotifyFormat::Alertmanager);
    // Each alert begins and ends by itself; those that began earlier are among the retained events.
    let has_earlier = is_alertmanager || gets != Before::Nothing;
    let begin = Begin::Recent(if has_earlier { KEPT } else { 0 });
    let mut subscriber = source.events.subscribe(begin, !is_alertmanager);
    let mut outbox = Outbox::default();
    if !is_alertmanager && gets == Before::Troubles {
        for numbered in troubles(&source, target, &mut subscriber) {
            posted.note_dropped(outbox.put(body::of(&source.identity, target, &numbered)));
        }
    }
    let began = subscriber.next_number();
    let mut alerts = is_alertmanager.then(|| Alerts::new(&source, target, began));
    let mut reachability = Reachability::default();
    let mut reloads = source.notified.wanted.subscribe();
    let mut trials = interval(INTERVAL);
    loop {
        if let Some(alerts) = &mut alerts {
            posted.note_dropped(alerts.reconcile(&source, target));
            if outbox.is_empty()
                && let Some(body) = alerts.due()
            {
                outbox.put(body);
            }
        }
        let next = alerts.as_ref().map(|alerts| alerts.next(outbox.is_empty()));
        let mut due = pin!(async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        });
        tokio::select! {
            delivery = subscriber.next() => match (delivery, &mut alerts) {
                (Some(Delivery::Event(numbered)), Some(alerts)) => {
                    alerts.record(&numbered, target);
                }
                (Some(Delivery::Event(numbered)), None) if is_selected(target, &numbered.event.kind) => {
                    posted.note_dropped(outbox.put(body::of(&source.identity, target, &numbered)));
                }
                (Some(Delivery::Event(_)), None) => {}
                (Some(Delivery::Missed(missed)), _) => posted.note_dropped(missed),
                (None, _) => return,
            },
            outcome = outbox.work(&receiver.destination) => {
                let is_accepted = matches!(outcome, Outcome::Accepted);
                if is_accepted {
                    posted.sent.fetch_add(1, Ordering::Relaxed);
                }
                let why = match outcome {
                    Outcome::Accepted => None,
                    Outcome::Refused(why) => {
                        posted.note_dropped(1);
                        Some(why)
                    }
                    Outcome::Failed(why, body) => {
                        // An Alertmanager gets the state of the next attempt instead.
                        if alerts.is_none() {
                            posted.note_dropped(outbox.retry(body));
                        }
                        Some(why)
                    }
                };
                if let Some(alerts) = &mut alerts {
                    alerts.complete(is_accepted);
                }
                reachability.report(&source.events, &receiver, why);
            }
            _ = trials.tick(), if receiver.has_files() => {
                let why = receiver.destination.trouble_of_files().await;
                reachability.report_files(&source.events, &receiver, why);
            }
            _ = reloads.changed() => trials.reset_immediately(),
            () = &mut due => {}
        }
    }
}

/// What is wrong now, instead of the retained events: most of those are over.
fn troubles(source: &Source, target: &NotifyTarget, subscriber: &mut Subscriber) -> Vec<Numbered> {
    let mut alerts = Alerts::new(source, target, subscriber.next_number());
    while let Some(Delivery::Event(numbered)) = subscriber.known() {
        alerts.record(&numbered, target);
    }
    alerts.reconcile(source, target);
    // Above the numbers of all events, which began with the time of the daemon's start.
    let numbers = sys::clock::realtime_ms()..;
    let numbered = numbers.zip(brief(&alerts.active()));
    numbered
        .map(|(number, event)| Numbered { number, event })
        .collect()
}

/// Whether a target selects events of a kind.
fn is_selected(target: &NotifyTarget, kind: &str) -> bool {
    let has_kind = target.kinds.is_empty() || target.kinds.iter().any(|one| one == kind);
    has_kind && weight(kind) >= target.severity.unwrap_or_default()
}

/// The last reported reachability of a receiver.
#[derive(Default)]
struct Reachability {
    is_down: bool,
    /// Whether it is down because of files that were tried without a post.
    by_files: bool,
    last: Option<Instant>,
}

impl Reachability {
    /// Reports what is wrong with files. That they are good ends this trouble and no other.
    fn report_files(&mut self, events: &Events, receiver: &Receiver, why: Option<String>) {
        if why.is_some() || self.by_files {
            let by_files = why.is_some();
            self.report(events, receiver, why);
            self.by_files = by_files;
        }
    }

    fn report(&mut self, events: &Events, receiver: &Receiver, why: Option<String>) {
        let is_down = why.is_some();
        self.by_files = false;
        let (name, url) = (&receiver.name, receiver.target().url.origin());
        let message = match &why {
            Some(why) => format!("{name} at {url} takes no events: {why}"),
            None => format!("{name} at {url} takes events again"),
        };
        *receiver.trouble.lock() = why.map(|why| format!("takes no events: {why}"));
        let is_soon = self.last.is_some_and(|last| last.elapsed() < INTERVAL);
        if is_down == self.is_down || is_down && is_soon {
            return;
        }
        self.is_down = is_down;
        self.last = Some(Instant::now());
        let kind = if is_down { NOTIFY_FAILED } else { NOTIFY_WORKS };
        events.publish(event(kind, name, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_selects_events_by_severity_and_kind() {
        let mut target = NotifyTarget::default();
        assert!(is_selected(&target, "rule_up") && !is_selected(&target, "joined"));
        target.severity = Some(Weight::Trouble);
        assert!(!is_selected(&target, "rule_up") && is_selected(&target, "rule_down"));
        target.kinds = vec!["stream_down".to_owned()];
        assert!(!is_selected(&target, "rule_down") && is_selected(&target, "stream_down"));
    }
}
