//! Reports that etcd is of no use to a relay without a session: at first, when the reason changes, and
//! now and then. For a relay with a session its beats report that first.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// It may come and go at the start, as with a host that boots.
const PATIENCE: Duration = Duration::from_secs(1);
/// So many reasons are reported, as their texts may vary.
const REASONS: usize = 8;
/// So often where nothing changes.
const SAME: Duration = Duration::from_secs(3600);

/// What was told.
#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Instant>,
    told: BTreeMap<String, Instant>,
}

impl Outage {
    /// Whether it is to be reported now. Each reason is: the first may hide the one that matters.
    pub(super) fn is_news(&mut self, why: &str, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        self.told.retain(|_, at| now < *at + SAME);
        let is_known = self.told.contains_key(why) || self.told.len() >= REASONS;
        if is_known || now < since + PATIENCE && self.told.is_empty() {
            return false;
        }
        self.was_told(why, now);
        true
    }

    /// Notes that people know of it already.
    pub(super) fn was_told(&mut self, why: &str, now: Instant) {
        self.since.get_or_insert(now);
        self.told.insert(why.to_owned(), now);
    }

    /// Whether it was reported, and is not over.
    pub(super) fn is_told(&self) -> bool {
        !self.told.is_empty()
    }

    /// It is over; says whether it had been reported.
    pub(super) fn is_over(&mut self) -> bool {
        self.since = None;
        !std::mem::take(&mut self.told).is_empty()
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
        let expected = [(1, "refused"), (60, "cut off"), (60, "silent")];
        assert_eq!(told, expected);
        assert!(outage.is_over());
        assert!(!outage.is_over());
    }
}
