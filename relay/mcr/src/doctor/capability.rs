//! Which paths this host can run at all, and what keeps it from the others.

use std::path::Path;

use dataplane::features::Feature;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;

const BPFFS: &str = "/sys/fs/bpf";

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (kernel, userspace) = (&snapshot.support.kernel, &snapshot.support.userspace);
    match (kernel, userspace) {
        (Err(kernel), Err(userspace)) => findings.push(
            Finding::new(
                Severity::Stops,
                "host",
                format!("no path is left: kernel path: {kernel}; userspace path: {userspace}"),
            )
            .remedy("run as root, or with CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON"),
        ),
        (Err(reason), Ok(())) => findings.push(
            Finding::new(
                Severity::Harms,
                "host",
                format!("only the userspace path is left, which is slower: {reason}"),
            )
            .remedy(if bpf::probe::probe().is_ok() {
                "boot a kernel that has what is missing (docs/measurements/kernels.md names some)"
            } else {
                "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
            }),
        ),
        (Ok(()), Err(reason)) => findings.push(
            Finding::new(
                Severity::Harms,
                "host",
                format!("only the kernel path is left, so fragment=yes is not served: {reason}"),
            )
            .remedy("grant CAP_NET_RAW"),
        ),
        (Ok(()), Ok(())) => {}
    }
    findings.extend(features(snapshot));
    findings.extend(bpffs(snapshot));
    findings.extend(unplaced(snapshot));
    findings
}

/// What this kernel has not, where MCR does without; the kernel path itself is told of above.
fn features(snapshot: &Snapshot) -> impl Iterator<Item = Finding> {
    let missing = snapshot.features.missing();
    let missing = missing.filter(|feature| *feature != Feature::BpfLoop);
    missing.map(|feature| {
        let finding = Finding::new(Severity::Note, feature.as_str(), feature.lack());
        finding.remedy("nothing has to be done; a newer kernel has it")
    })
}

/// Without bpffs nothing survives a restart; the daemon mounts it, if it may.
fn bpffs(snapshot: &Snapshot) -> Option<Finding> {
    let mounted = statfs(BPFFS).is_ok_and(|there| there.filesystem_type() == BPF_FS_MAGIC);
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
    let finding = Finding::new(Severity::Note, BPFFS, evidence);
    Some(finding.remedy(format!("mount -t bpf bpf {BPFFS}")))
}

/// Rules that no path serves here, while there are paths.
fn unplaced(snapshot: &Snapshot) -> Vec<Finding> {
    if snapshot.support.kernel.is_err() && snapshot.support.userspace.is_err() {
        return Vec::new();
    }
    let unserved = { snapshot.compiled.rules.values() }.filter(|rule| !rule.placement.serves);
    let finding = |rule: &std::sync::Arc<compile::RuleView>| {
        let evidence = rule.placement.reason.to_string();
        Finding::of_rule(Severity::Stops, &rule.name, evidence)
            .remedy("set path=auto, or leave out the option that the path does not have")
    };
    unserved.map(finding).collect()
}
