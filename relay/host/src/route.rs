//! What the routing table answers: by which interface a destination is reached, through whom.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use compile::host::Interface;
use futures::TryStreamExt;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia,
};
use rtnetlink::{Handle, RouteMessageBuilder};
use rules::net::Ifindex;

/// A next hop: interface and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Via {
    /// Interface of the route.
    pub interface: Ifindex,
    /// The gateway, or the destination itself when on-link.
    pub address: IpAddr,
    /// The destination is this host: one of its own addresses, or what a route says is local.
    pub local: bool,
    /// The address that a socket would send from, where the table says.
    pub source: Option<IpAddr>,
}

/// Asks the routing table for the way to `destination`, by `interface` if one is named; `None` if no route
/// leads there.
pub async fn query_route(
    handle: &Handle,
    destination: IpAddr,
    interface: Option<&str>,
    interfaces: &BTreeMap<Ifindex, Interface>,
) -> Option<Via> {
    let mut message = request(destination);
    if let Some(name) = interface {
        let link = interfaces.values().find(|link| link.name == name)?;
        message.attributes.push(RouteAttribute::Oif(link.index.0));
    }
    // An error is the kernel's way to say that there is no route.
    let mut answers = Box::pin(handle.route().get(message).execute());
    let answer = answers.try_next().await.ok().flatten()?;
    via(destination, &answer)
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

fn via(destination: IpAddr, answer: &RouteMessage) -> Option<Via> {
    let local = match answer.header.kind {
        RouteType::Local => true,
        RouteType::Unicast | RouteType::Broadcast | RouteType::Anycast => false,
        _ => return None,
    };
    let (mut interface, mut source) = (None, None);
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
            _ => {}
        }
    }
    Some(Via {
        interface: interface?,
        address,
        local,
        source: source.filter(|_| local),
    })
}
