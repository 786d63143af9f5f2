//! What multicast arrives on this host, also what nobody joined: received by packet sockets of its own,
//! for `mcr discover` and for the doctor. It takes no part in relaying and needs no daemon.

mod interface;
mod joined;
mod listener;
mod stream;

use rules::endpoint::Endpoint;
use rules::net::{Ports, Prefix};
use rules::ruleset::RuleSet;
use rules::wildcard;

pub(crate) use interface::{Interface, at_xdp, interfaces};
pub(crate) use joined::Joined;
pub(crate) use listener::Listener;
pub(crate) use stream::{Key, LIMIT, Stream};

/// The rule that takes a stream, if one does: of several the most specific, as in the lookup of a
/// packet. What is tagged belongs to its VLAN's own interface.
pub(crate) fn taker<'a>(rules: &'a RuleSet, interface: &Interface, key: &Key) -> Option<&'a str> {
    let inputs = rules.iter().flat_map(|rule| {
        let inputs = rule.inputs.iter();
        inputs.map(|input| (rule.name.as_str(), input))
    });
    let fitting = inputs.filter(|(_, input)| {
        key.vlan.is_none()
            && input.destination.contains(key.group)
            && input.ports.contains(key.port)
            && is_on(input, interface)
            && input.listens_to(key.source)
    });
    let specific = |(_, input): &(&str, &Endpoint)| (!input.sources.is_empty(), input.is_single());
    fitting.max_by_key(specific).map(|(name, _)| name)
}

/// Says whether an input listens on an interface.
pub(crate) fn is_on(input: &Endpoint, interface: &Interface) -> bool {
    let pattern = input.interface.as_deref().unwrap_or_default();
    wildcard::matches(pattern, &interface.name)
}

/// The input that takes a stream; source-specific where the group is (RFC 4607).
pub(crate) fn input(interface: &Interface, key: &Key) -> Endpoint {
    let specific = match key.group {
        std::net::IpAddr::V4(group) => group.octets()[0] == 232,
        std::net::IpAddr::V6(group) => group.segments()[0] & 0xfff0 == 0xff30,
    };
    let tagged = key.vlan.map(|vlan| interface.vlan_name(vlan));
    Endpoint {
        sources: if specific {
            vec![key.source.into()]
        } else {
            Vec::new()
        },
        destination: Prefix::host(key.group),
        interface: Some(tagged.unwrap_or_else(|| interface.name.clone())),
        ports: Ports::single(key.port),
        rejoin: None,
    }
}
