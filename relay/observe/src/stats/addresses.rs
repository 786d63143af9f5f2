//! Addresses of this host, on links of rules, that others there have too. Hosts would hear of each other
//! without being asked (RFC 5227, 2.4), but for those that only answer: so the links are asked again and
//! again.

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

/// Time between two questions.
const INTERVAL_NS: u64 = 5_900_000_000;

/// An address of this host's is another's too.
pub(crate) static CONFLICT: Row<Duplicate> = Row {
    faults: &["another host on the link has an address of the relay's"],
    metrics: &["mcr_address_conflicts"],
    kind: ADDRESS_CONFLICT,
    // One answer may be lost.
    condition: |_| (1, Alarm::above(0).held(3 * INTERVAL_NS)),
    begins: |one| format!("{}: {}", one.told(), one.remedy()),
    remedy: "",
    ends: Some((ADDRESS_CONFLICT_ENDED, |one, _| {
        format!(
            "nobody else on the link has this host's address {} any more",
            one.address
        )
    })),
    stands: None,
};

/// What is known of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    socket: Option<Duplicates>,
    asked_ns: u64,
    links: BTreeSet<Ifindex>,
    alarms: Alarms<IpAddr>,
    known: BTreeMap<IpAddr, Duplicate>,
}

impl Addresses {
    /// Takes in what was heard, and asks if it is time to; returns the events that follow.
    pub(super) fn sample(&self, now_ns: u64, view: &View) -> Vec<Event> {
        let mut inner = self.0.lock();
        let Inner {
            socket,
            asked_ns,
            links,
            alarms,
            known,
        } = &mut *inner;
        if now_ns.saturating_sub(*asked_ns) >= INTERVAL_NS {
            *asked_ns = now_ns;
            *links = links_of(view);
            *socket = socket
                .take()
                .or_else(Duplicates::open)
                .filter(|_| !links.is_empty());
            if let Some(socket) = socket {
                socket.ask(&view.host, links);
            }
        }
        let heard = socket
            .iter()
            .flat_map(|socket| socket.known(&view.host, links));
        let heard: BTreeMap<_, _> = heard.map(|one| (one.address, one)).collect();
        let levels = heard
            .iter()
            .map(|(address, one)| (*address, (CONFLICT.condition)(one)));
        let turns = alarms.sample(now_ns, levels);
        known.extend(heard);
        let events = turns.iter().filter_map(|(address, turn)| {
            let one = known.get(address)?;
            let (kind, what) = CONFLICT.told(one, turn)?;
            Some(Event {
                part: Some(address.to_string()),
                ..event(
                    kind,
                    &one.interface,
                    format!("interface {}: {what}", one.interface),
                )
            })
        });
        let events = events.collect();
        let standing: BTreeSet<IpAddr> = alarms.standing().map(|(address, _)| address).collect();
        known.retain(|address, _| standing.contains(address));
        events
    }

    /// Those that others have too, and what to do.
    pub(super) fn conflicts(&self) -> Vec<String> {
        let inner = self.0.lock();
        let known = inner.known.values();
        let told = known.map(|one| format!("{}: {}", one.interface, (CONFLICT.begins)(one)));
        told.collect()
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
