//! Route lookups: by which interface a destination is reached, and through which gateway.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use compile::host::{Detour, Interface, PacketQuery};
use futures::TryStreamExt;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia,
};
use rtnetlink::{Handle, RouteMessageBuilder};
use rules::net::Ifindex;
use rules::rule::SourceChoice;

use super::routing_policy::{RoutingPolicy, is_own};

/// A next hop: interface and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Via {
    /// Interface of the route.
    pub interface: Ifindex,
    /// The gateway, or the destination itself when on-link.
    pub address: IpAddr,
    /// The destination is this host: one of its own addresses, or what a route says is local.
    pub local: bool,
    /// The address that a socket would send from.
    pub source: Option<IpAddr>,
    /// What else is to be done on the way.
    pub detour: Option<Detour>,
}

impl Via {
    /// Says whether it is for MCR to find who is next.
    pub(crate) const fn has_neighbour(&self) -> bool {
        !self.local && self.detour.is_none()
    }
}

/// Asks the routing table for the way to `destination`, by `interface` if one is named, of what `packet`
/// shows; `None` if no route leads there.
pub async fn query_route(
    (handle, policy): (&Handle, &RoutingPolicy),
    destination: IpAddr,
    (interface, packet): (Option<&str>, PacketQuery),
    interfaces: &BTreeMap<Ifindex, Interface>,
) -> Option<Via> {
    let packet = policy.relevant(packet);
    let mut message = request(destination);
    let mut ask = |attribute| message.attributes.push(attribute);
    if let Some(name) = interface {
        let link = interfaces.values().find(|link| link.is_named(name))?;
        ask(RouteAttribute::Oif(link.index.0));
    }
    // The table refuses to say anything about another host's.
    if let SourceChoice::Address(source) = packet.source
        && is_own(source, interfaces)
    {
        ask(RouteAttribute::Source(source.into()));
    }
    ask(RouteAttribute::IpProto(UDP));
    if let Some(ports) = packet.ports {
        ask(RouteAttribute::Dport(ports.first));
    }
    if let Some(port) = packet.source_port {
        ask(RouteAttribute::Sport(port));
    }
    message.header.tos = packet.dscp.unwrap_or_default() << 2;
    // An error is the kernel's way to say that there is no route.
    let mut answers = Box::pin(handle.route().get(message).execute());
    let answer = answers.try_next().await.ok().flatten()?;
    let mut via = via(destination, &answer)?;
    let link = interfaces.get(&via.interface);
    if policy.tells_apart(destination, interface, &packet, interfaces) {
        via.detour = Some(Detour::ByPacket);
    } else if link.is_some_and(Interface::is_vrf) {
        via.detour = via.detour.or(Some(Detour::Vrf));
    }
    Some(via)
}

const UDP: u8 = 17;

fn request(destination: IpAddr) -> RouteMessage {
    match destination {
        IpAddr::V4(address) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(address, 32)
            .build(),
        IpAddr::V6(address) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(address, 128)
            .build(),
    }
}

fn via(destination: IpAddr, answer: &RouteMessage) -> Option<Via> {
    let local = match answer.header.kind {
        RouteType::Local => true,
        RouteType::Unicast | RouteType::Broadcast | RouteType::Anycast => false,
        _ => return None,
    };
    let (mut interface, mut source, mut detour) = (None, None, None);
    let mut address = destination;
    for attribute in &answer.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(Ifindex(*index)),
            RouteAttribute::Gateway(RouteAddress::Inet(gateway))
            | RouteAttribute::Via(RouteVia::Inet(gateway)) => address = (*gateway).into(),
            RouteAttribute::Gateway(RouteAddress::Inet6(gateway))
            | RouteAttribute::Via(RouteVia::Inet6(gateway)) => address = (*gateway).into(),
            RouteAttribute::PrefSource(RouteAddress::Inet(own)) => source = Some((*own).into()),
            RouteAttribute::PrefSource(RouteAddress::Inet6(own)) => source = Some((*own).into()),
            RouteAttribute::EncapType(_) | RouteAttribute::Encap(_) => {
                detour = Some(Detour::Encapsulated);
            }
            _ => {}
        }
    }
    Some(Via {
        interface: interface?,
        address,
        local,
        source,
        detour,
    })
}
