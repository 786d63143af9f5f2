//! How many lines each subject may write into the log: a link that flaps must not bury the rest.
//! What is held back is counted and told; events themselves are never held back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Lines of one subject within [`PERIOD`].
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(60);
/// How often it is looked for what has been held back.
const SWEEP: Duration = Duration::from_secs(1);

/// What each subject has used up.
#[derive(Debug, Default)]
pub(super) struct Quota {
    subjects: BTreeMap<String, Used>,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Used {
    since: Instant,
    lines: u32,
    held: u32,
}

impl Quota {
    /// Says whether a line about `subject` may be written now.
    pub(super) fn admit(&mut self, subject: &str, now: Instant) -> bool {
        let used = self.subjects.entry(subject.to_owned()).or_insert(Used {
            since: now,
            lines: 0,
            held: 0,
        });
        if used.lines < LINES {
            used.lines += 1;
            return true;
        }
        used.held += 1;
        false
    }

    /// Forgets subjects whose time is over; names those of which lines were held back, and how many.
    pub(super) fn settle(&mut self, now: Instant) -> Vec<(String, u32)> {
        if self.swept.is_some_and(|swept| now - swept < SWEEP) {
            return Vec::new();
        }
        self.swept = Some(now);
        let over: Vec<String> = self
            .subjects
            .iter()
            .filter(|(_, used)| now - used.since >= PERIOD)
            .map(|(subject, _)| subject.clone())
            .collect();
        let ended = over.into_iter().filter_map(|subject| {
            let used = self.subjects.remove(&subject)?;
            (used.held > 0).then_some((subject, used.held))
        });
        ended.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flapping_subject_is_held_back_and_told_of_later() {
        let mut quota = Quota::default();
        let start = Instant::now();
        let admitted =
            (0..500).filter(|n| quota.admit("eth1", start + Duration::from_millis(n * 10)));
        assert_eq!(admitted.count(), 10);
        assert!(quota.admit("eth2", start + Duration::from_secs(5)));
        assert_eq!(quota.settle(start + Duration::from_secs(59)), []);
        let later = start + Duration::from_secs(61);
        assert_eq!(quota.settle(later), [("eth1".to_owned(), 490)]);
        assert!(quota.admit("eth1", later));
        assert_eq!(quota.settle(later + Duration::from_secs(100)), []);
        assert!(quota.subjects.is_empty());
    }
}
