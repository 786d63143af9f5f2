//! Bounds floods: of lines that are equal, whatever they are about, so many a minute are written, and how
//! many more there were when it is over.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Equal lines that are written in one minute.
const MOST: u64 = 10;
const MINUTE: Duration = Duration::from_secs(60);
/// Lines that are told apart in one minute; others are written.
const KNOWN: usize = 4096;

/// Holds back what repeats, as who counts the lines says of each.
pub(super) struct Repeats<F>(pub(super) F);

impl<S: Subscriber, F: Fn(String) -> bool + 'static> Layer<S> for Repeats<F> {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let mut text = Text::default();
        event.record(&mut text);
        (self.0)(text.message + &text.fields)
    }
}

/// How often each line came in this minute.
#[derive(Debug, Default)]
pub(super) struct Counts {
    since: Option<Instant>,
    lines: HashMap<String, u64>,
}

impl Counts {
    /// Whether a line is to be written.
    pub(super) fn admit(&mut self, now: Instant, line: String) -> bool {
        self.since.get_or_insert(now);
        if self.lines.len() >= KNOWN && !self.lines.contains_key(&line) {
            return true;
        }
        let count = self.lines.entry(line).or_default();
        *count += 1;
        *count <= MOST
    }

    /// How long until the minute is over.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        Some((self.since? + MINUTE).saturating_duration_since(now))
    }

    /// What was held back in a minute that is over: lines, and how many.
    pub(super) fn over(&mut self, now: Instant) -> Vec<(String, u64)> {
        if self.left(now) != Some(Duration::ZERO) {
            return Vec::new();
        }
        self.since = None;
        let lines = self.lines.drain();
        let held = lines.filter_map(|(line, count)| Some((line, count.checked_sub(MOST)?)));
        held.filter(|(_, count)| *count > 0).collect()
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing into a text never fails.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_equal_lines_a_minute_are_written_and_then_a_count() {
        let mut counts = Counts::default();
        let begin = Instant::now();
        assert_eq!(counts.left(begin), None);
        let mut written = |second, line: &str| {
            let now = begin + Duration::from_secs(second);
            (0..62)
                .filter(|_| counts.admit(now, line.to_owned()))
                .count()
        };
        assert_eq!(written(0, "the disk is full"), 10);
        assert_eq!(written(59, "the disk is full"), 0);
        assert_eq!(written(59, "the disk is full rule=cam1"), 10);
        assert!(counts.over(begin + Duration::from_secs(59)).is_empty());
        let mut held = counts.over(begin + MINUTE);
        held.sort();
        let expected = [
            ("the disk is full", 114),
            ("the disk is full rule=cam1", 52),
        ];
        assert_eq!(held, expected.map(|(line, count)| (line.to_owned(), count)));
        assert!(counts.admit(begin + MINUTE, "the disk is full".to_owned()));
    }

    #[test]
    fn lines_that_differ_are_all_written() {
        let mut counts = Counts::default();
        let now = Instant::now();
        let all = (0..20_000).all(|line| counts.admit(now, format!("final rule=cam{line}")));
        assert!(all && counts.lines.len() == KNOWN);
    }
}
