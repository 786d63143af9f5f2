//! The report: a summary, every promise with its command and last figure, a table per scenario, peers
//! side by side with ratios, plots, the published figures marked as such, and the cost of faults.

mod cases;
pub mod compare;
mod figure;
mod origin;
mod overview;
mod plot;
mod promises;
mod published;
mod tables;

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::results::reliability::Reliability;
use super::results::{CaseResult, Results};
use super::run::scenario::SCENARIOS;
use cases::Cases;
use origin::{Conditions, Shown};
use tables::{details, figures, heading};

/// Writes the report and its plots. Returns warnings for the reader, which the report contains as well.
///
/// # Errors
/// When a file cannot be written.
pub fn write(
    runs: &[Results],
    reliability: &Reliability,
    output: &Path,
    plots: &Path,
) -> Result<Vec<String>> {
    let conditions = Conditions::of(runs);
    let are_several = conditions.len() > 1;
    let mut cases = origin::latest(runs, &conditions);
    in_order(&mut cases, |shown| shown.case);
    fs::create_dir_all(plots).with_context(|| plots.display().to_string())?;
    let images = plot::draw_all(&only_cases(&cases), plots)?;
    let (described, warnings) = describe(&conditions);
    let judged = promises::all(Cases(&cases), reliability);
    let mut text = String::from(HEAD);
    text.push_str(&overview::overview(Cases(&cases), &judged, &conditions));
    text.push_str(&promises::table(&judged, are_several));
    text.push_str(READING);
    text.push_str(&described);
    for scenario in &SCENARIOS {
        let shown: Vec<Shown<'_>> = cases
            .iter()
            .filter(|shown| shown.case.scenario == scenario.number)
            .copied()
            .collect();
        if shown.is_empty() {
            continue;
        }
        text.push_str(&heading(scenario));
        if are_several {
            text.push_str(&origin::measured_under(&shown));
        }
        let own = only_cases(&shown);
        text.push_str(&figures(scenario.number, &own));
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
pub fn summary(results: &Results) -> String {
    let mut text = String::new();
    for scenario in &SCENARIOS {
        let mut own: Vec<&CaseResult> = results.of_scenario(scenario.number).collect();
        in_order(&mut own, |case| case);
        if !own.is_empty() {
            text.push_str(&heading(scenario));
            text.push_str(&figures(scenario.number, &own));
            text.push_str(&details(&own));
        }
    }
    text.truncate(text.trim_end().len());
    text
}

const HEAD: &str = "\
# Benchmarks

Written by `mcr bench report` from results of `mcr bench run`; do not edit. `docs/bench.md` says how \
a trial is made.

";

const READING: &str = "\
## How to read the tables

Relays take turns within each round of trials, so that drift of the machine meets \
all of them alike. A cell is the median of the trials, with the lowest and the highest in brackets \
where they differ; *trials* is their number, and a cell that had fewer says so (n = …). Why something \
was *not measured* stands in the details below each scenario. Sizes are bytes of UDP payload. *pps* \
is packets per second, of each stream where there are several; *pps max* is as fast as the generator \
can, *pps zero loss* the highest rate at which a search lost nothing. A *copy* is one datagram at one \
output. A ratio column has two figures, that of mcr-kernel and that of mcr-userspace, each divided \
by the peer's.

*Lost* compares what the generator sent, times the copies of each, with what arrived at the sinks. The \
details say where the rest went, hop by hop, each drop once however many counters saw it, and what no \
hop accounts for (*unexplained*). *Stolen* is time for which a virtual machine's cores had work and \
got no processor: at 1,000,000 copies a second the queue of 30,000 between two cores bridges \
0.03 seconds of it.

*CPU* is busy time of all cores, generator and sink included, divided by the copies that arrived: a \
relay that loses much shows a high figure.

**Relays.** `mcr-kernel` and `mcr-userspace` are MCR on either path. `kernel-routing` is kernel \
multicast routing set up by smcroute: it rewrites nothing. `socat` is one process per output. \
`floor` is a tc program that redirects and does nothing else: about what the bed itself can do, and \
where a relay comes out above it, how far figures drift between trials. *Published* figures are \
quoted from reports about an AF_PACKET and io_uring relay (*reference*) and about socat on another \
machine (20 cores, Linux 6.17) and were never measured here.

";

fn only_cases<'a>(shown: &[Shown<'a>]) -> Vec<&'a CaseResult> {
    shown.iter().map(|shown| shown.case).collect()
}

/// Sorts cases as their scenario lists them; unlisted ones go last, as they ran.
fn in_order<T>(cases: &mut [T], case: impl Fn(&T) -> &CaseResult) {
    let planned: Vec<Vec<_>> = SCENARIOS.iter().map(|scenario| scenario.listed()).collect();
    cases.sort_by_cached_key(|it| {
        let case = case(it);
        let all = planned.get(usize::from(case.scenario).wrapping_sub(1));
        let index = all.and_then(|all| all.iter().position(|listed| *listed == case.parameters));
        (case.scenario, index.unwrap_or(usize::MAX))
    });
}

/// Describes the conditions of the runs, and warns when there are several machines or builds.
fn describe(conditions: &[Conditions<'_>]) -> (String, Vec<String>) {
    let mut text = String::from("## Conditions\n\n");
    let mut warnings = Vec::new();
    for (number, own) in conditions.iter().enumerate() {
        if number > 0 {
            let warning = own.warning(&conditions[0]);
            let _ = writeln!(text, "**Warning: {warning}.**\n");
            warnings.push(warning);
        }
        text.push_str(&own.describe(conditions.len() > 1));
    }
    (text, warnings)
}

/// The path of a plot relative to the report's directory.
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
    use super::super::results::machine::Machine;
    use traffic::trial::Volume;

    use super::*;

    fn case(relay: &str, delivered: u64) -> CaseResult {
        CaseResult {
            scenario: 1,
            parameters: [("pps".to_owned(), "400000".to_owned())].into(),
            relay: relay.into(),
            skipped: None,
            trials: vec![Trial {
                volume: Volume {
                    sent: 1000,
                    seconds: 1.0,
                    expected: 1000,
                    delivered,
                },
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
    fn parts_of_one_run_merge_and_parts_of_another_machine_are_reported() {
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
        assert!(!text.contains("Measured under"), "{text}");
        let (warnings, text) = write(&[part("mcr-kernel", "6.1"), part("socat", "6.2")]);
        assert!(warnings[0].contains("another: kernel"), "{warnings:?}");
        assert!(text.contains("**Warning: `mcr bench run socat`"), "{text}");
        assert!(
            text.contains("Measured under A: pps 400000. Measured under B: pps 400000."),
            "{text}"
        );
    }

    #[test]
    fn a_promise_names_the_conditions_of_its_figure() {
        let run = |revision: &str, relays: &[&str]| Results {
            machine: Machine {
                revision: Some(revision.into()),
                ..Machine::default()
            },
            command: "mcr bench run".into(),
            cases: relays.iter().map(|relay| case(relay, 1000)).collect(),
        };
        let runs = [
            run("old", &["mcr-kernel", "mcr-userspace"]),
            run("new", &["mcr-kernel"]),
        ];
        let conditions = Conditions::of(&runs);
        let cases = origin::latest(&runs, &conditions);
        let judged = promises::all(Cases(&cases), &Reliability::default());
        let table = promises::table(&judged, true);
        let line = |path: &str| {
            let own = format!("| 400,000 pps, one stream | 0 lost, {path} path |");
            table.lines().find(|line| line.starts_with(&own)).unwrap()
        };
        assert!(line("kernel").ends_with(" | B |"), "{table}");
        assert!(line("userspace").ends_with(" | A |"), "{table}");
    }
}
