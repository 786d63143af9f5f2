//! Refusals that will repeat, such as of a wrong password or an untrusted certificate: the client tries
//! again after a pause that doubles, and meanwhile returns the same error without asking.

use std::time::Duration;

use tokio::time::Instant;

/// As short as the pause between a caller's attempts: the cause may be just about to be removed.
const FIRST: Duration = Duration::from_millis(100);
/// Each attempt costs etcd as much as a guessed password, and a line in its log.
const LAST: Duration = Duration::from_secs(5);

/// A refusal, and until when it counts.
#[derive(Clone, Debug)]
pub(crate) struct Refusal<R> {
    reason: R,
    pause: Duration,
    until: Instant,
}

impl<R: Clone> Refusal<R> {
    /// A refusal at `now`, after the `previous` one if nothing has succeeded in between.
    pub(crate) fn new(reason: R, previous: Option<&Self>, now: Instant) -> Self {
        let pause = previous.map_or(FIRST, |previous| LAST.min(previous.pause * 2));
        Self {
            reason,
            pause,
            until: now + pause,
        }
    }

    /// The reason, while it is too early to ask again.
    pub(crate) fn active(&self, now: Instant) -> Option<R> {
        (now < self.until).then(|| self.reason.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasts_longer_each_time_and_never_for_good() {
        let mut now = Instant::now();
        let mut refusal = Refusal::new("no", None, now);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let from = now;
            while refusal.active(now) == Some("no") {
                now += Duration::from_millis(100);
            }
            pauses.push((now - from).as_millis());
            refusal = Refusal::new("no", Some(&refusal), now);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }
}
