//! A table of rounds: least, median and most of each kind of fault's effects.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::scenario::{Fault, Round};

/// The heads of the columns of [`rows`], Markdown.
pub const HEAD: &str = "| fault | rounds | gap, ms | lost | fault to the other's first packet, ms | twice | flaps |\n\
                        |---|---|---|---|---|---|---|\n";

/// A row for each kind of fault. Void rounds count for duplicates and nothing else.
pub fn rows(rounds: &[Round]) -> String {
    let mut by_fault: BTreeMap<(Fault, bool), Vec<&Round>> = BTreeMap::new();
    for round in rounds {
        let kind = (round.fault, round.second.is_some());
        by_fault.entry(kind).or_default().push(round);
    }
    by_fault
        .iter()
        .fold(String::new(), |mut text, (kind, rounds)| {
            let _ = writeln!(text, "{}", row(*kind, rounds));
            text
        })
}

fn row((fault, has_second): (Fault, bool), rounds: &[&Round]) -> String {
    let second = if has_second {
        ", and a fault of etcd meanwhile"
    } else {
        ""
    };
    let valid: Vec<&&Round> = rounds.iter().filter(|round| round.void.is_none()).collect();
    let count = match rounds.len() - valid.len() {
        0 => rounds.len().to_string(),
        void => format!("{} and {void} void", valid.len()),
    };
    let gaps = spread(valid.iter().map(|round| round.gap_ms).collect());
    let lost = spread(valid.iter().map(|round| round.lost as f64).collect());
    let takeovers = spread(valid.iter().filter_map(|round| round.takeover_ms).collect());
    let twice: u64 = rounds.iter().map(|round| round.twice).sum();
    let flaps: usize = rounds.iter().map(|round| round.flaps).sum();
    format!(
        "| {}{second} | {count} | {gaps} | {lost} | {takeovers} | {twice} | {flaps} |",
        fault.as_str()
    )
}

/// Least, median and most.
pub fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (values.first(), values.last()) else {
        return "-".to_owned();
    };
    format!("{least:.0} / {:.0} / {most:.0}", values[values.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(fault: Fault, gap_ms: f64, void: Option<&'static str>) -> Round {
        Round {
            fault,
            second: None,
            lost: 10,
            twice: 1,
            gap_ms,
            flaps: 0,
            changes: 1,
            takeover_ms: (fault == Fault::Kill).then_some(gap_ms),
            stalled_ms: 0.0,
            holes: Vec::new(),
            repeats: Vec::new(),
            reported: None,
            void,
        }
    }

    #[test]
    fn a_row_for_each_fault_has_least_median_and_most() {
        let rounds = [
            round(Fault::Kill, 30.0, None),
            round(Fault::Kill, 10.0, None),
            round(Fault::EtcdAway, 1.0, None),
            round(Fault::Kill, 20.0, None),
            round(Fault::Kill, 900.0, Some("the sender stood still")),
        ];
        let expected = "| kill -9 of the daemon | 3 and 1 void | 10 / 20 / 30 | 10 / 10 / 10 | 10 / 20 / 30 | 4 | 0 |\n\
                        | all of etcd killed, 3 s | 1 | 1 / 1 / 1 | 10 / 10 / 10 | - | 1 | 0 |\n";
        assert_eq!(rows(&rounds), expected);
    }
}
