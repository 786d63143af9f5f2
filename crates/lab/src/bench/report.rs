//! The report: a table per scenario, peers side by side with ratios, plots, the published figures
//! marked as such, every promise with its command and last figure, and what faults cost.

mod figure;
mod tables;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::machine::Machine;
use super::reliability::Reliability;
use super::results::{CaseResult, Results};
use super::scenario::SCENARIOS;
use super::{plot, promises};
pub use figure::{Figure, figure_of, number};
use tables::{details, section};

/// Writes the report and its plots. Hands back what a reader has to be warned of, which the report
/// says as well.
///
/// # Errors
/// When a file cannot be written.
pub fn write(
    runs: &[Results],
    reliability: &Reliability,
    output: &Path,
    plots: &Path,
) -> Result<Vec<String>> {
    let cases = latest(runs);
    fs::create_dir_all(plots).with_context(|| plots.display().to_string())?;
    let images = plot::draw_all(&cases, plots)?;
    let (conditions, warnings) = conditions(runs);
    let mut text = String::from(HEAD);
    text.push_str(&conditions);
    text.push_str(&promises::table(&cases, reliability));
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
        text.push_str(&details(&own));
    }
    text.push_str(&reliability.table());
    text.truncate(text.trim_end().len());
    text.push('\n');
    fs::write(output, text).with_context(|| output.display().to_string())?;
    Ok(warnings)
}

/// A run's tables without the prose, for the terminal.
#[must_use]
pub fn summary(results: &Results) -> String {
    let mut text = String::new();
    for scenario in &SCENARIOS {
        let mut own: Vec<&CaseResult> = results.of_scenario(scenario.number).collect();
        in_order(&mut own);
        if !own.is_empty() {
            text.push_str(&section(scenario, &own));
            text.push_str(&details(&own));
        }
    }
    text.truncate(text.trim_end().len());
    text
}

const HEAD: &str = "\
# Benchmarks

Written by `mcr bench report` from results of `mcr bench run`; do not edit. `docs/bench.md` says how \
to repeat it.

**How to read it.** Relays take turns within each round of trials, so that drift of the machine meets \
all of them alike. A cell is the median of the trials, with the lowest and the highest in brackets \
where they differ; *trials* is their number, and a cell that had fewer says so (n = …). A *copy* is \
one datagram at one output. *Lost* compares what the generator sent, times the copies of each, with \
what arrived at the sinks; the details below each scenario say where the rest went, hop by hop, and \
what no hop accounts for (*unexplained*). *CPU* is busy time of all cores, generator and sink \
included, divided by the copies that arrived: what a relay that loses much does not do well, it does \
dearly. A ratio is mcr-kernel / mcr-userspace, each divided by the peer.

**Relays.** `mcr-kernel` and `mcr-userspace` are MCR on either path. `kernel-routing` is kernel \
multicast routing set up by smcroute: it rewrites nothing. `socat` is one process per output. \
`floor` is a tc program that redirects and does nothing else: the most that the bed itself can do. \
*Published* figures are quoted from reports about other relays on another machine (20 cores, Linux \
6.17) and were never measured here.

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
    in_order(&mut cases);
    cases
}

/// Puts cases as their scenario lists them; those that it does not list go last, as they ran.
fn in_order(cases: &mut [&CaseResult]) {
    let planned: Vec<Vec<_>> = { SCENARIOS.iter() }
        .map(|scenario| scenario.listed())
        .collect();
    cases.sort_by_cached_key(|case| {
        let all = planned.get(usize::from(case.scenario).wrapping_sub(1));
        let place = all.and_then(|all| all.iter().position(|listed| *listed == case.parameters));
        (case.scenario, place.unwrap_or(usize::MAX))
    });
}

/// Says where the runs were made, and warns when that was not one place and one revision.
fn conditions(runs: &[Results]) -> (String, Vec<String>) {
    let mut text = String::from("## Conditions\n\n");
    let mut warnings = Vec::new();
    let mut described: Option<&Machine> = None;
    for run in runs {
        let differences = described.map(|first| first.differences(&run.machine));
        if let Some(names) = differences.as_ref().filter(|names| !names.is_empty()) {
            let warning = format!(
                "`{}` ran under other conditions than the first run: {} differ; its figures do \
                 not stand beside the others",
                run.command,
                names.join(", ")
            );
            let _ = writeln!(text, "\n**Warning: {warning}.**\n");
            warnings.push(warning);
        }
        if differences.is_none_or(|names| !names.is_empty()) {
            text.push_str(&machine(&run.machine));
        }
        let trials: usize = run.cases.iter().map(|case| case.trials.len()).sum();
        let _ = writeln!(
            text,
            "- `{}` on {}: {} trials",
            run.command,
            run.machine.date,
            number(trials as f64)
        );
        described = described.or(Some(&run.machine));
    }
    text.push('\n');
    (text, warnings)
}

fn machine(machine: &Machine) -> String {
    let list = |map: &BTreeMap<String, String>| {
        let pairs = map.iter().map(|(name, value)| format!("{name} {value}"));
        pairs.collect::<Vec<_>>().join(", ")
    };
    let revision = machine.revision.as_deref().unwrap_or("unknown revision");
    format!(
        "{}, {} cores, {} MiB of memory, Linux {}. {} ({revision}), {}. {}.\n\n",
        machine.cpu,
        machine.cores,
        number(machine.memory_mib as f64),
        machine.kernel,
        machine.version,
        list(&machine.peers),
        list(&machine.settings),
    )
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
        let warnings = write(&[results], &Reliability::default(), &output, &plots).unwrap();
        assert_eq!(warnings, Vec::<String>::new());
        let text = fs::read_to_string(output).unwrap();
        assert!(text.contains("0.20 % lost"), "{text}");
        assert!(text.contains("| 1 | 0 | 15"), "{text}");
        assert!(text.contains("](docs/bench/"), "{text}");
    }

    #[test]
    fn parts_of_one_run_merge_and_parts_of_another_machine_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let part = |relay, kernel: &str| Results {
            machine: Machine {
                kernel: kernel.into(),
                ..Machine::default()
            },
            command: format!("mcr bench run {relay}"),
            cases: vec![case(relay, 1000)],
        };
        let output = directory.path().join("BENCHMARKS.md");
        let plots = directory.path().join("plots");
        let write = |parts: &[Results]| {
            let warnings = write(parts, &Reliability::default(), &output, &plots).unwrap();
            (warnings, fs::read_to_string(&output).unwrap())
        };
        let (warnings, text) = write(&[part("mcr-kernel", "6.1"), part("socat", "6.1")]);
        assert_eq!(warnings, Vec::<String>::new());
        assert_eq!(text.matches("Linux 6.1.").count(), 1, "{text}");
        let (warnings, text) = write(&[part("mcr-kernel", "6.1"), part("socat", "6.2")]);
        assert!(warnings[0].contains("kernel differ"), "{warnings:?}");
        assert!(text.contains("**Warning: `mcr bench run socat`"), "{text}");
    }
}
