//! The lines of rules whose inputs stand by for each other: which is active, and which are silent,
//! judged from successive readings. And what is told of any line.

use std::collections::BTreeMap;
use std::time::Duration;

use dataplane::counters::LinesSeen;
use model::failover::Failover;

/// Shortest silence that is told of: the counters are read twice a second.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// What is known of a rule's lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    active: Option<String>,
    changes: u64,
    lines: BTreeMap<String, Line>,
}

#[derive(Debug)]
struct Line {
    /// When its last packet came, or when it was first looked at.
    last_ns: u64,
    is_silent: bool,
}

/// Something to tell of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LineNews {
    /// Another is active than was, if that is known; `why`: for what the daemon left that.
    Switched {
        from: Option<String>,
        to: String,
        why: Option<String>,
    },
    /// Nothing has come for so long.
    Silent { line: String, ns: u64 },
    /// Packets come again.
    Delivers { line: String },
    /// It lacks so many of the numbers that the lines brought together.
    Loses { line: String, missed: u64, of: u64 },
    /// It lacks no more.
    Keeps { line: String },
    /// It brings packets behind all that is remembered.
    Late { line: String, packets: u64 },
    /// It brings packets that are not of the stream.
    Differs { line: String, packets: u64 },
    /// Little is left of the window.
    Skewed {
        line: String,
        skew_ns: u64,
        window_ns: u64,
    },
    /// Numbers of another source or session, or that do not go on; so many streams have begun.
    Restarted { streams: u64 },
}

impl Lines {
    /// Takes in a reading; `adopted`: what was switched before it is not news.
    pub(super) fn sample(
        &mut self,
        now_ns: u64,
        failover: &Failover,
        seen: &LinesSeen,
        adopted: bool,
    ) -> Vec<LineNews> {
        let mut news = Vec::new();
        let silence_ns = failover.silence.max(SILENCE_MIN).as_nanos();
        self.lines.retain(|at, _| seen.came.contains_key(at));
        for (at, came) in &seen.came {
            let line = self.lines.entry(at.clone()).or_insert(Line {
                last_ns: now_ns,
                is_silent: false,
            });
            line.last_ns = line.last_ns.max(came.last_ns);
            let ns = now_ns.saturating_sub(line.last_ns);
            let is_silent = u128::from(ns) > silence_ns;
            let line_of = || at.clone();
            match (line.is_silent, is_silent) {
                (false, true) => news.push(LineNews::Silent {
                    line: line_of(),
                    ns,
                }),
                (true, false) => news.push(LineNews::Delivers { line: line_of() }),
                _ => {}
            }
            line.is_silent = is_silent;
        }
        let from = self.active.replace(seen.active.clone());
        // Where a line goes that was relayed, nothing is switched.
        let before = std::mem::replace(&mut self.changes, seen.changes);
        if !adopted && seen.changes > before {
            let to = seen.active.clone();
            let why = None;
            news.insert(0, LineNews::Switched { from, to, why });
        }
        news
    }

    /// The lines that are silent.
    pub(super) fn silent(&self) -> Vec<String> {
        let silent = self.lines.iter().filter(|(_, line)| line.is_silent);
        silent.map(|(at, _)| at.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use dataplane::counters::Traffic;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn seen(active: &str, last: [u64; 2]) -> LinesSeen {
        LinesSeen {
            active: active.to_owned(),
            changes: u64::from(active == "b"),
            came: ["a", "b"]
                .map(str::to_owned)
                .into_iter()
                .zip(last.map(|last_ns| Traffic {
                    last_ns,
                    ..Traffic::default()
                }))
                .collect(),
        }
    }

    #[test]
    fn a_line_that_falls_silent_and_the_one_that_takes_over_are_told_once() {
        let mut lines = Lines::default();
        let failover = Failover::default();
        let mut at = |second: u64, active: &str, last: [u64; 2]| {
            let seen = seen(active, last.map(|last| last * SECOND));
            lines.sample(second * SECOND, &failover, &seen, false)
        };
        assert_eq!(at(10, "a", [10, 10]), []);
        assert_eq!(
            at(12, "b", [10, 12]),
            [
                LineNews::Switched {
                    from: Some("a".to_owned()),
                    to: "b".to_owned(),
                    why: None,
                },
                LineNews::Silent {
                    line: "a".to_owned(),
                    ns: 2 * SECOND
                },
            ]
        );
        assert_eq!(at(13, "b", [10, 13]), []);
        let line = "a".to_owned();
        assert_eq!(at(14, "b", [14, 14]), [LineNews::Delivers { line }]);
        assert_eq!(lines.silent(), [""; 0]);
    }

    #[test]
    fn a_switch_before_the_first_reading_is_told_unless_it_was_anothers() {
        for adopted in [false, true] {
            let mut lines = Lines::default();
            let now = [SECOND; 2];
            let told = lines.sample(SECOND, &Failover::default(), &seen("b", now), adopted);
            let (from, to) = (None, "b".to_owned());
            let why = None;
            let expected = [LineNews::Switched { from, to, why }];
            assert_eq!(told, expected[usize::from(adopted)..]);
        }
    }

    #[test]
    fn a_line_of_which_nothing_ever_came_is_told_after_the_silence() {
        let mut lines = Lines::default();
        let failover = Failover::default();
        let mut at = |second: u64| {
            let seen = seen("a", [second * SECOND, 0]);
            lines.sample(second * SECOND, &failover, &seen, false)
        };
        assert_eq!(at(100), []);
        assert_eq!(at(101), []);
        assert_eq!(at(102).len(), 1);
        assert_eq!(lines.silent(), ["b"]);
    }
}
