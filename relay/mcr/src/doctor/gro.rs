//! Receive offloads: one that corrupts what is rewritten, one that helps or harms; and both where the
//! userspace path cannot receive what they make.

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
        let found = list(snapshot, link, &features);
        let stops = found
            .iter()
            .any(|finding| finding.severity == Severity::Stops);
        match lost(snapshot, link, &features) {
            Some(lost) if !stops => Some(lost),
            _ => found.or_else(|| forwarding(snapshot, link, &features)),
        }
    });
    findings.collect()
}

/// Whatever was merged is lost to the userspace path where packet sockets know no UDP GSO.
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
    let finding = Finding::new(Severity::Harms, name, evidence);
    let finding = finding.remedy(format!("ethtool -K {name} {} off", on.join(" off ")));
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
    let mut placed = snapshot.compiled.rules.values();
    let stopped = placed.any(|rule| rule.placement.path == Path::Kernel && !rule.placement.serves);
    let (severity, so) = if stopped {
        (Severity::Stops, "rules that are to run on it are down")
    } else {
        (Severity::Harms, "rules take the userspace path")
    };
    let name = &link.name;
    let evidence = format!(
        "{LIST} is on: it chains packets of which the kernel path could rewrite the first alone, \
         so {so}"
    );
    let finding = Finding::new(severity, name, evidence);
    let finding = finding.remedy(format!("ethtool -K {name} {LIST} off"));
    Some(finding.repair(Repair::Features {
        interface: name.clone(),
        features: vec![LIST],
    }))
}

/// Merged packets pay where outputs can segment them again, and cost where they cannot.
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
