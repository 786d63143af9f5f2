//! A running relay, and its settings from outside the lab.

use std::fmt;
use std::time::Duration;

use anyhow::Result;

use crate::bench::results::RelayCount;
use crate::bench::run::usage;

/// Settings of relays from outside the lab.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// Workers of MCR's userspace path; `None` for its default.
    pub workers: Option<usize>,
}

/// A running relay. Dropping it stops it.
pub struct Running {
    roots: Vec<u32>,
    pub(super) start: Option<Duration>,
    pub(super) apply: Option<Duration>,
    pub(super) count: Box<dyn Fn() -> Result<Option<RelayCount>> + Send>,
    pub(super) stop: Vec<Box<dyn FnOnce() + Send>>,
}

impl Running {
    pub(super) fn new(roots: Vec<u32>, stop: impl FnOnce() + Send + 'static) -> Self {
        Self {
            roots,
            start: None,
            apply: None,
            count: Box::new(|| Ok(None)),
            stop: vec![Box::new(stop)],
        }
    }

    /// How long the relay took to start, before it had any rule, where the two are apart.
    pub const fn start(&self) -> Option<Duration> {
        self.start
    }

    /// How long the relay took to accept its whole rule set, where that is one command.
    pub const fn apply(&self) -> Option<Duration> {
        self.apply
    }

    /// The relay's processes at this moment.
    pub fn processes(&self) -> Vec<u32> {
        usage::family(&self.roots)
    }

    /// What the relay counted so far, if it counts.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn count(&self) -> Result<Option<RelayCount>> {
        (self.count)()
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("roots", &self.roots)
            .finish_non_exhaustive()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for stop in self.stop.drain(..) {
            stop();
        }
    }
}
