//! Views of a rule's inputs and of joins on this host: their interfaces, keys and memberships, and why
//! nothing may arrive.

use config::StaticJoin;
use rules::endpoint::Endpoint;
use rules::joins::groups_too_many;
use rules::net::Prefix;

use super::{InputView, Join, Links, address, ipv6_is_off, link_down};
use crate::host::{Host, Interface};
use crate::table::RouteKey;

/// The memberships and the view of each of `joins` on this host.
pub fn joined(joins: &[StaticJoin], host: &Host) -> Vec<InputView> {
    if joins.is_empty() {
        return Vec::new();
    }
    let links = Links::new(host);
    let inputs = joins.iter().map(|join| InputView {
        at: join.at(),
        ..input(&join.endpoint(), host, &links)
    });
    inputs.collect()
}

/// The view of an input on this host.
pub(super) fn input(endpoint: &Endpoint, host: &Host, links: &Links<'_>) -> InputView {
    let name = endpoint.interface.as_deref().unwrap_or_default();
    let matching = links.of_input(name);
    if !endpoint.is_multicast() {
        return address::input(endpoint, links, &matching);
    }
    let too_many = groups_too_many(endpoint.destination);
    let join = |link: &&Interface| Join {
        interface: link.index,
        groups: endpoint.destination,
        sources: endpoint
            .sources
            .iter()
            .map(|source| source.address)
            .collect(),
    };
    let vrf = matching.iter().find(|link| link.is_vrf());
    let joins = match too_many {
        _ if vrf.is_some() => Vec::new(),
        None => matching.iter().map(join).collect(),
        Some(_) => matching
            .iter()
            .map(|link| Join::of_all(link.index))
            .collect(),
    };
    let down = matching.iter().find(|link| !link.up);
    let is_ipv6 = !endpoint.is_ipv4();
    let no_ipv6 = matching.iter().find(|link| is_ipv6 && link.no_ipv6);
    let no_input = || {
        let link = matching.first()?;
        let is_all = matching.iter().all(|link| link.reach.has_no_input());
        link.reach.obstacle(&link.name, true).filter(|_| is_all)
    };
    let pending = match (matching.is_empty(), down, no_ipv6) {
        (true, ..) => Some(format!("{}; waits for it", links.missing(name))),
        (_, Some(link), _) => Some(link_down(link)),
        (.., Some(link)) => Some(ipv6_is_off(link)),
        _ => vrf.map(|vrf| links.receives_nothing(vrf)).or_else(no_input),
    };
    let shared = matching.iter().filter_map(|link| {
        let takers = takers(endpoint, link, host);
        (!takers.is_empty()).then(|| (link.index, takers.join(", ")))
    });
    InputView {
        at: endpoint.to_string(),
        interfaces: matching.iter().map(|link| link.index).collect(),
        joins,
        addresses: Vec::new(),
        pending,
        unjoined: too_many,
        shared: shared.collect(),
    }
}

/// Who besides sockets gets the packets of an input on `link`.
fn takers(endpoint: &Endpoint, link: &Interface, host: &Host) -> Vec<String> {
    let mut takers = link.shared_with.clone();
    let groups = endpoint.destination;
    let first = (link.index, groups.address);
    let routing = &host.multicast_routing;
    let mut routed = routing.routes.range(first..);
    let is_routed = routed
        .next()
        .is_some_and(|(index, group)| *index == link.index && groups.contains(*group));
    // A group without a route gets one with its first packet; a link-local group gets none.
    let will_be_routed = || {
        let mut routes = routing.routes.iter();
        routing.inputs.contains(&(endpoint.is_ipv4(), link.index))
            && !rules::ruleset::is_link_local(groups)
            && !routes.any(|(_, group)| groups.contains(*group))
    };
    if endpoint.is_multicast() && (is_routed || will_be_routed()) {
        takers.push("the kernel's multicast routing".to_owned());
    }
    takers
}

/// The keys of an input: one for each interface and source, or for each address and source if it is not a
/// group.
pub(super) fn keys(endpoint: &Endpoint, input: &InputView) -> Vec<RouteKey> {
    let sources: Vec<Option<Prefix>> = if endpoint.sources.is_empty() {
        vec![None]
    } else {
        endpoint.sources.iter().copied().map(Some).collect()
    };
    let key = |(ingress, groups), source: &Option<Prefix>| RouteKey {
        ingress,
        groups,
        ports: endpoint.ports,
        source: *source,
    };
    let links = input.interfaces.iter().filter(|_| endpoint.is_multicast());
    let groups = links.map(|link| (*link, endpoint.destination));
    let addresses = input.addresses.iter();
    let all = groups.chain(addresses.map(|(link, address)| (*link, Prefix::host(*address))));
    let keys = all.flat_map(|to| sources.iter().map(move |source| key(to, source)));
    keys.collect()
}
