//! Waiting for a condition with a deadline, instead of sleeping for a guessed time.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use nix::time::{ClockId, clock_gettime};

/// How long a condition may take by default: long, since only a failure waits for its end, and a busy
/// machine may delay a process for many seconds.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The pause between two checks of a condition: short at first, then a fraction of the time waited so
/// far. A check often starts a program, and waiting must not keep the processor from what is awaited.
const STEPS: RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(50);

/// A time limit scaled for this machine: by `MCR_TEST_SCALE`, for an emulated one. Where that is not set,
/// by how long a thread has to wait for its processor: measured before the first limit, and whenever one
/// is reached.
pub fn scaled(limit: Duration) -> Duration {
    limit
        * match SCALE.load(Ordering::Relaxed) {
            0 => measure(),
            scale => scale,
        }
}

/// Returns whether the time `took` is within `limit`, [scaled].
pub fn is_within(took: Duration, limit: Duration) -> bool {
    took < scaled(limit) || took < limit * measure()
}

/// The factor of all limits; 0 until the first measurement.
static SCALE: AtomicU32 = AtomicU32::new(0);

/// The largest factor of limits: what has not happened by then will not.
const MOST: u32 = 8;

/// Updates and returns the factor of all limits: a machine that has got busier lengthens them.
fn measure() -> u32 {
    let variable = std::env::var("MCR_TEST_SCALE").ok();
    let given = variable.and_then(|text| text.parse().ok());
    let scale = given.unwrap_or_else(|| pace(Duration::from_millis(20)).clamp(1, MOST));
    SCALE.fetch_max(scale, Ordering::Relaxed).max(scale)
}

/// How many times as long one thread takes for `work` of processor time as it would on an idle machine,
/// rounded up.
fn pace(work: Duration) -> u32 {
    let begin = Instant::now();
    let cpu_time = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    let Ok(end) = cpu_time().map(|now| now + work) else {
        return 1;
    };
    while cpu_time().is_ok_and(|now| now < end) {
        std::hint::spin_loop();
    }
    let ratio = begin.elapsed().as_secs_f64() / work.as_secs_f64();
    // A tenth is measurement error, not load.
    (ratio - 0.1).ceil() as u32
}

/// Waits until `condition` holds, for at most [`PATIENCE`].
///
/// # Errors
/// When it does not hold in time; the message says `what` was awaited.
pub fn until(what: &str, condition: impl FnMut() -> bool) -> Result<()> {
    until_within(PATIENCE, what, condition)
}

/// Waits until `condition` holds, for at most `patience`, [scaled].
///
/// # Errors
/// When it does not hold in time; the message says `what` was awaited.
pub fn until_within(
    patience: Duration,
    what: &str,
    mut condition: impl FnMut() -> bool,
) -> Result<()> {
    some_within(patience, what, || condition().then_some(()))
}

/// Waits until `attempt` returns a value, for at most `patience`, [scaled], and returns it.
///
/// # Errors
/// When there is none in time; the message says `what` was awaited.
pub fn some_within<T>(
    patience: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<T> {
    poll_within(patience, || attempt().ok_or(())).map_err(|(waited, ())| in_vain(what, waited, ""))
}

/// Waits like [`some_within`] for a value of `look`, whose errors describe the present state.
///
/// # Errors
/// When there is none in time; the message says `what` was awaited and the last state.
pub fn seen_within<T, S: Debug>(
    patience: Duration,
    what: &str,
    look: impl FnMut() -> Result<T, S>,
) -> Result<T> {
    poll_within(patience, look)
        .map_err(|(waited, seen)| in_vain(what, waited, &format!("; instead: {seen:?}")))
}

/// Calls `look` until it returns a value; after `patience`, [scaled], returns the time waited and the last
/// error.
fn poll_within<T, S>(
    patience: Duration,
    mut look: impl FnMut() -> Result<T, S>,
) -> Result<T, (Duration, S)> {
    let begin = Instant::now();
    loop {
        let seen = match look() {
            Ok(value) => return Ok(value),
            Err(seen) => seen,
        };
        let waited = begin.elapsed();
        if !is_within(waited, patience) {
            return Err((waited, seen));
        }
        thread::sleep((waited / 10).clamp(*STEPS.start(), *STEPS.end()));
    }
}

fn in_vain(what: &str, waited: Duration, instead: &str) -> anyhow::Error {
    let waited = waited.as_secs_f64();
    let averages = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = averages.split(' ').next().unwrap_or_default();
    anyhow!("waited {waited:.1} s in vain until {what}{instead} (load {load})")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn the_last_state_is_reported() {
        let mut calls = 0;
        let third = seen_within(Duration::from_secs(5), "the third look", || {
            calls += 1;
            if calls < 3 { Err(calls) } else { Ok(calls) }
        });
        assert_eq!(third.ok(), Some(3));
        let patience = Duration::from_millis(1);
        let missed = seen_within(patience, "it rains", || Err::<(), _>("sunshine"));
        let message = missed.map_err(|error| error.to_string()).unwrap_err();
        assert!(
            message.contains("in vain until it rains; instead: \"sunshine\""),
            "{message}"
        );
    }

    #[test]
    fn limits_grow_on_a_machine_that_gets_busy() {
        let spinning = AtomicBool::new(true);
        let is_spinning = || spinning.load(Ordering::Relaxed);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // At its end the previously measured limit is too short.
        let limit = Duration::from_millis(100);
        let before = scaled(limit);
        SCALE.store(1, Ordering::Relaxed);
        let (pace, waited) = thread::scope(|scope| {
            for _ in 0..6 * cores {
                scope.spawn(|| while is_spinning() {});
            }
            let pace = pace(Duration::from_millis(100));
            let waited = poll_within(limit, || Err::<(), _>(())).map_err(|(waited, ())| waited);
            spinning.store(false, Ordering::Relaxed);
            (pace, waited)
        });
        assert!(pace > 1, "{pace}");
        let waited = waited.unwrap_err();
        assert!(waited >= 2 * limit, "{waited:?}, before {before:?}");
    }
}
