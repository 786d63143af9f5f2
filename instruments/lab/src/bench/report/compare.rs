//! Two runs side by side, case by case. It reports and sets no threshold: spreads that do not overlap
//! are marked, and the reader judges them.

use std::fmt::Write;

use serde::Serialize;

use super::figure::{Figure, figure_of};
use crate::bench::results::number::number;
use crate::bench::results::{CaseResult, Results, Spread};

/// One figure of one relay in one case, in both runs.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Number of the scenario.
    pub scenario: u8,
    /// The case's parameters.
    pub case: String,
    /// Name of the relay.
    pub relay: String,
    /// Name of the figure, with its unit.
    pub figure: &'static str,
    /// Median in the first run.
    pub a: f64,
    /// Median in the second run.
    pub b: f64,
    /// `b / a`; `None` where `a` is 0.
    pub ratio: Option<f64>,
    /// Whether the two spreads have no value in common.
    pub apart: bool,
}

/// Compares every case that both runs have.
pub fn compare(a: &Results, b: &Results) -> Vec<Line> {
    let lines = a.cases.iter().flat_map(|one| {
        let other = b.cases.iter().find(|other| one.is_same(other));
        other.map(|other| lines(one, other)).unwrap_or_default()
    });
    lines.collect()
}

fn lines(one: &CaseResult, other: &CaseResult) -> Vec<Line> {
    let figures = [
        Figure::Delivered,
        Figure::Loss,
        Figure::Cpu,
        Figure::Memory,
        Figure::LatencyP50,
        Figure::LatencyP99,
        Figure::ZeroLoss,
        Figure::Configure,
    ];
    let lines = figures.into_iter().filter_map(|figure| {
        let (a, b) = (figure_of(one, figure)?, figure_of(other, figure)?);
        Some(Line {
            scenario: one.scenario,
            case: one.parameters_text(),
            relay: one.relay.clone(),
            figure: figure.as_str(),
            a: a.median,
            b: b.median,
            ratio: (a.median != 0.0).then(|| b.median / a.median),
            apart: are_apart(a, b),
        })
    });
    lines.collect()
}

fn are_apart(a: Spread, b: Spread) -> bool {
    a.max < b.min || b.max < a.min
}

/// Draws the comparison as a table; a star marks spreads that do not overlap.
pub fn table(a: &Results, b: &Results, lines: &[Line]) -> String {
    if lines.is_empty() {
        return "the two runs have no case in common".to_owned();
    }
    let mut text = String::new();
    for (name, run) in [("A", a), ("B", b)] {
        let (command, machine) = (&run.command, &run.machine);
        let revision = machine.revision.as_deref().unwrap_or("unknown revision");
        let _ = writeln!(text, "{name}: {command}, {revision}, {}", machine.date);
    }
    let differences = a.machine.differences(&b.machine);
    if !differences.is_empty() {
        let _ = writeln!(text, "they differ in: {}", differences.join(", "));
    }
    let _ = writeln!(text, "{}", row("* spreads do not overlap", "A", "B", "B/A"));
    let mut last = String::new();
    for line in lines {
        let heading = format!("scenario {}, {}, {}", line.scenario, line.case, line.relay);
        if heading != last {
            let _ = writeln!(text, "{heading}");
            last = heading;
        }
        let ratio = line
            .ratio
            .map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
        let star = if line.apart { " *" } else { "" };
        let shown = row(line.figure, &number(line.a), &number(line.b), &ratio);
        let _ = writeln!(text, "{shown}{star}");
    }
    text.truncate(text.trim_end().len());
    text
}

fn row(name: &str, a: &str, b: &str, ratio: &str) -> String {
    format!("    {name:30} {a:>14} {b:>14} {ratio:>8}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::machine::Machine;

    #[test]
    fn the_table_names_its_columns_and_the_differences_of_the_runs() {
        let run = |kernel: &str| Results {
            machine: Machine {
                kernel: kernel.into(),
                ..Machine::default()
            },
            command: "mcr bench run".into(),
            cases: Vec::new(),
        };
        let line = Line {
            scenario: 1,
            case: "pps 50".into(),
            relay: "socat".into(),
            figure: "lost, %",
            a: 1.0,
            b: 2.0,
            ratio: Some(2.0),
            apart: true,
        };
        let text = table(&run("6.1"), &run("6.18"), &[line]);
        for part in [
            "B/A",
            "A: mcr bench run",
            "they differ in: kernel",
            "2.000 *",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(table(&run("6.1"), &run("6.1"), &[]).contains("no case"));
    }
}
