//! The network as the daemon reads it, and what only the checks want to know: all through netlink.

use daemon::host::{Error, Via, connect, look_up, query_route, read_links, read_multicast_routes};
use futures::TryStreamExt;
use model::host::{Destination, Host, NextHop, NextHopQuery};
use rtnetlink::Handle;
use rtnetlink::packet_route::tc::{TcAttribute, TcMessage};

use super::link::Link;

/// Reads the links, and the host with the next hops of `queries`. Whether a neighbour answers is
/// not asked: the daemon does that.
pub(super) async fn read(queries: Vec<NextHopQuery>) -> Result<(Vec<Link>, Host), Error> {
    let handle = connect()?;
    let read = read_links(&handle).await?;
    let mut links: Vec<Link> = read.iter().map(Link::from).collect();
    let ingress = ingress_qdiscs(&handle).await?;
    for link in &mut links {
        link.clsact = ingress.contains(&link.index);
    }
    let interfaces = read.into_iter();
    let interfaces = interfaces.map(|link| (link.interface.index, link.interface));
    let mut host = Host {
        interfaces: interfaces.collect(),
        ..Host::default()
    };
    host.multicast_routes = read_multicast_routes(host.interfaces.values());
    for query in queries {
        if let Destination::Name { name, .. } = &query.destination
            && !host.names.contains_key(name)
        {
            host.names.insert(name.clone(), look_up(name).await);
        }
        let Some(destination) = host.address(&query.destination) else {
            continue;
        };
        let by = query.interface.as_deref();
        let via = query_route(&handle, destination, by, &host.interfaces).await;
        host.next_hops
            .insert(query, via.map_or(NextHop::NoRoute, reached));
    }
    Ok((links, host))
}

const fn reached(via: Via) -> NextHop {
    if via.local {
        return NextHop::Here {
            interface: via.interface,
            source: via.source,
        };
    }
    NextHop::Resolved {
        interface: via.interface,
        via: via.address,
        mac: None,
    }
}

/// The indices of links with a clsact or ingress qdisc.
async fn ingress_qdiscs(handle: &Handle) -> Result<Vec<u32>, Error> {
    let dump = |source| Error::Dump {
        what: "queueing disciplines",
        source,
    };
    let qdiscs = handle.qdisc().get().execute();
    let qdiscs: Vec<TcMessage> = qdiscs.try_collect().await.map_err(dump)?;
    let is_ingress = |message: &&TcMessage| {
        message.attributes.iter().any(|attribute| {
            matches!(attribute, TcAttribute::Kind(kind) if kind == "clsact" || kind == "ingress")
        })
    };
    let ingress = qdiscs.iter().filter(is_ingress);
    Ok(ingress.map(|message| message.header.index as u32).collect())
}
