//! Datagrams above the MTU, from a real socket to a real socket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use dataplane::{Action, Capacity, Input, corrupt};
use lab::socket::{Receiver, Sender};
use packet::craft::Craft;
use packet::fragment::{pieces, write_piece_header};
use sys::clock::monotonic_ns;

use crate::bed::{Bed, route, table};

const PATIENCE: Duration = Duration::from_secs(5);
const PAYLOAD: usize = 9000;
/// 9008 bytes in pieces of 1480 (IPv4) and 1448 (IPv6).
const FRAGMENTS: u64 = 7;

#[test]
fn relays_datagrams_of_9000_bytes_over_an_mtu_of_1500() {
    let group = |last| IpAddr::from(Ipv4Addr::new(239, 1, 1, last));
    demand_reassembled(group(1), group(2), "10.0.0.1");
}

#[test]
fn relays_datagrams_of_9000_bytes_over_an_mtu_of_1500_by_ipv6() {
    let group = |last| IpAddr::from(Ipv6Addr::new(0xff3e, 0, 0, 0, 0, 0, 0, last));
    demand_reassembled(group(1), group(2), "fd00::1");
}

fn demand_reassembled(from: IpAddr, to: IpAddr, sender: &str) {
    let bed = Bed::new();
    let outputs = vec![bed.output(0, to, 6001)];
    let mut dataplane = bed.open(Capacity::default());
    let rules = table([(bed.key(from, 5001), route("cam1", outputs))]);
    bed.sync(&mut dataplane, &rules);
    let sink = Receiver::join((&bed.chain.sink, "veth3"), to, 6001).unwrap();
    let sender = sender.parse().unwrap();
    let sender = Sender::open((&bed.chain.sender, "veth0"), sender).unwrap();
    sender.send_numbered(from, 5001, 10, PAYLOAD).unwrap();
    sink.expect(10, PATIENCE).unwrap();
    let counters = dataplane.counters().unwrap();
    let rule = &counters.rules["cam1"];
    assert_eq!(rule.received.packets, 10 * FRAGMENTS);
    assert_eq!(rule.received.bytes, 10 * PAYLOAD as u64);
    let (sent, received) = (rule.outputs[&0].sent, rule.received);
    assert_eq!(
        (sent.packets, sent.bytes),
        (received.packets, received.bytes)
    );
}

/// What the program of the previous version recorded of a datagram: the arrival of its first fragment, the ports, and
/// its verdict.
#[test]
fn takes_what_a_former_version_noted_for_what_it_is() {
    let bed = Bed::new();
    let group = IpAddr::from(Ipv4Addr::new(239, 1, 1, 1));
    let rule = |name, port| {
        let outputs = vec![bed.output(0, Ipv4Addr::new(239, 1, 1, 2), 6001)];
        (bed.key(group, port), route(name, outputs))
    };
    let mut dataplane = bed.open(Capacity::default());
    // Without ports, a fragment's rule is unknown.
    bed.sync(&mut dataplane, &table([rule("a", 5001), rule("b", 5002)]));
    let craft = Craft {
        id: 7,
        fragment: 0,
        ..Craft::new(
            "10.0.0.1:4000".parse().unwrap(),
            (group, 5001).into(),
            vec![1; 4000],
        )
    };
    let frame = craft.frame();
    let (header, data) = frame.split_at(34);
    let frames: Vec<Vec<u8>> = pieces(20, data.len(), 1500)
        .map(|piece| {
            let mut frame = header.to_vec();
            write_piece_header(&mut frame[14..], piece).unwrap();
            frame.extend(&data[piece.offset..piece.offset + piece.length]);
            frame
        })
        .collect();
    let mut comes = |piece: usize| {
        let input = Input {
            frame: &frames[piece],
            ifindex: bed.ingress.0,
            gso_size: 0,
            gso_segments: 1,
            received_ns: 0,
            repeat: 1,
        };
        let dataplane = &mut dataplane;
        bed.inside(move || dataplane.test_run(input).unwrap().action)
    };
    let maps = bed.pins().join(format!("maps-{}", bpf::layout::HASH));
    let noted = |seen_ns: u64| {
        let mut value = seen_ns.to_ne_bytes().to_vec();
        value.extend([4000_u16.to_be_bytes(), 5001_u16.to_be_bytes()].concat());
        value.extend(1_u32.to_ne_bytes());
        corrupt::overwrite(&maps.join("fragments"), &value).unwrap();
    };
    assert_eq!(comes(1), Action::Pass);
    assert_eq!(comes(0), Action::Consume);
    assert_eq!(comes(1), Action::Consume);
    noted(monotonic_ns());
    assert_eq!(comes(1), Action::Consume);
    noted(monotonic_ns() - 3_000_000_000);
    assert_eq!(comes(1), Action::Pass);
    // The lower half is this version's time.
    let now = monotonic_ns();
    noted(((now >> 32) + 3) << 32 | now >> 20 & 0xffff_ffff);
    assert_eq!(comes(1), Action::Pass);
    assert_eq!(comes(0), Action::Consume);
    assert_eq!(comes(1), Action::Consume);
}
