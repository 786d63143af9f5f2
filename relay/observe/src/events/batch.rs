//! Events that were published together, on their way to subscribers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::reply::Event;

/// An event and its number, one more than that of the previous event.
#[derive(Clone, Debug)]
pub struct Numbered {
    /// Its number.
    pub number: u64,
    /// The event.
    pub event: Event,
}

/// Events that were published together.
#[derive(Debug)]
pub(super) struct Batch {
    /// Number of the first.
    pub(super) first: u64,
    pub(super) count: u64,
    /// All of them, or none if too many wait.
    pub(super) all: Vec<Numbered>,
    /// The same, coalesced.
    pub(super) coalesced: Vec<Numbered>,
    /// How many wait in all batches.
    pub(super) waiting: Arc<AtomicUsize>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.all.len(), Ordering::Relaxed);
    }
}
