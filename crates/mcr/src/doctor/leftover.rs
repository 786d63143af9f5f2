//! What earlier daemons left forwarding, and instances that take the same stream.

use std::collections::HashSet;
use std::net::IpAddr;

use bpf::layout::{RouteKey, RouteKey6};
use bpf::neighbour::Neighbour;

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for instance in &snapshot.instances {
        findings.extend(left(snapshot, instance));
    }
    for (place, one) in snapshot.instances.iter().enumerate() {
        for other in &snapshot.instances[place + 1..] {
            findings.extend(contested(snapshot, one, other));
        }
    }
    for (program, ifindex) in &snapshot.strays {
        findings.push(stray(&name(snapshot, *ifindex), *program));
    }
    findings
}

/// Programs that forward without a daemon.
fn left(snapshot: &Snapshot, instance: &Neighbour) -> Option<Finding> {
    if instance.owner.is_some() {
        return None;
    }
    let own = &instance.instance;
    let at = instance.interfaces.iter();
    let at: Vec<String> = at.map(|ifindex| name(snapshot, *ifindex)).collect();
    let evidence = format!(
        "an earlier daemon's programs forward at {}, and no daemon runs",
        at.join(", ")
    );
    let finding = Finding::new(Severity::Harms, format!("instance {own:?}"), evidence);
    Some(finding.remedy(format!(
        "mcr --instance {own} run takes them over, mcr --instance {own} stop --leftovers ends them"
    )))
}

/// Streams that two instances take from one interface.
fn contested(snapshot: &Snapshot, one: &Neighbour, other: &Neighbour) -> Option<Finding> {
    let (taken, taken6): (HashSet<_>, HashSet<_>) = (
        other.routes.iter().collect(),
        other.routes6.iter().collect(),
    );
    let shared = one.routes.iter().filter(|key| taken.contains(key));
    let shared6 = one.routes6.iter().filter(|key| taken6.contains(key));
    let mut streams = shared.map(of_v4).chain(shared6.map(of_v6));
    let (ifindex, group, port) = streams.next()?;
    let more = match streams.count() {
        0 => String::new(),
        more => format!(", and {more} more streams"),
    };
    let evidence = format!(
        "instances {:?} and {:?} both take group {group} port {port} here{more}: one of them gets no \
         packets, or receivers get them twice",
        one.instance, other.instance
    );
    let finding = Finding::new(Severity::Harms, name(snapshot, ifindex), evidence);
    Some(finding.remedy("keep each stream in one instance"))
}

fn of_v4(key: &RouteKey) -> (u32, IpAddr, u16) {
    (key.ifindex, key.group.into(), u16::from_be_bytes(key.port))
}

fn of_v6(key: &RouteKey6) -> (u32, IpAddr, u16) {
    (key.ifindex, key.group.into(), u16::from_be_bytes(key.port))
}

/// A program that no pins of this host hold, and nobody looks after.
fn stray(link: &str, program: u32) -> Finding {
    let evidence = format!(
        "program relay ({program}) of an earlier daemon forwards here; its pins are gone or in \
         another bpffs"
    );
    let finding = Finding::new(Severity::Harms, link, evidence);
    finding.remedy("mcr stop --leftovers ends it")
}

fn name(snapshot: &Snapshot, ifindex: u32) -> String {
    let link = snapshot.link_of(ifindex);
    link.map_or_else(|| format!("interface {ifindex}"), |link| link.name.clone())
}
