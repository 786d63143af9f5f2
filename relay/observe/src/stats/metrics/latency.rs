//! Histograms of how long packets stay. A rule without sampled packets has no samples here.

use api::reply::{ResidenceStats, RuleStats};
use dataplane::counters::bound_ns;

use super::Page;

const NAME: &str = "mcr_residence_seconds";
/// Only every second bound is written: a series for each bound is too much for a thousand rules, and the
/// statistics have them all.
const STEP: usize = 2;

/// Writes the family.
pub(super) fn histograms(page: &mut Page, rules: &[RuleStats]) {
    if rules.iter().all(|rule| rule.residence.is_empty()) {
        return;
    }
    page.family_of(
        "histogram",
        NAME,
        "How long packets stay in MCR, of a sample of each rule's.",
    );
    for rule in rules {
        for residence in &rule.residence {
            histogram(page, &rule.name, residence);
        }
    }
}

fn histogram(page: &mut Page, rule: &str, residence: &ResidenceStats) {
    let own = [("rule", rule), ("path", residence.path.as_str())];
    let bucket = format!("{NAME}_bucket");
    // Bounds lie a factor of two apart, so anything less than half above a bound is that bound.
    let bounds = (0..).map_while(bound_ns).step_by(STEP);
    for bound in bounds.map(|ns| ns as f64 / 1e9) {
        let buckets = residence.buckets.iter();
        let below = buckets.filter(|one| one.below_seconds.is_some_and(|end| end < bound * 1.5));
        let packets: u64 = below.map(|one| one.packets).sum();
        let labels = [own[0], own[1], ("le", &bound.to_string())];
        page.sample(&bucket, &labels, packets);
    }
    page.sample(
        &bucket,
        &[own[0], own[1], ("le", "+Inf")],
        residence.samples,
    );
    page.sample(&format!("{NAME}_sum"), &own, residence.sum_seconds);
    page.sample(&format!("{NAME}_count"), &own, residence.samples);
}
