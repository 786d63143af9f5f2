//! That etcd is of no use to a relay that has no session, told to people: at first, when the reason
//! becomes another one, and now and then. Of one that has a session its beats tell.

use std::time::Duration;

use tokio::time::Instant;

/// It may come and go at the start, as with a host that boots.
const PATIENCE: Duration = Duration::from_secs(1);
/// At most so often, as reasons may alternate.
const OTHER: Duration = Duration::from_secs(30);
/// So often where nothing changes.
const SAME: Duration = Duration::from_secs(3600);

/// What was told.
#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Instant>,
    told: Option<(String, Instant)>,
}

impl Outage {
    /// Whether people are to be told of it now.
    pub(super) fn is_news(&mut self, why: &str, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_news = match &self.told {
            None => now >= since + PATIENCE,
            Some((told, at)) if told == why => now >= *at + SAME,
            Some((_, at)) => now >= *at + OTHER,
        };
        if is_news {
            self.told = Some((why.to_owned(), now));
        }
        is_news
    }

    /// It is over; says whether people were told of it.
    pub(super) fn is_over(&mut self) -> bool {
        self.since = None;
        self.told.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_told_of_once_and_not_at_every_attempt() {
        let mut outage = Outage::default();
        let start = Instant::now();
        let mut told = Vec::new();
        for step in 0..1200 {
            let at = Duration::from_millis(100) * step;
            let why = match (step, step % 2) {
                (..600, _) => "refused",
                (_, 0) => "cut off",
                _ => "silent",
            };
            if outage.is_news(why, start + at) {
                told.push((at.as_secs(), why));
            }
        }
        let expected = [(1, "refused"), (60, "cut off"), (90, "silent")];
        assert_eq!(told, expected);
        assert!(outage.is_over());
        assert!(!outage.is_over());
    }
}
