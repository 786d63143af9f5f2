//! Local sockets that wait for a stream which is consumed, or for a copy that only leaves.

use std::net::IpAddr;

use model::net::{Ports, Prefix};
use model::rule::Rule;
use model::table::LocalDelivery;

use super::finding::{Finding, Severity};
use super::snapshot::{Snapshot, UdpSocket};

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in &snapshot.rules.set {
        findings.extend(deaf(snapshot, rule));
        findings.extend(waiting_for_copies(snapshot, rule));
    }
    findings
}

/// With `local=no` nothing is passed up.
fn deaf(snapshot: &Snapshot, rule: &Rule) -> Vec<Finding> {
    if rule.local != LocalDelivery::No {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for input in &rule.inputs {
        for socket in listeners(snapshot, input.destination, input.ports) {
            let evidence = format!(
                "local=no, but {} on this host waits for input {input}: it hears nothing any more",
                owner(socket)
            );
            let subject = format!("rule {:?}", rule.name);
            let finding = Finding::new(Severity::Harms, subject, evidence);
            findings
                .push(finding.remedy("set local=auto: a socket bound to the port gets its copy"));
        }
    }
    findings
}

/// Copies go to the device; unlike those of a local sender they are not looped back.
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
                owner(socket)
            );
            let subject = format!("rule {:?}", rule.name);
            let finding = Finding::new(Severity::Harms, subject, evidence);
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
    let hears = move |address: IpAddr| {
        let any = address.is_unspecified() && (address.is_ipv6() || groups.address.is_ipv4());
        any || groups.contains(address)
    };
    let sockets = snapshot.sockets.iter();
    sockets.filter(move |socket| {
        (ports.first..=ports.last).contains(&socket.port) && hears(socket.address)
    })
}

fn owner(socket: &UdpSocket) -> String {
    let at = std::net::SocketAddr::new(socket.address, socket.port);
    match &socket.owner {
        Some(owner) => format!("{owner}, socket {at},"),
        None => format!("socket {at}"),
    }
}
