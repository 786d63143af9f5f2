//! The connections there are. Beyond the limit the oldest one that is not being answered is closed,
//! so that a crowd of silent clients keeps nobody out.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinHandle;

/// Says whether a connection is being answered; held while it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy(Arc<AtomicUsize>);

impl Busy {
    /// Marks the connection as being answered until the guard is dropped.
    pub(super) fn hold(&self) -> Held {
        self.0.fetch_add(1, Ordering::Relaxed);
        Held(Arc::clone(&self.0))
    }

    fn is_held(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// Keeps its connection from being closed for others.
#[derive(Debug)]
pub(super) struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connections, the oldest first.
#[derive(Debug)]
pub(super) struct Connections {
    limit: usize,
    open: VecDeque<(JoinHandle<()>, Busy)>,
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
    pub(super) async fn add<F>(&mut self, serve: impl FnOnce(Busy) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.open.retain(|(task, _)| !task.is_finished());
        if self.open.len() >= self.limit {
            let idle = self.open.iter().position(|(_, busy)| !busy.is_held());
            if let Some((task, _)) = self.open.remove(idle.unwrap_or(0)) {
                task.abort();
                let _ = task.await;
            }
        }
        let busy = Busy::default();
        let task = tokio::spawn(serve(busy.clone()));
        self.open.push_back((task, busy));
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.open.iter().for_each(|(task, _)| task.abort());
    }
}
