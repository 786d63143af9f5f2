//! When to report that etcd is unavailable to a relay without a session: at first, when the reason
//! changes, and now and then. A relay with a session learns it from its beats.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Delay of the first report: etcd may come and go at the start, as while a host boots.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most reasons that are reported, as their texts may vary.
const REASONS_MAX: usize = 8;
/// How often the same reason is reported again.
const REPEAT: Duration = Duration::from_secs(3600);

/// An outage of etcd, and when which reasons for it were reported.
#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Instant>,
    reported: BTreeMap<String, Instant>,
}

impl Outage {
    /// Whether it is to be reported now. Each reason is, as the first may hide the one that matters.
    pub(super) fn should_report(&mut self, why: &str, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        self.reported.retain(|_, at| now < *at + REPEAT);
        let is_repeated = self.reported.contains_key(why) || self.reported.len() >= REASONS_MAX;
        if is_repeated || now < since + PATIENCE && self.reported.is_empty() {
            return false;
        }
        self.note_reported(why, now);
        true
    }

    /// Notes that this reason has been reported.
    pub(super) fn note_reported(&mut self, why: &str, now: Instant) {
        self.since.get_or_insert(now);
        self.reported.insert(why.to_owned(), now);
    }

    /// Whether an outage was reported that has not ended.
    pub(super) fn is_reported(&self) -> bool {
        !self.reported.is_empty()
    }

    /// Ends the outage; returns whether it had been reported.
    pub(super) fn end(&mut self) -> bool {
        self.since = None;
        !std::mem::take(&mut self.reported).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_reported_once_and_not_at_every_attempt() {
        let mut outage = Outage::default();
        let start = Instant::now();
        let mut reported = Vec::new();
        for step in 0..1200 {
            let at = Duration::from_millis(100) * step;
            let why = match (step, step % 2) {
                (..600, _) => "refused",
                (_, 0) => "cut off",
                _ => "silent",
            };
            if outage.should_report(why, start + at) {
                reported.push((at.as_secs(), why));
            }
        }
        let expected = [(1, "refused"), (60, "cut off"), (60, "silent")];
        assert_eq!(reported, expected);
        assert!(outage.end());
        assert!(!outage.end());
    }
}
