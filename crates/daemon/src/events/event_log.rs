//! Where events are told: each to everybody who listens, and in few words kept for a while for who
//! comes later, so that nobody has to watch to know what happened just now.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use api::reply::Event;
use tokio::sync::broadcast;

use super::coalesce::Brief;
use super::is_trouble;
use super::subscriber::Listening;

/// Bursts that a slow reader may lag behind before it misses some.
const BACKLOG: usize = 1024;
/// Events that may wait for slow readers in all; a burst that finds none waiting may be larger.
const WAITING: usize = 65_536;
/// Events that are kept.
pub(crate) const KEPT: usize = 200;
/// The newest of them, whatever they tell; of the others those that tell of trouble stay longest.
const NEWEST: usize = 100;

/// An event and its number, one more than that of the event before.
#[derive(Clone, Debug)]
pub(crate) struct Numbered {
    pub(crate) number: u64,
    pub(crate) event: Event,
}

/// Where somebody begins to listen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begin {
    /// So many events ago.
    Recent(usize),
    /// Behind the event of this number.
    After(u64),
}

/// Events that came together.
#[derive(Debug)]
pub(super) struct Burst {
    /// Number of the first.
    pub(super) first: u64,
    pub(super) count: u64,
    /// All of them, or none where too many wait.
    pub(super) all: Vec<Numbered>,
    /// The same in few.
    pub(super) brief: Vec<Numbered>,
    waiting: Arc<AtomicUsize>,
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.all.len(), Ordering::Relaxed);
    }
}

/// The events of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    sender: broadcast::Sender<Arc<Burst>>,
    waiting: Arc<AtomicUsize>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug)]
struct Kept {
    first: u64,
    next: u64,
    events: VecDeque<Told>,
}

/// An event as it is kept, and how many it stands for.
#[derive(Debug)]
struct Told {
    told: Numbered,
    count: u64,
}

impl Board {
    /// Numbers begin with the time in milliseconds, so that they are above those of the daemon
    /// before, which a reader may still know.
    pub(crate) fn new() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let first = now.map_or(0, |now| now.as_millis() as u64);
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

    /// Tells events that came together; `brief` are the same in few.
    pub(super) fn tell(&self, events: Vec<Event>, brief: Vec<Brief>) {
        // Held until they are sent: who begins to listen meanwhile gets them once.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, count) = (kept.next, events.len() as u64);
        kept.next += count;
        let numbered = |brief: Brief| {
            let number = first + brief.last as u64;
            let event = brief.event;
            (Numbered { number, event }, brief.count)
        };
        let brief: Vec<(Numbered, u64)> = brief.into_iter().map(numbered).collect();
        for (told, count) in &brief {
            let (told, count) = (told.clone(), *count);
            kept.keep(Told { told, count });
        }
        if self.sender.receiver_count() > 0 {
            let all = (first..).zip(self.room_for(events));
            let all = all.map(|(number, event)| Numbered { number, event });
            // Whoever listened may have gone meanwhile.
            let _ = self.sender.send(Arc::new(Burst {
                first,
                count,
                all: all.collect(),
                brief: brief.into_iter().map(|(told, _)| told).collect(),
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

    /// Begins to listen: to each event, or to many that come together `in_few`.
    pub(crate) fn listen(&self, begin: Begin, in_few: bool) -> Listening {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (missed, left_out) = match begin {
            Begin::Recent(count) => (0, kept.events.len().saturating_sub(count)),
            Begin::After(number) => {
                let known = |kept: &Told| kept.told.number <= number;
                (
                    kept.missed_after(number),
                    kept.events.partition_point(known),
                )
            }
        };
        let behind = kept.events.iter().skip(left_out);
        let behind = behind.map(|kept| kept.told.clone()).collect();
        Listening::new((missed, behind), self.sender.subscribe(), kept.next, in_few)
    }
}

impl Kept {
    fn keep(&mut self, told: Told) {
        if self.events.len() == KEPT {
            self.events.remove(self.dispensable());
        }
        self.events.push_back(told);
    }

    /// Which one makes room: of those that are not among the newest the oldest that tells neither of
    /// trouble nor, perhaps, of its end.
    fn dispensable(&self) -> usize {
        let mut troubled = BTreeSet::new();
        for (position, kept) in self.events.iter().take(KEPT - NEWEST).enumerate() {
            let Event { kind, subject, .. } = &kept.told.event;
            if is_trouble(kind) {
                troubled.insert(subject);
            } else if !troubled.contains(subject) {
                return position;
            }
        }
        0
    }

    /// How many events behind the one of this number are not kept, neither by themselves nor in few.
    fn missed_after(&self, number: u64) -> u64 {
        if number < self.first {
            return 0;
        }
        let told = self.next.saturating_sub(number.saturating_add(1));
        let behind = self.events.iter().rev();
        let behind = behind.take_while(|kept| kept.told.number > number);
        told.saturating_sub(behind.map(|kept| kept.count).sum())
    }
}

#[cfg(test)]
mod tests;
