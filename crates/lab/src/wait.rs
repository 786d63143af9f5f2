//! Waiting for a condition with a deadline, instead of sleeping for luck.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long a condition may take when nothing else is said: long, since only a failure waits for its
/// end, and a machine with other work to do may hold a process up for many seconds.
pub const PATIENCE: Duration = Duration::from_secs(30);

const STEP: Duration = Duration::from_millis(10);

/// A time limit as it is on this machine: `MCR_TEST_SCALE` times as long, 1 if that is not set. An
/// emulated machine, and one with much else to do, takes many times as long for everything.
#[must_use]
pub fn scaled(limit: Duration) -> Duration {
    static SCALE: OnceLock<u32> = OnceLock::new();
    limit
        * *SCALE.get_or_init(|| {
            let given = std::env::var("MCR_TEST_SCALE").ok();
            given.and_then(|text| text.parse().ok()).unwrap_or(1)
        })
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
    let patience = scaled(patience);
    let deadline = Instant::now() + patience;
    loop {
        if let Some(value) = attempt() {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("waited {} s in vain until {what}", patience.as_secs_f64());
        }
        thread::sleep(STEP);
    }
}
