//! Ranges of groups and ports as one rule.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use api::reply::{FlowStats, Traffic};
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(5);

lab::on_both_paths!(
    groups_keep_their_host_bits,
    ports_keep_their_offset,
    every_group_of_a_range_is_joined,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A group and a port.
type Address = (&'static str, u16);

fn relays(path: &str, input: &str, output: &str, pairs: &[(Address, Address)]) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon.add("range", input, &[output]).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let mut sent = 0;
    for ((group, port), (to, to_port)) in pairs {
        let sink = Receiver::join((&chain.sink, "veth3"), ip(to), *to_port).unwrap();
        sender.send_numbered(ip(group), *port, 10, 100).unwrap();
        sink.expect(10, PATIENCE).unwrap();
        sent += 10;
    }
    daemon.settled("range", sent).unwrap();
    let output = daemon.mcr(&["show", "range", "--json"]).unwrap();
    let rule: serde_json::Value = serde_json::from_str(&output).unwrap();
    let flows: Vec<FlowStats> = serde_json::from_value(rule["flows"].clone()).unwrap();
    let groups: Vec<String> = flows.iter().map(|flow| flow.group.to_string()).collect();
    let actual = groups
        .iter()
        .map(String::as_str)
        .zip(flows.iter().map(|flow| flow.port));
    let expected = pairs.iter().map(|(from, _)| *from);
    assert!(actual.eq(expected), "{flows:?}");
    let ten = Traffic::new(10, 1000);
    assert!(flows.iter().all(|flow| flow.received == ten), "{flows:?}");
    let text = daemon.mcr(&["show", "range"]).unwrap();
    let ((group, port), _) = pairs[1];
    assert!(
        text.contains(&format!("{group}:{port}  10 packets")),
        "{text}"
    );
}

fn groups_keep_their_host_bits(path: &str) {
    relays(
        path,
        "239.1.1.0/24%veth1:5001",
        "239.9.1.0/24%veth2:6001",
        &[
            (("239.1.1.0", 5001), ("239.9.1.0", 6001)),
            (("239.1.1.77", 5001), ("239.9.1.77", 6001)),
            (("239.1.1.255", 5001), ("239.9.1.255", 6001)),
        ],
    );
}

fn ports_keep_their_offset(path: &str) {
    relays(
        path,
        "239.1.1.1%veth1:5001-5150",
        "239.10.1.1%veth2:6001-6150",
        &[
            (("239.1.1.1", 5001), ("239.10.1.1", 6001)),
            (("239.1.1.1", 5042), ("239.10.1.1", 6042)),
            (("239.1.1.1", 5150), ("239.10.1.1", 6150)),
        ],
    );
}

/// Behind a bridge that snoops, only what was joined arrives: 256 groups with default sysctls.
fn every_group_of_a_range_is_joined(path: &str) {
    let chain = Chain::snooping().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add(
            "range",
            "239.1.1.0/24%veth1:5001",
            &["239.9.1.1%veth2:6001"],
        )
        .unwrap();
    assert!(daemon.rule("range").unwrap().inputs[0].joined);
    let switch = chain.switch.as_ref().unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.9.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    for host in 0..=255 {
        let group = format!("239.1.1.{host}");
        link::wait_for_member((switch, "br0"), &group).unwrap();
        let payload = lab::socket::payload(host, 100);
        sender.send(ip(&group), 5001, &payload).unwrap();
    }
    // Each group is a separate flow, and order is kept only within a flow.
    let datagrams = sink.collect(256, PATIENCE).unwrap().into_iter();
    let numbers = datagrams.map(|datagram| lab::socket::number(&datagram.payload).unwrap());
    let received: BTreeSet<u64> = numbers.collect();
    assert!(received.into_iter().eq(0..256));
    daemon.settled("range", 256).unwrap();
}

/// More groups than are joined: reported at once, and the interface receives all groups meanwhile.
#[test]
fn a_range_too_large_to_join_says_so() {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path("auto")).unwrap();
    let added = daemon.client(&[
        "add",
        "239.0.0.0/8%veth1:5001",
        "239.10.1.1%veth2:6001",
        "--name",
        "wide",
    ]);
    let warning = added.unwrap().stderr;
    assert!(warning.contains("more than 4096 groups"), "{warning}");
    let rule = daemon.rule("wide").unwrap();
    assert_eq!(rule.state, api::reply::State::Up, "{rule:?}");
    assert!(warning.contains("divide the range"), "{warning}");
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.77.66.55"), 5001, 10, 100)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    daemon.settled("wide", 10).unwrap();
}
