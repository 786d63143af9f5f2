//! Datagrams that arrive in fragments: each path does what the reference does, and the copies reassemble to the
//! rewritten datagram.

use std::net::{IpAddr, SocketAddr};

use compile::table::{Route, RouteKey, Table, Ttl};
use packet::craft::Craft;
use packet::datagram::Part;
use packet::fragment::{pieces, write_piece_header};
use packet::parse::{Link, Meta, Parsed, parse};
use rules::net::{Ports, Prefix};

use crate::case::{A, B, INGRESS, PORT, Packet, RULE, address, output, route, socket, with};
use crate::reference::Reference;
use crate::relayed::{Relay, Sum};

const IPV6_GROUP: &str = "ff3e::1";

/// Runs datagrams of both families through `relay`.
pub(crate) fn demand(relay: &mut Relay<'_>) {
    let payload: Vec<u8> = (0..4000u32).map(|i| (i * 7) as u8).collect();
    let ipv4 = Craft::new(socket("10.0.0.5", 4000), socket("239.1.1.1", PORT), payload);
    let ipv6 = Craft {
        source: socket("fd00::5", 4000),
        destination: socket(IPV6_GROUP, PORT),
        macs: ([0x33, 0x33, 0, 0, 0, 1], ipv4.macs.1),
        ..ipv4.clone()
    };
    for (id, craft) in [(1, ipv4), (2, ipv6)] {
        let table = table(craft.destination.ip());
        let fragments = cut(&craft, id);
        assert_eq!(fragments.len(), 3);
        let sum = forward(relay, &table, &fragments);
        let copies = &sum.copies[&A];
        assert_eq!(copies.len(), 3);
        let whole = copies.iter().flat_map(udp_bytes).collect::<Vec<u8>>();
        let sound = packet::checksum::udp_is_valid(
            source(copies.first()),
            destination(copies.first()),
            &whole,
        );
        assert!(sound, "the checksum covers the reassembled datagram");
        assert_eq!(whole[8..], craft.payload);
        // Out of order, and without the first: there is only one rule for the group.
        let late = cut(&craft, id + 100);
        let sum = forward(
            relay,
            &table,
            &[late[1].clone(), late[0].clone(), late[2].clone()],
        );
        assert_eq!(sum.copies[&A].len(), 3);
        let sum = forward(relay, &table, &cut(&craft, id + 101)[1..]);
        assert_eq!(sum.copies[&A].len(), 2);
        // With another rule for the group, order matters.
        let two = two_rules(&table);
        let late = cut(&craft, id + 102);
        let sum = forward(
            relay,
            &two,
            &[late[1].clone(), late[0].clone(), late[2].clone()],
        );
        assert_eq!(sum.copies[&A].len(), 2);
        // Another port's datagram is not the rule's, nor are its fragments.
        let elsewhere = Craft {
            destination: SocketAddr::new(craft.destination.ip(), PORT + 7),
            ..craft.clone()
        };
        let sum = forward(relay, &table, &cut(&elsewhere, id + 103));
        assert_eq!(sum.copies, Default::default());
        // One byte, shorter than a UDP header.
        let tiny = cut(
            &Craft {
                payload: vec![1; 2 * 1448 - 7],
                ..craft
            },
            id + 200,
        );
        forward(relay, &table, &tiny);
    }
}

fn cut(craft: &Craft, id: u32) -> Vec<Packet> {
    if craft.source.is_ipv4() {
        cut_ipv4(craft, id as u16, 1468)
    } else {
        cut_ipv6(craft, id, 1496)
    }
}

/// Forwards, and checks against the reference.
fn forward(relay: &mut Relay<'_>, table: &Table, packets: &[Packet]) -> Sum {
    let mut reference = Reference::of(table);
    let mut expected = Sum::default();
    for packet in packets {
        expected.expect(packet, &reference.execute(INGRESS, packet, |_| false));
    }
    relay.apply(table);
    let seen = relay.forward(packets, &expected);
    assert_eq!(seen, expected);
    seen
}

fn table(group: IpAddr) -> Table {
    let key = RouteKey {
        ingress: INGRESS,
        groups: Prefix::host(group),
        ports: Ports::single(PORT),
        source: None,
    };
    let outputs = [A, B].map(|interface| {
        with(output(interface), |egress| {
            egress.ttl = Ttl::Decrement;
            egress.source_port = Some(4444);
            egress.dscp = Some(34);
            if group.is_ipv6() {
                egress.destination = Prefix::host(address("ff3e::77"));
                egress.source = Some(address("fd00::77"));
            }
        })
    });
    Table {
        routes: [(key, route(RULE, outputs.to_vec()))].into(),
        ..Table::default()
    }
}

/// `table` with a second rule for the next port.
fn two_rules(table: &Table) -> Table {
    let mut table = table.clone();
    let (mut key, route) = table.routes.first_key_value().map(own).expect("a route");
    key.ports = Ports::single(PORT + 1);
    let rule = "other".to_owned();
    table.routes.insert(key, Route { rule, ..route });
    table
}

fn own((key, route): (&RouteKey, &Route)) -> (RouteKey, Route) {
    (*key, route.clone())
}

/// The fragments of an IPv4 datagram, none above `mtu`.
pub(crate) fn cut_ipv4(craft: &Craft, id: u16, mtu: usize) -> Vec<Packet> {
    let frame = Craft {
        id,
        fragment: 0,
        ..craft.clone()
    }
    .frame();
    let (header, data) = frame.split_at(34);
    let cut = pieces(20, data.len(), mtu).map(|piece| {
        let mut fragment = header.to_vec();
        write_piece_header(&mut fragment[14..], piece).expect("a header");
        fragment.extend(&data[piece.offset..piece.offset + piece.length]);
        Packet::from(fragment)
    });
    cut.collect()
}

/// The same for an IPv6 datagram.
pub(crate) fn cut_ipv6(craft: &Craft, id: u32, mtu: usize) -> Vec<Packet> {
    let frame = craft.frame();
    let (header, data) = frame.split_at(54);
    let cut = pieces(48, data.len(), mtu).map(|piece| {
        let mut fragment = header.to_vec();
        fragment[18..20].copy_from_slice(&(piece.length as u16 + 8).to_be_bytes());
        fragment[20] = 44;
        let offset_and_more = piece.offset as u16 | u16::from(piece.more);
        fragment.extend([17, 0]);
        fragment.extend(offset_and_more.to_be_bytes());
        fragment.extend(id.to_be_bytes());
        fragment.extend(&data[piece.offset..piece.offset + piece.length]);
        Packet::from(fragment)
    });
    cut.collect()
}

/// A fragment's bytes of the UDP datagram.
fn udp_bytes(packet: &Packet) -> Vec<u8> {
    let Parsed::Fragment(fragment) = parse(&packet.frame, Link::Ethernet, Meta::default()) else {
        panic!("{packet:?} is no fragment")
    };
    let datagram = fragment.datagram.expect("headers");
    assert_eq!(datagram.part == Part::First, fragment.offset == 0);
    packet.frame[datagram.udp_offset..datagram.end()].to_vec()
}

fn source(packet: Option<&Packet>) -> IpAddr {
    addresses(packet).0
}

fn destination(packet: Option<&Packet>) -> IpAddr {
    addresses(packet).1
}

fn addresses(packet: Option<&Packet>) -> (IpAddr, IpAddr) {
    let packet = packet.expect("a copy");
    match parse(&packet.frame, Link::Ethernet, Meta::default()) {
        Parsed::Fragment(fragment) => (fragment.key.source, fragment.key.destination),
        other => panic!("{other:?}"),
    }
}
