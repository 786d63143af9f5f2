//! Addresses of this host, on links of rules, that others there have too. Hosts detect conflicts by
//! themselves (RFC 5227, 2.4), except for those that only answer: so the links are probed periodically.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use api::reply::Event;
use host::duplicates::{Duplicate, Duplicates};
use parking_lot::Mutex;
use rules::net::Ifindex;

use crate::alarms::{Alarm, Alarms, Row};
use crate::events::event;
use crate::events::kind::{ADDRESS_CONFLICT, ADDRESS_CONFLICT_ENDED};
use crate::view::View;

/// Time between two probes.
const INTERVAL_NS: u64 = 5_900_000_000;

/// An address of this host that another host has too.
pub(crate) static CONFLICT: Row<Duplicate> = Row {
    faults: &["another host on the link has an address of the relay's"],
    metrics: &["mcr_address_conflicts"],
    kind: ADDRESS_CONFLICT,
    // One answer may be lost.
    condition: |_| (1, Alarm::above(0).held(3 * INTERVAL_NS)),
    begins: |one| format!("{}: {}", one.describe(), one.remedy()),
    remedy: "",
    ends: Some((ADDRESS_CONFLICT_ENDED, |one, _| {
        format!(
            "nobody else on the link has this host's address {} any more",
            one.address
        )
    })),
    stands: None,
};

/// The state of the conflicts.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    socket: Option<Duplicates>,
    probed_ns: u64,
    links: BTreeSet<Ifindex>,
    alarms: Alarms<IpAddr>,
    conflicts: BTreeMap<IpAddr, Duplicate>,
}

impl Addresses {
    /// Records what was received, and probes if that is due; returns the resulting events.
    pub(super) fn sample(&self, now_ns: u64, view: &View) -> Vec<Event> {
        let mut inner = self.0.lock();
        let Inner {
            socket,
            probed_ns,
            links,
            alarms,
            conflicts,
        } = &mut *inner;
        if now_ns.saturating_sub(*probed_ns) >= INTERVAL_NS {
            *probed_ns = now_ns;
            *links = links_of(view);
            *socket = socket
                .take()
                .or_else(Duplicates::open)
                .filter(|_| !links.is_empty());
            if let Some(socket) = socket {
                socket.ask(&view.host, links);
            }
        }
        let received: BTreeMap<_, _> = socket
            .iter()
            .flat_map(|socket| socket.known(&view.host, links))
            .map(|one| (one.address, one))
            .collect();
        let levels = received
            .iter()
            .map(|(address, one)| (*address, (CONFLICT.condition)(one)));
        let edges = alarms.sample(now_ns, levels);
        conflicts.extend(received);
        let mut events = Vec::new();
        for (address, edge) in &edges {
            let conflict = conflicts.get(address);
            let report = conflict.and_then(|one| Some((one, CONFLICT.report(one, edge)?)));
            if let Some((Duplicate { interface, .. }, (kind, what))) = report {
                events.push(Event {
                    part: Some(address.to_string()),
                    ..event(kind, interface, format!("interface {interface}: {what}"))
                });
            }
        }
        let standing: BTreeSet<IpAddr> = alarms.standing().map(|(address, _)| address).collect();
        conflicts.retain(|address, _| standing.contains(address));
        events
    }

    /// The conflicts, each with its remedy.
    pub(super) fn conflicts(&self) -> Vec<String> {
        let inner = self.0.lock();
        let conflicts = inner.conflicts.values();
        conflicts
            .map(|one| format!("{}: {}", one.interface, (CONFLICT.begins)(one)))
            .collect()
    }
}

/// The interfaces of rules.
fn links_of(view: &View) -> BTreeSet<Ifindex> {
    let rules = view.states.values().map(|state| &state.rule);
    let links = rules.flat_map(|rule| {
        let inputs = rule.inputs.iter().flat_map(|input| &input.interfaces);
        inputs
            .copied()
            .chain(rule.outputs.iter().filter_map(|output| output.link))
    });
    links.collect()
}
