//! `mcr send`: multicast or unicast test traffic with a known schedule.

mod options;

use std::process::ExitCode;

use comfy_table::Cell;
use traffic::generator::{self, Control, Error};
use traffic::report::{LineReport, SendReport, UnionReport};

pub(crate) use self::options::Args;

use super::traffic_run::{packets, rate_text, stop_on_signals, watch_packets, watched};
use crate::failure::{Failure, Status, verdict};
use crate::render::{self, Column, count};

/// Sends to the end and prints the report.
pub(crate) fn run(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    let options = options::options(args)?;
    let control = Control {
        stop: stop_on_signals()?,
        ..Control::default()
    };
    let total = generator::planned_packets(&options);
    let outcome = watched(
        || generator::run(&options, &control),
        |is_over| watch_packets(total, &control.sent, is_over),
    );
    let report = outcome.map_err(|error| Failure::new(status(&error), error))?;
    if let Some(error) = &report.first_error {
        eprintln!(
            "mcr send: the kernel refused {}; the first: {error}",
            packets(report.errors)
        );
    }
    render::reply(json, &report, || text(&report))?;
    Ok(verdict(report.errors == 0))
}

/// The exit status for an error that keeps `mcr send` from sending.
pub(super) fn status(error: &Error) -> Status {
    match error {
        Error::NoDestination
        | Error::Rate
        | Error::Percentage
        | Error::Unnumbered
        | Error::Untimed
        | Error::Size { .. }
        | Error::Family { .. }
        | Error::Raw { .. } => Status::Usage,
        Error::NoInterface { .. } | Error::Interfaces(_) | Error::Cpu { .. } => Status::Unavailable,
        Error::Socket { source, .. } => Status::of_system(source, Status::Unavailable),
    }
}

fn text(report: &SendReport) -> String {
    let (sent, seconds) = (&report.sent, report.seconds);
    let bits = sent.bytes as f64 * 8.0;
    let rate = if seconds > 0.0 { bits / seconds } else { 0.0 };
    let mut text = format!(
        "sent {}, {} in {seconds:.3} s: {} packets/s, {}, {}\n",
        packets(sent.packets),
        render::number::things(sent.bytes, "byte"),
        rate_text(report.pps),
        render::bits_per_second(rate),
        render::number::things(report.errors, "error"),
    );
    if let Some(injected) = &report.injected {
        text += &format!(
            "on purpose: {} lost, {} duplicated, {} reordered, {} corrupt\n",
            render::count(injected.lost),
            render::count(injected.duplicated),
            render::count(injected.reordered),
            render::count(injected.corrupt)
        );
    }
    if let Some(union) = &report.union {
        text += &format!("\n{}", lines_text(&report.lines, union));
    }
    text
}

const LINES: &[Column<LineReport>] = &[
    ("LINE", |line| Cell::new(&line.to)),
    ("SENT", |line| Cell::new(count(line.sent))),
    ("FIRST", |line| Cell::new(count(line.first))),
    ("LOST", |line| Cell::new(count(line.lost))),
    ("CUT", |line| Cell::new(count(line.cut))),
    ("DUPLICATED", |line| Cell::new(count(line.duplicated))),
    ("REORDERED", |line| Cell::new(count(line.reordered))),
    ("MISSED", |line| Cell::new(count(line.missed))),
];

/// What was sent on each line, and on any of them.
fn lines_text(lines: &[LineReport], union: &UnionReport) -> String {
    format!(
        "{}\n{} of {} went on some line, {} late; {} in between on none\n",
        render::table_text(&render::table(LINES, lines)),
        render::count(union.on_any),
        packets(union.numbers),
        render::count(union.reordered),
        render::count(union.lost),
    )
}

#[cfg(test)]
mod tests {
    use traffic::report::Volume;

    use super::*;

    #[test]
    fn people_read_groups_of_digits_and_one_unit() {
        let report = SendReport {
            sent: Volume {
                packets: 12_000,
                bytes: 12_288_000,
            },
            seconds: 1.5,
            pps: 8000.0,
            errors: 1,
            ..SendReport::default()
        };
        assert_eq!(
            text(&report),
            "sent 12 000 packets, 12 288 000 bytes in 1.500 s: 8 000 packets/s, 65.5 Mbit/s, \
             1 error\n"
        );
    }

    #[test]
    fn each_line_has_a_row_and_all_together_a_sentence() {
        let line = |to: &str, missed| LineReport {
            to: to.to_owned(),
            sent: 9000,
            missed,
            ..LineReport::default()
        };
        let report = SendReport {
            lines: vec![
                line("239.1.1.1%a:5001", 12_345),
                line("239.2.1.1%b:5001", 0),
            ],
            union: Some(UnionReport {
                numbers: 10_000,
                on_any: 9999,
                lost: 1,
                reordered: 7,
            }),
            ..SendReport::default()
        };
        let text = text(&report);
        let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split("  ").collect()).collect();
        let row = rows
            .iter()
            .find(|row| row[0] == "239.1.1.1%a:5001")
            .unwrap();
        assert_eq!(row.last().map(|cell| cell.trim()), Some("12 345"), "{text}");
        let expected = "9 999 of 10 000 packets went on some line, 7 late; 1 in between on none\n";
        assert!(text.ends_with(expected), "{text}");
    }
}
