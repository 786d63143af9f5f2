//! A stream's health, and the time its packets spend in the relay, as titles and texts.

use api::reply::{HealthStats, ResidenceStats, RtpStats, TsStats};

use super::times::time;
use super::{count, number};

/// The lines about a stream's health.
pub(crate) fn health(health: &HealthStats) -> Vec<(&'static str, String)> {
    let reason = super::because(health.reason.as_deref());
    let mut lines = vec![("stream", format!("{}{reason}", health.state.as_str()))];
    let gaps = format!(
        "1 s: {}   10 s: {}",
        time(health.gap_seconds_1s),
        time(health.gap_seconds_10s)
    );
    lines.push(("  gap", gaps));
    if let Some(rtp) = &health.rtp {
        let text = number::all(RtpStats::COUNTERS, rtp);
        lines.push(("  rtp", text));
        let text = format!(
            "payload type {}, SSRC 0x{:08x}, {}, {}",
            rtp.payload_type,
            rtp.ssrc,
            number::things(rtp.ssrc_changes, "change"),
            number::things(rtp.restarts, "restart")
        );
        lines.push(("", text));
    }
    if let Some(ts) = &health.ts {
        lines.push(("  ts", number::all(TsStats::COUNTERS, ts)));
    }
    if health.unrecognised > 0 {
        let text = format!(
            "{} of another form",
            number::things(health.unrecognised, "packet")
        );
        lines.push(("  other", text));
    }
    lines
}

/// The lines about the time that packets spend in the relay.
pub(crate) fn latency(residence: &[ResidenceStats]) -> Vec<(&'static str, String)> {
    let titles = std::iter::once("stay").chain(std::iter::repeat(""));
    let line = |(title, stats)| (title, quantiles(stats));
    titles.zip(residence).map(line).collect()
}

fn quantiles(stats: &ResidenceStats) -> String {
    let below = |bound: Option<f64>| {
        bound.map_or_else(
            || "above all bounds".to_owned(),
            |bound| format!("below {}", time(bound)),
        )
    };
    format!(
        "{}: half {}, 99 % {} (of {} looked at)",
        stats.path,
        below(stats.p50_seconds),
        below(stats.p99_seconds),
        count(stats.samples)
    )
}
