//! The connections there are. Beyond the limit the oldest one that is not being answered is closed,
//! so that a crowd of silent clients keeps nobody out.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A client's connection, as those know it who answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Connection(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// How many requests of it are being answered.
    answering: AtomicUsize,
    cut_off: Notify,
    /// The process at the other end, where there is one on this host.
    client: Option<i32>,
}

impl Connection {
    /// A connection of the process `client`.
    pub(super) fn of(client: Option<i32>) -> Self {
        Self(Arc::new(State {
            client,
            ..State::default()
        }))
    }

    pub(super) fn client(&self) -> Option<i32> {
        self.0.client
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
}

impl Connections {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            limit,
            open: VecDeque::new(),
        }
    }

    /// Runs a conversation as a task of its own, making room first: there is room once the
    /// descriptor of the connection that goes is closed.
    pub(super) async fn add<F>(&mut self, client: Option<i32>, serve: impl FnOnce(Connection) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.open.retain(|(task, _)| !task.is_finished());
        if self.open.len() >= self.limit {
            let idle = self.open.iter().position(|(_, one)| !one.is_held());
            if let Some((task, _)) = self.open.remove(idle.unwrap_or(0)) {
                task.abort();
                let _ = task.await;
            }
        }
        let connection = Connection::of(client);
        let task = tokio::spawn(serve(connection.clone()));
        self.open.push_back((task, connection));
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.open.iter().for_each(|(task, _)| task.abort());
    }
}
