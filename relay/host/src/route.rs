//! Route lookups: the interface and gateway by which a destination is reached.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use compile::host::{Detour, Interface, NextHop, PacketQuery};
use futures::TryStreamExt;
use nix::errno::Errno;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use rtnetlink::{Handle, RouteMessageBuilder};
use rules::net::{Ifindex, Mac};
use rules::rule::SourceChoice;

use super::route_kinds::{can_look_up, is_divided};
use super::routing_policy::RoutingPolicy;

/// A next hop: interface and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Via {
    /// Interface of the route.
    pub interface: Ifindex,
    /// The gateway, or the destination itself when on-link.
    pub address: IpAddr,
    /// Whether the destination is this host: one of its addresses, or one with a local route.
    pub local: bool,
    /// The address that a socket would send from.
    pub source: Option<IpAddr>,
    /// The MTU that the route sets.
    pub mtu: Option<u32>,
    /// Why a packet cannot be sent directly, if it cannot.
    pub detour: Option<Detour>,
}

/// Why there is no route: the type of the route that prevents it, if there is one.
pub type NoRoute = Option<&'static str>;

impl Via {
    /// The next hop, given the link address of its neighbour.
    #[must_use]
    pub const fn next_hop(self, mac: Option<Mac>) -> NextHop {
        let Self {
            interface, source, ..
        } = self;
        if self.local {
            return NextHop::Here { interface, source };
        }
        match self.detour {
            Some(why) => NextHop::Routed {
                interface,
                source,
                why,
            },
            None => NextHop::Resolved {
                interface,
                via: self.address,
                mac,
                source,
                mtu: self.mtu,
            },
        }
    }

    /// Whether MCR has to resolve its neighbour.
    pub(crate) fn has_neighbour(&self) -> bool {
        !self.local && self.detour.is_none() && !self.address.is_multicast()
    }
}

/// Looks up the route to `destination`, by `interface` if one is named, for the fields of `packet`.
///
/// # Errors
/// There is no route.
pub async fn query_route(
    (handle, policy): (&Handle, &RoutingPolicy),
    destination: IpAddr,
    (interface, packet): (Option<&str>, PacketQuery),
    interfaces: &BTreeMap<Ifindex, Interface>,
) -> Result<Via, NoRoute> {
    let packet = policy.relevant(packet);
    let mut message = request(destination);
    let mut add = |attribute| message.attributes.push(attribute);
    if let Some(name) = interface {
        let link = interfaces.values().find(|link| link.is_named(name));
        add(RouteAttribute::Oif(link.ok_or(None)?.index.0));
    }
    add(RouteAttribute::IpProto(UDP));
    if let Some(ports) = packet.ports {
        add(RouteAttribute::Dport(ports.first));
    }
    if let Some(port) = packet.source_port {
        add(RouteAttribute::Sport(port));
    }
    message.header.tos = packet.dscp.unwrap_or_default() << 2;
    let source = match packet.source {
        SourceChoice::Address(source) if can_look_up(packet.source, destination, interfaces) => {
            Some(source)
        }
        _ => None,
    };
    let mut answer = look_up_from(handle, &message, source).await;
    let mut sources = policy.restricting_sources(destination, &packet);
    while let (Err(None), Some(source)) = (&answer, sources.next()) {
        answer = look_up_from(handle, &message, Some(*source)).await;
    }
    let mut via = via(destination, &answer?)?;
    let link = interfaces.get(&via.interface);
    let hashes = interface.is_none() || destination.is_ipv6();
    let is_divided = hashes
        && policy.may_divide(destination, &packet, interfaces)
        && is_divided(handle, message).await;
    if is_divided || policy.depends_on_packet(destination, interface, &packet, interfaces) {
        via.detour = Some(Detour::ByPacket);
    } else if link.is_some_and(Interface::is_vrf) {
        via.detour = via.detour.or(Some(Detour::Vrf));
    }
    Ok(via)
}

const UDP: u8 = 17;

async fn look_up_from(
    handle: &Handle,
    request: &RouteMessage,
    source: Option<IpAddr>,
) -> Result<RouteMessage, NoRoute> {
    let mut request = request.clone();
    let source = source.map(|source| RouteAttribute::Source(source.into()));
    request.attributes.extend(source);
    let mut answers = Box::pin(handle.route().get(request).execute());
    match answers.try_next().await {
        Ok(answer) => answer.ok_or(None),
        // The kernel answers with an error if there is no route (`fib_props` in net/ipv4/fib_semantics.c).
        Err(rtnetlink::Error::NetlinkError(error)) => {
            Err(match Errno::from_raw(error.raw_code().abs()) {
                Errno::EINVAL => Some("blackhole"),
                Errno::EHOSTUNREACH => Some("unreachable"),
                Errno::EACCES => Some("prohibit"),
                _ => None,
            })
        }
        Err(_) => Err(None),
    }
}

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

fn via(destination: IpAddr, answer: &RouteMessage) -> Result<Via, NoRoute> {
    let local = match answer.header.kind {
        RouteType::Local => true,
        RouteType::Unicast | RouteType::Broadcast | RouteType::Anycast | RouteType::Multicast => {
            false
        }
        _ => return Err(None),
    };
    let (mut interface, mut source, mut detour) = (None, None, None);
    let (mut mtu, mut has_expiry) = (None, false);
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
            RouteAttribute::Metrics(metrics) => {
                mtu = first!(metrics, RouteMetric::Mtu(mtu) => *mtu);
            }
            RouteAttribute::CacheInfo(cache) => has_expiry = cache.expires != 0,
            _ => {}
        }
    }
    Ok(Via {
        interface: interface.ok_or(None)?,
        address,
        local,
        source,
        // A learnt MTU expires without notification.
        mtu: mtu.filter(|_| !has_expiry),
        detour,
    })
}
