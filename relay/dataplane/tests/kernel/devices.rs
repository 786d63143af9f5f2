//! Outputs by devices that are not plain veths, and back by the input's own.

use std::net::Ipv4Addr;
use std::time::Duration;

use compile::table::{LinkHeader, OutputState};
use dataplane::Capacity;
use lab::link;
use lab::namespace::Namespace;
use lab::socket::Receiver;
use rules::net::{Ifindex, Mac};

use crate::bed::{Bed, route, table};

const IN: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
const OUT: Ipv4Addr = Ipv4Addr::new(239, 10, 1, 1);
const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn relays_out_of_a_bridge() {
    let bed = Bed::new();
    let relay = &bed.chain.relay;
    relay
        .ip("link add br9 type bridge mcast_snooping 0")
        .unwrap();
    relay.ip("link set veth2 master br9").unwrap();
    demand_copies(&bed, "br9", (&bed.chain.sink, "veth3"));
}

#[test]
fn relays_out_of_a_macvlan() {
    let bed = Bed::new();
    let add = "link add mv9 link veth2 type macvlan mode bridge";
    bed.chain.relay.ip(add).unwrap();
    demand_copies(&bed, "mv9", (&bed.chain.sink, "veth3"));
}

#[test]
fn relays_into_a_vxlan() {
    let bed = Bed::new();
    let (relay, sink) = (&bed.chain.relay, &bed.chain.sink);
    for (namespace, under, local, remote) in [
        (relay, "veth2", "10.0.1.1", "10.0.1.2"),
        (sink, "veth3", "10.0.1.2", "10.0.1.1"),
    ] {
        let ends = format!("local {local} remote {remote} dev {under}");
        let add = format!("link add vx9 type vxlan id 7 dstport 4789 {ends}");
        namespace.ip(&add).unwrap();
    }
    link::up((sink, "vx9")).unwrap();
    link::address((sink, "vx9"), "10.0.9.2/24").unwrap();
    demand_copies(&bed, "vx9", (sink, "vx9"));
}

#[test]
fn relays_back_by_the_interface_it_came_from() {
    let bed = Bed::new();
    demand_copies(&bed, "veth1", (&bed.chain.sender, "veth0"));
}

/// Relays to an output by `device` twice, to two groups, and expects both at the receiver.
fn demand_copies(bed: &Bed, device: &str, receiver: (&Namespace, &str)) {
    let relay = &bed.chain.relay;
    link::up((relay, device)).unwrap();
    let second = Ipv4Addr::new(239, 10, 1, 2);
    let outputs = [OUT, second].into_iter().zip(0..).map(|(group, index)| {
        let mut output = bed.output(index, group, 6001);
        let OutputState::Up(egress) = &mut output.state else {
            panic!("an output of the bed is up")
        };
        egress.interface = Ifindex(link::index((relay, device)).unwrap());
        egress.mtu = 1400;
        egress.link = LinkHeader::Group {
            source: mac(relay, device),
        };
        output
    });
    let rule = route("cam1", outputs.collect());
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &table([(bed.key(IN, 5001), rule)]));
    let sinks = [OUT, second].map(|group| Receiver::join(receiver, group.into(), 6001).unwrap());
    let sender = bed.sender();
    sender.send_numbered(IN.into(), 5001, 10, 100).unwrap();
    for sink in &sinks {
        sink.expect(10, PATIENCE).unwrap();
    }
    let counters = dataplane.counters().unwrap();
    let rule = &counters.rules["cam1"];
    assert_eq!(rule.received.packets, 10);
    assert_eq!(rule.outputs[&0].sent.packets, 10);
    assert_eq!(rule.outputs[&1].sent.packets, 10);
}

fn mac(namespace: &Namespace, device: &str) -> Mac {
    let text = link::mac((namespace, device)).unwrap();
    let octets = text.trim().split(':');
    let octets: Vec<u8> = octets
        .map(|octet| u8::from_str_radix(octet, 16).unwrap())
        .collect();
    Mac(octets.try_into().unwrap())
}
