//! The clocks as numbers, comparable between processes.

use std::fs;
use std::sync::OnceLock;

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since some fixed time before this boot's first process.
pub fn monotonic_ns() -> u64 {
    // The clock exists on every Linux; a failure would only make limits stricter.
    nanoseconds(ClockId::CLOCK_MONOTONIC)
}

/// Converts a time of the kernel's own monotonic clock, which its BPF programs use, to this process's: a time
/// namespace shifts it.
pub fn from_kernel_ns(ns: u64) -> u64 {
    ns.wrapping_add_signed(shift_ns("monotonic", &MONOTONIC))
}

/// The time of the kernel's own monotonic clock, which its BPF programs use.
pub fn kernel_monotonic_ns() -> u64 {
    let shift = shift_ns("monotonic", &MONOTONIC);
    monotonic_ns().wrapping_add_signed(shift.wrapping_neg())
}

static MONOTONIC: OnceLock<i64> = OnceLock::new();
static BOOTTIME: OnceLock<i64> = OnceLock::new();

/// By how much the time namespace of this process shifts a clock (time_namespaces(7)), cached since the first
/// call; 0 where there are none.
#[inline]
fn shift_ns(clock: &str, shift: &OnceLock<i64>) -> i64 {
    *shift.get_or_init(|| {
        let text = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        let mut lines = text.lines();
        let offset = lines.find_map(|line| {
            let mut words = line.strip_prefix(clock)?.split_ascii_whitespace();
            let seconds: i64 = words.next()?.parse().ok()?;
            let nanoseconds: i64 = words.next()?.parse().ok()?;
            seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
        });
        offset.unwrap_or(0)
    })
}

/// Nanoseconds since this boot's start, including suspend.
pub fn boottime_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_BOOTTIME)
}

/// The time of the kernel's own boot clock, which its BPF programs use.
#[inline]
pub fn kernel_boottime_ns() -> u64 {
    to_kernel_boottime_ns(boottime_ns())
}

/// Converts a time of this process's boot clock to the kernel's own: a time namespace shifts it.
pub fn to_kernel_boottime_ns(ns: u64) -> u64 {
    ns.saturating_add_signed(shift_ns("boottime", &BOOTTIME).saturating_neg())
}

/// Converts a time of the kernel's own boot clock to this process's.
pub fn from_kernel_boottime_ns(ns: u64) -> u64 {
    ns.saturating_add_signed(shift_ns("boottime", &BOOTTIME))
}

/// Nanoseconds since the epoch, as the kernel's receive timestamps count them.
pub fn realtime_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_REALTIME)
}

/// Milliseconds since the epoch.
pub fn realtime_ms() -> u64 {
    realtime_ns() / 1_000_000
}

fn nanoseconds(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}
