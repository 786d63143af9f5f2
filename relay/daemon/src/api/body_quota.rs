//! Memory for large request bodies, reserved as bytes arrive. A client may take as much as the largest
//! body, and all clients together twice that. When more is needed, the unfinished body that has waited
//! longest for its next bytes is evicted: one of the client's own if it has too much, else any. So bodies
//! that never end keep nobody out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A process on the control socket, or an address of another host.
pub(super) type ClientId = u128;
/// The sender of a body, if known.
pub(super) type Client = Option<ClientId>;

/// Memory for bodies, in bytes.
#[derive(Debug)]
pub(super) struct Room {
    per_client: usize,
    in_all: usize,
    bodies: Mutex<Bodies>,
    /// Signalled when memory was given back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Bodies {
    next: u64,
    by_number: BTreeMap<u64, Body>,
}

#[derive(Debug)]
struct Body {
    client: Client,
    bytes: usize,
    /// When its last bytes arrived; `None` once it is complete.
    waits_since: Option<Instant>,
    is_evicted: bool,
    evicted: Arc<Notify>,
}

/// The memory that a body has taken.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    room: &'a Room,
    number: u64,
    evicted: Arc<Notify>,
}

/// The result of a request for more memory.
enum Grant {
    Room,
    /// Others are being evicted.
    Wait,
    /// The body itself was evicted.
    Evicted,
}

impl Room {
    pub(super) const fn new(per_client: usize, in_all: usize) -> Self {
        let bodies = Bodies {
            next: 0,
            by_number: BTreeMap::new(),
        };
        Self {
            per_client,
            in_all,
            bodies: Mutex::new(bodies),
            freed: Notify::const_new(),
        }
    }

    /// Registers a body; it takes no memory yet.
    pub(super) fn enter(&self, client: Client) -> Reservation<'_> {
        let mut bodies = self.bodies.lock();
        bodies.next += 1;
        let number = bodies.next;
        let evicted = Arc::new(Notify::new());
        let body = Body {
            client,
            bytes: 0,
            waits_since: Some(Instant::now()),
            is_evicted: false,
            evicted: Arc::clone(&evicted),
        };
        bodies.by_number.insert(number, body);
        Reservation {
            room: self,
            number,
            evicted,
        }
    }

    fn request(&self, number: u64, bytes: usize) -> Grant {
        let mut bodies = self.bodies.lock();
        let Some(own) = bodies.by_number.get_mut(&number) else {
            return Grant::Evicted;
        };
        if own.is_evicted {
            return Grant::Evicted;
        }
        own.waits_since = Some(Instant::now());
        let (client, more) = (own.client, bytes.saturating_sub(own.bytes));
        let of_client = bodies.held(|body| body.client == client) + more;
        if client.is_some() && of_client > self.per_client {
            let others = |other: u64, body: &Body| other != number && body.client == client;
            bodies.make_room(of_client - self.per_client, others);
            return Grant::Wait;
        }
        let in_all = bodies.held(|_| true) + more;
        if in_all > self.in_all {
            bodies.make_room(in_all - self.in_all, |other, _| other != number);
            return Grant::Wait;
        }
        if let Some(own) = bodies.by_number.get_mut(&number) {
            own.bytes += more;
        }
        Grant::Room
    }
}

impl Bodies {
    fn held(&self, of: impl Fn(&Body) -> bool) -> usize {
        let bodies = self.by_number.values().filter(|body| of(body));
        bodies.map(|body| body.bytes).sum()
    }

    /// Evicts unfinished bodies until `bytes` will be free, those first that have waited longest.
    fn make_room(&mut self, bytes: usize, of: impl Fn(u64, &Body) -> bool) {
        let evicted = self
            .by_number
            .iter()
            .filter(|(number, body)| body.is_evicted && of(**number, body));
        let mut freed: usize = evicted.map(|(_, body)| body.bytes).sum();
        while freed < bytes {
            let unfinished = self.by_number.iter_mut().filter(|(number, body)| {
                let is_waiting = body.waits_since.is_some() && !body.is_evicted;
                is_waiting && body.bytes > 0 && of(**number, body)
            });
            let longest = unfinished.min_by_key(|(_, body)| body.waits_since);
            let Some((_, body)) = longest else {
                return;
            };
            body.is_evicted = true;
            freed += body.bytes;
            body.evicted.notify_one();
        }
    }
}

impl Reservation<'_> {
    /// Reserves `bytes` in all; returns whether the body may continue.
    pub(super) async fn take(&self, bytes: usize) -> bool {
        loop {
            let freed = self.room.freed.notified();
            tokio::pin!(freed);
            // From here on no notification of freed memory is lost.
            freed.as_mut().enable();
            match self.room.request(self.number, bytes) {
                Grant::Room => return true,
                Grant::Evicted => return false,
                Grant::Wait => tokio::select! {
                    () = freed => {}
                    () = self.evicted() => {}
                },
            }
        }
    }

    /// Waits until the body is evicted.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Marks the body as complete: it is no longer evicted, and frees its memory once parsed.
    pub(super) fn finish(&self) {
        if let Some(body) = self.room.bodies.lock().by_number.get_mut(&self.number) {
            body.waits_since = None;
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.room.bodies.lock().by_number.remove(&self.number);
        self.room.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn takes(reservation: &Reservation<'_>, bytes: usize) -> Option<bool> {
        reservation.take(bytes).now_or_never()
    }

    #[test]
    fn the_unfinished_body_that_has_waited_longest_is_evicted() {
        let room = Room::new(100, 200);
        let stale = room.enter(Some(1));
        let stalled = room.enter(Some(2));
        let finished = room.enter(Some(3));
        assert_eq!(takes(&finished, 60), Some(true));
        finished.finish();
        assert_eq!(takes(&stalled, 70), Some(true));
        assert_eq!(takes(&stale, 70), Some(true));
        let good = room.enter(Some(4));
        assert_eq!(takes(&good, 60), None, "it waits until there is room");
        assert_eq!(takes(&stalled, 71), Some(false));
        assert_eq!(takes(&stale, 70), Some(true), "one is enough");
        drop(stalled);
        assert_eq!(takes(&good, 60), Some(true));
    }

    #[test]
    fn a_client_with_many_bodies_has_its_own_make_room() {
        let room = Room::new(100, 200);
        let other = room.enter(Some(1));
        assert_eq!(takes(&other, 90), Some(true));
        let many: Vec<_> = (0..5).map(|_| room.enter(Some(2))).collect();
        for body in &many {
            assert_eq!(takes(body, 20), Some(true));
        }
        let next = room.enter(Some(2));
        assert_eq!(takes(&next, 20), None);
        assert_eq!(takes(&many[0], 20), Some(false));
        assert_eq!(takes(&other, 100), Some(true), "the others' stay");
    }

    #[tokio::test]
    async fn a_waiting_body_continues_when_another_is_done() {
        let room = Room::new(100, 100);
        let first = room.enter(Some(1));
        assert!(first.take(100).await);
        first.finish();
        let second = room.enter(Some(2));
        let taken = second.take(50);
        tokio::pin!(taken);
        assert!(taken.as_mut().now_or_never().is_none());
        drop(first);
        assert!(taken.await);
    }
}
