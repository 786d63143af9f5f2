//! Snooping bridges without a querier. A snooping switch forgets members that nobody asks for: the stream
//! starts and stops some minutes later. Linux's own bridge floods instead (`br_multicast_querier_exists()`
//! in net/bridge), which loads every port.

use super::finding::{Finding, Severity};
use super::repair::Repair;
use super::snapshot::{Link, Snapshot};

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    snapshot.links.iter().filter_map(bridge).collect()
}

fn bridge(link: &Link) -> Option<Finding> {
    let bridge = link.bridge.as_ref()?;
    if !bridge.snoops || bridge.asks || bridge.hears != (None, None) || !link.up {
        return None;
    }
    let name = &link.name;
    let evidence = "it snoops IGMP, asks for no members itself and hears no other querier: this \
                    bridge floods every group to every port, and switches beyond it drop each \
                    stream some 4 minutes after its join";
    let remedy = format!("one querier per network: ip link set {name} type bridge mcast_querier 1");
    let finding = Finding::new(Severity::Harms, format!("bridge {name}"), evidence).remedy(remedy);
    Some(finding.repair(Repair::Querier {
        bridge: name.clone(),
        index: link.index,
    }))
}
