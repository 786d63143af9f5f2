//! Inputs that are addresses of this host rather than groups, including broadcast addresses. They follow the
//! addresses of an interface: an input waits for the address that it names.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use rules::endpoint::Endpoint;
use rules::net::Ifindex;
use rules::rule::Rule;
use rules::ruleset::listed;

use super::{InputView, Links, ipv6_is_off, link_down};
use crate::host::{Host, Interface, LOOPBACK};

/// The view of such an input on the interfaces that it matches.
pub(super) fn input(endpoint: &Endpoint, links: &Links<'_>, matching: &[&Interface]) -> InputView {
    let mut addresses: Vec<(Ifindex, IpAddr)> = Vec::new();
    for link in matching {
        let taken = taken(endpoint, link, links).into_iter();
        addresses.extend(taken.map(|address| (link.index, address)));
    }
    let name = endpoint.interface.as_deref().unwrap_or_default();
    let down = matching.iter().find(|link| !link.up);
    let pending = match (matching.first(), down) {
        (None, _) => Some(format!("{}; waits for it", links.missing(name))),
        (_, Some(link)) => Some(link_down(link)),
        (Some(link), None) if link.is_vrf() => Some(links.receives_nothing(link)),
        (Some(link), None) if addresses.is_empty() => Some(lacks(endpoint, link, links)),
        _ => None,
    };
    let shared = matching.iter().filter(|link| {
        let is_own = |to: &IpAddr| matches!(to, IpAddr::V4(to) if is_broadcast(*to, link));
        let mut taken = addresses.iter();
        !link.shared_with.is_empty() && taken.any(|(at, to)| *at == link.index && is_own(to))
    });
    InputView {
        at: endpoint.to_string(),
        interfaces: matching.iter().map(|link| link.index).collect(),
        joins: Vec::new(),
        pending,
        unjoined: None,
        // Others on the same device have their own Ethernet addresses; only broadcasts reach all.
        shared: shared
            .map(|link| (link.index, link.shared_with.join(", ")))
            .collect(),
        addresses,
    }
}

/// The addresses on a link whose packets an input takes. Those of the loopback interface are this host's
/// on whichever interface packets arrive.
fn taken(endpoint: &Endpoint, link: &Interface, links: &Links<'_>) -> Vec<IpAddr> {
    let destination = endpoint.destination.address;
    if endpoint.is_every_address() {
        let all = link.addresses.iter();
        let own = all.filter(|address| address.is_ipv4() == endpoint.is_ipv4());
        return own.copied().collect();
    }
    let loopback = links.named(LOOPBACK);
    let is_own = link.addresses.contains(&destination)
        || loopback.is_some_and(|loopback| loopback.addresses.contains(&destination))
        || matches!(destination, IpAddr::V4(to) if is_broadcast(to, link));
    is_own.then_some(destination).into_iter().collect()
}

/// Makes the inputs of a rule that reflects broadcasts take those to any of its networks: their copies are
/// sent as broadcasts that all networks receive, and answers are expected where the question was sent.
pub(super) fn take_all_broadcasts(rule: &Rule, host: &Host, inputs: &mut [InputView]) {
    if !rule.inputs.iter().all(Endpoint::is_broadcast) {
        return;
    }
    let indices = inputs.iter().flat_map(|input| &input.interfaces);
    let links = indices.filter_map(|index| host.interfaces.get(index));
    let all: BTreeSet<Ipv4Addr> = links.flat_map(|link| &link.broadcasts).copied().collect();
    for input in inputs {
        let pairs = input.interfaces.iter().flat_map(|link| {
            let addresses = all.iter().copied().map(IpAddr::V4);
            addresses.map(|address| (*link, address))
        });
        input.addresses.extend(pairs);
    }
}

fn is_broadcast(to: Ipv4Addr, link: &Interface) -> bool {
    to.is_broadcast() || link.is_broadcast(to.into())
}

/// For operators who wrote an address and meant a group.
const GROUPS: &str = "if a group was meant, those begin with 224 to 239, or ff";

/// Why nothing arrives at an address that the link does not have.
fn lacks(endpoint: &Endpoint, link: &Interface, links: &Links<'_>) -> String {
    let (name, wanted) = (&link.name, endpoint.destination.address);
    if link.no_ipv6 && !endpoint.is_ipv4() {
        return ipv6_is_off(link);
    }
    if endpoint.is_every_address() {
        let family = if endpoint.is_ipv4() { "IPv4" } else { "IPv6" };
        return format!("interface {name} has no {family} address; waits for one");
    }
    let mut others = links.by_name.values();
    if let Some(other) = others.find(|other| other.addresses.contains(&wanted)) {
        let other = &other.name;
        return format!("{wanted} is an address of {other}, not of {name}; write %{other}");
    }
    let own = link.addresses.iter().copied();
    let all = own.chain(link.broadcasts.iter().copied().map(IpAddr::V4));
    let of_family = all.filter(|address| address.is_ipv4() == endpoint.is_ipv4());
    let texts: Vec<String> = of_family.map(|address| address.to_string()).collect();
    match texts.as_slice() {
        [] => format!("interface {name} has no address {wanted}; waits for it; {GROUPS}"),
        texts => format!(
            "interface {name} has no address {wanted} (have: {}); waits for it; {GROUPS}",
            listed(texts)
        ),
    }
}
