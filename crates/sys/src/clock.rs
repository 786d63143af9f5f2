//! The monotonic clock as a number, comparable between processes.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since some fixed time before this boot's first process.
#[must_use]
pub fn monotonic_ns() -> u64 {
    // The clock exists on every Linux; a failure would only make limits stricter.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}
