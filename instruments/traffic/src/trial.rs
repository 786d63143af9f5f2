//! The outcome of a trial, wherever it ran: on a bed of namespaces or between two hosts.

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What was offered, and what was delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Volume {
    /// Datagrams that the generator's kernel took.
    pub sent: u64,
    /// Seconds that took.
    pub seconds: f64,
    /// Copies that should have arrived.
    pub expected: u64,
    /// Copies that did.
    pub delivered: u64,
}

/// A trial that has ended.
pub trait Outcome {
    /// What was offered, and what was delivered.
    fn volume(&self) -> Volume;

    /// Copies that did not arrive; negative when more arrived than were sent.
    fn missing(&self) -> i64 {
        let Volume {
            expected,
            delivered,
            ..
        } = self.volume();
        expected as i64 - delivered as i64
    }

    /// Loss in percent of what was expected; negative for duplicates.
    fn loss_percent(&self) -> f64 {
        100.0 * self.missing() as f64 / self.volume().expected.max(1) as f64
    }

    /// Datagrams offered per second, over all streams.
    fn offered_pps(&self) -> f64 {
        let Volume { sent, seconds, .. } = self.volume();
        sent as f64 / seconds.max(1e-9)
    }
}

/// Once nothing has arrived for this long, nothing more will.
const QUIET: Duration = Duration::from_millis(200);
/// How often arrivals are counted until then.
const TICK: Duration = Duration::from_millis(10);

/// Counts arrivals until they reach `wanted`, nothing more arrives, or `limit` has passed.
///
/// # Errors
/// What `count` returns.
pub fn arrivals<E>(
    wanted: u64,
    limit: Duration,
    mut count: impl FnMut() -> Result<u64, E>,
) -> Result<u64, E> {
    let start = Instant::now();
    let (mut seen, mut last) = (count()?, start);
    while seen < wanted && last.elapsed() < QUIET && start.elapsed() < limit {
        thread::sleep(TICK);
        let now = count()?;
        if now != seen {
            (seen, last) = (now, Instant::now());
        }
    }
    Ok(seen)
}
