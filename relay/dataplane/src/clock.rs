//! Whose clock the times in a path's memory are of: a time namespace shifts a process's own.

/// A clock that never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The kernel's, which its programs go by.
    Kernel,
    /// This process's, which its workers share.
    Process,
}

impl Clock {
    /// What it shows.
    pub(crate) fn now_ns(self) -> u64 {
        match self {
            Self::Kernel => sys::clock::kernel_monotonic_ns(),
            Self::Process => sys::clock::monotonic_ns(),
        }
    }

    /// What `CLOCK_MONOTONIC` of this process shows when it shows `ns`.
    pub(crate) fn to_process_ns(self, ns: u64) -> u64 {
        match self {
            Self::Kernel => sys::clock::from_kernel_ns(ns),
            Self::Process => ns,
        }
    }
}
