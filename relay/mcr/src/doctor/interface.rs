//! Interfaces and routes that rules need: present, up, with carrier and an address.

use api::reply::State;
use compile::RuleView;

use super::finding::{Finding, Severity};
use super::snapshot::{Link, Snapshot};

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings: Vec<Finding> = snapshot
        .compiled
        .rules
        .values()
        .flat_map(|rule| troubles(snapshot, rule))
        .collect();
    let set = &snapshot.rules.set;
    let mut warnings = rules::mixed::mixed(set.iter(), set.iter());
    warnings.extend(rules::payload::spoilt(set.iter()));
    findings.extend(warnings.into_iter().map(|text| {
        let (subject, evidence) = text.split_once(": ").unwrap_or(("rules", &text));
        Finding::new(Severity::Harms, subject, evidence.to_owned())
    }));
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

const LINKS: &str = "the rule goes on by itself once that is mended; ip -br link, ip -br address";
const NAMES: &str = "the rule goes on by itself once the name is found (getent ahosts NAME, /etc/resolv.conf); \
                     or write an address";

fn troubles(snapshot: &Snapshot, rule: &RuleView) -> Vec<Finding> {
    let subject = || format!("rule {:?}", rule.name);
    let inputs = rule.inputs.iter().filter_map(|input| {
        let pending = input.pending.as_ref()?;
        let evidence = format!("input {}: {pending}", input.at);
        Some(Finding::new(Severity::Stops, subject(), evidence).remedy(LINKS))
    });
    let outputs = rule.outputs.iter().filter_map(|output| {
        let down = output.down.as_ref()?;
        let stats = snapshot.rules.stats_of(&rule.name);
        let mut sending = stats.iter().flat_map(|stats| &stats.outputs);
        // If a name cannot be resolved, the daemon goes on with the previous address.
        let running = sending.find(|sent| sent.to == output.to && sent.state == State::Up);
        let previous_address = running.and_then(|sent| sent.address.as_ref());
        let (severity, goes_on) = match previous_address {
            Some(address) => (Severity::Harms, format!("; {address} stays in use")),
            None => (Severity::Stops, String::new()),
        };
        let evidence = format!("output {}: {}{goes_on}", output.to, down.text);
        let remedy = if evidence.contains("looked up") {
            NAMES
        } else {
            LINKS
        };
        Some(Finding::new(severity, subject(), evidence).remedy(remedy))
    });
    let sinks = rule.outputs.iter().filter_map(|output| {
        let evidence = sink(snapshot.link_of(output.link?.0)?)?;
        let evidence = format!("output {}: {evidence}", output.to);
        Some(Finding::new(Severity::Note, subject(), evidence))
    });
    inputs.chain(outputs).chain(sinks).collect()
}

/// A dummy interface discards everything and counts it as sent. Only a note: it may be meant for captures.
fn sink(link: &Link) -> Option<String> {
    let text = || {
        format!(
            "{} is a dummy: what is sent there reaches nobody but captures on it",
            link.name
        )
    };
    (link.kind == "dummy").then(text)
}

/// A port of a bridge or bond has no IP of its own: its joins reach nobody.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dummy_interface_is_reported() {
        let of = |kind: &str| {
            sink(&Link {
                name: "d0".to_owned(),
                kind: kind.to_owned(),
                ..Link::default()
            })
        };
        assert!(of("dummy").is_some_and(|text| text.starts_with("d0 is a dummy")));
        assert_eq!(of("veth"), None);
    }
}
