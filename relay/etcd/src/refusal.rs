//! Refusals that will repeat, such as a wrong password or a certificate that is not trusted: the client
//! tries again after a pause that doubles, and meanwhile returns the same error without asking.

use std::time::Duration;

use tokio::time::Instant;

/// As short as the pause of whoever asks again and again: etcd may have been about to learn better.
const FIRST: Duration = Duration::from_millis(100);
/// Each attempt costs etcd as much as somebody who guesses, and a line in its log.
const LAST: Duration = Duration::from_secs(5);

/// A refusal, and until when it counts.
#[derive(Clone, Debug)]
pub(crate) struct Refusal<R> {
    reason: R,
    pause: Duration,
    until: Instant,
}

impl<R: Clone> Refusal<R> {
    /// One that came now, after the one `before` if there was nothing better between them.
    pub(crate) fn new(reason: R, before: Option<&Self>, now: Instant) -> Self {
        let pause = before.map_or(FIRST, |before| LAST.min(before.pause * 2));
        Self {
            reason,
            pause,
            until: now + pause,
        }
    }

    /// What was said, while it is too early to ask again.
    pub(crate) fn stands(&self, now: Instant) -> Option<R> {
        (now < self.until).then(|| self.reason.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stands_longer_each_time_and_never_for_good() {
        let mut now = Instant::now();
        let mut refusal = Refusal::new("no", None, now);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let from = now;
            while refusal.stands(now) == Some("no") {
                now += Duration::from_millis(100);
            }
            pauses.push((now - from).as_millis());
            refusal = Refusal::new("no", Some(&refusal), now);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }
}
