//! What earlier daemons left forwarding, and instances that take the same stream.

use bpf::other_instances::Neighbour;
use compile::overlap::overlapping;

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
    Some(Finding::new(Severity::Harms, format!("instance {own:?}"), evidence).remedy(format!(
        "mcr --instance {own} run takes them over, mcr --instance {own} stop --leftovers ends them"
    )))
}

/// Streams that two instances take from one interface.
fn contested(snapshot: &Snapshot, one: &Neighbour, other: &Neighbour) -> Option<Finding> {
    let mut shared = overlapping(&one.taken, &other.taken);
    // What is taken whole is told first.
    shared.sort_by_key(|(key, theirs)| (key != theirs, *key));
    let ((key, theirs), more) = shared.split_first()?;
    let part = if key == theirs {
        String::new()
    } else {
        format!(", the other as {theirs}")
    };
    let more = match more.len() {
        0 => String::new(),
        1 => ", and 1 more stream".to_owned(),
        more => format!(", and {more} more streams"),
    };
    let evidence = format!(
        "instances {:?} and {:?} both take {key} here{part}{more}: one of them gets no \
         packets, or receivers get them twice",
        one.instance, other.instance
    );
    let finding = Finding::new(Severity::Harms, name(snapshot, key.ingress.0), evidence);
    Some(finding.remedy("keep each stream in one instance"))
}

/// A program that no pins of this host hold, and nobody looks after.
fn stray(link: &str, program: u32) -> Finding {
    let evidence = format!(
        "program relay ({program}) of an earlier daemon forwards here; its pins are gone or in \
         another bpffs"
    );
    Finding::new(Severity::Harms, link, evidence).remedy("mcr stop --leftovers ends it")
}

fn name(snapshot: &Snapshot, ifindex: u32) -> String {
    let link = snapshot.link_of(ifindex);
    link.map_or_else(|| format!("interface {ifindex}"), |link| link.name.clone())
}
