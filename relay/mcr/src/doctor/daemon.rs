//! What the running daemon itself knows to be wrong: joins that failed, outputs that are down.

use api::reply::{EgressStats, OutputStats, RuleStats, State};
use packet::verdict::DropReason;

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;
use crate::render::number;

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let Some(stats) = &snapshot.rules.stats else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let enabled = stats
        .rules
        .iter()
        .filter(|rule| rule.state != State::Disabled);
    for rule in enabled {
        let seen = snapshot
            .compiled
            .rules
            .values()
            .find(|r| r.name == rule.name);
        // What is wrong with interfaces and routes is the interface check's to say.
        let pending = |at: &str| {
            let input = seen.and_then(|seen| seen.inputs.iter().find(|input| input.at == at));
            input.is_some_and(|input| input.pending.is_some())
        };
        let down = |to: &str| {
            let output = seen.and_then(|seen| seen.outputs.iter().find(|output| output.to == to));
            output.is_some_and(|output| output.down.is_some())
        };
        for input in rule.inputs.iter().filter(|input| !input.joined) {
            if !pending(&input.at) {
                findings.push(not_joined(rule, &input.at, input.reason.as_deref()));
            }
        }
        for output in rule.outputs.iter() {
            if output.state == State::Down && !down(&output.to) {
                findings.push(output_down(rule, output));
            }
        }
        findings.extend(losses(rule));
    }
    let behind = stats.egress.iter().filter(|egress| egress.any());
    findings.extend(behind.map(lost_behind));
    findings
}

/// Others than rules may have sent it, and long ago.
fn lost_behind(egress: &EgressStats) -> Finding {
    let name = &egress.interface;
    let counted = number::all(EgressStats::COUNTERS, egress);
    let evidence = format!("{counted} since it is there, of all that was handed to it");
    let finding = Finding::new(Severity::Note, name, evidence);
    finding.remedy(format!(
        "where that grows, look at tc -s qdisc show dev {name} and ip -s -s link show {name}"
    ))
}

fn subject(rule: &RuleStats) -> String {
    format!("rule {:?}", rule.name)
}

fn not_joined(rule: &RuleStats, at: &str, reason: Option<&str>) -> Finding {
    let reason = reason.unwrap_or("no reason given");
    let evidence = format!("input {at} is not joined: {reason}");
    Finding::new(Severity::Stops, subject(rule), evidence)
        .remedy("ip maddress show lists what is joined; the daemon's log has the kernel's answer")
}

fn output_down(rule: &RuleStats, output: &OutputStats) -> Finding {
    let reason = output.reason.as_deref().unwrap_or("no reason given");
    let evidence = format!("output {} is down: {reason}", output.to);
    Finding::new(Severity::Stops, subject(rule), evidence)
        .remedy("it goes on by itself once that is mended")
}

/// Reasons of drops that something else than the rules is to blame for.
const FAULTS: [DropReason; 4] = [
    DropReason::Malformed,
    DropReason::OwnSource,
    DropReason::TooBig,
    DropReason::EgressFull,
];

fn losses(rule: &RuleStats) -> Vec<Finding> {
    let mut findings = Vec::new();
    for reason in FAULTS {
        let own = rule.dropped.get(reason.as_str()).copied().unwrap_or(0);
        let of_outputs = rule.outputs.iter();
        let of_outputs = of_outputs.filter_map(|output| output.dropped.get(reason.as_str()));
        let count = own + of_outputs.sum::<u64>();
        if count > 0 {
            let were = if count == 1 { "was" } else { "were" };
            let packets = number::things(count, "packet");
            let evidence = format!("{packets} {were} dropped as {reason} since it was added");
            let finding = Finding::new(Severity::Harms, subject(rule), evidence);
            findings.push(finding.remedy(reason.remedy()));
        }
    }
    findings
}
