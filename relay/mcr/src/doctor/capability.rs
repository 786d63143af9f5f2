//! Which paths this host can run, and what keeps it from running the others.

use std::path::Path;

use bpf::pin::BPFFS;
use dataplane::features::Feature;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;

const KERNEL: &str =
    "boot a kernel that has what is missing (docs/measurements/kernels.md names some)";

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings: Vec<Finding> = paths(snapshot).into_iter().collect();
    findings.extend(features(snapshot));
    findings.extend(bpffs(snapshot));
    findings.extend(unplaced(snapshot));
    findings
}

/// What keeps MCR from using one or both paths.
fn paths(snapshot: &Snapshot) -> Option<Finding> {
    let (severity, evidence, remedy) = match (&snapshot.support.kernel, &snapshot.support.userspace)
    {
        (Ok(()), Ok(())) => return None,
        (Err(kernel), Err(userspace)) => (
            Severity::Stops,
            format!("no path is left: kernel path: {kernel}; userspace path: {userspace}"),
            "run as root, or with CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON",
        ),
        (Err(reason), Ok(())) => (
            Severity::Harms,
            format!("only the userspace path is left, which is slower: {reason}"),
            if bpf::probe::probe().is_ok() {
                KERNEL
            } else {
                "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
            },
        ),
        (Ok(()), Err(reason)) => (
            Severity::Harms,
            format!("only the kernel path is left, so fragment=yes is not served: {reason}"),
            "grant CAP_NET_RAW",
        ),
    };
    Some(Finding::new(severity, "host", evidence).remedy(remedy))
}

/// Features that this kernel lacks and MCR does without. [`paths`] covers the kernel path itself.
fn features(snapshot: &Snapshot) -> impl Iterator<Item = Finding> {
    let missing = snapshot.features.missing();
    let optional = missing.filter(|feature| *feature != Feature::BpfLoop);
    optional.map(|feature| {
        let finding = Finding::new(Severity::Note, feature.as_str(), feature.lack());
        finding.remedy("nothing has to be done; a newer kernel has it")
    })
}

/// Without bpffs nothing survives a restart. The daemon mounts it if it may.
fn bpffs(snapshot: &Snapshot) -> Option<Finding> {
    let mounted = statfs(BPFFS).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC);
    if mounted || snapshot.support.kernel.is_err() {
        return None;
    }
    let evidence = if Path::new(BPFFS).exists() {
        format!("no bpffs is mounted at {BPFFS}; mcr run mounts it when it starts")
    } else {
        format!(
            "{BPFFS} does not exist, so nothing can be pinned: the kernel lacks CONFIG_BPF_SYSCALL, or /sys is hidden"
        )
    };
    Some(Finding::new(Severity::Note, BPFFS, evidence).remedy(format!("mount -t bpf bpf {BPFFS}")))
}

/// Rules that no available path serves.
fn unplaced(snapshot: &Snapshot) -> Vec<Finding> {
    if snapshot.support.kernel.is_err() && snapshot.support.userspace.is_err() {
        return Vec::new();
    }
    let rules = snapshot.compiled.rules.values();
    let unserved = rules.filter(|rule| !rule.placement.serves);
    let findings = unserved.map(|rule| {
        let evidence = rule.placement.reason.to_string();
        Finding::of_rule(Severity::Stops, &rule.name, evidence)
            .remedy("set path=auto, or leave out the option that the path does not have")
    });
    findings.collect()
}
