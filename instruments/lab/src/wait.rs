//! Waiting for a condition with a deadline, instead of sleeping for luck.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use nix::time::{ClockId, clock_gettime};

/// How long a condition may take when nothing else is said: long, since only a failure waits for its
/// end, and a machine with other work to do may hold a process up for many seconds.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The pause between two looks at a condition: short at first, then a part of what was waited
/// already. A look is often a program that starts, and whoever waits must not keep the processor
/// from what is waited for.
const STEPS: RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(50);

/// A time limit as it is on this machine: `MCR_TEST_SCALE` times as long, for one that is emulated.
/// Where that is not set, by as much longer as a thread has to wait for its processor: measured before
/// the first, and whenever one is reached.
pub fn scaled(limit: Duration) -> Duration {
    limit
        * match SCALE.load(Ordering::Relaxed) {
            0 => measure(),
            scale => scale,
        }
}

/// Says whether what took so long kept to `limit`, [scaled].
pub fn is_within(took: Duration, limit: Duration) -> bool {
    took < scaled(limit) || took < limit * measure()
}

/// How many times as long limits are; nothing was measured yet where it is 0.
static SCALE: AtomicU32 = AtomicU32::new(0);

/// Limits grow to this many times at most: what has not come by then does not come.
const MOST: u32 = 8;

/// How many times as long limits are from now on: a machine that has got busier lengthens them.
fn measure() -> u32 {
    let given = std::env::var("MCR_TEST_SCALE").ok();
    let given = given.and_then(|text| text.parse().ok());
    let scale = given.unwrap_or_else(|| pace(Duration::from_millis(20)).clamp(1, MOST));
    SCALE.fetch_max(scale, Ordering::Relaxed).max(scale)
}

/// How many times as long this machine takes for so much work of one thread as it would with nothing
/// else to do, rounded up.
fn pace(work: Duration) -> u32 {
    let begin = Instant::now();
    let worked = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    let Ok(end) = worked().map(|now| now + work) else {
        return 1;
    };
    while worked().is_ok_and(|now| now < end) {
        std::hint::spin_loop();
    }
    let ratio = begin.elapsed().as_secs_f64() / work.as_secs_f64();
    // A tenth is measuring, not load.
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

/// Waits until `attempt` gives a value, for at most `patience`, [scaled], and hands it back.
///
/// # Errors
/// When there is none in time; the message says `what` was awaited.
pub fn some_within<T>(
    patience: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<T> {
    look_within(patience, || attempt().ok_or(())).map_err(|(waited, ())| in_vain(what, waited, ""))
}

/// Waits like [`some_within`] for what `look` gives, which until then says what it sees instead.
///
/// # Errors
/// When there is none in time; the message says `what` was awaited and what was seen last.
pub fn seen_within<T, S: Debug>(
    patience: Duration,
    what: &str,
    look: impl FnMut() -> Result<T, S>,
) -> Result<T> {
    look_within(patience, look)
        .map_err(|(waited, seen)| in_vain(what, waited, &format!("; instead: {seen:?}")))
}

/// Looks until there is a value; after `patience`, [scaled], how long that was and what was seen last.
fn look_within<T, S>(
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
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    anyhow!("waited {waited:.1} s in vain until {what}{instead} (load {load})")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn what_was_seen_instead_is_told() {
        let mut looks = 0;
        let came = seen_within(Duration::from_secs(5), "the third look", || {
            looks += 1;
            if looks < 3 { Err(looks) } else { Ok(looks) }
        });
        assert_eq!(came.ok(), Some(3));
        let patience = Duration::from_millis(1);
        let missed = seen_within(patience, "it rains", || Err::<(), _>("sunshine"));
        let said = missed.map_err(|error| error.to_string()).unwrap_err();
        assert!(
            said.contains("in vain until it rains; instead: \"sunshine\""),
            "{said}"
        );
    }

    #[test]
    fn a_machine_that_gets_busy_is_given_longer() {
        let spinning = AtomicBool::new(true);
        let is_spinning = || spinning.load(Ordering::Relaxed);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // At its end the limit that had been measured before is too short.
        let limit = Duration::from_millis(100);
        let before = scaled(limit);
        SCALE.store(1, Ordering::Relaxed);
        let (pace, waited) = thread::scope(|scope| {
            for _ in 0..6 * cores {
                scope.spawn(|| while is_spinning() {});
            }
            let pace = pace(Duration::from_millis(100));
            let waited = look_within(limit, || Err::<(), _>(())).map_err(|(waited, ())| waited);
            spinning.store(false, Ordering::Relaxed);
            (pace, waited)
        });
        assert!(pace > 1, "{pace}");
        let waited = waited.unwrap_err();
        assert!(waited >= 2 * limit, "{waited:?}, before {before:?}");
    }
}
