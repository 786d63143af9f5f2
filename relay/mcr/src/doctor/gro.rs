//! Receive offloads: one that the kernel path cannot rewrite, one that may help or harm, and both where the
//! userspace path cannot receive the coalesced packets.

use compile::table::Path;
use dataplane::features::Feature::SuperPackets;
use sys::ethtool::{Feature, features};

use super::finding::{Finding, Severity};
use super::repair::Repair;
use super::snapshot::{Link, Snapshot};

const LIST: &str = "rx-gro-list";
const FORWARDING: &str = "rx-udp-gro-forwarding";
const SEGMENTATION: &str = "tx-udp-segmentation";

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let links = snapshot.input_links();
    let findings = links.iter().filter_map(|link| {
        let features = features(&link.name).ok()?;
        let list_finding = list(snapshot, link, &features);
        let stops = list_finding
            .iter()
            .any(|finding| finding.severity == Severity::Stops);
        match lost(snapshot, link, &features) {
            Some(lost) if !stops => Some(lost),
            _ => list_finding.or_else(|| forwarding(snapshot, link, &features)),
        }
    });
    findings.collect()
}

/// The userspace path loses all coalesced packets if packet sockets do not support UDP GSO.
fn lost(snapshot: &Snapshot, link: &Link, features: &[Feature]) -> Option<Finding> {
    if snapshot.features.found(SuperPackets) != Some(false) {
        return None;
    }
    let mut on = vec![LIST, FORWARDING];
    on.retain(|name| is_on(features, name));
    let rule = snapshot
        .userspace_rule_on(link)
        .filter(|_| !on.is_empty())?;
    let name = &link.name;
    let evidence = format!(
        "rule {rule:?}, which runs in user space, loses what is merged here, as {} is on: the packet \
         sockets of this kernel know no UDP GSO, before Linux 6.2",
        on.join(" and "),
    );
    let remedy = format!("ethtool -K {name} {} off", on.join(" off "));
    let finding = Finding::new(Severity::Harms, name, evidence).remedy(remedy);
    Some(finding.repair(Repair::Features {
        interface: name.clone(),
        features: on,
    }))
}

fn is_on(features: &[Feature], name: &str) -> bool {
    features
        .iter()
        .any(|feature| feature.name == name && feature.active)
}

fn list(snapshot: &Snapshot, link: &Link, features: &[Feature]) -> Option<Finding> {
    if !is_on(features, LIST) {
        return None;
    }
    let mut rules = snapshot.compiled.rules.values();
    let stopped = rules.any(|rule| rule.placement.path == Path::Kernel && !rule.placement.serves);
    let (severity, consequence) = if stopped {
        (Severity::Stops, "rules that are to run on it are down")
    } else {
        (Severity::Harms, "rules take the userspace path")
    };
    let name = &link.name;
    let evidence = format!(
        "{LIST} is on: it chains packets of which the kernel path could rewrite the first alone, \
         so {consequence}"
    );
    let remedy = format!("ethtool -K {name} {LIST} off");
    let finding = Finding::new(severity, name, evidence).remedy(remedy);
    Some(finding.repair(Repair::Features {
        interface: name.clone(),
        features: vec![LIST],
    }))
}

/// Coalesced packets pay if outputs can segment them again, and cost if not.
fn forwarding(snapshot: &Snapshot, link: &Link, input: &[Feature]) -> Option<Finding> {
    if !is_on(input, FORWARDING) {
        return None;
    }
    let outputs = snapshot.outputs();
    let cannot = outputs.iter().find(|output| {
        features(&output.link.name).is_ok_and(|features| !is_on(&features, SEGMENTATION))
    })?;
    let name = &link.name;
    let evidence = format!(
        "{FORWARDING} is on, but {} of rule {:?} cannot segment ({SEGMENTATION} is off): the CPU \
         splits what was merged, once for each copy",
        cannot.link.name, cannot.rule.name
    );
    Some(Finding::new(Severity::Note, name, evidence).remedy(format!(
        "measure; ethtool -K {name} {FORWARDING} off if it does not pay"
    )))
}
