//! Two runs side by side, case by case. It reports and sets no threshold: spreads that do not
//! overlap are marked, and what to make of them is the reader's.

use std::fmt::Write;

use serde::Serialize;

use super::report::{Figure, figure_of, number};
use super::results::{CaseResult, Results, Spread};

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
#[must_use]
pub fn compare(a: &Results, b: &Results) -> Vec<Line> {
    let lines = a.cases.iter().flat_map(|one| {
        let other = b.cases.iter().find(|other| is_same(one, other));
        other.map(|other| lines(one, other)).unwrap_or_default()
    });
    lines.collect()
}

fn is_same(one: &CaseResult, other: &CaseResult) -> bool {
    (one.scenario, &one.parameters, &one.relay) == (other.scenario, &other.parameters, &other.relay)
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
            case: parameters(one),
            relay: one.relay.clone(),
            figure: figure.title(),
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

/// The parameters of a case as text, in a fixed order.
#[must_use]
pub fn parameters(case: &CaseResult) -> String {
    let shown = case.parameters.iter();
    let shown: Vec<String> = shown
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    shown.join(", ")
}

/// Draws the comparison as a table; a star marks spreads that do not overlap.
#[must_use]
pub fn table(lines: &[Line]) -> String {
    let mut text = String::new();
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
        let _ = writeln!(
            text,
            "    {:28} {:>14} {:>14} {ratio:>8}{star}",
            line.figure,
            number(line.a),
            number(line.b)
        );
    }
    if text.is_empty() {
        text.push_str("the two runs have no case in common");
    }
    text.truncate(text.trim_end().len());
    text
}
