//! Programs of earlier daemons that still forward, and instances that take the same stream.

use bpf::other_instances::Neighbour;
use compile::overlap::overlapping;

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for instance in &snapshot.instances {
        findings.extend(without_daemon(snapshot, instance));
    }
    for (index, one) in snapshot.instances.iter().enumerate() {
        for other in &snapshot.instances[index + 1..] {
            findings.extend(contested(snapshot, one, other));
        }
    }
    for (program, ifindex) in &snapshot.orphans {
        findings.push(orphan(&name(snapshot, *ifindex), *program));
    }
    findings
}

/// Programs that forward without a daemon.
fn without_daemon(snapshot: &Snapshot, instance: &Neighbour) -> Option<Finding> {
    if instance.owner.is_some() {
        return None;
    }
    let own = &instance.instance;
    let interfaces = instance.interfaces.iter();
    let names: Vec<String> = interfaces.map(|ifindex| name(snapshot, *ifindex)).collect();
    let evidence = format!(
        "an earlier daemon's programs forward at {}, and no daemon runs",
        names.join(", ")
    );
    Some(Finding::new(Severity::Harms, format!("instance {own:?}"), evidence).remedy(format!(
        "mcr --instance {own} run takes them over, mcr --instance {own} stop --leftovers ends them"
    )))
}

/// Streams that two instances take from one interface.
fn contested(snapshot: &Snapshot, one: &Neighbour, other: &Neighbour) -> Option<Finding> {
    let mut shared = overlapping(&one.taken, &other.taken);
    // Streams that both take whole come first.
    shared.sort_by_key(|(key, theirs)| (key != theirs, *key));
    let ((key, theirs), further) = shared.split_first()?;
    let part = if key == theirs {
        String::new()
    } else {
        format!(", the other as {theirs}")
    };
    let more = match further.len() {
        0 => String::new(),
        1 => ", and 1 more stream".to_owned(),
        count => format!(", and {count} more streams"),
    };
    let evidence = format!(
        "instances {:?} and {:?} both take {key} here{part}{more}: one of them gets no \
         packets, or receivers get them twice",
        one.instance, other.instance
    );
    let finding = Finding::new(Severity::Harms, name(snapshot, key.ingress.0), evidence);
    Some(finding.remedy("keep each stream in one instance"))
}

/// A program without a daemon that no pins of this host hold.
fn orphan(link: &str, program: u32) -> Finding {
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
