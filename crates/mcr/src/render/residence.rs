//! How long packets stay, as titles and texts.

use api::reply::ResidenceStats;

use super::{count, health};

/// The lines that tell it.
pub(crate) fn lines(residence: &[ResidenceStats]) -> Vec<(&'static str, String)> {
    let titles = std::iter::once("stay").chain(std::iter::repeat(""));
    let line = |(title, seen)| (title, text(seen));
    titles.zip(residence).map(line).collect()
}

fn text(seen: &ResidenceStats) -> String {
    let below = |bound: Option<f64>| {
        bound.map_or_else(
            || "above all bounds".to_owned(),
            |bound| format!("below {}", health::time(bound)),
        )
    };
    format!(
        "{}: half {}, 99 % {} (of {} looked at)",
        seen.path,
        below(seen.p50_seconds),
        below(seen.p99_seconds),
        count(seen.samples)
    )
}
