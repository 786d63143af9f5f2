//! The report: a table per scenario, peers side by side with ratios, plots, the published figures
//! marked as such, and every promise with its command and last figure.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::compare::parameters;
use super::machine::Machine;
use super::results::{CaseResult, Results, Spread, Trial};
use super::scenario::{SCENARIOS, Scenario};
use super::{plot, promises, published};

/// A figure that can be taken from a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Copies delivered per second.
    Delivered,
    /// Loss in percent.
    Loss,
    /// Busy time of all cores per delivered copy.
    Cpu,
    /// Memory.
    Memory,
    /// Processes.
    Processes,
    /// Time until every stream passed.
    Configure,
    /// Time to accept the whole rule set.
    Apply,
    /// Median latency.
    LatencyP50,
    /// 99th percentile of latency.
    LatencyP99,
    /// 99.9th percentile of latency.
    LatencyP99_9,
    /// 99th percentile of the time between first and last copy.
    Skew,
    /// Highest rate without loss.
    ZeroLoss,
}

impl Figure {
    /// Name with unit, as a heading.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Delivered => "delivered, copies/s",
            Self::Loss => "lost, %",
            Self::Cpu => "CPU, µs per copy",
            Self::Memory => "memory, MiB",
            Self::Processes => "processes",
            Self::Configure => "until every stream passes, s",
            Self::Apply => "to accept all rules, s",
            Self::LatencyP50 => "latency p50, µs",
            Self::LatencyP99 => "latency p99, µs",
            Self::LatencyP99_9 => "latency p99.9, µs",
            Self::Skew => "skew p99, µs",
            Self::ZeroLoss => "zero-loss rate, packets/s",
        }
    }

    fn of(self, trial: &Trial) -> Option<f64> {
        let cost = &trial.cost;
        let latency = trial.latency_us.as_ref();
        match self {
            Self::Delivered => Some(trial.delivered_pps()),
            Self::Loss => Some(trial.loss_percent()),
            Self::Cpu => (trial.delivered > 0).then(|| trial.cpu_us_per_copy()),
            Self::Memory => (cost.processes > 0).then(|| cost.memory_kib as f64 / 1024.0),
            Self::Processes => Some(f64::from(cost.processes)),
            Self::Configure => Some(cost.configure_seconds),
            Self::Apply => cost.apply_seconds,
            Self::LatencyP50 => latency?.p50,
            Self::LatencyP99 => latency?.p99,
            Self::LatencyP99_9 => latency?.p99_9,
            Self::Skew => trial.skew_us.as_ref()?.p99,
            Self::ZeroLoss => trial.zero_loss_pps,
        }
    }

    /// Whether a ratio between relays says something.
    const fn has_ratio(self) -> bool {
        matches!(
            self,
            Self::Delivered | Self::ZeroLoss | Self::Cpu | Self::LatencyP50 | Self::LatencyP99
        )
    }
}

/// Summarises a figure over a case's trials; `None` where no trial has it.
#[must_use]
pub fn figure_of(case: &CaseResult, figure: Figure) -> Option<Spread> {
    Spread::of(case.trials.iter().filter_map(|trial| figure.of(trial)))
}

/// Writes a number as people read it: thousands apart, few digits behind the point.
#[must_use]
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    if value.abs() < 0.001 {
        return format!("{value:.1e}");
    }
    if value.abs() < 10.0 {
        return format!("{value:.3}")
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned();
    }
    if value.abs() < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

/// Writes the report and its plots.
///
/// # Errors
/// When a file cannot be written.
pub fn write(runs: &[Results], output: &Path, plots: &Path) -> Result<()> {
    let cases = latest(runs);
    fs::create_dir_all(plots).with_context(|| plots.display().to_string())?;
    let images = plot::draw_all(&cases, plots)?;
    let mut text = String::from(HEAD);
    text.push_str(&machines(runs));
    text.push_str(&promises::table(&cases));
    for scenario in &SCENARIOS {
        let own: Vec<&CaseResult> = { cases.iter() }
            .filter(|case| case.scenario == scenario.number)
            .copied()
            .collect();
        if own.is_empty() {
            continue;
        }
        text.push_str(&section(scenario, &own));
        for (number, file, title) in &images {
            if *number == scenario.number {
                let path = relative(output, &plots.join(file));
                let _ = writeln!(text, "![{title}]({path})\n");
            }
        }
    }
    fs::write(output, text).with_context(|| output.display().to_string())
}

/// A run's tables without the prose, for the terminal.
#[must_use]
pub fn summary(results: &Results) -> String {
    let mut text = String::new();
    for scenario in &SCENARIOS {
        let own: Vec<&CaseResult> = results.of_scenario(scenario.number).collect();
        if !own.is_empty() {
            text.push_str(&section(scenario, &own));
        }
    }
    text.truncate(text.trim_end().len());
    text
}

const HEAD: &str = "\
# Benchmarks

Written by `mcr bench report` from results of `mcr bench run`; do not edit. Relays take turns \
within each trial, each on a fresh bed of network namespaces. A cell is the median of the trials \
with the lowest and highest in brackets. *Lost* compares what the generator sent, times the copies \
of each, with what arrived at the sinks; the details say where the rest went. *Published* figures \
are quoted from reports about other relays on another machine (20 cores, Linux 6.17) and were never \
measured here. A *copy* is one datagram at one output.

`kernel-routing` is kernel multicast routing set up by smcroute: it rewrites nothing. `floor` is a \
tc program that redirects and does nothing else: the most that the bed itself can do.

";

/// A later run replaces a case of an earlier one.
fn latest(runs: &[Results]) -> Vec<&CaseResult> {
    let mut cases: Vec<&CaseResult> = Vec::new();
    for case in runs.iter().flat_map(|run| &run.cases) {
        let same = cases.iter().position(|have| {
            (have.scenario, &have.parameters, &have.relay)
                == (case.scenario, &case.parameters, &case.relay)
        });
        match same {
            Some(at) => cases[at] = case,
            None => cases.push(case),
        }
    }
    cases
}

fn machines(runs: &[Results]) -> String {
    let mut text = String::new();
    for run in runs {
        let Machine {
            cpu,
            cores,
            memory_mib,
            kernel,
            version,
            revision,
            date,
            settings,
            peers,
        } = &run.machine;
        let revision = revision.as_deref().unwrap_or("unknown revision");
        let list = |map: &BTreeMap<String, String>| {
            let pairs = map.iter().map(|(name, value)| format!("{name} {value}"));
            pairs.collect::<Vec<_>>().join(", ")
        };
        let _ = writeln!(
            text,
            "- `{}` on {date}: {version} ({revision}), {cpu}, {cores} cores, {} MiB, Linux \
             {kernel}; {}; {}",
            run.command,
            number(*memory_mib as f64),
            list(peers),
            list(settings),
        );
    }
    text.push('\n');
    text
}

fn section(scenario: &Scenario, cases: &[&CaseResult]) -> String {
    let mut text = format!("## {}. {}\n\n", scenario.number, scenario.title);
    for figure in main_figures(scenario.number) {
        text.push_str(&matrix(cases, *figure));
    }
    text.push_str(&details(cases));
    text
}

const fn main_figures(scenario: u8) -> &'static [Figure] {
    match scenario {
        4 => &[
            Figure::Loss,
            Figure::Processes,
            Figure::Memory,
            Figure::Cpu,
            Figure::Configure,
        ],
        5 => &[Figure::Loss, Figure::Delivered],
        6 => &[Figure::Delivered, Figure::Loss],
        7 => &[Figure::Delivered, Figure::ZeroLoss, Figure::Cpu],
        8 => &[
            Figure::LatencyP50,
            Figure::LatencyP99,
            Figure::LatencyP99_9,
            Figure::Skew,
        ],
        9 => &[Figure::Apply, Figure::Memory, Figure::Delivered],
        _ => &[Figure::Loss, Figure::Cpu],
    }
}

/// Rows are cases, columns relays; then the ratios to the peers and the published figures.
fn matrix(cases: &[&CaseResult], figure: Figure) -> String {
    let relays = in_order(cases.iter().map(|case| case.relay.clone()));
    let rows = in_order(cases.iter().map(|case| parameters(case)));
    let find = |row: &str, relay: &str| {
        let mut all = cases.iter().copied();
        all.find(|case| parameters(case) == row && case.relay == relay)
    };
    let spread = |row: &str, relay: &str| figure_of(find(row, relay)?, figure);
    let peers: Vec<&String> = { relays.iter() }
        .filter(|relay| figure.has_ratio() && !relay.starts_with("mcr"))
        .collect();
    let quotes = figure == Figure::Loss || figure == Figure::Delivered;

    let mut head = vec!["case".to_owned()];
    head.extend(relays.iter().cloned());
    head.extend(peers.iter().map(|peer| format!("mcr-kernel : {peer}")));
    let mut lines = Vec::new();
    let mut quoted = false;
    for row in &rows {
        if relays.iter().all(|relay| spread(row, relay).is_none()) {
            continue;
        }
        let mut line = vec![if row.is_empty() {
            "-".into()
        } else {
            row.clone()
        }];
        line.extend(relays.iter().map(|relay| match find(row, relay) {
            Some(case) => cell(case, figure),
            None => "-".into(),
        }));
        line.extend(peers.iter().map(|peer| {
            let own = spread(row, "mcr-kernel").map(|spread| spread.median);
            let other = spread(row, peer).map(|spread| spread.median);
            match (own, other) {
                (Some(own), Some(other)) if other != 0.0 => format!("{:.2}", own / other),
                _ => "-".into(),
            }
        }));
        let case = cases.iter().find(|case| parameters(case) == *row);
        let quote = case.and_then(|case| published::find(case.scenario, &case.parameters));
        let quote = quote.filter(|_| quotes);
        quoted |= quote.is_some();
        line.push(quote.map_or("-".into(), |quote| quote.reference.to_owned()));
        line.push(quote.map_or("-".into(), |quote| quote.socat.to_owned()));
        lines.push(line);
    }
    if lines.is_empty() {
        return String::new();
    }
    if quoted {
        head.extend(["published: reference".into(), "published: socat".into()]);
    } else {
        for line in &mut lines {
            line.truncate(head.len());
        }
    }
    format!("**{}**\n\n{}\n", figure.title(), markdown(&head, &lines))
}

fn cell(case: &CaseResult, figure: Figure) -> String {
    let Some(spread) = figure_of(case, figure) else {
        let failed = case.skipped.is_some();
        return if failed { "not measured" } else { "-" }.into();
    };
    let Spread { min, median, max } = spread;
    if min == max {
        return number(median);
    }
    format!("{} ({}–{})", number(median), number(min), number(max))
}

/// One row per case and relay with everything else that was measured.
fn details(cases: &[&CaseResult]) -> String {
    let head = [
        "case",
        "relay",
        "trials",
        "offered, packets/s",
        "lost, %",
        "CPU, µs per copy",
        "process CPU, s",
        "memory, MiB",
        "processes",
        "where the rest went (copies, all trials)",
    ];
    let lines: Vec<Vec<String>> = cases.iter().map(|case| detail(case)).collect();
    let head = head.map(str::to_owned);
    let table = markdown(&head, &lines);
    format!("<details><summary>Every case</summary>\n\n{table}\n</details>\n\n")
}

fn detail(case: &CaseResult) -> Vec<String> {
    let show = |figure| cell(case, figure);
    let offered = case.spread(Trial::offered_pps);
    let process = case.spread(|trial| trial.cost.process_seconds);
    let median = |spread: Option<Spread>| spread.map_or("-".into(), |spread| number(spread.median));
    vec![
        parameters(case),
        case.relay.clone(),
        case.trials.len().to_string(),
        median(offered),
        show(Figure::Loss),
        show(Figure::Cpu),
        median(process),
        show(Figure::Memory),
        show(Figure::Processes),
        whereabouts(case),
    ]
}

/// Adds up the drops of all trials by place, and says what remains unexplained.
fn whereabouts(case: &CaseResult) -> String {
    if let Some(reason) = &case.skipped {
        return reason.replace(['\n', '|'], " ");
    }
    let mut places: BTreeMap<&str, u64> = BTreeMap::new();
    for drops in case.trials.iter().flat_map(|trial| &trial.drops) {
        *places.entry(&drops.at).or_default() += drops.copies;
    }
    let unexplained: i64 = case.trials.iter().map(Trial::unexplained).sum();
    let mut parts: Vec<String> = places
        .iter()
        .map(|(at, copies)| format!("{at} {}", number(*copies as f64)))
        .collect();
    if unexplained != 0 {
        parts.push(format!("unexplained {}", number(unexplained as f64)));
    }
    if parts.is_empty() {
        return "nothing lost".into();
    }
    parts.join("; ")
}

fn markdown(head: &[String], lines: &[Vec<String>]) -> String {
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule: Vec<String> = head.iter().map(|_| "---".to_owned()).collect();
    let rows = lines.iter().map(|line| row(line));
    [row(head), row(&rule)].into_iter().chain(rows).collect()
}

fn in_order(items: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

/// The path of a plot as seen from the report's own directory.
fn relative(output: &Path, plot: &Path) -> String {
    let base = output.parent().unwrap_or(Path::new(""));
    plot.strip_prefix(base)
        .unwrap_or(plot)
        .display()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        let cases = [
            (0.0, "0"),
            (0.123_456, "0.123"),
            (7.0, "7"),
            (42.25, "42.2"),
            (1234.4, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-1500.0, "-1,500"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    fn case(relay: &str, delivered: u64) -> CaseResult {
        CaseResult {
            scenario: 1,
            parameters: [("pps".to_owned(), "400000".to_owned())].into(),
            relay: relay.into(),
            skipped: None,
            trials: vec![Trial {
                sent: 1000,
                seconds: 1.0,
                expected: 1000,
                delivered,
                ..Trial::default()
            }],
        }
    }

    #[test]
    fn a_report_has_both_relays_and_the_published_figure() {
        let directory = tempfile::tempdir().unwrap();
        let results = Results {
            machine: Machine::default(),
            command: "mcr bench run".into(),
            cases: vec![case("mcr-kernel", 1000), case("socat", 850)],
        };
        let output = directory.path().join("BENCHMARKS.md");
        let plots = directory.path().join("docs/bench");
        write(&[results], &output, &plots).unwrap();
        let text = fs::read_to_string(output).unwrap();
        assert!(text.contains("0.20 % lost"), "{text}");
        assert!(text.contains("| 0 | 15"), "{text}");
        assert!(text.contains("](docs/bench/"), "{text}");
    }
}
