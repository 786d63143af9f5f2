//! The tables of one scenario: its main figures with the relays side by side, then every case.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::figure::{Figure, figure_of};
use super::published;
use traffic::trial::Outcome;

use crate::bench::results::number::number;
use crate::bench::results::{CaseResult, Spread, Trial};
use crate::bench::run::scenario::Scenario;

/// Writes a scenario's heading and description, Markdown.
pub(super) fn heading(scenario: &Scenario) -> String {
    let Scenario {
        number,
        title,
        about,
        ..
    } = scenario;
    format!("## {number}. {title}\n\n{about}\n\n")
}

/// Writes the tables of a scenario's main figures, Markdown.
pub(super) fn figures(scenario: u8, cases: &[&CaseResult]) -> String {
    let figures = main_figures(scenario);
    // The published figures are of one of these two: they are shown beside the first.
    let beside = figures
        .iter()
        .find(|figure| matches!(figure, Figure::Loss | Figure::Delivered));
    let tables = figures
        .iter()
        .map(|figure| matrix(cases, *figure, Some(figure) == beside));
    tables.collect()
}

const fn main_figures(scenario: u8) -> &'static [Figure] {
    match scenario {
        4 => &[
            Figure::Loss,
            Figure::Processes,
            Figure::Memory,
            Figure::Cpu,
            Figure::Configure,
            Figure::Start,
        ],
        5 => &[Figure::Loss, Figure::Delivered],
        6 => &[Figure::Delivered, Figure::Loss],
        7 => &[
            Figure::Delivered,
            Figure::PartialDrop,
            Figure::ZeroLoss,
            Figure::RelayCore,
        ],
        8 => &[
            Figure::LatencyP50,
            Figure::LatencyP99,
            Figure::LatencyP99_9,
            Figure::Skew,
        ],
        9 => &[
            Figure::Apply,
            Figure::Configure,
            Figure::Start,
            Figure::Memory,
            Figure::Delivered,
        ],
        11 => &[
            Figure::Delivered,
            Figure::ZeroLoss,
            Figure::LatencyP50,
            Figure::LatencyP99,
        ],
        _ => &[Figure::Loss, Figure::Cpu],
    }
}

/// Rows are cases, columns relays; then the ratios to the peers and, with `quotes`, the published figures.
fn matrix(cases: &[&CaseResult], figure: Figure, quotes: bool) -> String {
    let relays = in_order(cases.iter().map(|case| case.relay.clone()));
    let rows = in_order(cases.iter().map(|case| case.parameters_text()));
    let find = |row: &str, relay: &str| {
        let mut all = cases.iter().copied();
        all.find(|case| case.parameters_text() == row && case.relay == relay)
    };
    let spread = |row: &str, relay: &str| figure_of(find(row, relay)?, figure);
    let peers: Vec<&String> = relays
        .iter()
        .filter(|relay| figure.has_ratio() && !relay.starts_with("mcr"))
        .collect();

    let mut head = vec!["case".to_owned(), "trials".to_owned()];
    head.extend(relays.iter().cloned());
    head.extend(peers.iter().map(|peer| format!("ratio to {peer}")));
    let mut lines = Vec::new();
    let mut has_quotes = false;
    for row in &rows {
        if relays.iter().all(|relay| spread(row, relay).is_none()) {
            continue;
        }
        let trials = |relay: &String| find(row, relay).map_or(0, |case| case.trials.len());
        let most = relays.iter().map(trials).max().unwrap_or(0);
        let name = if row.is_empty() { "-" } else { row };
        let mut line = vec![name.to_owned(), most.to_string()];
        line.extend(relays.iter().map(|relay| match find(row, relay) {
            Some(case) => cell(case, figure, most),
            None => "-".into(),
        }));
        line.extend(peers.iter().map(|peer| {
            let ratio = |own| {
                let own = spread(row, own)?.median;
                let other = spread(row, peer)?.median;
                (other != 0.0).then(|| format!("{:.2}", own / other))
            };
            let both = ["mcr-kernel", "mcr-userspace"].map(ratio);
            if both == [None, None] {
                return "-".into();
            }
            let [kernel, userspace] = both.map(|ratio| ratio.unwrap_or("-".into()));
            format!("{kernel} / {userspace}")
        }));
        let case = cases.iter().find(|case| case.parameters_text() == *row);
        let quote = case
            .filter(|_| quotes)
            .and_then(|case| published::find(case));
        has_quotes |= quote.is_some();
        line.extend(quote.unwrap_or(["-"; 2]).map(str::to_owned));
        lines.push(line);
    }
    if lines.is_empty() {
        return String::new();
    }
    if has_quotes {
        head.extend(["published: reference".into(), "published: socat".into()]);
    } else {
        for line in &mut lines {
            line.truncate(head.len());
        }
    }
    let better = if figure.is_better_high() {
        "more"
    } else {
        "less"
    };
    let title = figure.as_str();
    format!(
        "**{title}** ({better} is better)\n\n{}\n",
        markdown(&head, &lines)
    )
}

/// One cell; its number of trials is shown if that is below `most`.
fn cell(case: &CaseResult, figure: Figure, most: usize) -> String {
    let Some(spread) = figure_of(case, figure) else {
        return match case.skipped {
            Some(_) => "not measured".into(),
            None => "-".into(),
        };
    };
    let Spread { min, median, max } = spread;
    let mut text = number(median);
    if min < max {
        let _ = write!(text, " ({}–{})", number(min), number(max));
    }
    if case.trials.len() < most {
        let _ = write!(text, " (n = {})", case.trials.len());
    }
    text
}

/// Writes one row per case and relay with everything else that was measured, Markdown.
pub(super) fn details(cases: &[&CaseResult]) -> String {
    let head = [
        "case",
        "relay",
        "trials",
        "offered, packets/s",
        "lost, %",
        "CPU, µs per copy",
        "busy seconds of a trial, core 0 + core 1 + …",
        "stolen seconds, all trials",
        "busy seconds of the relay's processes",
        "memory, MiB",
        "processes",
        "load average before",
        "where the rest went (copies, all trials)",
    ];
    let lines: Vec<Vec<String>> = cases.iter().map(|case| detail(case)).collect();
    let head = head.map(str::to_owned);
    let table = markdown(&head, &lines);
    format!(
        "<details><summary>Every case, and where the rest went</summary>\n\n{table}\n</details>\n\n"
    )
}

fn detail(case: &CaseResult) -> Vec<String> {
    let show = |figure| cell(case, figure, 0);
    let offered = case.spread(Trial::offered_pps);
    let process = case.spread(|trial| trial.cost.process_seconds);
    let median = |spread: Option<Spread>| spread.map_or("-".into(), |spread| number(spread.median));
    vec![
        case.parameters_text(),
        case.relay.clone(),
        case.trials.len().to_string(),
        median(offered),
        show(Figure::Loss),
        show(Figure::Cpu),
        busy(case),
        stolen(case),
        median(process),
        show(Figure::Memory),
        show(Figure::Processes),
        median(case.spread(|trial| trial.load_average)),
        whereabouts(case),
    ]
}

/// The load of each core: the medians of their busy seconds, core 0 first.
fn busy(case: &CaseResult) -> String {
    if case.trials.is_empty() {
        return "-".into();
    }
    let core_counts = case
        .trials
        .iter()
        .map(|trial| trial.cost.busy_seconds.len());
    let medians = (0..core_counts.max().unwrap_or(0)).map(|core| {
        let busy = |trial: &Trial| trial.cost.busy_seconds.get(core).copied().unwrap_or(0.0);
        let spread = case.spread(busy);
        spread.map_or("-".into(), |spread| format!("{:.2}", spread.median))
    });
    medians.collect::<Vec<_>>().join(" + ")
}

/// The time that the hypervisor took from all cores while there was work.
fn stolen(case: &CaseResult) -> String {
    let costs = case.trials.iter().map(|trial| &trial.cost.stolen_seconds);
    let seconds: Vec<f64> = costs.flatten().copied().collect();
    if seconds.is_empty() {
        return "-".into();
    }
    format!("{:.2}", seconds.iter().sum::<f64>())
}

/// Adds up the drops of all trials by their location, and shows what remains unexplained.
pub(super) fn whereabouts(case: &CaseResult) -> String {
    if let Some(reason) = &case.skipped {
        return reason.replace(['\n', '|'], " ");
    }
    let mut drops_at: BTreeMap<&str, u64> = BTreeMap::new();
    for drops in case.trials.iter().flat_map(|trial| &trial.drops) {
        *drops_at.entry(&drops.at).or_default() += drops.copies;
    }
    let unexplained: i64 = case.trials.iter().map(Trial::unexplained).sum();
    let mut parts: Vec<String> = drops_at
        .iter()
        .map(|(at, copies)| format!("{at} {}", number(*copies as f64)))
        .collect();
    let amount = number(unexplained.unsigned_abs() as f64);
    if unexplained > 0 {
        parts.push(format!("unexplained {amount}"));
    } else if unexplained < 0 {
        parts.push(format!("counted beyond what is missing {amount}"));
    }
    if parts.is_empty() {
        return "nothing lost".into();
    }
    parts.join("; ")
}

/// A table, Markdown.
pub(super) fn markdown(head: &[String], lines: &[Vec<String>]) -> String {
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
