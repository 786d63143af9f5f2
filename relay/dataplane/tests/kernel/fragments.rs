//! Datagrams above the MTU, from a real socket to a real socket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use dataplane::Capacity;
use lab::socket::{Receiver, Sender};

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
