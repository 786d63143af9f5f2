//! The log of events: each goes to every subscriber and, coalesced, is kept for a while for those who
//! subscribe later.

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

/// Batches that a slow reader may lag behind before it misses some.
const BACKLOG: usize = 1024;
/// Events that may wait for slow readers in all; a batch that finds none waiting may be larger.
const WAITING: usize = 65_536;
/// Events that are kept.
pub const KEPT: usize = 200;
/// The newest of them, whatever they say; of the others those that tell of trouble stay longest.
const NEWEST: usize = 100;

/// Where a subscriber begins.
#[derive(Clone, Copy, Debug)]
pub enum Begin {
    /// So many events ago.
    Recent(usize),
    /// Behind the event of this number.
    After(u64),
}

/// The events of a daemon.
#[derive(Clone, Debug)]
pub(super) struct EventLog {
    sender: broadcast::Sender<Arc<Batch>>,
    waiting: Arc<AtomicUsize>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug)]
struct Kept {
    first: u64,
    next: u64,
    events: VecDeque<KeptEvent>,
}

/// An event as it is kept, and how many it stands for.
#[derive(Debug)]
struct KeptEvent {
    numbered: Numbered,
    count: u64,
}

impl Default for EventLog {
    /// Numbers begin with the time in milliseconds, so that they are above those of the daemon
    /// before, which a reader may still know.
    fn default() -> Self {
        let first = sys::clock::realtime_ms();
        let kept = Kept {
            first,
            next: first,
            events: VecDeque::with_capacity(KEPT),
        };
        Self {
            sender: broadcast::channel(BACKLOG).0,
            waiting: Arc::default(),
            kept: Arc::new(Mutex::new(kept)),
        }
    }
}

impl EventLog {
    /// Appends events that came together; `coalesced` are the same.
    pub(super) fn append(&self, events: Vec<Event>, coalesced: Vec<Coalesced>) {
        // Held until they are sent: who subscribes meanwhile gets them once.
        let mut kept = self.kept.lock();
        let (first, count) = (kept.next, events.len() as u64);
        kept.next += count;
        let numbered = |coalesced: Coalesced| {
            let number = first + coalesced.last as u64;
            let event = coalesced.event;
            (Numbered { number, event }, coalesced.count)
        };
        let coalesced: Vec<(Numbered, u64)> = coalesced.into_iter().map(numbered).collect();
        for (numbered, count) in &coalesced {
            let (numbered, count) = (numbered.clone(), *count);
            kept.keep(KeptEvent { numbered, count });
        }
        if self.sender.receiver_count() > 0 {
            let all = (first..).zip(self.room_for(events));
            let all = all.map(|(number, event)| Numbered { number, event });
            // Whoever listened may have gone meanwhile.
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

    /// Lets events wait for their readers, or none of them where too many do.
    fn room_for(&self, events: Vec<Event>) -> Vec<Event> {
        let before = self.waiting.fetch_add(events.len(), Ordering::Relaxed);
        if before == 0 || before + events.len() <= WAITING {
            return events;
        }
        self.waiting.fetch_sub(events.len(), Ordering::Relaxed);
        Vec::new()
    }

    /// Begins to listen: to each event, or to many that come together `coalesced`.
    pub(super) fn subscribe(&self, begin: Begin, coalesced: bool) -> Subscriber {
        let kept = self.kept.lock();
        let (missed, left_out) = match begin {
            Begin::Recent(count) => (0, kept.events.len().saturating_sub(count)),
            Begin::After(number) => {
                let known = |kept: &KeptEvent| kept.numbered.number <= number;
                // A number that none has yet is of the daemon before, whose clock was ahead.
                if number < kept.next {
                    let left_out = kept.events.partition_point(known);
                    (kept.missed_after(number), left_out)
                } else {
                    (0, 0)
                }
            }
        };
        let behind = kept.events.iter().skip(left_out);
        let behind = behind.map(|kept| kept.numbered.clone()).collect();
        Subscriber::new(
            (missed, behind),
            self.sender.subscribe(),
            kept.next,
            coalesced,
        )
    }
}

impl Kept {
    fn keep(&mut self, event: KeptEvent) {
        if self.events.len() == KEPT {
            self.events.remove(self.dispensable());
        }
        self.events.push_back(event);
    }

    /// Which one makes room: of those that are not among the newest the oldest that tells neither of
    /// trouble nor, perhaps, of its end.
    fn dispensable(&self) -> usize {
        let mut troubled = BTreeSet::new();
        for (position, kept) in self.events.iter().take(KEPT - NEWEST).enumerate() {
            let Event { kind, subject, .. } = &kept.numbered.event;
            if weight(kind) == Weight::Trouble {
                troubled.insert(subject);
            } else if !troubled.contains(subject) {
                return position;
            }
        }
        0
    }

    /// How many events behind the one of this number are not kept, neither by themselves nor coalesced.
    fn missed_after(&self, number: u64) -> u64 {
        if number < self.first {
            return 0;
        }
        let published = self.next.saturating_sub(number.saturating_add(1));
        let behind = self.events.iter().rev();
        let behind = behind.take_while(|kept| kept.numbered.number > number);
        published.saturating_sub(behind.map(|kept| kept.count).sum())
    }
}

#[cfg(test)]
mod tests;
