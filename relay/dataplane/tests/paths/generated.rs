//! Strategies for tables and packets. Addresses and ports come from small sets, so that packets
//! meet routes; packets are sound, cut, mutated or super-packets.

use std::collections::BTreeMap;
use std::net::IpAddr;

use compile::table::{
    DownReason, LinkHeader, LocalDelivery, Output, OutputState, RateLimit, RateUnit, RouteKey,
    Table, Ttl,
};
use packet::craft::{Craft, CraftChecksum, fix_ipv4_checksum};
use packet::parse::Gso;
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use rules::net::{Ifindex, Mac, Ports, Prefix};

use crate::case::{
    A, B, C, INGRESS, OPEN, PAST, Packet, SHUT, address, egress_mac, output, own_addresses, route,
    socket, with,
};
use crate::fragments::{cut_ipv4, cut_ipv6};

/// A family's groups, or addresses of this host. The first two groups share an Ethernet address; the last source is
/// one that a table may have as its own.
#[derive(Debug)]
struct Addresses {
    groups: [&'static str; 3],
    sources: [&'static str; 3],
}

const IPV4: Addresses = Addresses {
    groups: ["239.1.1.1", "238.129.1.1", "232.4.5.6"],
    sources: ["10.0.0.5", "10.0.0.6", "10.0.2.1"],
};
const IPV6: Addresses = Addresses {
    groups: ["ff3e::1:1", "ff35::1:1", "ff3e::1:2"],
    sources: ["fd00::5", "fd00::6", "fd00:2::1"],
};
const OWN_IPV4: Addresses = Addresses {
    groups: ["10.0.0.2", "10.0.0.255", "255.255.255.255"],
    ..IPV4
};
const OWN_IPV6: Addresses = Addresses {
    groups: ["fd00::2", "fd00::1:2", "fe80::2"],
    ..IPV6
};
const PORTS: [u16; 3] = [5001, 5002, 5003];
/// The port to which a socket of the relay's host is bound all the time.
pub(crate) const BOUND_PORT: u16 = 5003;

fn families() -> impl Strategy<Value = &'static Addresses> {
    prop_oneof![4 => Just(&IPV4), 2 => Just(&IPV6), 2 => Just(&OWN_IPV4), 1 => Just(&OWN_IPV6)]
}

impl Addresses {
    fn is_own(&self) -> bool {
        !address(self.groups[0]).is_multicast()
    }

    /// Host bits of a span of them.
    fn host_bits(&self, span: Span) -> u8 {
        if self.is_own() { 0 } else { span.host_bits }
    }
}

/// Groups of a rule: how many leading bits and which ports they share. Overlapping ranges of ports have different
/// sizes, so that the most specific rule is always unique.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// Host bits; so few that no range holds the bed's sentinel.
    host_bits: u8,
    ports: Option<(u16, u16)>,
}

fn spans() -> impl Strategy<Value = Span> {
    let host_bits = prop_oneof![4 => Just(0u8), 1 => select(vec![1u8, 4, 8, 16])];
    let ports = select(vec![(5001, 5002), (5001, 5003), (1, 65_535)]);
    (host_bits, option::weighted(0.2, ports))
        .prop_map(|(host_bits, ports)| Span { host_bits, ports })
}

/// The most rules of a table.
pub(crate) const RULES: usize = 6;

/// A table of up to six rules, each with one or two keys. A rule with a limit has one, as the
/// reference keeps a limit for each.
pub(crate) fn tables() -> impl Strategy<Value = Table> {
    let rule = (families(), spans(), option::weighted(0.15, limits())).prop_flat_map(
        |(of, span, limit)| {
            let keys_at_most = if limit.is_some() { 1 } else { 2 };
            (
                btree_set(keys(of, span), 1..=keys_at_most),
                (locals(), Just(limit), any::<bool>(), shares()),
                vec(outputs(of, span, limit.is_some()), 0..=4),
            )
        },
    );
    let budget = option::weighted(0.2, flat_limits());
    let vrf = || option::of(select(vec![Ifindex(77), Ifindex(78)]));
    let address = select(vec![IPV4.sources[2], IPV6.sources[2]]).prop_map(address);
    let own = (btree_set((vrf(), address), 0..=3), vrf()).prop_map(own_addresses);
    (vec(rule, 1..=RULES), own, budget).prop_map(|(rules, own, budget)| {
        let mut routes = BTreeMap::new();
        for (number, (keys, (local, limit, apart, share), outputs)) in rules.into_iter().enumerate()
        {
            let mut route = route(&format!("rule{number}"), outputs);
            route.local = local;
            route.limit = limit;
            route.share = share.map(str::to_owned);
            // Two keys are two inputs, or two sources of one.
            let apart = apart && keys.len() > 1;
            for (number, key) in keys.into_iter().enumerate() {
                route.input = apart.then(|| format!("input{number}"));
                routes.entry(key).or_insert_with(|| route.clone());
            }
        }
        Table {
            routes,
            own_addresses: own,
            budget,
        }
    })
}

fn keys(of: &'static Addresses, span: Span) -> impl Strategy<Value = RouteKey> {
    // Ranges of senders are only distinguished for packets to this host.
    let free = select(if of.is_own() {
        vec![0, 0, 1, 8]
    } else {
        vec![0]
    });
    let source = option::of((select(&of.sources[..]), free));
    (select(&of.groups[..]), select(&PORTS[..]), source).prop_map(move |(group, port, source)| {
        let group = address(group);
        let sender = |(sender, free)| {
            let sender = address(sender);
            Prefix::new(sender, Prefix::host(sender).length - free)
        };
        let (first, last) = span.ports.unwrap_or((port, port));
        RouteKey {
            ingress: INGRESS,
            groups: Prefix::new(group, Prefix::host(group).length - of.host_bits(span)),
            ports: Ports { first, last },
            source: source.map(sender),
        }
    })
}

/// Limits that a test's few packets exceed, or do not, and that no second of waiting fills.
fn limits() -> impl Strategy<Value = RateLimit> {
    let packets = (1u64..30).prop_map(|burst| (RateUnit::Packets, burst));
    let bits = (8u64..60_000).prop_map(|burst| (RateUnit::Bits, burst));
    prop_oneof![packets, bits].prop_map(|(unit, burst)| RateLimit {
        unit,
        rate: 1,
        burst,
    })
}

/// Limits that pass everything or only empty datagrams: a path may choose which packets take a limit first where it
/// orders them by flow.
fn flat_limits() -> impl Strategy<Value = RateLimit> {
    let rates = select(vec![(1_000_000_000_000u64, 1 << 40), (1, 1)]);
    rates.prop_map(|(rate, burst)| RateLimit {
        unit: RateUnit::Bits,
        rate,
        burst,
    })
}

/// Mostly no share; most of the shares are open.
fn shares() -> impl Strategy<Value = Option<&'static str>> {
    let share = select(vec![OPEN, OPEN, SHUT, PAST, "another"]);
    option::weighted(0.3, share)
}

fn locals() -> impl Strategy<Value = LocalDelivery> {
    select(vec![
        LocalDelivery::Auto,
        LocalDelivery::Auto,
        LocalDelivery::No,
        LocalDelivery::Yes,
    ])
}

fn outputs(of: &'static Addresses, span: Span, limited: bool) -> impl Strategy<Value = Output> {
    let up = (outputs_up(of, span), option::weighted(0.15, flat_limits()));
    prop_oneof![
        // A rule's limit and an output's are not both fresh for one key alone.
        6 => up.prop_map(move |(output, limit)| Output {
            limit: limit.filter(|_| !limited),
            ..output
        }),
        1 => (interfaces(), down_reasons()).prop_map(|(interface, reason)| Output {
            state: OutputState::Down(reason),
            ..output(interface)
        }),
    ]
}

fn outputs_up(of: &'static Addresses, span: Span) -> impl Strategy<Value = Output> {
    let ranges = any::<(bool, bool)>();
    let addresses = (any::<u128>(), option::of(any::<u128>()), ranges);
    let ports = (option::of(any::<u16>()), 1u16..);
    let fields = (ttls(), option::of(0u8..64));
    let neighbour = option::weighted(0.2, any::<[u8; 6]>());
    let mtu = select(vec![60, 576, 1500, 9000]);
    (interfaces(), mtu, addresses, ports, fields, neighbour).prop_map(
        move |(interface, mtu, (group, source, ranges), (sport, port), (ttl, dscp), neighbour)| {
            with(output(interface), |egress| {
                egress.mtu = mtu;
                let group = Prefix::host(group_of(of, group));
                // A unicast output has a neighbour and no range.
                let unicast = neighbour.is_some();
                egress.destination = match (unicast, ranges.0) {
                    (true, _) => Prefix::host(address(of.sources[0])),
                    (false, true) => {
                        Prefix::new(group.address, group.length - groups_bits(of, span))
                    }
                    (false, false) => group,
                };
                egress.source = source.map(|bits| host_of(of, bits));
                egress.source_port = sport;
                let more = if ranges.1 { more_ports(of, span) } else { 0 };
                let first = port.min(u16::MAX - more);
                egress.ports = Ports {
                    first,
                    last: first + more,
                };
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

/// Host bits of an output's range of groups: the route's, or where that is one address enough for its ports.
fn groups_bits(of: &Addresses, span: Span) -> u8 {
    let ports = span.ports.map_or(1, |(first, last)| last - first + 1);
    match of.is_own() {
        true if ports.is_power_of_two() => ports.ilog2() as u8,
        true => 0,
        false => span.host_bits,
    }
}

/// The size of an output's range of ports: the route's, or where that has one port its number of groups.
fn more_ports(of: &Addresses, span: Span) -> u16 {
    match span.ports {
        Some((first, last)) => last - first,
        None => ((1_u32 << of.host_bits(span)) - 1) as u16,
    }
}

fn group_of(of: &Addresses, bits: u128) -> IpAddr {
    match address(of.groups[0]) {
        IpAddr::V4(_) => IpAddr::V4((0xe000_0000 | bits as u32 >> 4).into()),
        IpAddr::V6(_) => IpAddr::V6((0xff << 120 | bits >> 8).into()),
    }
}

fn host_of(of: &Addresses, bits: u128) -> IpAddr {
    match address(of.groups[0]) {
        IpAddr::V4(_) => IpAddr::V4((bits as u32).into()),
        IpAddr::V6(_) => IpAddr::V6(bits.into()),
    }
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
        DownReason::NotWanted,
        DownReason::IpsecPolicy,
    ])
}

/// A packet of any kind, or a datagram in fragments.
pub(crate) fn packets() -> impl Strategy<Value = Vec<Packet>> {
    let one = prop_oneof![
        8 => sound().prop_map(Packet::from),
        2 => super_packets(),
        4 => mutated(),
        1 => tagged(),
    ];
    prop_oneof![8 => one.prop_map(|packet| vec![packet]), 1 => fragmented()]
}

/// A datagram's fragments in any order, perhaps not all of them.
fn fragmented() -> impl Strategy<Value = Vec<Packet>> {
    let craft = sound().prop_map(|craft| Craft {
        options: vec![],
        first_extension: 17,
        checksum: CraftChecksum::Complete,
        padding: 0,
        ..craft
    });
    let more = (any::<u32>(), 64u16..1500, any::<Index>(), any::<bool>());
    (craft, more, 0usize..4000).prop_map(|(mut craft, (id, mtu, order, lose), size)| {
        craft.payload = (0..size).map(|n| n as u8).collect();
        let mut pieces = if craft.source.is_ipv4() {
            cut_ipv4(&craft, id as u16, mtu.into())
        } else {
            cut_ipv6(&craft, id, usize::from(mtu) + 40)
        };
        let turn = order.index(pieces.len());
        pieces.rotate_left(turn);
        if lose {
            pieces.pop();
        }
        pieces.truncate(12);
        pieces
    })
}

fn sound() -> impl Strategy<Value = Craft> {
    let addresses = families().prop_flat_map(|of| {
        let options = if address(of.groups[0]).is_ipv4() {
            ipv4_options()
        } else {
            extensions()
        };
        (select(&of.sources[..]), select(&of.groups[..]), options)
    });
    let ports = (any::<u16>(), select(&PORTS[..]));
    let size = prop_oneof![
        6 => 0usize..60, 2 => 500usize..600, 2 => 1400usize..1500, 1 => 8900usize..9000
    ];
    let ttl = prop_oneof![Just(0u8), Just(1), Just(2), any::<u8>()];
    let kept = (ttl, any::<u8>(), any::<u16>(), any::<bool>());
    let padding = prop_oneof![3 => Just(0usize), 1 => 1usize..20];
    (
        addresses,
        ports,
        (size, any::<u8>()),
        kept,
        checksums(),
        padding,
    )
        .prop_map(
            |(addresses, ports, (size, seed), (ttl, traffic_class, id, df), checksum, padding)| {
                let (source, group, (first_extension, options)) = addresses;
                let payload = (0..size).map(|n| seed.wrapping_add(n as u8)).collect();
                let craft = Craft::new(socket(source, ports.0), socket(group, ports.1), payload);
                let own = if group == "255.255.255.255" {
                    [0xff; 6]
                } else {
                    egress_mac(INGRESS)
                };
                let is_group = craft.destination.ip().is_multicast();
                let to = if is_group { craft.macs.0 } else { own };
                Craft {
                    macs: (to, craft.macs.1),
                    ttl,
                    traffic_class,
                    id,
                    fragment: u16::from(df) << 14,
                    first_extension,
                    options,
                    checksum,
                    padding,
                    ..craft
                }
            },
        )
}

fn checksums() -> impl Strategy<Value = CraftChecksum> {
    prop_oneof![
        2 => Just(CraftChecksum::Complete),
        1 => Just(CraftChecksum::Partial),
        1 => Just(CraftChecksum::Zero),
    ]
}

fn ipv4_options() -> BoxedStrategy<(u8, Vec<u8>)> {
    let words = prop_oneof![4 => Just(0usize), 1 => 1usize..=10];
    words.prop_map(|words| (17, vec![1; words * 4])).boxed()
}

/// Up to ten extension headers, which is more than are followed.
fn extensions() -> BoxedStrategy<(u8, Vec<u8>)> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION_OPTIONS: u8 = 60;
    let kind = prop_oneof![
        4 => Just(DESTINATION_OPTIONS), 2 => Just(HOP_BY_HOP), 1 => Just(ROUTING), 1 => Just(FRAGMENT)
    ];
    let chain = prop_oneof![
        4 => Just(Vec::new()).boxed(),
        2 => vec((kind.clone(), 0u8..3), 1..4).boxed(),
        1 => vec((kind, 0u8..1), 7..=10).boxed(),
    ];
    chain
        .prop_map(|chain| {
            let kinds = chain.iter().map(|(kind, _)| *kind).chain([17]);
            let mut bytes = Vec::new();
            for ((kind, more), next) in chain.iter().zip(kinds.clone().skip(1)) {
                // A fragment header has no length of its own.
                let more = if *kind == FRAGMENT { 0 } else { *more };
                bytes.extend([next, more]);
                bytes.extend(vec![0; 6 + usize::from(more) * 8]);
            }
            (kinds.clone().next().unwrap_or(17), bytes)
        })
        .boxed()
}

/// A sound packet behind a VLAN tag.
fn tagged() -> impl Strategy<Value = Packet> {
    let ethertype = select(vec![[0x81, 0x00], [0x88, 0xa8]]);
    (sound(), ethertype, 0u16..0x1000).prop_map(|(craft, ethertype, tag)| {
        let mut frame = craft.frame();
        let [high, low] = tag.to_be_bytes();
        frame.splice(12..12, [ethertype[0], ethertype[1], high, low]);
        Packet::from(frame)
    })
}

fn super_packets() -> impl Strategy<Value = Packet> {
    (sound(), 1u16..1500, 2usize..8, 0usize..1000).prop_map(|(craft, size, segments, more)| {
        let whole = usize::from(size) * segments;
        let whole = (whole + more % usize::from(size)).min(60_000);
        let payload = (0..whole).map(|n| n as u8);
        // No sender makes IPv6 super-packets with extension headers.
        let options = craft.options.clone();
        let options = if craft.source.is_ipv4() {
            options
        } else {
            vec![]
        };
        let craft = Craft {
            options,
            first_extension: 17,
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
            let udp = 14 + if craft.source.is_ipv4() { 20 } else { 40 } + craft.options.len();
            let headers = 12..udp + 8;
            for (at, value) in changes {
                frame[headers.start + at.index(headers.len())] = value;
            }
            if let Some(cut) = cut {
                // A socket cannot send less than an Ethernet header.
                frame.truncate(14 + cut.index(frame.len() - 14 + 1));
            }
            if fix && craft.source.is_ipv4() {
                fix_ipv4_checksum(&mut frame, 14);
            }
            Packet::from(frame)
        })
}
