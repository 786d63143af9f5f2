//! Packets through real interfaces: one to one, one to many, up the stack, super-packets.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use dataplane::Capacity;
use lab::socket::{Receiver, Sender, udp_counters};
use model::table::{DownReason, LocalDelivery, OutputState};
use packet::verdict::DropReason;

use crate::bed::{Bed, route, table};

const IN: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
const OUT: Ipv4Addr = Ipv4Addr::new(239, 10, 1, 1);
const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(100);

#[test]
fn relays_one_to_one_with_new_addresses_and_valid_checksums() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let outputs = vec![bed.output(0, OUT, 6001)];
    bed.sync(
        &mut dataplane,
        &table([(bed.key(IN, 5001), route("cam1", outputs))]),
    );
    let sink = bed.sink(OUT, 6001);
    bed.sender()
        .send_numbered(IN.into(), 5001, 100, 900)
        .unwrap();
    let senders = sink.expect(100, PATIENCE).unwrap();
    assert!(
        senders
            .iter()
            .all(|from| from.ip() == Ipv4Addr::new(10, 0, 1, 1))
    );
    assert_eq!(udp_counters(&bed.chain.sink).unwrap().bad_checksums, 0);

    let counters = dataplane.counters().unwrap();
    let rule = &counters.rules["cam1"];
    assert_eq!((rule.received.packets, rule.received.bytes), (100, 90_000));
    assert_eq!(rule.outputs[&0].sent, rule.received);
    assert_eq!(rule.dropped.total(), 0);
}

#[test]
fn relays_to_fifty_outputs_and_counts_those_that_are_down() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let group = |i: u32| Ipv4Addr::from_bits(OUT.to_bits() + i);
    let mut outputs: Vec<_> = (0..50).map(|i| bed.output(i, group(i), 6001)).collect();
    outputs[7].state = OutputState::Down(DownReason::InterfaceDown);
    outputs[49].state = OutputState::Down(DownReason::NoNeighbour);
    bed.sync(
        &mut dataplane,
        &table([(bed.key(IN, 5001), route("wall", outputs))]),
    );
    let sinks: Vec<Receiver> = (0..49)
        .filter(|i| *i != 7)
        .map(|i| bed.sink(group(i), 6001))
        .collect();
    bed.sender()
        .send_numbered(IN.into(), 5001, 20, 1000)
        .unwrap();
    for sink in &sinks {
        sink.expect(20, PATIENCE).unwrap();
    }
    let counters = dataplane.counters().unwrap();
    let rule = &counters.rules["wall"];
    assert_eq!(rule.received.packets, 20);
    for (index, output) in &rule.outputs {
        assert_eq!(
            output.sent.packets + output.dropped.total(),
            20,
            "output {index}"
        );
    }
    let reason = |index, reason| rule.outputs[&index].dropped.0[reason as usize];
    assert_eq!(reason(7, DropReason::InterfaceDown), 20);
    assert_eq!(reason(49, DropReason::NoNeighbour), 20);
}

#[test]
fn delivers_the_original_to_a_local_socket_as_well() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let outputs = vec![bed.output(0, OUT, 6001), bed.output(1, OUT, 6002)];
    bed.sync(
        &mut dataplane,
        &table([(bed.key(IN, 5001), route("cam1", outputs))]),
    );
    let sinks = [bed.sink(OUT, 6001), bed.sink(OUT, 6002)];
    let sender = bed.sender();
    sender.send_numbered(IN.into(), 5001, 10, 500).unwrap();
    sinks
        .iter()
        .for_each(|sink| drop(sink.expect(10, PATIENCE).unwrap()));

    let local = Receiver::join((&bed.chain.relay, "veth1"), IN.into(), 5001).unwrap();
    sender.send_numbered(IN.into(), 5001, 10, 500).unwrap();
    sinks
        .iter()
        .for_each(|sink| drop(sink.expect(10, PATIENCE).unwrap()));
    let from = local.expect(10, PATIENCE).unwrap();
    assert!(
        from.iter()
            .all(|from| from.ip() == Ipv4Addr::new(10, 0, 0, 1))
    );
    assert_eq!(udp_counters(&bed.chain.relay).unwrap().bad_checksums, 0);
}

#[test]
fn keeps_a_packet_from_the_stack_when_local_is_no() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let mut quiet = route("cam1", vec![bed.output(0, OUT, 6001)]);
    quiet.local = LocalDelivery::No;
    bed.sync(&mut dataplane, &table([(bed.key(IN, 5001), quiet)]));
    let local = Receiver::join((&bed.chain.relay, "veth1"), IN.into(), 5001).unwrap();
    let sink = bed.sink(OUT, 6001);
    bed.sender()
        .send_numbered(IN.into(), 5001, 10, 500)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    local.expect_nothing(SILENCE).unwrap();
}

#[test]
fn relays_super_packets_whole_and_counts_their_segments() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let outputs = vec![bed.output(0, OUT, 6001), bed.output(1, OUT, 6002)];
    bed.sync(
        &mut dataplane,
        &table([(bed.key(IN, 5001), route("cam1", outputs))]),
    );
    let sinks = [bed.sink(OUT, 6001), bed.sink(OUT, 6002)];
    bed.sender()
        .send_segmented(IN.into(), 5001, 0, 40, 1000)
        .unwrap();
    sinks
        .iter()
        .for_each(|sink| drop(sink.expect(40, PATIENCE).unwrap()));
    assert_eq!(udp_counters(&bed.chain.sink).unwrap().bad_checksums, 0);
    let counters = dataplane.counters().unwrap();
    let rule = &counters.rules["cam1"];
    assert_eq!((rule.received.packets, rule.received.bytes), (40, 40_000));
    assert_eq!(rule.outputs[&1].sent, rule.received);
}

#[test]
fn prefers_the_source_specific_route() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let specific = |source: &str| {
        let mut key = bed.key(IN, 5001);
        key.source = Some(source.parse().unwrap());
        key
    };
    let to = |port| vec![bed.output(0, OUT, port)];
    let (here, other) = (specific("10.0.0.1"), specific("10.0.0.77"));
    bed.sync(
        &mut dataplane,
        &table([
            (bed.key(IN, 5001), route("any", to(6001))),
            (here, route("here", to(6002))),
            (other, route("other", to(6003))),
        ]),
    );
    let (any, this) = (bed.sink(OUT, 6001), bed.sink(OUT, 6002));
    let sender = bed.sender();
    sender.send_numbered(IN.into(), 5001, 10, 100).unwrap();
    this.expect(10, PATIENCE).unwrap();
    any.expect_nothing(SILENCE).unwrap();

    bed.sync(
        &mut dataplane,
        &table([
            (bed.key(IN, 5001), route("any", to(6001))),
            (other, route("other", to(6003))),
        ]),
    );
    sender.send_numbered(IN.into(), 5001, 10, 100).unwrap();
    any.expect(10, PATIENCE).unwrap();

    bed.sync(&mut dataplane, &table([(here, route("here", to(6002)))]));
    sender.send_numbered(IN.into(), 5001, 10, 100).unwrap();
    this.expect(10, PATIENCE).unwrap();
    any.expect_nothing(SILENCE).unwrap();
}

#[test]
fn relays_ipv6_with_valid_checksums_in_any_offload_state() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let group = |text: &str| text.parse::<Ipv6Addr>().unwrap();
    let outputs = vec![
        bed.output(0, group("ff1e::a:1"), 6001),
        bed.output(1, group("ff1e::a:2"), 6002),
    ];
    let input = group("ff1e::1");
    bed.sync(
        &mut dataplane,
        &table([(bed.key(input, 5001), route("cam6", outputs))]),
    );
    let sinks = [
        bed.sink(group("ff1e::a:1"), 6001),
        bed.sink(group("ff1e::a:2"), 6002),
    ];
    let source = "fd00::1".parse().unwrap();
    let sender = Sender::open((&bed.chain.sender, "veth0"), source).unwrap();
    sender.send_numbered(input.into(), 5001, 10, 700).unwrap();
    for sink in &sinks {
        let from = sink.expect(10, PATIENCE).unwrap();
        assert!(from.iter().all(|from| from.ip() == group("fd00:1::1")));
    }
    sender
        .send_segmented(input.into(), 5001, 0, 10, 700)
        .unwrap();
    for sink in &sinks {
        sink.expect(10, PATIENCE).unwrap();
    }
    let local = Receiver::join((&bed.chain.relay, "veth1"), input.into(), 5001).unwrap();
    sender.send_numbered(input.into(), 5001, 10, 700).unwrap();
    let from = local.expect(10, PATIENCE).unwrap();
    assert!(from.iter().all(|from| from.ip() == source));
    let counters = dataplane.counters().unwrap();
    assert_eq!(counters.rules["cam6"].received.packets, 30);
    assert_eq!(counters.rules["cam6"].outputs[&1].sent.packets, 30);
}
