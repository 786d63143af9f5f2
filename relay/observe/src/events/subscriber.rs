//! A subscriber to events: it gets recent events, then new ones, and learns how many it missed.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::batch::{Batch, Numbered};

/// The receiving end of a subscription.
#[derive(Debug)]
pub struct Subscriber {
    missed: u64,
    kept: VecDeque<Numbered>,
    /// What came together last, and how much of it was delivered.
    batch: Option<(Arc<Batch>, usize)>,
    coming: Receiver<Arc<Batch>>,
    /// Number of the event that comes next.
    next: u64,
    coalesced: bool,
}

/// What a subscriber gets next.
#[derive(Debug)]
pub enum Delivery {
    /// An event.
    Event(Numbered),
    /// So many events are lost to the subscriber.
    Missed(u64),
}

impl Subscriber {
    pub(super) fn new(
        (missed, kept): (u64, VecDeque<Numbered>),
        coming: Receiver<Arc<Batch>>,
        next: u64,
        coalesced: bool,
    ) -> Self {
        Self {
            missed,
            kept,
            batch: None,
            coming,
            next,
            coalesced,
        }
    }

    /// Number of the first event that is to come.
    pub const fn next_number(&self) -> u64 {
        self.next
    }

    /// Waits for what is next; `None` when there is no publisher any more.
    pub async fn next(&mut self) -> Option<Delivery> {
        loop {
            if let Some(known) = self.known() {
                return Some(known);
            }
            match self.coming.recv().await {
                Ok(batch) => self.take(batch),
                // How many events that were, the number of the next one says.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// What is next of what was there when the subscription began; nothing behind it.
    pub fn known(&mut self) -> Option<Delivery> {
        if self.missed > 0 {
            return Some(Delivery::Missed(std::mem::take(&mut self.missed)));
        }
        let event = self.kept.pop_front().or_else(|| self.next_of_batch());
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
