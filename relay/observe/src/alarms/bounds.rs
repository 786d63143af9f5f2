//! Judges rates and content against the bounds that rules set.

use compile::table::RateUnit;
use dataplane::counters::HealthCounters;
use rules::health::{Content, Health, Rate, rate_text};

/// How a rate is outside its bounds.
pub(crate) fn beyond(health: &Health, packets: f64, bits: f64) -> Option<String> {
    let measured = |bound: Rate| match bound.unit {
        RateUnit::Packets => packets,
        RateUnit::Bits => bits,
    };
    let least = health
        .rate_min
        .filter(|least| measured(*least) < least.rate as f64);
    let most = health
        .rate_max
        .filter(|most| measured(*most) > most.rate as f64);
    let text = |bound: Rate, word: &str, key: &str| {
        let rate = roughly(measured(bound), word == "above");
        let shown = rate_text(Rate { rate, ..bound });
        format!("the rate was {shown}, {word} {key} = {}", rate_text(bound))
    };
    let outside = least.map(|bound| text(bound, "below", "rate_min"));
    outside.or_else(|| most.map(|bound| text(bound, "above", "rate_max")))
}

/// Why the content is wrong: none of the inspected packets is of the expected kind.
pub(crate) fn unfit(inspected: &HealthCounters, content: Content) -> Option<String> {
    let (content, fitting) = match content {
        Content::Rtp => ("RTP", inspected.rtp_packets),
        Content::Ts => ("MPEG-TS", inspected.ts_packets),
        Content::Auto | Content::None => return None,
    };
    let is_unfit = inspected.unrecognised > 0 && fitting == 0;
    is_unfit.then(|| format!("no packet is {content} (content)"))
}

/// A rate in three digits, rounded away from the bound that it exceeds.
fn roughly(rate: f64, up: bool) -> u64 {
    let digits = rate.max(1.0).log10().floor() as i32;
    let unit = 10f64.powi((digits - 2).max(0));
    let units = if up {
        (rate / unit).ceil()
    } else {
        (rate / unit).floor()
    };
    (units * unit) as u64
}
