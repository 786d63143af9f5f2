//! What the running daemon itself reports as wrong: joins that failed, outputs that are down.

use api::reply::{EgressStats, InputStats, OutputStats, RuleStats, State, Status};
use nix::sys::statvfs::statvfs;
use packet::verdict::DropReason;

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;
use crate::render::number;

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let Some(stats) = &snapshot.rules.stats else {
        return Vec::new();
    };
    let status = snapshot.rules.status.iter();
    let mut findings: Vec<Finding> = status.clone().filter_map(trouble).collect();
    findings.extend(status.flat_map(full));
    let rules = stats.rules.iter();
    for rule in rules.filter(|rule| rule.state != State::Disabled) {
        let mut views = snapshot.compiled.rules.values();
        let view = views.find(|view| view.name == rule.name);
        if rule.state == State::Down && rule.state_reason.as_ref() == Some(&rule.path_reason) {
            // The capability check reports what the rule itself asks for.
            let is_new = view.is_none_or(|view| view.placement.serves);
            findings.extend(is_new.then(|| refused(rule)));
            continue;
        }
        // The interface check reports what is wrong with interfaces and routes.
        let is_pending = |at: &str| {
            let input = view.and_then(|view| view.inputs.iter().find(|input| input.at == at));
            input.is_some_and(|input| input.pending.is_some())
        };
        let is_down = |to: &str| {
            let output = view.and_then(|view| view.outputs.iter().find(|output| output.to == to));
            output.is_some_and(|output| output.down.is_some())
        };
        let inputs = rule.inputs.iter();
        let unjoined = inputs.filter(|input| !input.joined && !is_pending(&input.at));
        findings.extend(unjoined.map(|input| not_joined(rule, input)));
        let outputs = rule.outputs.iter();
        let down = outputs.filter(|output| output.state == State::Down && !is_down(&output.to));
        findings.extend(down.map(|output| output_down(rule, output)));
        findings.extend(losses(rule));
        findings.extend(stream(rule));
    }
    let lossy = stats.egress.iter().filter(|egress| egress.any());
    findings.extend(lossy.map(lost_behind));
    findings
}

/// What is wrong with the daemon itself, and the remedy. The duplicate check reports address conflicts.
fn trouble(status: &Status) -> Option<Finding> {
    let reason = status.state_reason.as_ref();
    let own = reason.filter(|reason| !status.address_conflicts.contains(reason))?;
    let (what, advice) = own.rsplit_once("; ").unwrap_or((own, ""));
    let remedy = match advice {
        "" => "mcr events says since when",
        advice => advice,
    };
    Some(Finding::new(Severity::Harms, "daemon", what).remedy(remedy))
}

/// State directories that have no room left for a change of rules.
fn full(status: &Status) -> impl Iterator<Item = Finding> {
    let paths = ["/run/mcr", "/var/lib/mcr"].map(|path| format!("{path}/{}", status.instance));
    let is_full = |path: &String| {
        let stat = statvfs(path.as_str());
        stat.is_ok_and(|stat| stat.blocks() > 0 && stat.blocks_available() == 0)
    };
    paths.into_iter().filter(is_full).map(|path| {
        let evidence =
            "there is no room left: changes of rules are refused, or a crash undoes them";
        Finding::new(Severity::Harms, path, evidence.to_owned()).remedy("make room there")
    })
}

/// What is wrong with the stream of a rule that monitors it, or with the legs of one that has several.
fn stream(rule: &RuleStats) -> Option<Finding> {
    let unwell = rule
        .health
        .as_ref()
        .filter(|health| health.state != State::Up);
    let reason = unwell.and_then(|health| health.reason.as_ref());
    let legs = rule.inputs.iter().filter_map(|input| {
        let trouble = input.trouble.as_ref()?;
        Some(format!("input {} {trouble}", input.at))
    });
    let troubles: Vec<String> = reason
        .map(|reason| format!("its stream: {reason}"))
        .into_iter()
        .chain(legs)
        .collect();
    let finding = Finding::of_rule(Severity::Harms, &rule.name, troubles.join("; "));
    (!troubles.is_empty()).then(|| {
        finding.remedy("it is so before the relay: look at the sender and the network from it")
    })
}

/// Only a note: the packets may not be MCR's, and may have been lost long ago.
fn lost_behind(egress: &EgressStats) -> Finding {
    let name = &egress.interface;
    let counted = number::all(EgressStats::COUNTERS, egress);
    let evidence = format!("{counted} since it is there, of all that was handed to it");
    Finding::new(Severity::Note, name, evidence).remedy(format!(
        "where that grows, look at tc -s qdisc show dev {name} and ip -s -s link show {name}"
    ))
}

/// A rule that no path takes: nothing of it is joined or sent.
fn refused(rule: &RuleStats) -> Finding {
    let evidence = format!("no path takes it: {}", rule.path_reason);
    Finding::of_rule(Severity::Stops, &rule.name, evidence).remedy(
        "start the daemon without what forces the path, or leave out what that path does not have",
    )
}

fn not_joined(rule: &RuleStats, input: &InputStats) -> Finding {
    let known = input.reason.as_ref().or(rule.state_reason.as_ref());
    let reason = known.map_or("no reason given", String::as_str);
    let evidence = format!("input {} is not joined: {reason}", input.at);
    Finding::of_rule(Severity::Stops, &rule.name, evidence)
        .remedy("ip maddress show lists what is joined; the daemon's log has the kernel's answer")
}

fn output_down(rule: &RuleStats, output: &OutputStats) -> Finding {
    let reason = output.reason.as_deref().unwrap_or("no reason given");
    let evidence = format!("output {} is down: {reason}", output.to);
    let remedy = match output
        .interface
        .as_deref()
        .filter(|_| reason.contains("answer"))
    {
        Some(interface) => format!(
            "the receiver or the gateway to it is away: ip neighbour show dev {interface}; the output goes \
             on by itself once it is back"
        ),
        None => "it goes on by itself once that is mended".to_owned(),
    };
    Finding::of_rule(Severity::Stops, &rule.name, evidence).remedy(remedy)
}

fn losses(rule: &RuleStats) -> Vec<Finding> {
    let mut findings = Vec::new();
    for reason in DropReason::ALL.into_iter().filter(|one| one.is_fault()) {
        let own = rule.dropped.get(reason.as_str()).copied().unwrap_or(0);
        let of_outputs = rule.outputs.iter().filter_map(|output| {
            let dropped = output.dropped.get(reason.as_str())?;
            (*dropped > 0).then_some((output.interface.as_deref(), dropped))
        });
        let count = own + of_outputs.clone().map(|(_, dropped)| dropped).sum::<u64>();
        let worst = of_outputs.max_by_key(|(_, dropped)| *dropped);
        if count > 0 {
            let link = worst.and_then(|(link, _)| link).unwrap_or("IFACE");
            let were = if count == 1 { "was" } else { "were" };
            let packets = number::things(count, "packet");
            let evidence = format!("{packets} {were} dropped as {reason} since it was added");
            let finding = Finding::of_rule(Severity::Harms, &rule.name, evidence);
            findings.push(finding.remedy(reason.remedy().replace("IFACE", link)));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_drop_reason_that_is_a_fault_is_told() {
        for reason in DropReason::ALL {
            let rule: RuleStats = serde_json::from_value(json!({
                "name": "a", "state": "up", "path": "userspace", "path_reason": "",
                "inputs": [], "received": { "packets": 9, "bytes": 9 }, "dropped": {},
                "outputs": [{
                    "to": "239.1.1.1%veth2:6001", "state": "up", "interface": "veth2",
                    "sent": { "packets": 0, "bytes": 0 }, "dropped": { reason.as_str(): 9 },
                }],
            }))
            .unwrap();
            let told = losses(&rule);
            assert_eq!(told.len(), usize::from(reason.is_fault()), "{reason}");
        }
    }
}
