//! The instants at which periodic work is done: the same for all tasks, so that an idle daemon wakes up
//! once for all of it.
//!
//! They lie whole numbers of 64 ms behind the start of the runtime. Its timers are sorted into slots of
//! that length (`tokio::runtime::time::wheel`), and of one that does not stand at a slot's beginning the
//! runtime wakes up there as well.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// About a second.
pub const SECOND: Duration = Duration::from_millis(16 * 64);
/// About half of one.
pub const HALF_SECOND: Duration = Duration::from_millis(8 * 64);

static BEGUN: OnceLock<Instant> = OnceLock::new();

/// Notes that the runtime is about to be made.
pub fn begin() {
    BEGUN.get_or_init(Instant::now);
}

/// The next instant that lies a whole number of `period`s behind the start.
pub fn next(period: Duration) -> Instant {
    let begun = *BEGUN.get_or_init(Instant::now);
    let passed = begun.elapsed().as_nanos() / period.as_nanos();
    let periods = u32::try_from(passed + 1).unwrap_or(u32::MAX);
    begun + period * periods
}

/// Waits for it.
pub async fn after(period: Duration) {
    sleep_until(next(period)).await;
}
