//! The signals that a daemon handles, in the order in which a manager sends them to hand over: SIGUSR1,
//! then SIGTERM.
//!
//! They are blocked in every thread and read by one. A handler would run on whichever thread the kernel
//! wakes, so the second of two signals could be seen first, and a restart be taken for a stop.

use std::thread;

use api::reply::By;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use tokio::sync::mpsc;

use crate::author;
use crate::error::DaemonError;

/// The handled signals.
const SIGNALS: [Signal; 4] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGUSR1,
    Signal::SIGTERM,
];

/// Blocks them in this thread and in those that it starts; to be called before it starts any.
///
/// # Errors
/// The kernel has none for a valid set.
pub(crate) fn block() -> Result<(), DaemonError> {
    let blocked = SigSet::from_iter(SIGNALS).thread_block();
    blocked.map_err(|error| DaemonError::Runtime(error.into()))
}

/// Unblocks all signals in a process that the daemon started, which inherited the blocked set.
pub fn unblock() {
    // The kernel has no error for an empty set.
    let _ = SigSet::empty().thread_set_mask();
}

/// The signals since [`block`].
pub(crate) struct Signals {
    sent: mpsc::UnboundedReceiver<(Signal, By)>,
}

impl Signals {
    /// Begins to read them, on a thread of its own.
    ///
    /// # Errors
    /// If a thread or descriptor is unavailable.
    pub(crate) fn new() -> Result<Self, DaemonError> {
        let (sender, sent) = mpsc::unbounded_channel();
        let set = SigSet::from_iter(SIGNALS);
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)
            .map_err(|error| DaemonError::Runtime(error.into()))?;
        let read = move || {
            // The kernel delivers the lowest pending signal first: SIGUSR1 before SIGTERM.
            while let Ok(Some(info)) = descriptor.read_signal() {
                if parse(&info).is_some_and(|signal| sender.send(signal).is_err()) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("signals".to_owned());
        thread.spawn(read).map_err(DaemonError::Runtime)?;
        Ok(Self { sent })
    }

    /// The next signal, and its sender.
    pub(crate) async fn next(&mut self) -> Option<(Signal, By)> {
        self.sent.recv().await
    }
}

fn parse(info: &siginfo) -> Option<(Signal, By)> {
    let signal = Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok()?;
    // 0: sent by the kernel, or by a process that is not visible in this PID namespace.
    let pid = i32::try_from(info.ssi_pid).ok().filter(|pid| *pid > 0);
    Some((signal, author::process(pid, pid.map(|_| info.ssi_uid))))
}
