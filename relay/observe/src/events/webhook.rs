//! Events posted to an address of the operator's, one by one and in their order. While the server does
//! not answer, events wait in a bounded queue; what does not fit is counted, and nothing else waits.

use std::collections::VecDeque;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::reply::Event;
use axum::body::Bytes;
use axum::http::{Request, StatusCode, header};
use config::Webhook;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::event_log::Begin;
use super::subscriber::Delivery;
use super::{Events, Numbered};
use crate::view::View;

/// Events that wait, besides the one on its way.
const KEPT: usize = 256;
/// How long the other end may take over one.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long is waited before an event is posted again: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What became of events.
#[derive(Debug, Default)]
pub struct Posted {
    /// Those that were taken.
    pub sent: AtomicU64,
    /// Those that did not fit.
    pub dropped: AtomicU64,
}

/// What is posted.
#[derive(Serialize)]
struct Body<'a> {
    instance: &'a str,
    #[serde(flatten)]
    event: &'a Event,
}

type Attempt = Pin<Box<dyn Future<Output = Result<StatusCode, Failed>> + Send>>;
type Failed = Box<dyn Error + Send + Sync>;

/// Posts events for as long as the daemon runs, to where the settings of the moment say.
pub async fn run(events: Events, mut view: watch::Receiver<Arc<View>>, instance: String) {
    let posted = Arc::clone(events.posted());
    let mut subscriber = events.subscribe(Begin::Recent(0), true);
    let mut outbox = Outbox::default();
    loop {
        let webhook = view.borrow_and_update().settings.notify.webhook.clone();
        outbox.address(webhook);
        tokio::select! {
            changed = view.changed() => if changed.is_err() {
                return;
            },
            delivery = subscriber.next() => match delivery {
                Some(Delivery::Event(Numbered { event, .. })) => {
                    let body = Body { instance: &instance, event: &event };
                    outbox.put(serde_json::to_vec(&body).unwrap_or_default().into(), &posted);
                }
                Some(Delivery::Missed(missed)) => outbox.drop_unseen(missed, &posted),
                None => return,
            },
            () = outbox.work(&posted) => {}
        }
    }
}

#[derive(Default)]
struct Outbox {
    webhook: Option<Webhook>,
    waiting: VecDeque<Bytes>,
    attempt: Option<(Bytes, Attempt)>,
    /// Before the next attempt; zero while all is well.
    pause: Duration,
}

impl Outbox {
    /// Goes on with another address; what waits for none is forgotten.
    fn address(&mut self, webhook: Option<Webhook>) {
        if self.webhook == webhook {
            return;
        }
        self.webhook = webhook;
        self.pause = Duration::ZERO;
        if let Some((body, _)) = self.attempt.take() {
            self.waiting.push_front(body);
        }
        if self.webhook.is_none() {
            self.waiting.clear();
        }
    }

    fn put(&mut self, body: Bytes, posted: &Posted) {
        if self.webhook.is_some() {
            self.waiting.push_back(body);
            self.make_room(posted);
        }
    }

    /// What is oldest goes first: what is new says how things are.
    fn make_room(&mut self, posted: &Posted) {
        while self.waiting.len() > KEPT {
            self.waiting.pop_front();
            posted.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn drop_unseen(&self, missed: u64, posted: &Posted) {
        if self.webhook.is_some() {
            posted.dropped.fetch_add(missed, Ordering::Relaxed);
        }
    }

    /// Posts what is next, or waits for ever where there is nothing. It may be called off at any time
    /// and goes on where it was.
    async fn work(&mut self, posted: &Posted) {
        if self.attempt.is_none() {
            let next = self.webhook.clone().zip(self.waiting.pop_front());
            let Some((webhook, body)) = next else {
                return std::future::pending().await;
            };
            let attempt = attempt(webhook, body.clone(), self.pause);
            self.attempt = Some((body, Box::pin(attempt)));
        }
        let Some((_, attempt)) = &mut self.attempt else {
            return;
        };
        let outcome = attempt.await;
        let Some((body, _)) = self.attempt.take() else {
            return;
        };
        match outcome {
            Ok(status) if status.is_success() => {
                posted.sent.fetch_add(1, Ordering::Relaxed);
                if !std::mem::take(&mut self.pause).is_zero() {
                    tracing::info!("the webhook takes events again");
                }
            }
            // It will say the same the next time.
            Ok(status) if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => {
                posted.dropped.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%status, "the webhook refused an event");
            }
            Ok(status) => self.again(body, &status, posted),
            Err(error) => self.again(body, &error, posted),
        }
    }

    fn again(&mut self, body: Bytes, why: &dyn std::fmt::Display, posted: &Posted) {
        if self.pause.is_zero() {
            tracing::warn!("the webhook takes no events, trying again: {why}");
        }
        self.pause = (self.pause * 2).clamp(PAUSES.0, PAUSES.1);
        self.waiting.push_front(body);
        self.make_room(posted);
    }
}

async fn attempt(webhook: Webhook, body: Bytes, pause: Duration) -> Result<StatusCode, Failed> {
    sleep(pause).await;
    timeout(PATIENCE, post(&webhook, body)).await?
}

async fn post(webhook: &Webhook, body: Bytes) -> Result<StatusCode, Failed> {
    let stream = TcpStream::connect((webhook.host.as_str(), webhook.port)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let host = match webhook.host.contains(':') {
        true => format!("[{}]:{}", webhook.host, webhook.port),
        false => format!("{}:{}", webhook.host, webhook.port),
    };
    let request = Request::post(&webhook.path)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .body(Full::new(body))?;
    let mut driver = tokio::task::JoinSet::new();
    // Ends with this attempt, whatever becomes of it.
    driver.spawn(connection);
    Ok(sender.send_request(request).await?.status())
}
