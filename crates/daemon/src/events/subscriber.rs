//! Somebody who listens: to what was kept first, then to what comes, told of how much it missed.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::event_log::{Burst, Numbered};

/// What somebody who listens gets.
#[derive(Debug)]
pub(crate) struct Listening {
    missed: u64,
    kept: VecDeque<Numbered>,
    /// What came together last, and how much of it was heard.
    burst: Option<(Arc<Burst>, usize)>,
    coming: Receiver<Arc<Burst>>,
    /// Number of the event that comes next.
    next: u64,
    in_few: bool,
}

/// What is heard next.
#[derive(Debug)]
pub(crate) enum Heard {
    Event(Numbered),
    /// So many events are lost to the listener.
    Missed(u64),
}

impl Listening {
    pub(super) fn new(
        (missed, kept): (u64, VecDeque<Numbered>),
        coming: Receiver<Arc<Burst>>,
        next: u64,
        in_few: bool,
    ) -> Self {
        Self {
            missed,
            kept,
            burst: None,
            coming,
            next,
            in_few,
        }
    }

    /// Waits for what is next; `None` when nobody tells any more.
    pub(crate) async fn next(&mut self) -> Option<Heard> {
        loop {
            if self.missed > 0 {
                return Some(Heard::Missed(std::mem::take(&mut self.missed)));
            }
            if let Some(told) = self.kept.pop_front().or_else(|| self.of_burst()) {
                return Some(Heard::Event(told));
            }
            match self.coming.recv().await {
                Ok(burst) => self.take(burst),
                // How many events that were, the number of the next one says.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }

    fn of_burst(&mut self) -> Option<Numbered> {
        let (burst, heard) = self.burst.as_mut()?;
        let told = if self.in_few {
            &burst.brief
        } else {
            &burst.all
        };
        let next = told.get(*heard).cloned();
        *heard += 1;
        if next.is_none() {
            self.burst = None;
        }
        next
    }

    fn take(&mut self, burst: Arc<Burst>) {
        self.missed += burst.first.saturating_sub(self.next);
        if !self.in_few {
            self.missed += burst.count - burst.all.len() as u64;
        }
        self.next = burst.first + burst.count;
        self.burst = Some((burst, 0));
    }
}
