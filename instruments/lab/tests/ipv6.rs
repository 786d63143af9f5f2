//! IPv6: joined by MLD, rewritten, the UDP checksum never zero.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use api::reply::State;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(5);

lab::on_both_paths!(
    arrives_through_a_snooping_bridge,
    super_packets_reach_several_outputs,
    a_source_specific_rule_hears_its_source,
    reaches_a_unicast_neighbour,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn sender(chain: &Chain) -> Sender {
    Sender::open((&chain.sender, "veth0"), ip("fd00:0::1")).unwrap()
}

fn arrives_through_a_snooping_bridge(path: &str) {
    let chain = Chain::snooping().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add(
            "cam1",
            "[ff1e::1:1%veth1]:5001",
            &["[ff1e::10:1%veth2]:6001"],
        )
        .unwrap();
    let switch = chain.switch.as_ref().unwrap();
    link::wait_for_member((switch, "br0"), "ff1e::1:1").unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("ff1e::10:1"), 6001).unwrap();
    sender(&chain)
        .send_numbered(ip("ff1e::1:1"), 5001, 100, 300)
        .unwrap();
    let sources = sink.expect(100, PATIENCE).unwrap();
    assert!(sources.iter().all(|source| source.ip() == ip("fd00:1::1")));
    daemon.settled("cam1", 100).unwrap();
}

fn super_packets_reach_several_outputs(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let outputs = ["[ff1e::10:1%veth2]:6001", "[ff1e::10:2%veth2]:6002,ttl=9"];
    daemon
        .add("cam1", "[ff1e::1:1%veth1]:5001", &outputs)
        .unwrap();
    let end = (&chain.sink, "veth3");
    let sinks = [("ff1e::10:1", 6001), ("ff1e::10:2", 6002)]
        .map(|(group, port)| Receiver::join(end, ip(group), port).unwrap());
    sender(&chain)
        .send_segmented(ip("ff1e::1:1"), 5001, 0, 20, 1000)
        .unwrap();
    for sink in &sinks {
        sink.expect(20, PATIENCE).unwrap();
    }
    daemon.settled("cam1", 20).unwrap();
}

fn a_source_specific_rule_hears_its_source(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add(
            "cam1",
            "[fd00::1@ff3e::1%veth1]:5001",
            &["[ff1e::10:1%veth2]:6001"],
        )
        .unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("ff1e::10:1"), 6001).unwrap();
    sender(&chain)
        .send_numbered(ip("ff3e::1"), 5001, 10, 300)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    daemon.settled("cam1", 10).unwrap();
}

fn reaches_a_unicast_neighbour(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "[ff1e::1:1%veth1]:5001", &["[fd00:1::2]:7000"])
        .unwrap();
    daemon
        .wait_for("cam1", "the neighbour is known", |rule| {
            rule.outputs[0].state == State::Up
        })
        .unwrap();
    let sink = Receiver::bind(&chain.sink, "[fd00:1::2]:7000".parse().unwrap()).unwrap();
    sender(&chain)
        .send_numbered(ip("ff1e::1:1"), 5001, 10, 300)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    daemon.settled("cam1", 10).unwrap();
}
