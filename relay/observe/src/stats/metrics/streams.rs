//! Metrics of watched streams. A rule without `health` has no samples here.

use api::counter::Counter;
use api::reply::{HealthStats, RtpStats, RuleStats, State, TsStats};

use super::{Labelled, Page, name_of};

/// Writes the families; Prometheus needs the samples of a family together.
pub(super) fn streams(page: &mut Page, rules: &[RuleStats]) {
    let watched = watched(rules, |health| Some(health));
    if watched.is_empty() {
        return;
    }
    page.family(
        "mcr_stream_state",
        "1 for the state that the rule's stream is in, 0 for the others.",
    );
    for ([rule], health) in &watched {
        for state in [State::Up, State::Degraded, State::Down] {
            let labels = [("rule", rule.1.as_ref()), ("state", state.as_str())];
            let is_in = u8::from(health.state == state);
            page.sample("mcr_stream_state", &labels, is_in);
        }
    }
    page.counters(HealthStats::COUNTERS, &watched);
    headers(page, RtpStats::COUNTERS, rules, |health| {
        health.rtp.as_ref()
    });
    headers(page, TsStats::COUNTERS, rules, |health| health.ts.as_ref());
}

/// Writes the families of a protocol's headers, if any stream has such headers.
fn headers<T>(
    page: &mut Page,
    counters: &[Counter<T>],
    rules: &[RuleStats],
    part: fn(&HealthStats) -> Option<&T>,
) {
    let streams = watched(rules, part);
    if !streams.is_empty() {
        page.counters(counters, &streams);
    }
}

fn watched<T>(
    rules: &[RuleStats],
    part: fn(&HealthStats) -> Option<&T>,
) -> Vec<Labelled<'_, T, 1>> {
    let health = |rule| Some(([name_of(rule)], rule.health.as_ref().and_then(part)?));
    rules.iter().filter_map(health).collect()
}
