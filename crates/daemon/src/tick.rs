//! The instants at which periodic work is done: the same for all tasks, so that an idle daemon wakes up
//! once for all of it.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

static BEGUN: OnceLock<Instant> = OnceLock::new();

/// The next instant that lies a whole number of `period`s behind the first.
pub(crate) fn next(period: Duration) -> Instant {
    let begun = *BEGUN.get_or_init(Instant::now);
    let passed = begun.elapsed().as_nanos() / period.as_nanos();
    let periods = u32::try_from(passed + 1).unwrap_or(u32::MAX);
    begun + period * periods
}

/// Waits for it.
pub(crate) async fn after(period: Duration) {
    sleep_until(next(period)).await;
}
