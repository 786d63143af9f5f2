//! How many lines each subject may write into the log: a link that flaps must not bury the rest.
//! What is held back is counted and reported; events themselves are never held back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Lines of one subject within [`PERIOD`].
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(60);
/// How often subjects are checked for what has been held back.
const SWEEP: Duration = Duration::from_secs(1);

/// The lines that each subject has used.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    subjects: BTreeMap<String, Used>,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Used {
    since: Instant,
    lines: u32,
    held: u32,
    last: Line,
}

/// A line of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) message: String,
    /// Whether it is a warning.
    pub(super) is_trouble: bool,
}

/// What was held back of a subject.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HeldBack {
    pub(super) subject: String,
    pub(super) lines: u32,
    /// The last of them, which has the current state.
    pub(super) last: Line,
}

impl Throttle {
    /// Whether `line` about `subject` may be written now.
    pub(super) fn admit(&mut self, subject: &str, line: Line, now: Instant) -> bool {
        let used = self.subjects.entry(subject.to_owned()).or_insert(Used {
            since: now,
            lines: 0,
            held: 0,
            last: Line::default(),
        });
        if used.lines < LINES {
            used.lines += 1;
            return true;
        }
        used.held += 1;
        used.last = line;
        false
    }

    /// Removes subjects whose period is over; returns those with lines held back.
    pub(super) fn take_held_back(&mut self, now: Instant) -> Vec<HeldBack> {
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
            (used.held > 0).then_some(HeldBack {
                subject,
                lines: used.held,
                last: used.last,
            })
        });
        ended.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flapping_subject_is_held_back_and_reported_later() {
        let mut throttle = Throttle::default();
        let start = Instant::now();
        let at = |n: u64| start + Duration::from_millis(n * 10);
        let line = |message: String| Line {
            message,
            is_trouble: true,
        };
        let changes = (0..500).map(|n| (line(format!("change {n}")), at(n)));
        let admitted = changes.filter(|(line, at)| throttle.admit("eth1", line.clone(), *at));
        assert_eq!(admitted.count(), 10);
        let up = line("up".to_owned());
        assert!(throttle.admit("eth2", up.clone(), start + Duration::from_secs(5)));
        assert_eq!(throttle.take_held_back(start + Duration::from_secs(59)), []);
        let later = start + Duration::from_secs(61);
        let held = HeldBack {
            subject: "eth1".to_owned(),
            lines: 490,
            last: line("change 499".to_owned()),
        };
        assert_eq!(throttle.take_held_back(later), [held]);
        assert!(throttle.admit("eth1", up, later));
        assert_eq!(
            throttle.take_held_back(later + Duration::from_secs(100)),
            []
        );
        assert!(throttle.subjects.is_empty());
    }
}
