//! Output of subcommands: tables that fit the terminal, JSON, colours where they are wanted.

pub(crate) mod fleet;
pub(crate) mod merge;
pub(crate) mod number;
pub(crate) mod rule;
pub(crate) mod stats;
pub(crate) mod stream;
pub(crate) mod times;

use std::env;
use std::io::{self, IsTerminal, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table};
pub(crate) use rules::printable::count;
use serde::Serialize;
use sys::clock::realtime_ms;

use crate::failure::Failure;

/// Form of what a subcommand lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// What fits the terminal
    #[default]
    Table,
    /// More of it, as wide as it has to be
    Wide,
    /// Like --json
    Json,
    /// Names of rules only, a line each
    Name,
}

/// Writes `text` and ends its last line; writes nothing for an empty text.
///
/// # Errors
/// Also if the reader has closed the pipe (`mcr list | head`); as a failure that ends the process
/// quietly.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let is_whole = text.is_empty() || text.ends_with('\n');
    let end = if is_whole { "" } else { "\n" };
    write!(out, "{text}{end}")?;
    out.flush()
}

/// Writes `value` as one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    text(&json_text(value)?)
}

/// Writes the result of a command, as JSON or as text.
pub(crate) fn reply(
    as_json: bool,
    value: &impl Serialize,
    as_text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let reply = if as_json {
        json_text(value)?
    } else {
        as_text()
    };
    Ok(text(&reply)?)
}

/// `value` as one line of JSON.
pub(crate) fn json_text(value: &impl Serialize) -> io::Result<String> {
    serde_json::to_string(value).map_err(io::Error::other)
}

/// A column of a table: its title, and the cell of one item.
pub(crate) type Column<T> = (&'static str, fn(&T) -> Cell);

/// Makes a table with a line for each of `items`.
pub(crate) fn table<'a, T: 'a>(
    columns: &[Column<T>],
    items: impl IntoIterator<Item = &'a T>,
) -> Table {
    let titles: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
    let mut table = empty_table(&titles);
    for item in items {
        table.add_row(columns.iter().map(|(_, cell)| cell(item)));
    }
    table
}

/// Makes a table without rulings, like those of `ip` and `docker`, that fits the terminal.
pub(crate) fn empty_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    // A serial console and `ssh -tt` without a window report 0 columns: unknown, so without a limit.
    if table.width() == Some(0) {
        widen(&mut table);
    }
    if let Some(first) = table.column_mut(0) {
        first.set_padding((0, 1));
    }
    table
}

/// Makes a table as wide as its contents need.
pub(crate) fn widen(table: &mut Table) {
    table.set_content_arrangement(ContentArrangement::Disabled);
}

/// Aligns these columns of a table to the right, as numbers are.
pub(crate) fn align_right(table: &mut Table, columns: impl IntoIterator<Item = usize>) {
    for index in columns {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// A table as text, without trailing blanks.
pub(crate) fn table_text(table: &Table) -> String {
    table.trim_fmt()
}

/// Makes a cell that is green for a good state, yellow for half good, red for bad.
pub(crate) fn state_cell(text: &str) -> Cell {
    let cell = Cell::new(text);
    if !colours(&io::stdout()) {
        return cell;
    }
    match text {
        "up" | "idle" | "yes" | "running" => cell.fg(Color::Green),
        "degraded" | "waiting" | "starting" | "backoff" => cell.fg(Color::Yellow),
        "disabled" => cell.fg(Color::DarkGrey),
        _ => cell.fg(Color::Red),
    }
}

/// Makes a cell of an optional text.
pub(crate) fn or_dash(text: Option<&str>) -> Cell {
    Cell::new(text.unwrap_or("-"))
}

/// Whether colours are wanted: on a terminal, and without `NO_COLOR` (<https://no-color.org>).
pub(crate) fn colours(out: &impl IsTerminal) -> bool {
    out.is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The reason at the end of a line.
pub(crate) fn because(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| format!(": {reason}"))
}

/// The text on events that a reader was too slow for.
pub(crate) fn missed(events: u64) -> String {
    let were = if events == 1 { "was" } else { "were" };
    format!("{} {were} missed", number::things(events, "event"))
}

/// Writes a number of bytes with a decimal unit: `1.5 MB`.
pub(crate) fn bytes(n: u64) -> String {
    scaled(n as f64, "B")
}

/// Writes a rate of bits with a decimal unit: `8.2 Mbit/s`.
pub(crate) fn bits_per_second(rate: f64) -> String {
    scaled(rate, "bit/s")
}

/// Writes a time since the epoch as time of day, UTC: `10:04:59.123Z`.
pub(crate) fn time_of_day(at_ms: u64) -> String {
    let (seconds, ms) = (at_ms / 1000 % 86_400, at_ms % 1000);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{ms:03}Z", seconds % 60)
}

/// Writes a time since the epoch as time of day, and of another day than today with its date.
pub(crate) fn moment(at_ms: u64) -> String {
    match date(at_ms) {
        today if today == date(realtime_ms()) => time_of_day(at_ms),
        date => format!("{date} {}", time_of_day(at_ms)),
    }
}

/// The same without milliseconds: `10:04:50Z`.
pub(crate) fn second(at_ms: u64) -> String {
    moment(at_ms / 1000 * 1000).replace(".000Z", "Z")
}

/// The day of a time since the epoch, as `2026-11-21`.
fn date(at_ms: u64) -> String {
    let mut moment = config::moment_text(at_ms / 1000);
    moment.truncate(10);
    moment
}

fn scaled(value: f64, unit: &str) -> String {
    let mut value = value;
    for prefix in ["", "k", "M", "G", "T"] {
        if value < 999.5 {
            let digits = usize::from(!prefix.is_empty() && value < 99.95);
            return format!("{value:.digits$} {prefix}{unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1} P{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 86_400_000;

    #[test]
    fn a_moment_of_another_day_has_its_date() {
        assert_eq!(moment(1_007), "1970-01-01 00:00:01.007Z");
        for (day, written) in [
            (0, "1970-01-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_453, "2025-12-31"),
            (20_454, "2026-01-01"),
        ] {
            assert_eq!(date(day * DAY_MS), written);
        }
        let now = realtime_ms();
        assert!(moment(now).len() <= 14 || now % DAY_MS > DAY_MS - 1000);
    }

    #[test]
    fn bytes_take_a_unit_that_keeps_them_short() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_024_000), "1.0 MB");
        assert_eq!(bytes(u64::MAX), "18446.7 PB");
        assert_eq!(bits_per_second(8_192_000.0), "8.2 Mbit/s");
    }
}
