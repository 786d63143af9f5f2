//! Multicast to unicast: on-link, through a gateway, and to no host.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use api::reply::State;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(5);

lab::on_both_paths!(
    reaches_a_neighbour,
    reaches_a_host_behind_a_gateway,
    an_unresolved_neighbour_is_counted_and_stops_nothing,
    a_neighbour_with_another_ethernet_address_is_followed,
    what_a_name_stands_for_is_followed,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn start(chain: &Chain, path: &str, outputs: &[&str]) -> (Daemon, Sender) {
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon.add("cam1", "239.1.1.1%veth1:5001", outputs).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    (daemon, sender)
}

fn wait_until_up(daemon: &Daemon, output: usize) {
    daemon
        .wait_for("cam1", "the output is up", |rule| {
            rule.outputs[output].state == State::Up
        })
        .unwrap();
}

fn reaches_a_neighbour(path: &str) {
    let chain = Chain::plain().unwrap();
    let sink = Receiver::bind(&chain.sink, "10.0.1.2:7000".parse().unwrap()).unwrap();
    let (daemon, sender) = start(&chain, path, &["10.0.1.2:7000"]);
    wait_until_up(&daemon, 0);
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 100, 400)
        .unwrap();
    let sources = sink.expect(100, PATIENCE).unwrap();
    assert!(sources.iter().all(|source| source.ip() == ip("10.0.1.1")));
    daemon.settled("cam1", 100).unwrap();
}

fn reaches_a_host_behind_a_gateway(path: &str) {
    let chain = Chain::plain().unwrap();
    let far = Namespace::new("far").unwrap();
    link::veth((&chain.sink, "veth4"), (&far, "veth5")).unwrap();
    link::address((&chain.sink, "veth4"), "10.0.9.1/24").unwrap();
    link::address((&far, "veth5"), "10.0.9.9/24").unwrap();
    far.ip("route add 10.0.1.0/24 via 10.0.9.1").unwrap();
    chain.sink.sysctl("net/ipv4/ip_forward", "1").unwrap();
    chain
        .relay
        .ip("route add 10.0.9.0/24 via 10.0.1.2")
        .unwrap();

    let receiver = Receiver::bind(&far, "10.0.9.9:7000".parse().unwrap()).unwrap();
    let (daemon, sender) = start(&chain, path, &["10.0.9.9:7000,ttl=9"]);
    wait_until_up(&daemon, 0);
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 100, 400)
        .unwrap();
    receiver.expect(100, PATIENCE).unwrap();
    daemon.settled("cam1", 100).unwrap();
}

fn an_unresolved_neighbour_is_counted_and_stops_nothing(path: &str) {
    let chain = Chain::plain().unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let outputs = ["10.0.1.77:7000", "239.10.1.1%veth2:6001"];
    let (daemon, sender) = start(&chain, path, &outputs);
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 50, 400)
        .unwrap();
    sink.expect(50, PATIENCE).unwrap();
    let rule = daemon.settled("cam1", 50).unwrap();
    assert_eq!(rule.outputs[0].state, State::Down);
    assert_eq!(rule.outputs[0].dropped.get("no_neighbour"), Some(&50));
    assert_eq!(rule.outputs[1].sent.packets, 50);

    // The neighbour appears, and the output comes up.
    link::address((&chain.sink, "veth3"), "10.0.1.77/24").unwrap();
    let late = Receiver::bind(&chain.sink, "10.0.1.77:7000".parse().unwrap()).unwrap();
    wait_until_up(&daemon, 0);
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 50, 400)
        .unwrap();
    late.expect(50, PATIENCE).unwrap();
    daemon.settled("cam1", 100).unwrap();
}

/// The name moves to another address, then no longer resolves.
fn what_a_name_stands_for_is_followed(path: &str) {
    let chain = Chain::plain().unwrap();
    link::address((&chain.sink, "veth3"), "10.0.1.3/24").unwrap();
    let [first, second] = ["10.0.1.2:7000", "10.0.1.3:7000"]
        .map(|at| Receiver::bind(&chain.sink, at.parse().unwrap()).unwrap());
    let hosts = tempfile::NamedTempFile::new().unwrap();
    let is_known_as = |line: &str| std::fs::write(hosts.path(), line).unwrap();
    is_known_as("10.0.1.2 cloud.example\n2001:db8::2 cloud.example\n");
    let mount = format!(
        "mount --bind {} /etc/hosts && exec \"$@\"",
        hosts.path().display()
    );
    let mut options = Options::path(path);
    options.under = ["unshare", "--mount", "sh", "-c", &mount, "sh"]
        .map(str::to_owned)
        .to_vec();
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    let outputs = ["cloud.example:7000"];
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &outputs)
        .unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let send = || {
        let group = ip("239.1.1.1");
        sender.send_numbered(group, 5001, 50, 400).unwrap();
    };
    // Any change has all names looked up again; else that takes half a minute.
    let look_again = |number: u16| {
        let input = format!("239.1.2.{number}%veth1:5001");
        let name = format!("other{number}");
        daemon
            .add(&name, &input, &["239.10.1.1%veth2:6001"])
            .unwrap();
    };
    wait_until_up(&daemon, 0);
    send();
    first.expect(50, PATIENCE).unwrap();

    is_known_as("10.0.1.3 cloud.example\n");
    std::thread::sleep(Duration::from_secs(1));
    look_again(1);
    let moved = |rule: &api::reply::RuleStats| {
        let output = &rule.outputs[0];
        output.address.as_deref() == Some("10.0.1.3") && output.state == State::Up
    };
    daemon
        .wait_for("cam1", "the name has moved", moved)
        .unwrap();
    send();
    second.expect(50, PATIENCE).unwrap();

    is_known_as("");
    std::thread::sleep(Duration::from_secs(1));
    look_again(2);
    daemon
        .wait_for("cam1", "the name is unknown", |rule| {
            rule.outputs[0].name_error.is_some() && moved(rule)
        })
        .unwrap();
    send();
    second.expect(50, PATIENCE).unwrap();
    daemon.settled("cam1", 150).unwrap();
}

/// A host is replaced by another one with its address.
fn a_neighbour_with_another_ethernet_address_is_followed(path: &str) {
    let chain = Chain::plain().unwrap();
    let sink = Receiver::bind(&chain.sink, "10.0.1.2:7000".parse().unwrap()).unwrap();
    let (daemon, sender) = start(&chain, path, &["10.0.1.2:7000"]);
    wait_until_up(&daemon, 0);
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 400)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    let address = "02:00:00:00:77:77";
    chain
        .sink
        .ip(&format!("link set veth3 address {address}"))
        .unwrap();
    // As such hosts do: announces it to all (a gratuitous ARP).
    chain
        .sink
        .tool("arping", "-U -c 1 -I veth3 10.0.1.2")
        .or_else(|_| {
            chain.relay.ip(&format!(
                "neigh replace 10.0.1.2 lladdr {address} dev veth2"
            ))
        })
        .unwrap();
    let mut sent = 10;
    lab::wait::until("copies reach the new address", || {
        sender.send_numbered(ip("239.1.1.1"), 5001, 1, 400).unwrap();
        sent += 1;
        sink.receive(Duration::from_millis(100)).unwrap().is_some()
    })
    .unwrap();
    daemon.settled("cam1", sent).unwrap();
}
