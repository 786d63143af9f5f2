//! Limits that are often blamed for lost multicast, and the one that matters: the backlog behind veth.

use host::backlog::Need;

use super::finding::{Finding, Severity};
use super::repair::Repair;
use super::snapshot::Snapshot;

/// The kernel's default of net.core.netdev_max_backlog.
const BACKLOG: u64 = 1000;

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let findings = [memberships(snapshot), backlog(snapshot), io_uring(snapshot)];
    findings.into_iter().flatten().collect()
}

fn memberships(snapshot: &Snapshot) -> Option<Finding> {
    let inputs = snapshot
        .compiled
        .rules
        .values()
        .flat_map(|rule| &rule.inputs);
    let joins = inputs.flat_map(|input| &input.joins);
    let groups: u64 = joins
        .map(|join| 1_u64 << join.groups.host_bits().min(32))
        .sum();
    let limit = snapshot.number("net/ipv4/igmp_max_memberships")?;
    if groups <= limit {
        return None;
    }
    let evidence = format!(
        "{groups} groups, and net.ipv4.igmp_max_memberships = {limit} per socket: MCR spreads them \
         over sockets; nor does it need rmem_max or wmem_max"
    );
    Some(Finding::new(Severity::Note, "host", evidence).remedy("leave them as they are"))
}

/// A copy that leaves through a virtual link waits in the receiving CPU's backlog. The daemon raises the
/// limit if it may; this reports a limit that it does not raise.
fn backlog(snapshot: &Snapshot) -> Option<Finding> {
    let need = Need::of(&snapshot.compiled.table, &snapshot.host)?;
    // It applies to all network namespaces, but only the first one shows it.
    let shown = snapshot.number("net/core/netdev_max_backlog");
    let limit = shown.unwrap_or(BACKLOG);
    let value = need.beyond(limit)?;
    let (severity, state) = match shown {
        Some(_) => (Severity::Harms, format!("= {limit}")),
        None => (
            Severity::Note,
            format!("is not shown in a namespace ({limit} by default)"),
        ),
    };
    let evidence = format!(
        "net.core.netdev_max_backlog {state}, and {} outputs of rule {:?} make up to {} copies of one \
         poll: behind {} the rest is lost, and what comes while the receiving CPU does something else",
        need.copies,
        need.rule,
        need.burst(),
        need.interface,
    );
    let on_the_host = if shown.is_none() { ", on the host" } else { "" };
    let remedy = format!("sysctl -w net.core.netdev_max_backlog={value}{on_the_host}");
    let finding = Finding::new(severity, "host", evidence).remedy(remedy);
    Some(match shown {
        Some(_) => finding.repair(Repair::Setting {
            file: snapshot.setting_file("net/core/netdev_max_backlog"),
            value: value.to_string(),
        }),
        None => finding,
    })
}

fn io_uring(snapshot: &Snapshot) -> Option<Finding> {
    let disabled = snapshot.number("kernel/io_uring_disabled")?;
    if disabled < 2 {
        return None;
    }
    let evidence = "kernel.io_uring_disabled = 2: workers of the userspace path cannot start";
    let finding = Finding::new(Severity::Harms, "host", evidence);
    Some(finding.remedy("sysctl -w kernel.io_uring_disabled=0, or use the kernel path alone"))
}
