//! The clock of the times in a path's memory: a time namespace shifts a process's own.

/// A monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The kernel's, which its programs use.
    Kernel,
    /// This process's, which its workers share.
    Process,
}

impl Clock {
    /// The current time.
    pub(crate) fn now_ns(self) -> u64 {
        match self {
            Self::Kernel => sys::clock::kernel_monotonic_ns(),
            Self::Process => sys::clock::monotonic_ns(),
        }
    }

    /// Converts `ns` to `CLOCK_MONOTONIC` of this process.
    pub(crate) fn to_process_ns(self, ns: u64) -> u64 {
        match self {
            Self::Kernel => sys::clock::from_kernel_ns(ns),
            Self::Process => ns,
        }
    }
}
