//! The clocks as numbers, comparable between processes.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since some fixed time before this boot's first process.
#[must_use]
pub fn monotonic_ns() -> u64 {
    // The clock exists on every Linux; a failure would only make limits stricter.
    nanoseconds(ClockId::CLOCK_MONOTONIC)
}

/// Nanoseconds since the epoch, as the kernel's receive timestamps count them.
#[must_use]
pub fn realtime_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_REALTIME)
}

fn nanoseconds(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}
