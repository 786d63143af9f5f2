//! Strategies for tables and packets. Addresses and ports come from small sets, so that packets
//! meet routes; packets are sound, cut, mutated or super-packets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use model::net::{Ifindex, Mac, Ports, Prefix};
use model::table::{
    DownReason, LinkHeader, LocalDelivery, Output, OutputState, RouteKey, Table, Ttl,
};
use packet::craft::{Craft, CraftChecksum, fix_ipv4_checksum};
use packet::parse::Gso;
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::case::{A, B, C, INGRESS, Packet, address, egress_mac, output, route, with};

/// The first two share an Ethernet address.
const GROUPS: [&str; 3] = ["239.1.1.1", "238.129.1.1", "232.4.5.6"];
const SOURCES: [&str; 3] = ["10.0.0.5", "10.0.0.6", "10.0.2.1"];
const PORTS: [u16; 3] = [5001, 5002, 5003];
/// The port to which a socket of the relay's host is bound all the time.
pub(crate) const BOUND_PORT: u16 = 5003;

/// A table of up to six rules, each with one or two keys.
pub(crate) fn tables() -> impl Strategy<Value = Table> {
    let rule = (btree_set(keys(), 1..=2), locals(), vec(outputs(), 0..=4));
    let own = btree_set(select(&SOURCES[2..]), 0..=1);
    (vec(rule, 1..=6), own).prop_map(|(rules, own)| {
        let mut routes = BTreeMap::new();
        for (number, (keys, local, outputs)) in rules.into_iter().enumerate() {
            let mut route = route(&format!("rule{number}"), outputs);
            route.local = local;
            for key in keys {
                routes.entry(key).or_insert_with(|| route.clone());
            }
        }
        Table {
            routes,
            own_addresses: own.into_iter().map(address).collect(),
        }
    })
}

fn keys() -> impl Strategy<Value = RouteKey> {
    (
        select(&GROUPS[..]),
        select(&PORTS[..]),
        option::of(select(&SOURCES[..])),
    )
        .prop_map(|(group, port, source)| RouteKey {
            ingress: INGRESS,
            groups: Prefix::host(address(group)),
            ports: Ports::single(port),
            source: source.map(address),
        })
}

fn locals() -> impl Strategy<Value = LocalDelivery> {
    select(vec![
        LocalDelivery::Auto,
        LocalDelivery::Auto,
        LocalDelivery::No,
        LocalDelivery::Yes,
    ])
}

fn outputs() -> impl Strategy<Value = Output> {
    prop_oneof![
        6 => outputs_up(),
        1 => (interfaces(), down_reasons()).prop_map(|(interface, reason)| Output {
            state: OutputState::Down(reason),
            ..output(interface)
        }),
    ]
}

fn outputs_up() -> impl Strategy<Value = Output> {
    (
        interfaces(),
        select(vec![60, 576, 1500, 9000]),
        option::of(any::<u32>()),
        option::of(option::of(any::<u32>())),
        option::of(any::<u16>()),
        option::of(any::<u16>()),
        ttls(),
        option::of(0u8..64),
        option::weighted(0.2, any::<[u8; 6]>()),
    )
        .prop_map(
            |(interface, mtu, group, source, sport, port, ttl, dscp, neighbour)| {
                with(output(interface), |egress| {
                    egress.mtu = mtu;
                    if let Some(bits) = group {
                        let group = IpAddr::V4((0xe000_0000 | bits >> 4).into());
                        egress.destination = Prefix::host(group);
                    }
                    if let Some(source) = source {
                        egress.source = source.map(|bits| IpAddr::V4(bits.into()));
                    }
                    egress.source_port = sport;
                    egress.ports = Ports::single(port.unwrap_or(6001).max(1));
                    egress.ttl = ttl;
                    egress.dscp = dscp;
                    if let Some(mac) = neighbour {
                        egress.link = LinkHeader::Neighbour {
                            source: Mac(egress_mac(interface)),
                            destination: Mac(mac),
                        };
                    }
                })
            },
        )
}

fn interfaces() -> impl Strategy<Value = Ifindex> {
    select(vec![A, B, C])
}

fn ttls() -> impl Strategy<Value = Ttl> {
    prop_oneof![
        Just(Ttl::Keep),
        Just(Ttl::Decrement),
        (1u8..).prop_map(Ttl::Set),
    ]
}

fn down_reasons() -> impl Strategy<Value = DownReason> {
    select(vec![
        DownReason::InterfaceMissing,
        DownReason::InterfaceDown,
        DownReason::NoAddress,
        DownReason::NoRoute,
        DownReason::NoNeighbour,
    ])
}

/// A packet of any kind.
pub(crate) fn packets() -> impl Strategy<Value = Packet> {
    prop_oneof![
        4 => sound().prop_map(Packet::from),
        1 => super_packets(),
        2 => mutated(),
    ]
}

fn sound() -> impl Strategy<Value = Craft> {
    (
        (select(&SOURCES[..]), any::<u16>()),
        (select(&GROUPS[..]), select(&PORTS[..])),
        prop_oneof![6 => 0usize..60, 2 => 500usize..600, 2 => 1400usize..1500, 1 => 8900usize..9000],
        any::<u8>(),
        prop_oneof![Just(0u8), Just(1), Just(2), any::<u8>()],
        any::<u8>(),
        any::<u16>(),
        (any::<bool>(), prop_oneof![4 => Just(0usize), 1 => 1usize..=10]),
        select(vec![
            CraftChecksum::Complete,
            CraftChecksum::Complete,
            CraftChecksum::Partial,
            CraftChecksum::Zero,
        ]),
        prop_oneof![3 => Just(0usize), 1 => 1usize..20],
    )
        .prop_map(
            |(source, group, size, seed, ttl, class, id, (df, words), checksum, padding)| {
                let payload = (0..size).map(|n| seed.wrapping_add(n as u8)).collect();
                let source = SocketAddr::new(address(source.0), source.1);
                let group = SocketAddr::new(address(group.0), group.1);
                Craft {
                    ttl,
                    traffic_class: class,
                    id,
                    fragment: u16::from(df) << 14,
                    options: vec![1; words * 4],
                    checksum,
                    padding,
                    ..Craft::new(source, group, payload)
                }
            },
        )
}

fn super_packets() -> impl Strategy<Value = Packet> {
    (sound(), 1u16..1500, 2usize..8, 0usize..1000).prop_map(|(craft, size, segments, more)| {
        let whole = usize::from(size) * segments;
        let payload = (0..whole + more % usize::from(size)).map(|n| n as u8);
        let craft = Craft {
            payload: payload.collect(),
            checksum: CraftChecksum::Partial,
            padding: 0,
            ..craft
        };
        let mut packet = Packet::from(craft);
        packet.meta.gso = Some(Gso { size });
        packet
    })
}

/// A packet with bytes changed, most of them in the headers, and perhaps its end cut off; half of
/// them with the header checksum right, so that the other checks are reached.
fn mutated() -> impl Strategy<Value = Packet> {
    let craft = sound().prop_map(|craft| Craft {
        checksum: CraftChecksum::Complete,
        ..craft
    });
    (
        craft,
        vec((any::<Index>(), any::<u8>()), 0..4),
        option::of(any::<Index>()),
        any::<bool>(),
    )
        .prop_map(|(craft, changes, cut, fix)| {
            let mut frame = craft.frame();
            let headers = 12..frame.len().min(46);
            for (at, value) in changes {
                frame[headers.start + at.index(headers.len())] = value;
            }
            if let Some(cut) = cut {
                // A socket cannot send less than an Ethernet header.
                frame.truncate(14 + cut.index(frame.len() - 14 + 1));
            }
            if fix {
                fix_ipv4_checksum(&mut frame, 14);
            }
            Packet::from(frame)
        })
}
