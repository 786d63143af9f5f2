//! Which rules received packets since the last reading, and a reading of those alone: a quiet rule
//! costs no more than the reading of one word.
//!
//! On each path every rule has a word that changes when its packets are counted. A packet that is
//! counted during a reading may be missed by it, and is seen by the next.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bpf::layout;
use parking_lot::Mutex;
use sys::memory::Array;

use crate::Dataplane;
use crate::counters::Arrived;
use crate::error::Error;
use crate::kernel;
use crate::owners::registry::PART;
use crate::ticks::Ticks;
use crate::userspace::shared::counters::SharedCounters;

/// The state at the last reading of one who reads from time to time.
#[derive(Debug, Default)]
pub struct Seen {
    pub(crate) kernel: Ticks,
    /// By the slot of a rule, summed over all workers.
    pub(crate) userspace: Vec<u64>,
    /// Ring frames that workers had taken before.
    frames: u64,
}

/// Detects packets without the thread that owns the dataplane; clones are equivalent.
#[derive(Clone, Debug, Default)]
pub struct Activity(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    kernel: Option<Array<layout::Activity>>,
    used: AtomicU32,
    /// The counters of workers.
    workers: Mutex<Vec<Arc<SharedCounters>>>,
}

impl Activity {
    pub(crate) fn new(kernel: Option<Array<layout::Activity>>) -> Self {
        Self(Arc::new(Inner {
            kernel,
            ..Inner::default()
        }))
    }

    /// Returns whether nothing has arrived since `seen`.
    #[must_use]
    pub fn is_quiet(&self, seen: &Seen) -> bool {
        let used = self.0.used.load(Ordering::Acquire);
        let kernel = self.0.kernel.as_ref();
        SharedCounters::frames(self.0.workers.lock().iter()) == seen.frames
            && kernel.is_none_or(|activity| seen.kernel.is_quiet(used, activity))
    }

    pub(crate) fn follow(&self, used: u32, workers: Vec<Arc<SharedCounters>>) {
        self.0.used.store(used, Ordering::Release);
        *self.0.workers.lock() = workers;
    }
}

/// A reading that has begun, in parts: of the rules that packets have arrived for since `seen`.
#[derive(Debug)]
pub struct ActivityScan {
    seen: Seen,
    also: Vec<Arc<str>>,
    /// The rules still to be read, once they are known.
    rules: Option<Vec<Arc<str>>>,
    arrived: Arrived,
    /// Rules read so far.
    read: usize,
}

impl ActivityScan {
    /// Begins one that reads the rules `also` as well, whether or not packets have arrived for them.
    #[must_use]
    pub fn new(seen: Seen, also: Vec<Arc<str>>) -> Self {
        Self {
            seen,
            also,
            rules: None,
            arrived: Arrived::default(),
            read: 0,
        }
    }

    /// Reads the next part; `false` if that was the last.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn go_on(&mut self, dataplane: &Dataplane) -> Result<bool, Error> {
        let Some(rules) = &mut self.rules else {
            self.rules = Some(self.changed_rules(dataplane));
            return Ok(true);
        };
        let part = rules.split_off(rules.len().saturating_sub(PART));
        self.read += part.len();
        if let Some(kernel) = &dataplane.kernel {
            kernel::read_arrived(kernel, &part, &mut self.arrived)?;
        }
        let more = !rules.is_empty();
        if let Some(userspace) = &dataplane.userspace {
            userspace.read_arrived(&part, more, &mut self.arrived);
        }
        Ok(more)
    }

    /// The rules to be read: those that packets have arrived for on either path, and those requested.
    fn changed_rules(&mut self, dataplane: &Dataplane) -> Vec<Arc<str>> {
        let mut rules: BTreeSet<Arc<str>> = std::mem::take(&mut self.also).into_iter().collect();
        if let Some(kernel) = &dataplane.kernel {
            rules.extend(kernel.changed_rules(&mut self.seen.kernel));
        }
        if let Some(userspace) = &dataplane.userspace {
            // Before the counters, so that what arrives meanwhile is read again.
            self.seen.frames = SharedCounters::frames(userspace.worker_memory());
            rules.extend(userspace.changed_rules(&mut self.seen.userspace));
        }
        rules.into_iter().collect()
    }

    /// What was read: all that each of these rules ever counted, and nothing of others.
    #[must_use]
    pub fn finish(self) -> (Arrived, Seen) {
        (self.arrived, self.seen)
    }

    /// How many rules were read.
    #[must_use]
    pub const fn rules(&self) -> usize {
        self.read
    }
}
