//! Open connections. Beyond the limit one that is not being answered is closed, the oldest of the process
//! or the address that has most of them: many silent clients keep nobody out, and a client that has just
//! connected and not sent its request yet is not closed for them. Clients of the page count as one.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use api::reply::By;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::body_quota::{Client, ClientId};
use super::remote::peer::Peer;
use crate::author;

/// One connection may be closing for this many open ones.
const CLOSING_PART: usize = 8;

/// The other end of a connection: a process of this host (unix(7), SO_PEERCRED), or an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PeerCredentials {
    pub(super) pid: Option<i32>,
    pub(super) uid: Option<u32>,
    pub(super) network: Option<ClientId>,
}

/// A client's connection, as request handlers see it.
#[derive(Clone, Debug, Default)]
pub(super) struct Connection(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of its requests that are being answered.
    answering: AtomicUsize,
    cut_off: Notify,
    peer: PeerCredentials,
    /// The peer's identity, looked up on first use.
    by: OnceLock<By>,
    /// The client, if it connected by TLS.
    remote: OnceLock<Arc<Peer>>,
}

impl Connection {
    /// A connection of that peer.
    pub(super) fn of(peer: PeerCredentials) -> Self {
        Self(Arc::new(State {
            peer,
            ..State::default()
        }))
    }

    /// The client it belongs to.
    pub(super) fn client(&self) -> Client {
        let PeerCredentials { pid, network, .. } = self.0.peer;
        pid.map(|pid| pid.unsigned_abs().into()).or(network)
    }

    /// The peer's identity; ask while the peer waits for an answer, so that the pid is still its own.
    pub(super) fn by(&self) -> &By {
        let PeerCredentials { pid, uid, .. } = self.0.peer;
        self.0.by.get_or_init(|| author::process(pid, uid))
    }

    /// Sets the client that connected by TLS; it is set once.
    pub(super) fn set_remote(&self, remote: Arc<Peer>) {
        let _ = self.0.remote.set(remote);
    }

    pub(super) fn remote(&self) -> Option<&Arc<Peer>> {
        self.0.remote.get()
    }

    /// Marks it as being answered until the guard is dropped.
    pub(super) fn hold(&self) -> Held {
        self.0.answering.fetch_add(1, Ordering::Relaxed);
        Held(Arc::clone(&self.0))
    }

    fn is_held(&self) -> bool {
        self.0.answering.load(Ordering::Relaxed) > 0
    }

    /// Closes it at once, whatever is in transit.
    pub(super) fn cut_off(&self) {
        self.0.cut_off.notify_one();
    }

    /// Waits until it is cut off.
    pub(super) async fn is_cut_off(&self) {
        self.0.cut_off.notified().await;
    }
}

/// Keeps its connection from being closed for others.
#[derive(Debug)]
pub(super) struct Held(Arc<State>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connections, the oldest first.
#[derive(Debug)]
pub(super) struct Connections {
    limit: usize,
    open: VecDeque<(JoinHandle<()>, Connection)>,
    /// Those that were aborted and are not closed yet.
    closing: VecDeque<JoinHandle<()>>,
}

impl Connections {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            limit,
            open: VecDeque::new(),
            closing: VecDeque::new(),
        }
    }

    /// Serves a connection as a task of its own, making room first. It waits for closing connections only
    /// if there are many: each takes a round of all tasks, while clients yet to be accepted wait in the
    /// kernel's queue, which may overflow.
    pub(super) async fn add<F>(
        &mut self,
        peer: PeerCredentials,
        serve: impl FnOnce(Connection) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        self.open.retain(|(task, _)| !task.is_finished());
        if self.open.len() >= self.limit
            && let Some((task, _)) = self.open.remove(self.dispensable())
        {
            task.abort();
            self.closing.push_back(task);
            self.closing.retain(|task| !task.is_finished());
        }
        if self.closing.len() > self.limit / CLOSING_PART
            && let Some(task) = self.closing.pop_front()
        {
            let _ = task.await;
        }
        let connection = Connection::of(peer);
        let task = tokio::spawn(serve(connection.clone()));
        self.open.push_back((task, connection));
    }

    /// The index of the connection to close.
    fn dispensable(&self) -> usize {
        let mut idle: HashMap<Client, (usize, usize)> = HashMap::new();
        for (index, (_, connection)) in self.open.iter().enumerate() {
            if !connection.is_held() {
                idle.entry(connection.client()).or_insert((0, index)).0 += 1;
            }
        }
        let most = idle
            .into_values()
            .max_by_key(|(count, oldest)| (*count, Reverse(*oldest)));
        most.map_or(0, |(_, oldest)| oldest)
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.open.iter().for_each(|(task, _)| task.abort());
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn nobody_waits_for_a_closing_connection() {
        let mut connections = Connections::new(16);
        for _ in 0..18 {
            let added =
                pin!(connections.add(PeerCredentials::default(), |_| std::future::pending()));
            let polled = added.poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_ready());
        }
        assert_eq!((connections.open.len(), connections.closing.len()), (16, 2));
        // No more are closing than allowed.
        connections
            .add(PeerCredentials::default(), |_| std::future::pending())
            .await;
        assert!(connections.closing.len() <= 2);
    }

    #[tokio::test]
    async fn a_crowd_makes_room_for_itself() {
        let mut connections = Connections::new(4);
        let of = |pid| PeerCredentials {
            pid,
            ..PeerCredentials::default()
        };
        let clients = |connections: &Connections| -> Vec<Client> {
            connections
                .open
                .iter()
                .map(|(_, connection)| connection.client())
                .collect()
        };
        for client in [1, 7, 7, 7, 7, 7] {
            connections
                .add(of(Some(client)), |_| std::future::pending())
                .await;
        }
        assert_eq!(clients(&connections), [Some(1), Some(7), Some(7), Some(7)]);
        // If each client has one, the oldest is closed.
        let mut connections = Connections::new(2);
        for client in [Some(1), None, Some(3)] {
            connections
                .add(of(client), |_| std::future::pending())
                .await;
        }
        assert_eq!(clients(&connections), [None, Some(3)]);
    }
}
