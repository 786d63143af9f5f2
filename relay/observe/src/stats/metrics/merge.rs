//! Metrics of merged inputs. A rule without `merge` has no samples here.

use api::reply::{LineStats, MergeStats, RuleStats};

use super::{Labelled, Page, inputs_of, name_of};

/// Writes the families.
pub(super) fn families(page: &mut Page, rules: &[RuleStats]) {
    let merge = |rule| Some(([name_of(rule)], rule.merge.as_ref()?));
    let merged: Vec<_> = rules.iter().filter_map(merge).collect();
    if merged.is_empty() {
        return;
    }
    page.counters(MergeStats::COUNTERS, &merged);
    let inputs = rules.iter().flat_map(inputs_of);
    let lines: Vec<Labelled<'_, LineStats, 2>> = inputs
        .filter_map(|(labels, input)| Some((labels, input.line.as_ref()?)))
        .collect();
    page.counters(LineStats::COUNTERS, &lines);
}
