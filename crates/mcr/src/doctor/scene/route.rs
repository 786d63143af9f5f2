//! Questions to the routing table and the traffic control, through netlink.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt;
use model::host::{Host, NextHop, NextHopQuery};
use model::net::Ifindex;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia,
};
use rtnetlink::packet_route::tc::{TcAttribute, TcMessage};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::Link;

/// Why the kernel did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No netlink socket.
    #[error("{0}")]
    Open(#[from] std::io::Error),
    /// A refused question.
    #[error("{0}")]
    Answer(#[from] rtnetlink::Error),
}

/// Opens a netlink socket; the runtime of the caller serves it.
pub(crate) fn connect() -> Result<Handle, Error> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    Ok(handle)
}

/// The links and the next hops of `queries`, as the model has them. Whether a neighbour answers is
/// not asked: the daemon does that.
pub(super) async fn host(handle: &Handle, links: &[Link], queries: Vec<NextHopQuery>) -> Host {
    let interfaces = links
        .iter()
        .map(|link| (Ifindex(link.index), link.interface()));
    let mut next_hops = BTreeMap::new();
    for query in queries {
        let next_hop = next_hop(handle, links, &query).await;
        next_hops.insert(query, next_hop.unwrap_or(NextHop::NoRoute));
    }
    Host {
        interfaces: interfaces.collect(),
        next_hops,
    }
}

async fn next_hop(handle: &Handle, links: &[Link], query: &NextHopQuery) -> Option<NextHop> {
    let mut message = match query.destination {
        IpAddr::V4(address) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(address, 32)
            .build(),
        IpAddr::V6(address) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(address, 128)
            .build(),
    };
    if let Some(name) = &query.interface {
        let link = links.iter().find(|link| link.name == *name)?;
        message.attributes.push(RouteAttribute::Oif(link.index));
    }
    // An error is the kernel's way to say that there is no route.
    let mut answers = Box::pin(handle.route().get(message).execute());
    let answer = answers.try_next().await.ok().flatten()?;
    resolved(query.destination, &answer)
}

fn resolved(destination: IpAddr, answer: &RouteMessage) -> Option<NextHop> {
    if !matches!(
        answer.header.kind,
        RouteType::Unicast | RouteType::Local | RouteType::Broadcast | RouteType::Anycast
    ) {
        return None;
    }
    let (mut interface, mut via) = (None, destination);
    for attribute in &answer.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(Ifindex(*index)),
            RouteAttribute::Gateway(RouteAddress::Inet(router))
            | RouteAttribute::Via(RouteVia::Inet(router)) => via = (*router).into(),
            RouteAttribute::Gateway(RouteAddress::Inet6(router))
            | RouteAttribute::Via(RouteVia::Inet6(router)) => via = (*router).into(),
            _ => {}
        }
    }
    Some(NextHop::Resolved {
        interface: interface?,
        via,
        mac: None,
    })
}

/// The indices of links with a clsact or ingress qdisc.
pub(super) async fn ingress_qdiscs(handle: &Handle) -> Result<Vec<u32>, Error> {
    let qdiscs: Vec<TcMessage> = handle.qdisc().get().execute().try_collect().await?;
    let is_ingress = |message: &&TcMessage| {
        message.attributes.iter().any(|attribute| {
            matches!(attribute, TcAttribute::Kind(kind) if kind == "clsact" || kind == "ingress")
        })
    };
    let ingress = qdiscs.iter().filter(is_ingress);
    Ok(ingress.map(|message| message.header.index as u32).collect())
}
