//! The signals that a daemon handles, in the order in which a manager sends them to hand over: SIGUSR1,
//! then SIGTERM.
//!
//! They are blocked in every thread and read by one. A handler runs on whichever thread
//! the kernel wakes, so of two signals the second may be seen first: a restart was then taken for a stop.

use std::thread;

use api::reply::By;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use tokio::sync::mpsc;

use crate::author;
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
    sent: mpsc::UnboundedReceiver<(Signal, By)>,
}

impl Signals {
    /// Begins to read them, on a thread of its own.
    ///
    /// # Errors
    /// When no thread or no descriptor can be had.
    pub(crate) fn new() -> Result<Self, DaemonError> {
        let (sender, sent) = mpsc::unbounded_channel();
        let set = SigSet::from_iter(SIGNALS);
        let read = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC);
        let read = read.map_err(|error| DaemonError::Runtime(error.into()))?;
        let read = move || {
            // Of signals that wait the kernel hands out the lowest first: SIGUSR1 before SIGTERM.
            while let Ok(Some(read)) = read.read_signal() {
                if told(&read).is_some_and(|told| sender.send(told).is_err()) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("signals".to_owned());
        thread.spawn(read).map_err(DaemonError::Runtime)?;
        Ok(Self { sent })
    }

    /// The next signal, and who sent it.
    pub(crate) async fn next(&mut self) -> Option<(Signal, By)> {
        self.sent.recv().await
    }
}

fn told(read: &siginfo) -> Option<(Signal, By)> {
    let signal = Signal::try_from(i32::try_from(read.ssi_signo).ok()?).ok()?;
    // 0: by the kernel, or by a process that this namespace does not know.
    let pid = i32::try_from(read.ssi_pid).ok().filter(|pid| *pid > 0);
    Some((signal, author::process(pid, pid.map(|_| read.ssi_uid))))
}
