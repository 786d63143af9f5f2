//! The connections there are. Beyond the limit one that is not being answered is closed, the oldest of
//! the process or the address that has most of them: a crowd of silent clients keeps nobody out, and who
//! has just connected and not asked yet does not make room for it. Clients of the page count as one.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use api::reply::By;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::body_quota::{Client, Whose};
use super::remote::peer::Peer as Visitor;
use crate::author;

/// Of how many connections one may be on its way out beside them.
const LEAVING_PART: usize = 8;

/// Who is at the other end of a connection: a process of this host (unix(7), SO_PEERCRED), or an
/// address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    pub(super) pid: Option<i32>,
    pub(super) uid: Option<u32>,
    pub(super) network: Option<Whose>,
}

/// A client's connection, as those know it who answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Connection(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// How many requests of it are being answered.
    answering: AtomicUsize,
    cut_off: Notify,
    peer: Peer,
    /// Who that is, once somebody wanted to know.
    by: OnceLock<By>,
    /// Who came by TLS.
    visitor: OnceLock<Arc<Visitor>>,
}

impl Connection {
    /// A connection of that peer.
    pub(super) fn of(peer: Peer) -> Self {
        Self(Arc::new(State {
            peer,
            ..State::default()
        }))
    }

    /// Whose it is.
    pub(super) fn client(&self) -> Client {
        let Peer { pid, network, .. } = self.0.peer;
        pid.map(|pid| pid.unsigned_abs().into()).or(network)
    }

    /// Who is at the other end; asked while they wait for an answer, so that the process is still theirs.
    pub(super) fn by(&self) -> &By {
        let Peer { pid, uid, .. } = self.0.peer;
        self.0.by.get_or_init(|| author::process(pid, uid))
    }

    /// Remembers who is at the other end, which is known once.
    pub(super) fn meet(&self, visitor: Arc<Visitor>) {
        let _ = self.0.visitor.set(visitor);
    }

    pub(super) fn visitor(&self) -> Option<&Arc<Visitor>> {
        self.0.visitor.get()
    }

    /// Marks it as being answered until the guard is dropped.
    pub(super) fn hold(&self) -> Held {
        self.0.answering.fetch_add(1, Ordering::Relaxed);
        Held(Arc::clone(&self.0))
    }

    fn is_held(&self) -> bool {
        self.0.answering.load(Ordering::Relaxed) > 0
    }

    /// Has it closed at once, whatever is on its way.
    pub(super) fn cut_off(&self) {
        self.0.cut_off.notify_one();
    }

    /// Waits until somebody has it closed.
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
    /// Those that made room and are not closed yet.
    leaving: VecDeque<JoinHandle<()>>,
}

impl Connections {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            limit,
            open: VecDeque::new(),
            leaving: VecDeque::new(),
        }
    }

    /// Runs a conversation as a task of its own, making room first. It waits for those that go to be
    /// closed only where they are many: each takes a round of all tasks, and who is to be accepted next
    /// would wait in the kernel's queue, which a crowd fills.
    pub(super) async fn add<F>(&mut self, peer: Peer, serve: impl FnOnce(Connection) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.open.retain(|(task, _)| !task.is_finished());
        if self.open.len() >= self.limit
            && let Some((task, _)) = self.open.remove(self.dispensable())
        {
            task.abort();
            self.leaving.push_back(task);
            self.leaving.retain(|task| !task.is_finished());
        }
        if self.leaving.len() > self.limit / LEAVING_PART
            && let Some(task) = self.leaving.pop_front()
        {
            let _ = task.await;
        }
        let connection = Connection::of(peer);
        let task = tokio::spawn(serve(connection.clone()));
        self.open.push_back((task, connection));
    }

    /// Which of them makes room.
    fn dispensable(&self) -> usize {
        let mut idle: HashMap<Client, (usize, usize)> = HashMap::new();
        for (at, (_, one)) in self
            .open
            .iter()
            .enumerate()
            .filter(|(_, (_, one))| !one.is_held())
        {
            idle.entry(one.client()).or_insert((0, at)).0 += 1;
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
    async fn nobody_waits_for_one_that_makes_room() {
        let mut connections = Connections::new(16);
        for _ in 0..18 {
            let added = pin!(connections.add(Peer::default(), |_| std::future::pending()));
            let polled = added.poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_ready());
        }
        assert_eq!((connections.open.len(), connections.leaving.len()), (16, 2));
        // No more of them.
        connections
            .add(Peer::default(), |_| std::future::pending())
            .await;
        assert!(connections.leaving.len() <= 2);
    }

    #[tokio::test]
    async fn a_crowd_makes_room_for_itself() {
        let mut connections = Connections::new(4);
        let of = |pid| Peer {
            pid,
            ..Peer::default()
        };
        let there = |connections: &Connections| -> Vec<Client> {
            connections
                .open
                .iter()
                .map(|(_, one)| one.client())
                .collect()
        };
        for client in [1, 7, 7, 7, 7, 7] {
            connections
                .add(of(Some(client)), |_| std::future::pending())
                .await;
        }
        assert_eq!(there(&connections), [Some(1), Some(7), Some(7), Some(7)]);
        // Where each has one, the oldest goes.
        let mut connections = Connections::new(2);
        for client in [Some(1), None, Some(3)] {
            connections
                .add(of(client), |_| std::future::pending())
                .await;
        }
        assert_eq!(there(&connections), [None, Some(3)]);
    }
}
