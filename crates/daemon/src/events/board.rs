//! Where events are told: to everybody who listens, and kept for a while for who comes later, so
//! that nobody has to watch to know what happened just now.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use api::reply::Event;
use tokio::sync::broadcast::{self, Receiver};

/// Events a slow reader may lag behind before it misses some.
const BACKLOG: usize = 1024;
/// Events that are kept.
pub(crate) const KEPT: usize = 200;

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

/// What somebody who begins to listen gets.
#[derive(Debug)]
pub(crate) struct Listening {
    /// Events that are not kept any more.
    pub(crate) missed: u64,
    pub(crate) kept: VecDeque<Numbered>,
    pub(crate) coming: Receiver<Numbered>,
}

/// The events of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    sender: broadcast::Sender<Numbered>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug)]
struct Kept {
    first: u64,
    next: u64,
    events: VecDeque<Numbered>,
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
            kept: Arc::new(Mutex::new(kept)),
        }
    }

    pub(crate) fn tell(&self, event: Event) {
        // Held until it is sent: who begins to listen meanwhile gets it once.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let number = kept.next;
        kept.next += 1;
        if kept.events.len() == KEPT {
            kept.events.pop_front();
        }
        let event = Numbered { number, event };
        kept.events.push_back(event.clone());
        // Nobody listening is not an error.
        let _ = self.sender.send(event);
    }

    pub(crate) fn listen(&self, begin: Begin) -> Listening {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (missed, left_out) = match begin {
            Begin::Recent(count) => (0, kept.events.len().saturating_sub(count)),
            Begin::After(number) => {
                let known = kept.events.partition_point(|event| event.number <= number);
                let oldest = kept.next - kept.events.len() as u64;
                let of_this_daemon = number >= kept.first;
                let missed = oldest.saturating_sub(number.saturating_add(1));
                (if of_this_daemon { missed } else { 0 }, known)
            }
        };
        Listening {
            missed,
            kept: kept.events.iter().skip(left_out).cloned().collect(),
            coming: self.sender.subscribe(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::event;
    use super::*;

    fn board(events: usize) -> Board {
        let board = Board::new();
        for n in 0..events {
            board.tell(event("rule_up", "a", n.to_string()));
        }
        board
    }

    fn messages(listening: &Listening) -> Vec<&str> {
        let kept = listening.kept.iter();
        kept.map(|kept| kept.event.message.as_str()).collect()
    }

    #[test]
    fn who_comes_later_gets_the_last_events_and_the_next() {
        let board = board(5);
        assert!(board.listen(Begin::Recent(0)).kept.is_empty());
        let mut listening = board.listen(Begin::Recent(2));
        assert_eq!(messages(&listening), ["3", "4"]);
        board.tell(event("rule_up", "a", "5".to_owned()));
        assert_eq!(listening.coming.try_recv().unwrap().event.message, "5");
        assert_eq!(board.listen(Begin::Recent(KEPT)).kept.len(), 6);
    }

    #[test]
    fn who_comes_back_goes_on_where_it_was() {
        let board = board(KEPT + 10);
        let all = board.listen(Begin::Recent(KEPT));
        let number = all.kept[KEPT - 3].number;
        let listening = board.listen(Begin::After(number));
        assert_eq!((listening.missed, listening.kept.len()), (0, 2));
        let gone = board.listen(Begin::After(all.kept[0].number - 4));
        assert_eq!((gone.missed, gone.kept.len()), (3, KEPT));
        // A number of the daemon before, and one of nobody's.
        let other = board.listen(Begin::After(7));
        assert_eq!((other.missed, other.kept.len()), (0, KEPT));
        let ahead = board.listen(Begin::After(u64::MAX));
        assert_eq!((ahead.missed, ahead.kept.len()), (0, 0));
    }
}
