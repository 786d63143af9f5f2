//! Packets through real interfaces: one to one, one to many, up the stack, super-packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use compile::table::{DownReason, LocalDelivery, OutputState, RateLimit, RateUnit};
use dataplane::{ActivityScan, Capacity, Seen};
use lab::socket::{Receiver, Sender, udp_counters};
use packet::verdict::DropReason;
use rules::net::Prefix;

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
    let (sent, received) = (rule.outputs[&0].sent, rule.received);
    assert_eq!(
        (sent.packets, sent.bytes),
        (received.packets, received.bytes)
    );
    assert_eq!(rule.dropped.total(), 0);
}

/// The cost of a reading depends on the rules that packets arrived for, not on their total number.
#[test]
fn a_reading_of_arrivals_looks_at_rules_with_packets_alone() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let port = |number: u16| 5000 + number;
    let rules = (0..500).map(|number| {
        let outputs = vec![bed.output(0, OUT, 6001)];
        (
            bed.key(IN, port(number)),
            route(&format!("cam{number}"), outputs),
        )
    });
    bed.sync(&mut dataplane, &table(rules));
    let mut seen = Some(Seen::default());
    let mut read = |also: &[&str]| {
        let also = also.iter().map(|name| (*name).into()).collect();
        let mut reading = ActivityScan::new(seen.take().unwrap_or_default(), also);
        while reading.go_on(&dataplane).unwrap() {}
        let rules = reading.rules();
        let (arrived, now) = reading.finish();
        let is_quiet = dataplane.activity().is_quiet(&now);
        seen = Some(now);
        (rules, is_quiet, arrived)
    };
    let (rules, is_quiet, _) = read(&[]);
    assert_eq!((rules, is_quiet), (0, true));

    let sink = bed.sink(OUT, 6001);
    let send = |number: u16, packets: u64| {
        let sender = bed.sender();
        sender
            .send_numbered(IN.into(), port(number), packets, 100)
            .unwrap();
        sink.expect(packets, PATIENCE).unwrap();
    };
    send(321, 3);
    let (rules, is_quiet, arrived) = read(&[]);
    assert_eq!((rules, is_quiet), (1, false));
    assert_eq!(arrived["cam321"].traffic.packets, 3);
    // Once more, because another packet may have arrived in the same timer tick.
    let (rules, is_quiet, arrived) = read(&[]);
    assert_eq!((rules, is_quiet), (1, true));
    assert_eq!(arrived["cam321"].traffic.packets, 3);
    let (rules, _, arrived) = read(&["cam7"]);
    assert_eq!(rules, 1);
    assert_eq!(arrived["cam7"].traffic.packets, 0);
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
    let (sent, received) = (rule.outputs[&1].sent, rule.received);
    assert_eq!(
        (sent.packets, sent.bytes),
        (received.packets, received.bytes)
    );
}

#[test]
fn prefers_the_source_specific_route() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let specific = |source: &str| {
        let mut key = bed.key(IN, 5001);
        key.source = Some(source.parse::<IpAddr>().unwrap().into());
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

#[test]
fn holds_rules_and_outputs_to_their_limits() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let limit = |unit, burst| {
        Some(RateLimit {
            unit,
            rate: 1,
            burst,
        })
    };
    let mut outputs = vec![bed.output(0, OUT, 6001), bed.output(1, OUT, 6002)];
    outputs[1].limit = limit(RateUnit::Bits, 8 * 100 * 10);
    let mut limited = route("cam1", outputs);
    limited.limit = limit(RateUnit::Packets, 30);
    bed.sync(&mut dataplane, &table([(bed.key(IN, 5001), limited)]));
    let sinks = [bed.sink(OUT, 6001), bed.sink(OUT, 6002)];
    bed.sender()
        .send_numbered(IN.into(), 5001, 50, 100)
        .unwrap();
    sinks[0].expect(30, PATIENCE).unwrap();
    sinks[1].expect(10, PATIENCE).unwrap();
    let counters = dataplane.counters().unwrap();
    let rule = &counters.rules["cam1"];
    let limited = DropReason::RateLimited as usize;
    assert_eq!(rule.received.packets, 50);
    assert_eq!(rule.dropped.0[limited], 20);
    assert_eq!(rule.outputs[&0].sent.packets, 30);
    assert_eq!(rule.outputs[&1].sent.packets, 10);
    assert_eq!(rule.outputs[&1].dropped.0[limited], 20);
}

#[test]
fn relays_ranges_and_prefers_the_most_specific() {
    let bed = Bed::new();
    let mut dataplane = bed.open(Capacity::default());
    let groups = |text: &str, length| Prefix {
        address: text.parse().unwrap(),
        length,
    };
    let range = |text, length, ports: (u16, u16), source: Option<&str>| {
        let mut key = bed.key(IN, 5001);
        key.groups = groups(text, length);
        (key.ports.first, key.ports.last) = ports;
        key.source = source.map(|source| source.parse::<IpAddr>().unwrap().into());
        key
    };
    let carried = |text, length, ports: (u16, u16)| {
        let mut output = bed.output(0, OUT, 6001);
        let OutputState::Up(egress) = &mut output.state else {
            panic!("an output of the bed is up")
        };
        egress.destination = groups(text, length);
        (egress.ports.first, egress.ports.last) = ports;
        vec![output]
    };
    let wide = (
        range("239.1.0.0", 16, (5001, 5150), None),
        route("wide", carried("239.9.0.0", 16, (6001, 6150))),
    );
    let narrow = (
        range("239.1.2.0", 24, (5001, 5001), None),
        route("narrow", carried("239.8.2.0", 24, (7001, 7001))),
    );
    let exact = (
        bed.key(Ipv4Addr::new(239, 1, 2, 3), 5001),
        route("exact", vec![bed.output(0, OUT, 8001)]),
    );
    let specific = (
        range("239.1.0.0", 16, (5001, 5001), Some("10.0.0.1")),
        route("specific", carried("239.7.0.0", 16, (9001, 9001))),
    );
    let all = table([wide.clone(), narrow.clone(), exact.clone()]);
    bed.sync(&mut dataplane, &all);
    let group = |b, c, d| Ipv4Addr::new(239, b, c, d);
    let sender = bed.sender();
    let relayed = |to: (Ipv4Addr, u16), expected: (Ipv4Addr, u16)| {
        let sink = bed.sink(expected.0, expected.1);
        sender.send_numbered(to.0.into(), to.1, 5, 100).unwrap();
        sink.expect(5, PATIENCE).unwrap();
    };
    relayed((group(1, 77, 5), 5010), (group(9, 77, 5), 6010));
    relayed((group(1, 2, 9), 5001), (group(8, 2, 9), 7001));
    relayed((group(1, 2, 9), 5002), (group(9, 2, 9), 6002));
    relayed((group(1, 2, 3), 5001), (OUT, 8001));
    relayed((group(1, 2, 3), 5003), (group(9, 2, 3), 6003));

    let with_source = table([wide.clone(), exact.clone(), specific.clone()]);
    bed.sync(&mut dataplane, &with_source);
    relayed((group(1, 2, 3), 5001), (group(7, 2, 3), 9001));
    relayed((group(1, 2, 9), 5001), (group(7, 2, 9), 9001));

    drop(dataplane);
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &with_source);
    relayed((group(1, 2, 3), 5001), (group(7, 2, 3), 9001));
    let counters = dataplane.counters().unwrap();
    assert_eq!(counters.rules["specific"].received.packets, 15);
    bed.sync(&mut dataplane, &table([exact]));
    relayed((group(1, 2, 3), 5001), (OUT, 8001));
    let sink = bed.sink(group(9, 77, 5), 6010);
    sender
        .send_numbered(group(1, 77, 5).into(), 5010, 5, 100)
        .unwrap();
    sink.expect_nothing(SILENCE).unwrap();
}
