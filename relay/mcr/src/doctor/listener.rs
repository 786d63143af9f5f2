//! Local sockets that wait for a stream which is consumed or for a copy that only leaves the host, and others
//! on this host that take what rules take.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use compile::RuleView;
use compile::table::LocalDelivery;
use rules::net::{Ports, Prefix};
use rules::rule::Rule;

use super::finding::{Finding, Severity};
use super::snapshot::{Snapshot, UdpSocket};

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in &snapshot.rules.set {
        findings.extend(starved(snapshot, rule));
        findings.extend(waiting_for_copies(snapshot, rule));
    }
    for view in snapshot.compiled.rules.values() {
        if let Some(rule) = snapshot.rules.set.get(&view.name) {
            findings.extend(shared(rule, view));
            findings.extend(bound(snapshot, rule, view));
        }
    }
    findings
}

/// Programs that have bound a port of this host that an input takes. They started after the rule, which would
/// otherwise have been refused.
fn bound(snapshot: &Snapshot, rule: &Rule, view: &RuleView) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (input, view) in rule.inputs.iter().zip(&view.inputs) {
        let own: BTreeSet<IpAddr> = view.addresses.iter().map(|(_, address)| *address).collect();
        let mut sockets = BTreeMap::new();
        for address in own {
            for socket in listeners(snapshot, Prefix::host(address), input.ports) {
                sockets
                    .entry((socket.address, socket.port))
                    .or_insert(socket);
            }
        }
        for socket in sockets.into_values() {
            let owner = socket.describe();
            let what = match rule.local {
                LocalDelivery::No => "waits for the same packets: it hears nothing any more",
                _ => "has its port too: both get each packet",
            };
            let (severity, remedy) = match rule.local {
                LocalDelivery::Yes => (Severity::Note, "nothing: local=yes says so"),
                _ => (
                    Severity::Harms,
                    "stop that program or choose another port; set local=yes if both are meant",
                ),
            };
            let evidence = format!("input {input}: {owner}, {what}");
            findings.push(Finding::of_rule(severity, &rule.name, evidence).remedy(remedy));
        }
    }
    findings
}

/// A bridge, a macvlan or the kernel's multicast routing also takes the original.
fn shared(rule: &Rule, view: &RuleView) -> Vec<Finding> {
    let mut findings = Vec::new();
    for input in &view.inputs {
        for (_, takers) in &input.shared {
            let at = &input.at;
            let (severity, evidence, remedy) = match rule.local {
                LocalDelivery::No => (
                    Severity::Harms,
                    format!(
                        "local=no, but {takers} takes the packets of input {at} too: nothing reaches it any more"
                    ),
                    "set local=auto: the original goes on to whoever else takes it",
                ),
                LocalDelivery::Auto | LocalDelivery::Yes => (
                    Severity::Note,
                    format!(
                        "{takers} takes the packets of input {at} too, so each original goes on to it"
                    ),
                    "set local=no if only the rule is to have them",
                ),
            };
            findings.push(Finding::of_rule(severity, &rule.name, evidence).remedy(remedy));
        }
    }
    findings
}

/// Sockets that receive nothing any more: `local=no` passes nothing up.
fn starved(snapshot: &Snapshot, rule: &Rule) -> Vec<Finding> {
    if rule.local != LocalDelivery::No {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for input in rule.inputs.iter().filter(|input| input.is_multicast()) {
        for socket in listeners(snapshot, input.destination, input.ports) {
            let evidence = format!(
                "local=no, but {} on this host waits for input {input}: it hears nothing any more",
                socket.describe()
            );
            let finding = Finding::of_rule(Severity::Harms, &rule.name, evidence);
            findings
                .push(finding.remedy("set local=auto: a socket bound to the port gets its copy"));
        }
    }
    findings
}

/// Sockets that wait for copies. Those go to the device and are not looped back, unlike a local sender's.
fn waiting_for_copies(snapshot: &Snapshot, rule: &Rule) -> Vec<Finding> {
    let mut findings = Vec::new();
    for output in rule
        .outputs
        .iter()
        .filter(|output| output.to.is_multicast())
    {
        let to = &output.to;
        let sockets = listeners(snapshot, to.destination, to.ports);
        for socket in sockets.filter(|socket| !socket.address.is_unspecified()) {
            let evidence = format!(
                "{} on this host waits for output {to}: copies leave the host and are not looped back",
                socket.describe()
            );
            let finding = Finding::of_rule(Severity::Harms, &rule.name, evidence);
            findings.push(finding.remedy(
                "have it listen to the input's group, or run it on another host or namespace",
            ));
        }
    }
    findings
}

fn listeners(
    snapshot: &Snapshot,
    groups: Prefix,
    ports: Ports,
) -> impl Iterator<Item = &UdpSocket> {
    let receives = move |address: IpAddr| {
        let any = address.is_unspecified() && (address.is_ipv6() || groups.address.is_ipv4());
        any || groups.contains(address)
    };
    let sockets = snapshot.sockets.iter();
    sockets.filter(move |socket| {
        (ports.first..=ports.last).contains(&socket.port) && receives(socket.address)
    })
}
