//! `mcr history`: what a rule, or all of them together, received and dropped in the last hour.

use std::time::Duration;

use api::reply::{History, Steps};

use super::traffic_run::seconds as duration;
use crate::completion;
use crate::control::Control;
use crate::failure::{Failure, usage};
use crate::global::Global;
use crate::render;

/// Lines that fit a screen; of a longer time each line stands for a minute.
const LINES: usize = 60;
/// The longest history that the daemon keeps.
const HOUR: Duration = Duration::from_secs(3600);

/// Show what a rule, or all of them together, received and dropped in the last hour.
///
/// The daemon keeps an hour in steps of ten seconds, from its own start on. --json prints every step.
/// Exits with status 3 if there is no such rule.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr history                               all rules together, a line a minute
  mcr history cam1 --last 5m                a line for ten seconds
  mcr history cam1 --json | jq '.rules[0].dropped | add'")]
pub(crate) struct Args {
    /// How far back, as in 90s, 10m or 1h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = last)]
    last: Duration,
    /// Time that a line stands for, a multiple of 10s [default: 10s up to --last 10m, then 1m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    step: Option<Duration>,
    /// Name of the rule
    #[arg(value_name = "NAME", add = completion::rule())]
    name: Option<String>,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let control = Control::open(global)?;
    let names: Vec<&str> = args.name.iter().map(String::as_str).collect();
    let history = control.history(&names, args.last.as_secs_f64().ceil() as u32)?;
    if global.json {
        return Ok(render::json(&history)?);
    }
    let steps = match history.rules.first() {
        Some(rule) => &rule.steps,
        None => &history.all,
    };
    if steps.packets.is_empty() {
        let remaining = f64::from(history.step_seconds) - history.age_seconds;
        eprintln!("mcr history: no past yet, the first step ends in {remaining:.0} s");
    }
    let per_line = steps_per_line(args.step, steps.packets.len(), history.step_seconds)?;
    Ok(render::text(&table(&history, steps, per_line))?)
}

fn last(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        zero if zero.is_zero() => Err("a time, such as 10m".to_owned()),
        last if last > HOUR => Err("the daemon keeps one hour".to_owned()),
        last => Ok(last),
    }
}

/// How many steps a line stands for, where `line` is the time of one as given.
fn steps_per_line(line: Option<Duration>, steps: usize, step_s: u32) -> Result<usize, Failure> {
    let step = Duration::from_secs(step_s.into());
    let Some(line) = line else {
        let minute = (60 / step_s.max(1)).max(1) as usize;
        return Ok(if steps > LINES { minute } else { 1 });
    };
    let per_line = line.as_nanos() / step.as_nanos().max(1);
    if per_line > 0 && step * per_line as u32 == line {
        Ok(per_line as usize)
    } else {
        Err(usage(format!("--step: a multiple of {step_s}s")))
    }
}

/// One line for each `per_line` steps, the newest last.
fn table(history: &History, steps: &Steps, per_line: usize) -> String {
    let mut table = render::empty_table(&["TIME", "PACKETS/S", "RATE", "DROPPED"]);
    render::align_right(&mut table, 1..4);
    let length = steps.packets.len();
    // Lines are counted from the end: only the oldest may stand for fewer steps.
    let lines = length.div_ceil(per_line);
    for line in (0..lines).rev() {
        let end = length - line * per_line;
        let begin = end.saturating_sub(per_line);
        let sum = |all: &[u64]| all.get(begin..end).unwrap_or_default().iter().sum::<u64>();
        let step_ms = u64::from(history.step_seconds) * 1000;
        let seconds = ((end - begin) as u64 * step_ms) as f64 / 1e3;
        let at_ms = history
            .until_ms
            .saturating_sub((length - begin) as u64 * step_ms);
        table.add_row([
            render::second(at_ms),
            render::count((sum(&steps.packets) as f64 / seconds).round() as u64),
            render::bits_per_second(sum(&steps.bytes) as f64 * 8.0 / seconds),
            render::count(sum(&steps.dropped)),
        ]);
    }
    render::table_text(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(steps: usize) -> History {
        History {
            step_seconds: 10,
            until_ms: 3_600_000,
            all: Steps {
                packets: (0..steps as u64).map(|step| step * 10_000).collect(),
                bytes: vec![1_250_000; steps],
                dropped: vec![2000; steps],
            },
            ..History::default()
        }
    }

    fn lines(history: &History, per_line: usize) -> Vec<Vec<String>> {
        let table = table(history, &history.all, per_line);
        let words = |line: &str| {
            let cells = line.split("  ").map(|cell| cell.trim().to_owned());
            cells.filter(|cell| !cell.is_empty()).collect()
        };
        table.lines().map(words).collect()
    }

    #[test]
    fn a_line_stands_for_as_many_steps_as_asked_and_the_oldest_for_less() {
        assert_eq!(
            lines(&history(3), 2),
            [
                ["TIME", "PACKETS/S", "RATE", "DROPPED"],
                ["1970-01-01 00:59:30Z", "0", "1.0 Mbit/s", "2 000"],
                ["1970-01-01 00:59:40Z", "1 500", "1.0 Mbit/s", "4 000"],
            ]
        );
        assert_eq!(lines(&history(0), 1).len(), 1);
    }

    #[test]
    fn an_hour_is_shown_in_minutes_and_ten_of_them_in_steps() {
        let seconds = |n| Some(Duration::from_secs(n));
        assert_eq!(steps_per_line(None, 360, 10).unwrap(), 6);
        assert_eq!(steps_per_line(None, 60, 10).unwrap(), 1);
        assert_eq!(steps_per_line(seconds(300), 360, 10).unwrap(), 30);
        assert!(steps_per_line(seconds(15), 360, 10).is_err());
        assert!(steps_per_line(seconds(0), 360, 10).is_err());
        assert_eq!(last("10m"), Ok(Duration::from_secs(600)));
        assert!(last("2h").is_err() && last("0").is_err());
    }
}
