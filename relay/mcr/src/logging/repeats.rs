//! Bounds floods of log lines: a limited number of equal lines is written per minute, followed by the number
//! of those suppressed.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Equal lines that are written per minute.
const LIMIT: u64 = 10;
const MINUTE: Duration = Duration::from_secs(60);
/// Different lines that are counted per minute; further ones are always written.
const LINES_MAX: usize = 4096;

/// A layer that suppresses repeated lines: those for which the function returns false.
pub(super) struct Repeats<F>(pub(super) F);

impl<S: Subscriber, F: Fn(String) -> bool + 'static> Layer<S> for Repeats<F> {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let mut text = Text::default();
        event.record(&mut text);
        (self.0)(text.message + &text.fields)
    }
}

/// How often each line occurred in this minute.
#[derive(Debug, Default)]
pub(super) struct Counts {
    since: Option<Instant>,
    lines: HashMap<String, u64>,
}

impl Counts {
    /// Whether a line may be written.
    pub(super) fn admit(&mut self, now: Instant, line: String) -> bool {
        self.since.get_or_insert(now);
        if self.lines.len() >= LINES_MAX && !self.lines.contains_key(&line) {
            return true;
        }
        let count = self.lines.entry(line).or_default();
        *count += 1;
        *count <= LIMIT
    }

    /// How long until the minute is over.
    pub(super) fn remaining(&self, now: Instant) -> Option<Duration> {
        Some((self.since? + MINUTE).saturating_duration_since(now))
    }

    /// Drains the suppressed lines of a minute that is over, each with its count.
    pub(super) fn drain(&mut self, now: Instant) -> Vec<(String, u64)> {
        if self.remaining(now) != Some(Duration::ZERO) {
            return Vec::new();
        }
        self.since = None;
        let floods = self.lines.drain().filter(|(_, count)| *count > LIMIT);
        floods.map(|(line, count)| (line, count - LIMIT)).collect()
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string never fails.
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
        assert_eq!(counts.remaining(begin), None);
        let mut written = |second, line: &str| {
            let now = begin + Duration::from_secs(second);
            (0..62)
                .filter(|_| counts.admit(now, line.to_owned()))
                .count()
        };
        assert_eq!(written(0, "the disk is full"), 10);
        assert_eq!(written(59, "the disk is full"), 0);
        assert_eq!(written(59, "the disk is full rule=cam1"), 10);
        assert!(counts.drain(begin + Duration::from_secs(59)).is_empty());
        let mut more = counts.drain(begin + MINUTE);
        more.sort();
        let expected = [
            ("the disk is full", 114),
            ("the disk is full rule=cam1", 52),
        ];
        assert_eq!(more, expected.map(|(line, count)| (line.to_owned(), count)));
        assert!(counts.admit(begin + MINUTE, "the disk is full".to_owned()));
    }

    #[test]
    fn lines_that_differ_are_all_written() {
        let mut counts = Counts::default();
        let now = Instant::now();
        let all = (0..20_000).all(|line| counts.admit(now, format!("final rule=cam{line}")));
        assert!(all && counts.lines.len() == LINES_MAX);
    }
}
