//! From rules and a snapshot of the host to the forwarding table, and to what can be said about each
//! rule.
//!
//! A rule whose input interface is missing has no routes and waits; an output that cannot send is
//! down in its routes, and neither disturbs anything else. Pure: no I/O, no clock, no unsafe.
//!
//! [`compile()`] takes rules and a [`host::Host`] to the [`table`] that both paths execute, and
//! [`diff::TableDiff`] is all that goes down to them.
//!
//! ```
//! use compile::compile;
//! use config::{Config, ConfigFile};
//! use compile::host::Host;
//! use compile::placement::{PathChoice, Support};
//! use rules::ruleset::Policy;
//!
//! let file = ConfigFile {
//!     name: "mcr.toml".to_owned(),
//!     text: r#"
//!         version = 1
//!         [[rule]]
//!         name = "cam1"
//!         input = "239.1.1.1%eth0:5001"
//!         outputs = ["239.10.1.1%eth1:6001,ttl=16"]
//!     "#
//!     .to_owned(),
//! };
//! let config = Config::load(&[file], Policy::default())?;
//! let support = Support {
//!     kernel: Ok(()),
//!     userspace: Ok(()),
//! };
//! let choices = config.settings.path_choices(PathChoice::Auto);
//! // On a host without interfaces the rule waits for its own.
//! let compiled = compile(&config.rules, &Host::default(), &support, &choices);
//! assert!(compiled.table.routes.is_empty());
//! assert_eq!(
//!     compiled.rules.values().next().unwrap().troubles()[0],
//!     "rule \"cam1\": input 239.1.1.1%eth0:5001: no interface eth0 (there is none but lo); waits for it"
//! );
//! # Ok::<(), config::ConfigErrors>(())
//! ```

mod address;
pub mod budget;
mod demand;
pub mod diff;
mod egress;
pub mod hook;
pub mod host;
mod inputs;
pub mod ipsec;
mod keys;
mod links;
pub mod overlap;
pub mod placement;
pub mod table;
mod tunnel;
mod used;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use rules::demand::Listening;
use rules::endpoint::Endpoint;
use rules::net::Ifindex;
use rules::rule::{OutputSpec, Rule, SourceChoice};
use rules::ruleset::{Place, RuleChanges, RuleSet};
use rules::shared_map::SharedMap;

use crate::diff::TableDiff;
use crate::host::{Destination, Host, LOOPBACK, NextHopQuery, PacketQuery};
use crate::placement::{Ends, PathChoices, Support, place, sockets_barred};
use crate::table::{OwnAddresses, Route, RouteKey, Table};
use inputs::input;
pub use inputs::joined;
use keys::{Named, route, route_keys, under_keys};
use links::{Links, ipv6_is_off, link_down};
pub use tunnel::{below, tunnel_query, tunnel_trouble};
use used::{count, in_use, is_same_use, shared_sources};
pub use view::{Copies, CopyView, Down, InputView, Join, Leaving, OutputView, RuleView};

/// What rules come to on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    /// What the paths execute.
    pub table: Table,
    /// What can be said about each rule, in the order of the rules.
    pub rules: SharedMap<Place, Arc<RuleView>>,
    /// How many outputs of rules with a share set each source.
    sources: BTreeMap<IpAddr, usize>,
    /// The host's addresses that those of the table were gathered from.
    addresses: Vec<Addressed>,
}

/// An interface, the VRF that it is in, and an address that it has.
type Addressed = (Ifindex, Option<Ifindex>, Option<IpAddr>);

/// What changes in what rules come to.
#[derive(Clone, Debug, Default)]
pub struct Amendment {
    /// What can be said about each rule then, in the order of the rules.
    pub rules: SharedMap<Place, Arc<RuleView>>,
    /// From the table of before to the one of then.
    pub diff: TableDiff,
    /// How many outputs of rules with a share then set each source that one of the rules sets or set.
    sources: BTreeMap<IpAddr, usize>,
    /// The host's addresses, if they are other ones than before.
    addresses: Option<Vec<Addressed>>,
}

/// Compiles `rules` for `host`.
pub fn compile(rules: &RuleSet, host: &Host, support: &Support, choices: &PathChoices) -> Compiled {
    let mut compiled = Compiled::default();
    let changes = RuleChanges::of_all(&RuleSet::default(), rules);
    let nobody = Listening::default();
    let amendment = compiled.amended(&changes, (host, &nobody), support, choices);
    compiled.apply(amendment);
    compiled
}

impl Compiled {
    /// Compiles the rules that `changes` brings for the host and what is listened to, and works out
    /// what follows from it and from those that go. The other rules are not looked at: for them host, support and choices must be what
    /// they were compiled with. Where a rule names an input's interface by a wildcard, which takes
    /// what no other rule names, all rules must be among the changes.
    pub fn amended(
        &self,
        changes: &RuleChanges,
        (host, listening): (&Host, &Listening),
        support: &Support,
        choices: &PathChoices,
    ) -> Amendment {
        let links = Links::new(host);
        let mut rules = self.rules.clone();
        let mut sources = BTreeMap::new();
        let mut removed = BTreeSet::new();
        for (place, rule) in &changes.removed {
            if let Some(view) = rules.remove(place) {
                removed.extend(route_keys(rule, &view));
                count(&mut sources, &self.sources, shared_sources(rule), -1);
            }
        }
        let (mut routes, mut behind) = (Vec::new(), Vec::new());
        for (place, rule) in &changes.added {
            let (mut view, route) = compile_one(rule, host, &links, support, choices);
            for (key, route, rank) in under_keys(rule, &mut view, route, listening) {
                if rank == Named::default() {
                    routes.push((key, route));
                } else {
                    behind.push((rank, key, route));
                }
            }
            count(&mut sources, &self.sources, shared_sources(rule), 1);
            rules.insert(*place, Arc::new(view));
        }
        let mut routes: BTreeMap<RouteKey, Route> = routes.into_iter().collect();
        // What a rule names outright is not taken from it by one that does not.
        behind.sort_by_key(|(rank, ..)| *rank);
        for (_, key, route) in behind {
            routes.entry(key).or_insert(route);
        }
        let known = &self.table.routes;
        removed.retain(|key| known.contains_key(key) && !routes.contains_key(key));
        routes.retain(|key, route| known.get(key) != Some(route));
        let addresses = addressed(host).filter(|_| !rules.is_empty());
        let is_same_host = changes.removed.len() < self.rules.len()
            || addresses.clone().eq(self.addresses.iter().copied());
        let addresses = (!is_same_host).then(|| addresses.collect::<Vec<_>>());
        let own = match (&addresses, is_same_use(&self.sources, &sources)) {
            (None, true) => None,
            (None, false) => Some(self.own_addresses(&self.addresses, &sources)),
            (Some(addresses), _) => Some(self.own_addresses(addresses, &sources)),
        };
        let own = own.filter(|own| *own != self.table.own_addresses);
        let diff = TableDiff {
            removed: removed.into_iter().collect(),
            set: routes.into_iter().collect(),
            own,
            budget: None,
        };
        Amendment {
            rules,
            diff,
            sources,
            addresses,
        }
    }

    /// Takes an amendment over.
    pub fn apply(&mut self, amendment: Amendment) {
        self.rules = amendment.rules;
        amendment.diff.apply_to(&mut self.table);
        self.sources.extend(amendment.sources);
        self.sources.retain(|_, count| *count > 0);
        if let Some(addresses) = amendment.addresses {
            self.addresses = addresses;
        }
    }

    /// This host's addresses, and those that outputs of rules with a share set, which whoever holds the
    /// share sends from, within any VRF and on any interface.
    fn own_addresses(
        &self,
        addresses: &[Addressed],
        sources: &BTreeMap<IpAddr, usize>,
    ) -> OwnAddresses {
        let vrfs = addresses.iter();
        let mut own = OwnAddresses {
            vrfs: vrfs
                .filter_map(|(link, vrf, _)| Some((*link, (*vrf)?)))
                .collect(),
            addresses: BTreeSet::new(),
        };
        for (link, _, address) in addresses {
            let used = in_use(&self.sources, sources).chain(address);
            let scoped = used.map(|address| (own.scope(*link, *address), *address));
            own.addresses.extend(scoped.collect::<Vec<_>>());
        }
        own
    }
}

/// All addresses of the host; of each interface none besides.
fn addressed(host: &Host) -> impl Iterator<Item = Addressed> + Clone + '_ {
    let links = host.interfaces.values();
    links.flat_map(|link| {
        let addresses = link.addresses.iter().copied().map(Some);
        addresses
            .chain([None])
            .map(|address| (link.index, link.vrf, address))
    })
}

/// Compiles one rule; its route, if it has one, stands under every key of its inputs.
fn compile_one(
    rule: &Rule,
    host: &Host,
    links: &Links<'_>,
    support: &Support,
    choices: &PathChoices,
) -> (RuleView, Option<Route>) {
    if !rule.enabled {
        return (disabled(rule, support, choices, links), None);
    }
    let listening = links.listening(rule);
    let bar = sockets_barred(rule, support, choices, &listening.interfaces);
    let (outputs, views) = egress::outputs(rule, host, links, bar.as_deref());
    let routed = views.iter().find_map(|view| {
        let why = view.routed.as_deref()?;
        Some((view.to.as_str(), why))
    });
    let ends = Ends {
        delivered: egress::first_delivered(&outputs),
        routed,
        ..listening
    };
    let placement = place(rule, support, choices, &ends);
    let mut view = RuleView {
        name: rule.name.clone(),
        enabled: true,
        only_at_tc: hook::only_at_tc(rule),
        inputs: rule.inputs.iter().map(|i| input(i, host, links)).collect(),
        outputs: views,
        placement,
        divided: Vec::new(),
    };
    if rule.reflect.is_some() {
        address::take_all_broadcasts(rule, host, &mut view.inputs);
    }
    if !view.placement.serves {
        view.inputs.iter_mut().for_each(|input| input.joins.clear());
        return (view, None);
    }
    let route = route(rule, &view, outputs);
    (view, Some(route))
}

/// What can be said of a rule that forwards nothing: what it is made of, and where it would run.
fn disabled(rule: &Rule, support: &Support, choices: &PathChoices, links: &Links<'_>) -> RuleView {
    let inputs = rule.inputs.iter().map(|input| InputView {
        at: input.to_string(),
        ..InputView::default()
    });
    let outputs = rule.outputs.iter().map(|output| OutputView {
        to: output.target(),
        ..OutputView::default()
    });
    RuleView {
        name: rule.name.clone(),
        enabled: false,
        only_at_tc: None,
        inputs: inputs.collect(),
        outputs: outputs.collect(),
        placement: place(rule, support, choices, &links.listening(rule)),
        divided: Vec::new(),
    }
}

/// The destinations that `rules` name and the routing table decides upon, if only from which address, each
/// once: what [`Host::next_hops`] should hold.
pub fn next_hop_queries<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> BTreeSet<NextHopQuery> {
    let rules = rules.into_iter().filter(|rule| rule.enabled);
    let outputs = rules.flat_map(|rule| &rule.outputs);
    let asked = outputs.filter(|output| is_routed(&output.to) || asks_for_source(output));
    asked.map(next_hop_query).collect()
}

/// Unicast, and IPv6 groups on the loopback interface, where Linux delivers them by a route alone.
fn is_routed(to: &Endpoint) -> bool {
    !to.is_multicast() && !to.is_broadcast()
        || !to.is_ipv4() && to.interface.as_deref() == Some(LOOPBACK)
}

/// An output to a group or broadcast that leaves from the address that a socket would send from.
fn asks_for_source(output: &OutputSpec) -> bool {
    let by = output.to.interface.as_deref();
    output.source == SourceChoice::Auto && by.is_some_and(|by| by != LOOPBACK)
}

/// One group for all those that leave an interface from the same address: the kernel goes by their scope
/// (`ipv6_dev_get_saddr`, `ip_route_output_key_hash_rcu`).
const fn of_same_scope(group: IpAddr) -> IpAddr {
    match group {
        IpAddr::V4(group) => match group.octets() {
            [224, 0, 0, _] => IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)),
            [224..=239, ..] => IpAddr::V4(Ipv4Addr::new(239, 255, 0, 1)),
            _ => IpAddr::V4(group),
        },
        IpAddr::V6(group) => IpAddr::V6(Ipv6Addr::new(group.segments()[0], 0, 0, 0, 0, 0, 0, 1)),
    }
}

/// What the routing table is asked for, for an output.
pub fn next_hop_query(output: &OutputSpec) -> NextHopQuery {
    if !is_routed(&output.to) {
        return NextHopQuery {
            destination: Destination::Address(of_same_scope(output.to.destination.address)),
            interface: output.to.interface.clone(),
            packet: PacketQuery::default(),
        };
    }
    NextHopQuery {
        destination: output.destination(),
        interface: output.to.interface.clone(),
        packet: PacketQuery {
            source: output.source,
            source_port: output.source_port,
            ports: Some(output.to.ports),
            dscp: output.dscp,
        },
    }
}

#[cfg(test)]
mod tests;
