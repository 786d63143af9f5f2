//! Multicast that arrives on this host, including groups that nobody joined, received by its own packet
//! sockets for `mcr discover` and the doctor. It takes no part in relaying and needs no daemon.

mod interface;
mod joined;
mod listener;
mod stream;

use std::net::IpAddr;

use rules::endpoint::Endpoint;
use rules::net::{LOOPBACK, Ports, Prefix};
use rules::rule::{LocalDelivery, Rule};
use rules::ruleset::RuleSet;
use rules::wildcard;

pub(crate) use interface::{Interface, at_xdp, interfaces};
pub(crate) use joined::Joined;
pub(crate) use listener::{Listener, ip};
pub(crate) use stream::{Key, LIMIT, Stream};

/// The rule that takes a stream, if one does: of several the most specific, as in the lookup of a packet.
/// Tagged packets belong to the interface of their VLAN.
pub(crate) fn taker<'a>(rules: &'a RuleSet, interface: &Interface, key: &Key) -> Option<&'a str> {
    let inputs = rules
        .iter()
        .flat_map(|rule| rule.inputs.iter().map(move |input| (rule, input)));
    let matching = inputs.filter(|(rule, input)| {
        (!key.sent || takes_looped(rule))
            && key.vlan.is_none()
            && input.destination.contains(key.group)
            && input.ports.contains(key.port)
            && is_on(input, interface)
            && input.listens_to(key.source)
    });
    let specific = |(_, input): &(&Rule, &Endpoint)| (!input.sources.is_empty(), input.is_single());
    let taker = matching.max_by_key(specific);
    taker.map(|(rule, _)| rule.name.as_str())
}

/// Whether a rule also relays what local programs send on its inputs' interfaces and the kernel loops back
/// (`takes_looped` in `lookup.h`).
pub(crate) fn takes_looped(rule: &Rule) -> bool {
    rule.local != LocalDelivery::No && rule.reflect.is_none()
}

/// Whether a stream that leaves by an interface is a copy that a rule sends.
pub(crate) fn is_copy(rules: &RuleSet, interface: &Interface, key: &Key) -> bool {
    let mut outputs = rules.iter().flat_map(|rule| &rule.outputs);
    key.sent
        && outputs.any(|output| {
            output.to.destination.contains(key.group)
                && output.to.ports.contains(key.port)
                && is_on(&output.to, interface)
        })
}

/// How to make a sender on this host reach the rule's input.
pub(crate) fn by_loopback(group: IpAddr) -> String {
    let route = match group {
        IpAddr::V4(_) => format!("ip route add {group} dev lo"),
        IpAddr::V6(_) => format!("ip -6 route add local {group} dev lo table local"),
    };
    format!(
        "have its program send by lo: {route}, or lo as its interface where it is bound to an address"
    )
}

/// Whether an input listens on an interface.
pub(crate) fn is_on(input: &Endpoint, interface: &Interface) -> bool {
    let pattern = input.interface.as_deref().unwrap_or_default();
    wildcard::matches(pattern, &interface.name)
}

/// The input that takes a stream, source-specific if the group is (RFC 4607).
pub(crate) fn input(interface: &Interface, key: &Key) -> Endpoint {
    let specific = match key.group {
        IpAddr::V4(group) => group.octets()[0] == 232,
        IpAddr::V6(group) => group.segments()[0] & 0xfff0 == 0xff30,
    };
    let tagged = key.vlan.map(|vlan| interface.vlan_name(vlan));
    let name = if key.sent {
        LOOPBACK.to_owned()
    } else {
        interface.name.clone()
    };
    Endpoint {
        sources: if specific {
            vec![key.source.into()]
        } else {
            Vec::new()
        },
        destination: Prefix::host(key.group),
        interface: Some(tagged.unwrap_or(name)),
        ports: Ports::single(key.port),
        rejoin: None,
    }
}
