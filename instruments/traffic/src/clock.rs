//! The two clocks and precise waiting: sleep while it is far, spin when it is near.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};

/// Below this distance waiting spins: a sleep on an idle virtual machine wakes up to 60 µs late.
const SPIN_NS: u64 = 80_000;
/// The longest sleep, so that a request to stop is seen soon.
const SLICE_NS: u64 = 50_000_000;

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn monotonic_ns() -> u64 {
    now(ClockId::CLOCK_MONOTONIC)
}

/// Nanoseconds of CLOCK_REALTIME.
pub fn realtime_ns() -> u64 {
    now(ClockId::CLOCK_REALTIME)
}

/// CLOCK_REALTIME minus CLOCK_MONOTONIC in nanoseconds, at this moment.
pub fn realtime_offset_ns() -> u64 {
    let before = monotonic_ns();
    let realtime = realtime_ns();
    let after = monotonic_ns();
    realtime.wrapping_sub(before + (after - before) / 2)
}

/// A length of time in nanoseconds, at most as many as fit.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits until CLOCK_MONOTONIC reaches `deadline_ns` or `stop` is set; returns the time it is then.
pub fn wait_until(deadline_ns: u64, stop: &AtomicBool) -> u64 {
    loop {
        let now = monotonic_ns();
        if now >= deadline_ns || stop.load(Ordering::Relaxed) {
            return now;
        }
        let distance = deadline_ns - now;
        if distance > SPIN_NS {
            sleep_until(now + (distance - SPIN_NS).min(SLICE_NS));
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Lets sleeps of this thread end on time instead of up to 50 µs late (PR_SET_TIMERSLACK).
pub fn sharpen_sleep() {
    // Only precision depends on it, and the spin makes up for the rest.
    let _ = nix::sys::prctl::set_timerslack(1);
}

fn sleep_until(time_ns: u64) {
    let until = TimeSpec::new(
        (time_ns / 1_000_000_000) as i64,
        (time_ns % 1_000_000_000) as i64,
    );
    // An interrupted sleep is the caller's loop's business.
    let _ = clock_nanosleep(
        ClockId::CLOCK_MONOTONIC,
        ClockNanosleepFlags::TIMER_ABSTIME,
        &until,
    );
}

fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("the clocks exist on every Linux");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}
