//! The log of events: each goes to every subscriber and, coalesced, is retained for a while for later
//! subscribers.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::reply::Event;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::batch::{Batch, Numbered};
use super::coalesce::Coalesced;
use super::kind::{Weight, weight};
use super::subscriber::Subscriber;

/// Batches that a slow reader may lag behind before it misses events.
const BACKLOG: usize = 1024;
/// Events that may wait for slow readers in total; a batch may be larger if none wait.
const WAITING: usize = 65_536;
/// Events that are retained.
pub const KEPT: usize = 200;
/// The newest of them are always retained; of the others, those that report trouble stay longest.
const NEWEST: usize = 100;

/// Where a subscriber begins.
#[derive(Clone, Copy, Debug)]
pub enum Begin {
    /// This many events ago.
    Recent(usize),
    /// After the event with this number.
    After(u64),
}

/// The events of a daemon.
#[derive(Clone, Debug)]
pub(super) struct EventLog {
    sender: broadcast::Sender<Arc<Batch>>,
    waiting: Arc<AtomicUsize>,
    retained: Arc<Mutex<Retained>>,
}

#[derive(Debug)]
struct Retained {
    first: u64,
    next: u64,
    events: VecDeque<RetainedEvent>,
}

/// A retained event, and how many it stands for.
#[derive(Debug)]
struct RetainedEvent {
    numbered: Numbered,
    count: u64,
}

impl Default for EventLog {
    /// Numbers begin with the time in milliseconds, so that they are above those of the previous
    /// daemon, which a reader may still hold.
    fn default() -> Self {
        let first = sys::clock::realtime_ms();
        let retained = Retained {
            first,
            next: first,
            events: VecDeque::with_capacity(KEPT),
        };
        Self {
            sender: broadcast::channel(BACKLOG).0,
            waiting: Arc::default(),
            retained: Arc::new(Mutex::new(retained)),
        }
    }
}

impl EventLog {
    /// Appends simultaneous events; `coalesced` are the same events.
    pub(super) fn append(&self, events: Vec<Event>, coalesced: Vec<Coalesced>) {
        // Locked until they are sent, so that a concurrent subscriber gets them exactly once.
        let mut retained = self.retained.lock();
        let (first, count) = (retained.next, events.len() as u64);
        retained.next += count;
        let numbered = |coalesced: Coalesced| {
            let number = first + coalesced.last as u64;
            let event = coalesced.event;
            (Numbered { number, event }, coalesced.count)
        };
        let coalesced: Vec<(Numbered, u64)> = coalesced.into_iter().map(numbered).collect();
        for (numbered, count) in &coalesced {
            let (numbered, count) = (numbered.clone(), *count);
            retained.push(RetainedEvent { numbered, count });
        }
        if self.sender.receiver_count() > 0 {
            let admitted = (first..).zip(self.admit(events));
            let all = admitted.map(|(number, event)| Numbered { number, event });
            // The last subscriber may have been dropped meanwhile.
            let _ = self.sender.send(Arc::new(Batch {
                first,
                count,
                all: all.collect(),
                coalesced: coalesced
                    .into_iter()
                    .map(|(numbered, _)| numbered)
                    .collect(),
                waiting: Arc::clone(&self.waiting),
            }));
        }
    }

    /// Lets events wait for their readers, or none of them if too many wait.
    fn admit(&self, events: Vec<Event>) -> Vec<Event> {
        let before = self.waiting.fetch_add(events.len(), Ordering::Relaxed);
        if before == 0 || before + events.len() <= WAITING {
            return events;
        }
        self.waiting.fetch_sub(events.len(), Ordering::Relaxed);
        Vec::new()
    }

    /// Subscribes to each event, or to simultaneous events `coalesced`.
    pub(super) fn subscribe(&self, begin: Begin, coalesced: bool) -> Subscriber {
        let retained = self.retained.lock();
        let (missed, skipped) = match begin {
            Begin::Recent(count) => (0, retained.events.len().saturating_sub(count)),
            Begin::After(number) => {
                let is_read = |retained: &RetainedEvent| retained.numbered.number <= number;
                // A number that no event has yet is of the previous daemon, whose clock was ahead.
                if number < retained.next {
                    let skipped = retained.events.partition_point(is_read);
                    (retained.missed_after(number), skipped)
                } else {
                    (0, 0)
                }
            }
        };
        let events = retained.events.iter().skip(skipped);
        let recent = events.map(|retained| retained.numbered.clone()).collect();
        Subscriber {
            missed,
            recent,
            batch: None,
            receiver: self.sender.subscribe(),
            next: retained.next,
            coalesced,
        }
    }
}

impl Retained {
    fn push(&mut self, event: RetainedEvent) {
        if self.events.len() == KEPT {
            self.events.remove(self.eviction_index());
        }
        self.events.push_back(event);
    }

    /// The position to evict: of those that are not among the newest, the oldest that reports neither
    /// trouble nor, possibly, its end.
    fn eviction_index(&self) -> usize {
        let mut troubled = BTreeSet::new();
        for (position, retained) in self.events.iter().take(KEPT - NEWEST).enumerate() {
            let Event { kind, subject, .. } = &retained.numbered.event;
            if weight(kind) == Weight::Trouble {
                troubled.insert(subject);
            } else if !troubled.contains(subject) {
                return position;
            }
        }
        0
    }

    /// How many events after the one with this number are not retained, neither separately nor coalesced.
    fn missed_after(&self, number: u64) -> u64 {
        if number < self.first {
            return 0;
        }
        let published = self.next.saturating_sub(number.saturating_add(1));
        let newest = self.events.iter().rev();
        let after = newest.take_while(|retained| retained.numbered.number > number);
        published.saturating_sub(after.map(|retained| retained.count).sum())
    }
}

#[cfg(test)]
mod tests;
