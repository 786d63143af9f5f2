//! A subscriber to events: it gets recent events, then new ones, and learns how many it missed.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::batch::{Batch, Numbered};

/// The receiving end of a subscription.
#[derive(Debug)]
pub struct Subscriber {
    pub(super) missed: u64,
    pub(super) recent: VecDeque<Numbered>,
    /// The last batch received, and how much of it was delivered.
    pub(super) batch: Option<(Arc<Batch>, usize)>,
    pub(super) receiver: Receiver<Arc<Batch>>,
    /// Number of the next event.
    pub(super) next: u64,
    pub(super) coalesced: bool,
}

/// What a subscriber gets next.
#[derive(Debug)]
pub enum Delivery {
    /// An event.
    Event(Numbered),
    /// This many events are lost to the subscriber.
    Missed(u64),
}

impl Subscriber {
    /// Number of the next event that will be published.
    pub const fn next_number(&self) -> u64 {
        self.next
    }

    /// Waits for the next delivery; `None` when there is no publisher any more.
    pub async fn next(&mut self) -> Option<Delivery> {
        loop {
            if let Some(delivery) = self.known() {
                return Some(delivery);
            }
            match self.receiver.recv().await {
                Ok(batch) => self.take(batch),
                // The number of the next event tells how many were lost.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// The next delivery that is available without waiting, if there is one.
    pub fn known(&mut self) -> Option<Delivery> {
        if self.missed > 0 {
            return Some(Delivery::Missed(std::mem::take(&mut self.missed)));
        }
        let event = self.recent.pop_front().or_else(|| self.next_of_batch());
        event.map(Delivery::Event)
    }

    fn next_of_batch(&mut self) -> Option<Numbered> {
        let (batch, delivered) = self.batch.as_mut()?;
        let events = if self.coalesced {
            &batch.coalesced
        } else {
            &batch.all
        };
        let next = events.get(*delivered).cloned();
        *delivered += 1;
        if next.is_none() {
            self.batch = None;
        }
        next
    }

    fn take(&mut self, batch: Arc<Batch>) {
        self.missed += batch.first.saturating_sub(self.next);
        if !self.coalesced {
            self.missed += batch.count - batch.all.len() as u64;
        }
        self.next = batch.first + batch.count;
        self.batch = Some((batch, 0));
    }
}
