//! Interfaces and routes that rules need: there, up, with carrier and an address.

use compile::RuleView;

use super::finding::{Finding, Severity};
use super::snapshot::{Link, Snapshot};

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings: Vec<Finding> = snapshot
        .compiled
        .rules
        .values()
        .flat_map(|rule| troubles(rule))
        .collect();
    let mut seen = Vec::new();
    for (_, _, link) in snapshot.group_inputs() {
        if seen.contains(&link.index) {
            continue;
        }
        seen.push(link.index);
        findings.extend(port(snapshot, link));
    }
    findings
}

fn troubles(rule: &RuleView) -> Vec<Finding> {
    let subject = || format!("rule {:?}", rule.name);
    let inputs = rule.inputs.iter().filter_map(|input| {
        let pending = input.pending.as_ref()?;
        let evidence = format!("input {}: {pending}", input.at);
        Some(Finding::new(Severity::Stops, subject(), evidence))
    });
    let outputs = rule.outputs.iter().filter_map(|output| {
        let down = output.down.as_ref()?;
        let evidence = format!("output {}: {}", output.to, down.text);
        Some(Finding::new(Severity::Stops, subject(), evidence))
    });
    let remedy = "the rule goes on by itself once that is mended; ip -br link, ip -br address";
    let all = inputs.chain(outputs);
    all.map(|finding| finding.remedy(remedy)).collect()
}

/// A port of a bridge or bond has no IP of its own: what it joins, nobody hears.
fn port(snapshot: &Snapshot, link: &Link) -> Option<Finding> {
    let master = snapshot.link_of(link.master?)?;
    if !matches!(master.kind.as_str(), "bridge" | "bond" | "team") {
        return None;
    }
    let (name, above, kind) = (&link.name, &master.name, &master.kind);
    let evidence =
        format!("it is a port of {kind} {above}: its joins are not seen where {above}'s would be");
    let finding = Finding::new(Severity::Harms, name, evidence);
    Some(finding.remedy(format!("write %{above} instead of %{name} in the input")))
}
