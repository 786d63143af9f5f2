//! The instants at which periodic work is done: the same for all tasks, so that an idle daemon wakes up once
//! for all of it.
//!
//! They are multiples of 64 ms after the start of the runtime. Its timers are sorted into slots of that
//! length (`tokio::runtime::time::wheel`), and for a timer that is not at the beginning of a slot the
//! runtime wakes up there as well.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// About a second.
pub const SECOND: Duration = Duration::from_millis(16 * 64);
/// About half of one.
pub const HALF_SECOND: Duration = Duration::from_millis(8 * 64);

static START: OnceLock<Instant> = OnceLock::new();

/// Records that the runtime is about to be created.
pub fn begin() {
    START.get_or_init(Instant::now);
}

/// The next instant that is a multiple of `period` after the start.
pub fn next(period: Duration) -> Instant {
    let start = *START.get_or_init(Instant::now);
    let passed = start.elapsed().as_nanos() / period.as_nanos();
    let periods = u32::try_from(passed + 1).unwrap_or(u32::MAX);
    start + period * periods
}

/// Waits for that instant.
pub async fn after(period: Duration) {
    sleep_until(next(period)).await;
}
