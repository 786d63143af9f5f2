//! The signals that a daemon handles, in the order in which a manager sends them to hand over: SIGUSR1,
//! then SIGTERM.
//!
//! They are blocked in every thread and read by one. A handler runs on whichever thread
//! the kernel wakes, so of two signals the second may be seen first: a restart was then taken for a stop.

use std::thread;

use nix::sys::signal::{SigSet, Signal};
use tokio::sync::mpsc;

use crate::error::DaemonError;

/// Those that are read.
const SIGNALS: [Signal; 4] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGUSR1,
    Signal::SIGTERM,
];

/// Blocks them in this thread and in those that it starts; to be called before the first of them.
///
/// # Errors
/// None that the kernel knows for a valid set.
pub(crate) fn block() -> Result<(), DaemonError> {
    let blocked = SigSet::from_iter(SIGNALS).thread_block();
    blocked.map_err(|error| DaemonError::Runtime(error.into()))
}

/// Has a process that the daemon started hear signals again: it inherited what is blocked.
pub fn unblock() {
    // Nothing can be refused of an empty set.
    let _ = SigSet::empty().thread_set_mask();
}

/// What was sent since [`block`] and is not read yet.
pub(crate) struct Signals {
    sent: mpsc::UnboundedReceiver<Signal>,
}

impl Signals {
    /// Begins to read them, on a thread of its own.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(crate) fn new() -> Result<Self, DaemonError> {
        let (sender, sent) = mpsc::unbounded_channel();
        let set = SigSet::from_iter(SIGNALS);
        // Of signals that wait the kernel hands out the lowest first: SIGUSR1 before SIGTERM.
        let read = move || while set.wait().is_ok_and(|signal| sender.send(signal).is_ok()) {};
        let thread = thread::Builder::new().name("signals".to_owned());
        thread.spawn(read).map_err(DaemonError::Runtime)?;
        Ok(Self { sent })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Option<Signal> {
        self.sent.recv().await
    }
}
