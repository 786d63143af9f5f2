//! What waits to be posted to one: in order, again where it failed, bounded.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use tokio::time::sleep;

use super::post::{Destination, Unposted};

/// Bodies that wait, besides the one on its way.
const KEPT: usize = 256;
/// How often one is tried at most: for about an hour.
const TRIES: u32 = 64;
/// How long is waited before it is posted again: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

type Attempt = Pin<Box<dyn Future<Output = Result<(), Unposted>> + Send>>;

#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Bytes>,
    attempt: Option<(Bytes, Attempt)>,
    /// How often the next one was tried.
    tries: u32,
    /// Before the next attempt; zero while all is well.
    pause: Duration,
}

/// What became of a body.
pub(super) enum Outcome {
    Taken,
    /// It would be refused the next time, too.
    Refused(String),
    /// It is handed back to be tried again.
    Failed(String, Bytes),
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.attempt.is_none()
    }

    /// Has one more posted; says how many made room. What is oldest goes first: what is new says how
    /// things are.
    pub(super) fn put(&mut self, body: Bytes) -> u64 {
        self.waiting.push_back(body);
        self.make_room()
    }

    /// Has one posted again that failed; says how many were given up.
    pub(super) fn again(&mut self, body: Bytes) -> u64 {
        self.tries += 1;
        if self.tries >= TRIES {
            self.tries = 0;
            return 1;
        }
        self.waiting.push_front(body);
        self.make_room()
    }

    fn make_room(&mut self) -> u64 {
        let many = self.waiting.len().saturating_sub(KEPT);
        self.waiting.drain(..many);
        if many > 0 && self.attempt.is_none() {
            // The one that was tried is among them.
            self.tries = 0;
        }
        many as u64
    }

    /// Posts what is next, or waits for ever where there is nothing. It may be called off at any time
    /// and goes on where it was.
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
            Err(Unposted::Failed(why)) => {
                self.pause = (self.pause * 2).clamp(PAUSES.0, PAUSES.1);
                Outcome::Failed(why, body.unwrap_or_default())
            }
            posted => {
                (self.tries, self.pause) = (0, Duration::ZERO);
                match posted {
                    Ok(()) => Outcome::Taken,
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
    fn what_waits_is_bounded_and_the_oldest_makes_room() {
        let mut outbox = Outbox::default();
        let body = |number: usize| Bytes::from(number.to_string());
        let dropped: u64 = (0..KEPT + 10).map(|number| outbox.put(body(number))).sum();
        assert_eq!((dropped, outbox.waiting.len()), (10, KEPT));
        assert_eq!(outbox.waiting[0], body(10));
        outbox.waiting.pop_front();
        for _ in 1..TRIES {
            assert_eq!(outbox.again(body(10)), 0);
            assert_eq!(outbox.waiting.pop_front(), Some(body(10)));
        }
        assert_eq!(outbox.again(body(10)), 1, "it was tried often enough");
        assert_eq!(outbox.waiting[0], body(11));
    }
}
