//! Others who are told of events: the webhook and each `[[notify.target]]`, by a task of its own, in
//! order, again where it failed. What waits for one that does not answer is bounded, what does not fit
//! is counted, and nothing else waits.

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
use tokio::time::{Instant, sleep_until};

use crate::events::{Begin, Delivery, Events, KEPT, Numbered, event};
use crate::stats::{Identity, Sampler};
use crate::view::View;
use alerts::Alerts;
use outbox::{Outbox, Outcome};
use post::Destination;

/// At most so often it is told that somebody is not reached: who is told may be the next.
const NEWS: Duration = Duration::from_secs(60);

/// Those who are told, and how that goes.
#[derive(Debug, Default)]
pub struct Notified {
    wanted: watch::Sender<Vec<NotifyTarget>>,
    /// The webhook first, if there is one.
    receivers: Mutex<Vec<Arc<Receiver>>>,
    /// What became of events for any webhook.
    webhook: Arc<Posted>,
}

/// What became of events.
#[derive(Debug, Default)]
pub struct Posted {
    /// Those that were taken.
    pub sent: AtomicU64,
    /// Those that did not fit, were refused, or were tried for too long.
    pub dropped: AtomicU64,
}

impl Posted {
    fn note_dropped(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }
}

/// Somebody who is told.
#[derive(Debug)]
pub struct Receiver {
    /// `webhook`, or which target of the configuration it is.
    pub name: String,
    destination: Arc<Destination>,
    /// What became of its events.
    pub posted: Arc<Posted>,
    /// Why it does not take them, while it does not.
    trouble: Mutex<Option<String>>,
}

/// What it takes to tell of a relay.
#[derive(Clone, Debug)]
pub struct Source {
    /// Those who are to be told.
    pub notified: Arc<Notified>,
    /// Where events come from.
    pub events: Events,
    /// What they are about.
    pub view: watch::Receiver<Arc<View>>,
    /// How streams do.
    pub sampler: Sampler,
    /// Which relay it is.
    pub identity: Identity,
}

impl Notified {
    /// Has these told from now on.
    pub fn set(&self, targets: Vec<NotifyTarget>) {
        self.wanted.send_replace(targets);
    }

    /// Those who are told now.
    pub fn receivers(&self) -> MutexGuard<'_, Vec<Arc<Receiver>>> {
        self.receivers.lock()
    }

    /// What became of events for the webhook.
    pub const fn webhook(&self) -> &Arc<Posted> {
        &self.webhook
    }

    /// How it goes with each.
    pub fn status(&self) -> Vec<NotifyStatus> {
        let receivers = self.receivers();
        receivers.iter().map(|receiver| receiver.status()).collect()
    }

    /// Tells each that there is nothing to tell; says who took it.
    pub async fn test(&self, identity: &Identity) -> Vec<NotifyTested> {
        let message = "somebody asked for a test, all is well".to_owned();
        let event = event(NOTIFY_TEST, "daemon", message);
        let number = event.at_ms;
        let numbered = Numbered { number, event };
        let mut testing = JoinSet::new();
        for (place, receiver) in self.receivers().iter().enumerate() {
            let body = body::of(identity, &receiver.destination.target, &numbered);
            let destination = Arc::clone(&receiver.destination);
            testing.spawn(async move {
                let posted = destination.post(body).await;
                let tested = NotifyTested {
                    to: destination.target.url.place(),
                    error: posted.err().map(|why| why.to_string()),
                };
                (place, tested)
            });
        }
        let mut tested = testing.join_all().await;
        tested.sort_by_key(|(place, _)| *place);
        tested.into_iter().map(|(_, tested)| tested).collect()
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

    /// How it goes with it.
    pub fn status(&self) -> NotifyStatus {
        let reason = self.trouble.lock().clone();
        NotifyStatus {
            name: self.name.clone(),
            to: self.target().url.place(),
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

/// Tells those whom the settings of the moment name, for as long as the daemon runs.
pub async fn run(mut source: Source) {
    let notified = Arc::clone(&source.notified);
    let mut wanted = notified.wanted.subscribe();
    let mut running: Vec<(Arc<Receiver>, JoinHandle<()>)> = Vec::new();
    loop {
        let webhook = source
            .view
            .borrow_and_update()
            .settings
            .notify
            .webhook
            .clone();
        let targets = wanted.borrow_and_update().clone();
        let webhook = webhook.map(|webhook| NotifyTarget {
            url: webhook.0,
            severity: Some(Weight::Detail),
            ..NotifyTarget::default()
        });
        let webhook = webhook.map(|target| ("webhook".to_owned(), target));
        let targets = targets.into_iter().zip(1..);
        let targets = targets.map(|(target, number)| (format!("target {number}"), target));
        let mut before = std::mem::take(&mut running);
        for (name, target) in webhook.into_iter().chain(targets) {
            let is_it =
                |(known, _): &(Arc<Receiver>, _)| (&known.name, known.target()) == (&name, &target);
            running.push(match before.iter().position(is_it) {
                Some(place) => before.swap_remove(place),
                None => {
                    let posted = match name.as_str() {
                        "webhook" => Arc::clone(&notified.webhook),
                        _ => Arc::default(),
                    };
                    let receiver = Arc::new(Receiver::new(name, target, posted));
                    let telling = tell(source.clone(), Arc::clone(&receiver));
                    (receiver, tokio::spawn(telling))
                }
            });
        }
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

/// Tells one.
async fn tell(source: Source, receiver: Arc<Receiver>) {
    let (target, posted) = (receiver.target(), &receiver.posted);
    let is_alertmanager = target.format == Some(NotifyFormat::Alertmanager);
    // Each alert begins and ends by itself; what began before is known by what is kept.
    let begin = Begin::Recent(if is_alertmanager { KEPT } else { 0 });
    let mut subscriber = source.events.subscribe(begin, !is_alertmanager);
    let began = subscriber.next_number();
    let mut alerts = is_alertmanager.then(|| Alerts::new(&source, target, began));
    let mut outbox = Outbox::default();
    let mut news = News::default();
    loop {
        if let Some(alerts) = &mut alerts {
            posted.note_dropped(alerts.look(&source, target));
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
                    alerts.hear(&numbered, target);
                }
                (Some(Delivery::Event(numbered)), None) if is_meant(target, &numbered.event.kind) => {
                    posted.note_dropped(outbox.put(body::of(&source.identity, target, &numbered)));
                }
                (Some(Delivery::Event(_)), None) => {}
                (Some(Delivery::Missed(missed)), _) => posted.note_dropped(missed),
                (None, _) => return,
            },
            outcome = outbox.work(&receiver.destination) => {
                let taken = matches!(outcome, Outcome::Taken);
                if taken {
                    posted.sent.fetch_add(1, Ordering::Relaxed);
                }
                let why = match outcome {
                    Outcome::Taken => None,
                    Outcome::Refused(why) => {
                        posted.note_dropped(1);
                        Some(why)
                    }
                    Outcome::Failed(why, body) => {
                        // What an Alertmanager is told the next time is how things are then.
                        if alerts.is_none() {
                            posted.note_dropped(outbox.again(body));
                        }
                        Some(why)
                    }
                };
                if let Some(alerts) = &mut alerts {
                    alerts.landed(taken);
                }
                news.tell(&source.events, &receiver, why);
            }
            () = &mut due => {}
        }
    }
}

/// Whether a target is to be told of what a kind tells.
fn is_meant(target: &NotifyTarget, kind: &str) -> bool {
    let is_of_kinds = target.kinds.is_empty() || target.kinds.iter().any(|one| one == kind);
    is_of_kinds && weight(kind) >= target.severity.unwrap_or_default()
}

/// What was told of whether somebody is reached.
#[derive(Default)]
struct News {
    failed: bool,
    last: Option<Instant>,
}

impl News {
    fn tell(&mut self, events: &Events, receiver: &Receiver, why: Option<String>) {
        let fails = why.is_some();
        let (name, place) = (&receiver.name, receiver.target().url.place());
        let message = match &why {
            Some(why) => format!("{name} at {place} takes no events: {why}"),
            None => format!("{name} at {place} takes events again"),
        };
        *receiver.trouble.lock() = why.map(|why| format!("takes no events: {why}"));
        let is_soon = self.last.is_some_and(|last| last.elapsed() < NEWS);
        if fails == self.failed || fails && is_soon {
            return;
        }
        self.failed = fails;
        self.last = Some(Instant::now());
        let kind = if fails { NOTIFY_FAILED } else { NOTIFY_WORKS };
        events.publish(event(kind, name, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_told_says_of_what() {
        let mut target = NotifyTarget::default();
        assert!(is_meant(&target, "rule_up") && !is_meant(&target, "joined"));
        target.severity = Some(Weight::Trouble);
        assert!(!is_meant(&target, "rule_up") && is_meant(&target, "rule_down"));
        target.kinds = vec!["stream_down".to_owned()];
        assert!(!is_meant(&target, "rule_down") && is_meant(&target, "stream_down"));
    }
}
