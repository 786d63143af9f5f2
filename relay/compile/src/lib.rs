//! Compiles rules and a snapshot of the host into the forwarding table and a view of each rule.
//!
//! A rule whose input interface is missing has no routes and waits; an output that cannot send is
//! down in its routes; neither affects anything else. Pure: no I/O, no clock, no unsafe.
//!
//! [`compile()`] turns rules and a [`host::Host`] into the [`table`] that both paths execute, and
//! [`diff::TableDiff`] is all that is passed down to them.
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
use rules::ruleset::{RuleChanges, RuleSet, Slot};
use rules::shared_map::SharedMap;

use crate::diff::TableDiff;
use crate::host::{Destination, Host, LOOPBACK, NextHopQuery, PacketQuery};
use crate::placement::{Ends, PathChoices, Support, place, sockets_barred};
use crate::table::{OwnAddresses, Route, RouteKey, Table};
use inputs::input;
pub use inputs::joined;
use keys::{Generality, route, route_keys, under_keys};
use links::{Links, ipv6_is_off, link_down};
pub use tunnel::{below, tunnel_query, tunnel_trouble};
use used::{count, in_use, is_same_use, shared_sources};
pub use view::{Copies, CopyView, Down, InputView, Join, Leaving, OutputView, RuleView};

/// Rules compiled for a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    /// What the paths execute.
    pub table: Table,
    /// The view of each rule, in the order of the rules.
    pub rules: SharedMap<Slot, Arc<RuleView>>,
    /// How many outputs of rules with a share set each source.
    sources: BTreeMap<IpAddr, usize>,
    /// The host's addresses from which those of the table were derived.
    addresses: Vec<Addressed>,
}

/// An interface, the VRF that it is in, and an address that it has.
type Addressed = (Ifindex, Option<Ifindex>, Option<IpAddr>);

/// A change of compiled rules.
#[derive(Clone, Debug, Default)]
pub struct Amendment {
    /// The view of each rule after the change, in the order of the rules.
    pub rules: SharedMap<Slot, Arc<RuleView>>,
    /// The difference between the tables before and after.
    pub diff: TableDiff,
    /// How many outputs of rules with a share set, after the change, each source that a changed rule sets or
    /// set before.
    sources: BTreeMap<IpAddr, usize>,
    /// The host's addresses, if they changed.
    addresses: Option<Vec<Addressed>>,
}

/// Compiles `rules` for `host`.
pub fn compile(rules: &RuleSet, host: &Host, support: &Support, choices: &PathChoices) -> Compiled {
    let mut compiled = Compiled::default();
    let changes = RuleChanges::of_all(&RuleSet::default(), rules);
    let no_listeners = Listening::default();
    let amendment = compiled.amended(&changes, (host, &no_listeners), support, choices);
    compiled.apply(amendment);
    compiled
}

impl Compiled {
    /// Compiles the rules that `changes` adds for the host and its listeners, and derives the amendment
    /// from them and from the removed rules. The other rules are not recompiled: for them host, support
    /// and choices must be those that they were compiled with. If a rule names an input's interface by a
    /// wildcard, which takes what no other rule names, all rules must be among the changes.
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
        let (mut exact, mut fallbacks) = (Vec::new(), Vec::new());
        for (place, rule) in &changes.added {
            let (mut view, route) = compile_one(rule, host, &links, support, choices);
            for (key, route, rank) in under_keys(rule, &mut view, route, listening) {
                if rank == Generality::default() {
                    exact.push((key, route));
                } else {
                    fallbacks.push((rank, key, route));
                }
            }
            count(&mut sources, &self.sources, shared_sources(rule), 1);
            rules.insert(*place, Arc::new(view));
        }
        let mut routes: BTreeMap<RouteKey, Route> = exact.into_iter().collect();
        // A rule that names a key exactly takes precedence over one that does not.
        fallbacks.sort_by_key(|(rank, ..)| *rank);
        for (_, key, route) in fallbacks {
            routes.entry(key).or_insert(route);
        }
        let current = &self.table.routes;
        removed.retain(|key| current.contains_key(key) && !routes.contains_key(key));
        routes.retain(|key, route| current.get(key) != Some(route));
        let of_host = addressed(host).filter(|_| !rules.is_empty());
        let is_same_host = changes.removed.len() < self.rules.len()
            || of_host.clone().eq(self.addresses.iter().copied());
        let addresses = (!is_same_host).then(|| of_host.collect::<Vec<_>>());
        let own_addresses = match (&addresses, is_same_use(&self.sources, &sources)) {
            (None, true) => None,
            (None, false) => Some(self.own_addresses(&self.addresses, &sources)),
            (Some(addresses), _) => Some(self.own_addresses(addresses, &sources)),
        };
        let diff = TableDiff {
            removed: removed.into_iter().collect(),
            set: routes.into_iter().collect(),
            own: own_addresses.filter(|own| *own != self.table.own_addresses),
            budget: None,
        };
        Amendment {
            rules,
            diff,
            sources,
            addresses,
        }
    }

    /// Applies an amendment.
    pub fn apply(&mut self, amendment: Amendment) {
        self.rules = amendment.rules;
        amendment.diff.apply_to(&mut self.table);
        self.sources.extend(amendment.sources);
        self.sources.retain(|_, count| *count > 0);
        if let Some(addresses) = amendment.addresses {
            self.addresses = addresses;
        }
    }

    /// This host's addresses, and those that outputs of rules with a share set, from which the holder of
    /// the share sends within any VRF and on any interface.
    fn own_addresses(
        &self,
        addresses: &[Addressed],
        sources: &BTreeMap<IpAddr, usize>,
    ) -> OwnAddresses {
        let mut own = OwnAddresses {
            vrfs: addresses
                .iter()
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

/// All addresses of the host, and for each interface an entry without an address.
fn addressed(host: &Host) -> impl Iterator<Item = Addressed> + Clone + '_ {
    let links = host.interfaces.values();
    links.flat_map(|link| {
        let addresses = link.addresses.iter().copied().map(Some);
        addresses
            .chain([None])
            .map(|address| (link.index, link.vrf, address))
    })
}

/// Compiles one rule into its view and the route for every key of its inputs, if it has one.
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

/// The view of a disabled rule: its parts, and where it would run.
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

/// The queries that [`Host::next_hops`] should hold, each once: destinations of `rules` for which the routing
/// table decides the route or only the source address.
pub fn next_hop_queries<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> BTreeSet<NextHopQuery> {
    let enabled = rules.into_iter().filter(|rule| rule.enabled);
    let outputs = enabled.flat_map(|rule| &rule.outputs);
    let queried = outputs.filter(|output| is_routed(&output.to) || needs_source(output));
    queried.map(next_hop_query).collect()
}

/// Returns whether a destination is unicast, or an IPv6 group on the loopback interface, where Linux delivers
/// only by a route.
fn is_routed(to: &Endpoint) -> bool {
    !to.is_multicast() && !to.is_broadcast()
        || !to.is_ipv4() && to.interface.as_deref() == Some(LOOPBACK)
}

/// Returns whether an output to a group or broadcast leaves from the address that a socket would send from.
fn needs_source(output: &OutputSpec) -> bool {
    let interface = output.to.interface.as_deref();
    output.source == SourceChoice::Auto && interface.is_some_and(|name| name != LOOPBACK)
}

/// A group that represents all those that leave an interface from the same address: the kernel selects it
/// by their scope (`ipv6_dev_get_saddr`, `ip_route_output_key_hash_rcu`).
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

/// The query to the routing table for an output.
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
