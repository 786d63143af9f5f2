//! The queue of bodies for one receiver: in order, retried after failures, bounded.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use tokio::time::sleep;

use super::post::{Destination, PostError};

/// Bodies that wait, besides the one being posted.
const WAITING_MAX: usize = 256;
/// Attempts per body: for about an hour.
const TRIES: u32 = 64;
/// The pause before a retry: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

type Attempt = Pin<Box<dyn Future<Output = Result<(), PostError>> + Send>>;

#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Bytes>,
    attempt: Option<(Bytes, Attempt)>,
    /// Failed attempts of the next body.
    tries: u32,
    /// The pause before the next attempt; zero unless the last one failed.
    pause: Duration,
}

/// The outcome of posting a body.
pub(super) enum Outcome {
    Accepted,
    /// It would be refused the next time, too.
    Refused(String),
    /// It is returned to be tried again.
    Failed(String, Bytes),
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.attempt.is_none()
    }

    /// Queues a body; returns how many were dropped for it. The oldest are dropped first: new ones have the
    /// current state.
    pub(super) fn put(&mut self, body: Bytes) -> u64 {
        self.waiting.push_back(body);
        self.make_room()
    }

    /// Queues a failed body again; returns how many were given up.
    pub(super) fn retry(&mut self, body: Bytes) -> u64 {
        self.tries += 1;
        if self.tries >= TRIES {
            self.tries = 0;
            return 1;
        }
        self.waiting.push_front(body);
        self.make_room()
    }

    fn make_room(&mut self) -> u64 {
        let excess = self.waiting.len().saturating_sub(WAITING_MAX);
        self.waiting.drain(..excess);
        if excess > 0 && self.attempt.is_none() {
            // The one that was tried is among them.
            self.tries = 0;
        }
        excess as u64
    }

    /// Posts the next body, or waits for ever if there is none. It is cancel-safe: the next call continues
    /// the attempt.
    pub(super) async fn work(&mut self, destination: &Arc<Destination>) -> Outcome {
        if self.attempt.is_none() {
            let Some(body) = self.waiting.pop_front() else {
                return std::future::pending().await;
            };
            let (to, pause, posted) = (Arc::clone(destination), self.pause, body.clone());
            let attempt = async move {
                sleep(pause).await;
                to.post(posted).await
            };
            self.attempt = Some((body, Box::pin(attempt)));
        }
        let Some((_, attempt)) = &mut self.attempt else {
            return std::future::pending().await;
        };
        let posted = attempt.await;
        let body = self.attempt.take().map(|(body, _)| body);
        match posted {
            Err(PostError::Failed(why)) => {
                self.pause = (self.pause * 2).clamp(PAUSES.0, PAUSES.1);
                Outcome::Failed(why, body.unwrap_or_default())
            }
            posted => {
                (self.tries, self.pause) = (0, Duration::ZERO);
                match posted {
                    Ok(()) => Outcome::Accepted,
                    Err(refused) => Outcome::Refused(refused.to_string()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_bounded_and_the_oldest_is_dropped() {
        let mut outbox = Outbox::default();
        let body = |number: usize| Bytes::from(number.to_string());
        let dropped: u64 = (0..WAITING_MAX + 10)
            .map(|number| outbox.put(body(number)))
            .sum();
        assert_eq!((dropped, outbox.waiting.len()), (10, WAITING_MAX));
        assert_eq!(outbox.waiting[0], body(10));
        outbox.waiting.pop_front();
        for _ in 1..TRIES {
            assert_eq!(outbox.retry(body(10)), 0);
            assert_eq!(outbox.waiting.pop_front(), Some(body(10)));
        }
        assert_eq!(outbox.retry(body(10)), 1, "it was tried often enough");
        assert_eq!(outbox.waiting[0], body(11));
    }
}
