//! The network as the daemon reads it, and what only the checks need: all through netlink.

use compile::host::{Destination, Host, NextHop, NextHopQuery};
use host::{
    Error, Ipsec, RouteKinds, RoutingPolicy, connect, ingress_qdiscs, look_up, look_up_all,
    query_route, read_links, read_multicast_routes,
};
use rules::net::Ifindex;

use super::link::Link;

/// Reads the links, and the host with the next hops of `queries`. Does not probe neighbours: the daemon
/// does that.
pub(super) async fn read(queries: Vec<NextHopQuery>) -> Result<(Vec<Link>, Host), Error> {
    let handle = connect()?;
    let read = read_links(&handle).await?;
    let mut links: Vec<Link> = read.iter().map(Link::from).collect();
    let ingress = ingress_qdiscs(&handle).await;
    for link in &mut links {
        link.clsact = ingress.contains(&Ifindex(link.index));
    }
    let interfaces = read
        .into_iter()
        .map(|link| (link.interface.index, link.interface));
    let mut host = Host {
        interfaces: interfaces.collect(),
        ..Host::default()
    };
    host.policies = Ipsec::follow().policies().await;
    host.multicast_routing = read_multicast_routes(host.interfaces.values());
    let policy = RoutingPolicy::read(&handle, RouteKinds::read(&handle).await).await;
    let mut each = Vec::new();
    for query in queries {
        if let Destination::Name { name, .. } = &query.destination
            && !host.names.contains_key(name)
        {
            host.names.insert(name.clone(), look_up(name).await);
        }
        if let all @ Destination::All { .. } = &query.destination {
            let resolved = look_up_all(all).await;
            each.extend(query.each(&resolved.used));
            host.all.insert(all.clone(), resolved);
        } else {
            each.push(query);
        }
    }
    for query in each {
        let Some(destination) = host.address(&query.destination) else {
            continue;
        };
        let packet = (query.interface.as_deref(), query.packet);
        let via = query_route((&handle, &policy), destination, packet, &host.interfaces).await;
        let next_hop = via.map_or_else(NextHop::NoRoute, |via| via.next_hop(None));
        host.next_hops.insert(query, next_hop);
    }
    Ok((links, host))
}
