//! The report: a table per scenario, peers side by side with ratios, plots, the published figures
//! marked as such, and every promise with its command and last figure.

mod figure;
mod tables;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::machine::Machine;
use super::results::{CaseResult, Results};
use super::scenario::SCENARIOS;
use super::{plot, promises};
pub use figure::{Figure, figure_of, number};
use tables::section;

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
    use super::super::results::Trial;
    use super::*;

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
