//! Drops by reason. A reason for which a rule or an output can drop as configured is a series from the
//! start; any other reason becomes a series with its first drop.

use std::collections::BTreeMap;

use api::reply::RuleStats;

use super::{Page, of, outputs_of};
use crate::stats::{PossibleDrops, Reasons};

/// Writes the families.
pub(super) fn families(page: &mut Page, rules: &[RuleStats], possible: &[PossibleDrops]) {
    let name = "mcr_rule_dropped_packets_total";
    page.family(
        name,
        "Datagrams dropped before the outputs of the rule, by reason.",
    );
    for (rule, possible) in rules.iter().zip(possible) {
        for (reason, count) in all(&rule.dropped, possible.rule) {
            let labels = [("rule", rule.name.as_str()), ("reason", reason)];
            page.sample(name, &labels, count);
        }
    }
    let name = "mcr_output_dropped_packets_total";
    page.family(name, "Copies dropped at the output, by reason.");
    for (rule, possible) in rules.iter().zip(possible) {
        for ((labels, output), possible) in outputs_of(rule).iter().zip(&possible.outputs) {
            for (reason, count) in all(&output.dropped, *possible) {
                let [rule, to] = of(labels);
                page.sample(name, &[rule, to, ("reason", reason)], count);
            }
        }
    }
}

/// The drops that occurred, and zero for reasons that are possible.
fn all(dropped: &BTreeMap<String, u64>, possible: Reasons) -> BTreeMap<&str, u64> {
    let mut all: BTreeMap<&str, u64> = possible.names().map(|name| (name, 0)).collect();
    all.extend(dropped.iter().map(|(name, count)| (name.as_str(), *count)));
    all
}
