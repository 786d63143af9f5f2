//! Whether packets sent through a tunnel can reach its other end.

use std::collections::BTreeMap;
use std::net::IpAddr;

use config::Tunnel;

use super::{Down, link_down};
use crate::host::{
    Destination, Host, HostTunnel, Interface, LOOPBACK, NextHop, NextHopQuery, PacketQuery,
};
use crate::table::DownReason;

/// The query to the routing table for a tunnel.
pub fn tunnel_query(tunnel: &Tunnel) -> NextHopQuery {
    NextHopQuery {
        destination: Destination::Address(tunnel.remote),
        interface: None,
        packet: PacketQuery::default(),
    }
}

/// The interface that a tunnel's own packets leave by, if it is known.
pub fn below<'a>(tunnel: &Tunnel, host: &'a Host) -> Option<&'a Interface> {
    let index = match host.next_hops.get(&tunnel_query(tunnel))? {
        NextHop::NoRoute(_) => return None,
        NextHop::Here { interface, .. }
        | NextHop::Unresolved { interface, .. }
        | NextHop::Routed { interface, .. }
        | NextHop::Resolved { interface, .. } => interface,
    };
    host.interfaces.get(index)
}

/// Why nothing gets through a tunnel of this host, if nothing does.
pub fn tunnel_trouble(name: &str, host: &Host) -> Option<String> {
    let HostTunnel { tunnel, refused } = host.tunnels.get(name)?;
    if let Some(refused) = refused {
        return Some(refused.clone());
    }
    match host.by_name(name) {
        None => Some(format!("interface {name} is not there yet")),
        Some(link) if !link.up => Some(link_down(link)),
        Some(_) => obstacle(tunnel, name, host).map(|down| down.text),
    }
}

/// Why an output to the tunnel of this name is down, if the reason is the path to its other end.
pub(super) fn obstacle_of(name: &str, host: &Host) -> Option<Down> {
    obstacle(&host.tunnels.get(name)?.tunnel, name, host)
}

/// Why tunnels do not exist, by their names.
pub(super) fn refused(host: &Host) -> BTreeMap<&str, &str> {
    let tunnels = host.tunnels.iter();
    let refused =
        tunnels.filter_map(|(name, tunnel)| Some((name.as_str(), tunnel.refused.as_deref()?)));
    refused.collect()
}

fn obstacle(tunnel: &Tunnel, name: &str, host: &Host) -> Option<Down> {
    let remote = tunnel.remote;
    let down = |reason, text| Some(Down { reason, text });
    let is_here = |address: &IpAddr| {
        let mut links = host.interfaces.values();
        links.any(|link| link.addresses.contains(address))
    };
    if let Some(local) = tunnel.local.filter(|local| !is_here(local)) {
        let text = format!(
            "no interface has {local}, which tunnel {name} is to send from; give it to one"
        );
        return down(DownReason::NoAddress, text);
    }
    let no_route = |text| down(DownReason::NoRoute, text);
    match host.next_hops.get(&tunnel_query(tunnel)) {
        None => no_route(format!(
            "the route to {remote}, the other end of tunnel {name}, is being looked up"
        )),
        Some(NextHop::NoRoute(_)) => no_route(format!(
            "no route to {remote}, the other end of tunnel {name}; add one, `ip route get {remote}` shows it"
        )),
        Some(NextHop::Here { .. }) => no_route(format!(
            "the other end of tunnel {name}, {remote}, is an address of this host; name the other relay's"
        )),
        Some(NextHop::Unresolved {
            via, silent: true, ..
        }) => {
            let protocol = if via.is_ipv4() {
                "ARP"
            } else {
                "neighbour discovery"
            };
            let text = format!(
                "{via}, on the way to {remote}, the other end of tunnel {name}, does not answer {protocol}; is \
                 it there?"
            );
            down(DownReason::NoNeighbour, text)
        }
        Some(NextHop::Unresolved { .. } | NextHop::Resolved { .. } | NextHop::Routed { .. }) => {
            match below(tunnel, host) {
                Some(link) if link.name == name || link.name == LOOPBACK => no_route(format!(
                    "the route to {remote}, the other end of tunnel {name}, leads through {}; add one that \
                 leads there",
                    link.name
                )),
                Some(_) => None,
                None => no_route(format!(
                    "the route to {remote}, the other end of tunnel {name}, leads through an interface that is gone"
                )),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{PathChoices, Support};
    use crate::table::OutputState;
    use crate::{Compiled, compile};
    use rules::document::RuleDocument;
    use rules::net::{Ifindex, Mac};
    use rules::ruleset::{Policy, RuleSet};

    const REMOTE: &str = "10.9.9.9";

    fn link(index: u32, name: &str, addresses: &[&str]) -> Interface {
        Interface {
            index: Ifindex(index),
            name: name.to_owned(),
            up: true,
            mtu: 1500,
            mac: Some(Mac([2, 0, 0, 0, 0, index as u8])),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..Interface::default()
        }
    }

    fn tunnel(local: Option<&str>) -> Tunnel {
        Tunnel {
            local: local.map(|local| local.parse().unwrap()),
            remote: REMOTE.parse().unwrap(),
            port: 4789,
            id: 1,
            mtu: None,
        }
    }

    /// A host with a tunnel "wan" whose other end has this next hop.
    fn host(tunnel: Tunnel, next_hop: Option<NextHop>) -> Host {
        let links = [
            link(2, "eth0", &["192.168.1.1"]),
            link(3, "eth1", &["10.0.0.1"]),
            link(4, "wan", &[]),
        ];
        let refused = None;
        Host {
            interfaces: links.into_iter().map(|link| (link.index, link)).collect(),
            next_hops: next_hop
                .map(|next_hop| (tunnel_query(&tunnel), next_hop))
                .into_iter()
                .collect(),
            tunnels: [("wan".to_owned(), HostTunnel { tunnel, refused })].into(),
            ..Host::default()
        }
    }

    fn through(index: u32) -> Option<NextHop> {
        let via = "10.0.0.254".parse().unwrap();
        let (interface, silent) = (Ifindex(index), false);
        Some(NextHop::Unresolved {
            interface,
            via,
            silent,
            source: None,
        })
    }

    fn compiled(host: &Host) -> Compiled {
        let documents =
            [("out", "eth0", "wan"), ("in", "wan", "eth0")].map(|(name, from, to)| RuleDocument {
                name: name.to_owned(),
                inputs: vec![format!("239.1.1.0/24%{from}:5000")],
                outputs: vec![format!("239.1.1.0/24%{to}:5000").as_str().into()],
                ..RuleDocument::default()
            });
        let rules = RuleSet::from_documents(&documents, Policy::default()).unwrap();
        let support = Support {
            kernel: Ok(()),
            userspace: Ok(()),
        };
        compile(&rules, host, &support, &PathChoices::default())
    }

    fn down(host: &Host) -> String {
        let compiled = compiled(host);
        let out = compiled.rules.values().next().unwrap();
        out.outputs[0].down.as_ref().unwrap().text.clone()
    }

    #[test]
    fn a_tunnel_keeps_sources_and_needs_no_address() {
        let host = host(tunnel(Some("10.0.0.1")), through(3));
        let compiled = compiled(&host);
        let routes = compiled
            .table
            .routes
            .values()
            .map(|route| match &route.outputs[0].state {
                OutputState::Up(egress) => (egress.interface.0, egress.source),
                OutputState::Down(reason) => panic!("{reason:?}"),
            });
        let sources: Vec<_> = routes.collect();
        assert!(sources.contains(&(4, None)), "{sources:?}");
        assert!(
            sources.contains(&(2, Some("192.168.1.1".parse().unwrap()))),
            "{sources:?}"
        );
        assert_eq!(tunnel_trouble("wan", &host), None);
        assert_eq!(below(&tunnel(None), &host).unwrap().name, "eth1");
    }

    #[test]
    fn an_output_is_down_where_nothing_reaches_the_other_end() {
        let silent = NextHop::Unresolved {
            interface: Ifindex(3),
            via: "10.0.0.254".parse().unwrap(),
            silent: true,
            source: None,
        };
        let here = NextHop::Here {
            interface: Ifindex(1),
            source: None,
        };
        for (local, next_hop, expected) in [
            (None, None, "is being looked up"),
            (
                None,
                Some(NextHop::NoRoute(None)),
                "no route to 10.9.9.9, the other end of tunnel wan",
            ),
            (None, Some(here), "10.9.9.9, is an address of this host"),
            (None, Some(silent), "10.0.0.254, on the way to 10.9.9.9"),
            (None, through(4), "leads through wan"),
            (Some("10.7.7.7"), through(3), "no interface has 10.7.7.7"),
        ] {
            let host = host(tunnel(local), next_hop);
            let text = down(&host);
            assert!(text.contains(expected), "{text}");
            assert_eq!(tunnel_trouble("wan", &host), Some(text));
            let compiled = compiled(&host);
            let input = &compiled.rules.values().nth(1).unwrap().inputs[0];
            assert_eq!(input.pending, None, "what comes in needs no way out");
        }
    }

    #[test]
    fn an_interface_with_a_refused_tunnels_name_is_not_used() {
        let mut host = host(tunnel(None), through(3));
        host.tunnels.get_mut("wan").unwrap().refused = Some("is another's".to_owned());
        assert_eq!(down(&host), "is another's");
        let compiled = compiled(&host);
        let input = &compiled.rules.values().nth(1).unwrap().inputs[0];
        assert_eq!(input.pending.as_deref(), Some("is another's; waits for it"));
        assert!(input.joins.is_empty());
    }
}
