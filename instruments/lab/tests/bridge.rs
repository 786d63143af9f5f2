//! Snooping bridges: only joined groups arrive, so MCR has to join.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use api::reply::{RuleStats, State};
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::socket::{self, Receiver, Sender};
use lab::topology::{Chain, DualBridge};

const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(200);

lab::on_both_paths!(
    arrives_through_a_snooping_bridge_because_mcr_joined,
    a_removed_rule_leaves_its_group,
    crosses_two_bridges_to_the_sinks_that_joined,
    nothing_is_sent_by_a_bridge_without_a_port,
    nothing_is_sent_by_a_vlan_that_no_port_is_in,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn arrives_through_a_snooping_bridge_because_mcr_joined(path: &str) {
    let chain = Chain::snooping().unwrap();
    let switch = chain.switch.as_ref().unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();

    let before = link::statistics((&chain.relay, "veth1")).unwrap().received;
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 100, 200)
        .unwrap();
    let after = link::statistics((&chain.relay, "veth1")).unwrap().received;
    assert!(after - before < 50, "the bridge filters nothing");

    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    link::wait_for_member((switch, "br0"), "239.1.1.1").unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 100, 200)
        .unwrap();
    let sources = sink.expect(100, PATIENCE).unwrap();
    assert!(sources.iter().all(|source| source.ip() == ip("10.0.1.1")));
    let rule = daemon.settled("cam1", 100).unwrap();
    assert!(rule.inputs[0].joined);
    assert_eq!(rule.path, path);
    assert_eq!(rule.outputs[0].sent.packets, 100);
    assert_eq!(rule.outputs[0].sent.bytes, 100 * 200);
}

fn nothing_is_sent_by_a_bridge_without_a_port(path: &str) {
    let chain = Chain::plain().unwrap();
    let relay = &chain.relay;
    relay.ip("link add br0 type bridge").unwrap();
    relay.ip("link set br0 up").unwrap();
    link::address((relay, "br0"), "10.0.9.1/24").unwrap();
    let daemon = Daemon::start(relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%br0:6001"])
        .unwrap();
    let has_no_port = |rule: &RuleStats| {
        let why = rule.outputs[0].reason.as_deref().unwrap_or_default();
        rule.outputs[0].state == State::Down && why.contains("has no port")
    };
    daemon.wait_for("cam1", "it is told", has_no_port).unwrap();
    relay.ip("link set veth2 master br0").unwrap();
    let up = |rule: &RuleStats| rule.outputs[0].state == State::Up;
    daemon.wait_for("cam1", "it has a port", up).unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 50, 200)
        .unwrap();
    sink.expect(50, PATIENCE).unwrap();
    daemon.settled("cam1", 50).unwrap();
}

fn nothing_is_sent_by_a_vlan_that_no_port_is_in(path: &str) {
    let chain = Chain::plain().unwrap();
    let (relay, sink) = (&chain.relay, &chain.sink);
    if let Err(why) = relay.ip("link add br0 type bridge vlan_filtering 1") {
        eprintln!("skipped: no bridge that knows VLANs here: {why:#}");
        return;
    }
    for (namespace, lower, name) in [(relay, "br0", "v7"), (sink, "veth3", "v7")] {
        let vlan = format!("link add link {lower} name {name} type vlan id 7");
        namespace.ip(&vlan).unwrap();
        link::up((namespace, lower)).unwrap();
        link::up((namespace, name)).unwrap();
    }
    link::address((relay, "br0"), "10.0.9.1/24").unwrap();
    link::address((relay, "v7"), "10.0.7.1/24").unwrap();
    let daemon = Daemon::start(relay, Options::path(path)).unwrap();
    let outputs = ["239.10.1.1%v7:6001", "239.10.1.2%br0:6002"];
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &outputs)
        .unwrap();
    let has_no_way = |rule: &RuleStats| {
        let why = rule.outputs[0].reason.as_deref().unwrap_or_default();
        rule.outputs[0].state == State::Down && why.contains("must be in its VLAN")
    };
    let wait = |what, is_so: &dyn Fn(&RuleStats) -> bool| {
        daemon.wait_for("cam1", what, is_so).unwrap();
    };
    wait("there is no port", &has_no_way);
    relay.ip("link set veth2 master br0").unwrap();
    // The untagged VLAN has a port then.
    let only_untagged = |rule: &RuleStats| has_no_way(rule) && rule.outputs[1].state == State::Up;
    wait("there is none in the VLAN", &only_untagged);
    let vlan = |change: &str| relay.tool("bridge", &format!("vlan {change}")).unwrap();
    vlan("add vid 5-9 dev br0 self");
    vlan("add vid 6-8 dev veth2");
    wait("a port is in the VLAN", &|rule| {
        rule.outputs[0].state == State::Up
    });
    let receiver = Receiver::join((sink, "v7"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 50, 200)
        .unwrap();
    receiver.expect(50, PATIENCE).unwrap();
    daemon.settled("cam1", 50).unwrap();
    vlan("del vid 7 dev veth2");
    wait("the port has left the VLAN", &only_untagged);
    vlan("del vid 1 dev br0 self");
    wait("the bridge has no VLAN of its own", &|rule| {
        rule.outputs[1].state == State::Down
    });
}

fn a_removed_rule_leaves_its_group(path: &str) {
    let chain = Chain::snooping().unwrap();
    let switch = chain.switch.as_ref().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    link::wait_for_member((switch, "br0"), "239.1.1.1").unwrap();
    daemon.mcr(&["remove", "cam1"]).unwrap();
    lab::wait::until("the bridge has forgotten the group", || {
        let shown = switch.tool("bridge", "mdb show dev br0").unwrap();
        !shown.contains("grp 239.1.1.1 ")
    })
    .unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 200)
        .unwrap();
    sink.expect_nothing(SILENCE).unwrap();
}

fn crosses_two_bridges_to_the_sinks_that_joined(path: &str) {
    let bed = DualBridge::new(3).unwrap();
    let daemon = Daemon::start(&bed.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    let join = |sink| Receiver::join((sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let joined: Vec<_> = bed.sinks[..2].iter().map(join).collect();
    let before = link::statistics((&bed.sinks[2], "veth3")).unwrap().received;
    link::wait_for_member((&bed.left, "br0"), "239.1.1.1").unwrap();
    lab::wait::until("br1 has both members", || {
        let shown = bed.right.tool("bridge", "mdb show dev br1").unwrap();
        ["port0", "port1"]
            .iter()
            .all(|port| shown.contains(&format!("port {port} grp 239.10.1.1 ")))
    })
    .unwrap();

    let sender = Sender::open((&bed.sender, "veth0"), ip("10.0.0.1")).unwrap();
    // In bursts that the queues of two bridges and of a relay hold while their core is another's.
    for burst in 1..=10 {
        for number in (burst - 1) * 100..burst * 100 {
            let payload = socket::payload(number, 500);
            sender.send(ip("239.1.1.1"), 5001, &payload).unwrap();
        }
        daemon.settled("cam1", burst * 100).unwrap();
    }
    for sink in &joined {
        sink.expect(1000, PATIENCE).unwrap();
    }
    let after = link::statistics((&bed.sinks[2], "veth3")).unwrap().received;
    assert!(
        after - before < 500,
        "a sink that did not join got the stream"
    );
}
