//! Copies leave where a socket's packets would: by the host's routing policy, from the source that its
//! routes name, with what they encapsulate in.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod several;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use api::reply::{RuleStats, State};
use lab::capture::Capture;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;
use lab::wait;

const PATIENCE: Duration = Duration::from_secs(5);

lab::on_both_paths!(
    rules_by_source_and_port_choose_the_uplink,
    a_route_s_own_source_is_the_copies_too,
    an_unnumbered_interface_sends_from_another_s_address,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn send(chain: &Chain) {
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 50, 400)
        .unwrap();
}

fn all_up(rule: &RuleStats) -> bool {
    rule.outputs.iter().all(|output| output.state == State::Up)
}

/// A second uplink, veth4, and 10.9.0.12 behind both.
fn second_uplink(chain: &Chain) -> Namespace {
    let second = Namespace::new("second").unwrap();
    link::veth((&chain.relay, "veth4"), (&second, "veth5")).unwrap();
    link::address((&chain.relay, "veth4"), "10.0.2.1/24").unwrap();
    link::address((&second, "veth5"), "10.0.2.2/24").unwrap();
    for (far, by, via) in [
        (&chain.sink, "veth3", "10.0.1.1"),
        (&second, "veth5", "10.0.2.1"),
    ] {
        far.ip(&format!("address add 10.9.0.12/32 dev {by}"))
            .unwrap();
        far.ip(&format!("route add default via {via}")).unwrap();
    }
    chain
        .relay
        .ip("route add 10.9.0.0/24 via 10.0.1.2")
        .unwrap();
    chain
        .relay
        .ip("route add 10.9.0.0/24 via 10.0.2.2 table 78")
        .unwrap();
    second
}

fn rules_by_source_and_port_choose_the_uplink(path: &str) {
    let chain = Chain::plain().unwrap();
    let second = second_uplink(&chain);
    for rule in [
        "from 10.0.2.1 lookup 78",
        "ipproto udp dport 7014 lookup 78",
    ] {
        chain.relay.ip(&format!("rule add {rule}")).unwrap();
    }
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let outputs = [
        "10.9.0.12:7012",
        "10.9.0.12:7013,source=10.0.2.1",
        "10.9.0.12:7014",
    ];
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &outputs)
        .unwrap();
    daemon.wait_for("cam1", "all are up", all_up).unwrap();
    let at =
        |far: &Namespace, port: u16| Receiver::bind(far, (ip("10.9.0.12"), port).into()).unwrap();
    let sinks = [at(&chain.sink, 7012), at(&second, 7013), at(&second, 7014)];
    let expected = [ip("10.0.1.1"), ip("10.0.2.1"), ip("10.0.2.1")];
    send(&chain);
    for (sink, expected) in sinks.iter().zip(expected) {
        let sources = sink.expect(50, PATIENCE).unwrap();
        assert!(
            sources.iter().all(|source| source.ip() == expected),
            "{sources:?}"
        );
    }
    assert_eq!(daemon.settled("cam1", 50).unwrap().path, path);

    // Rules are followed.
    chain
        .relay
        .ip("rule del ipproto udp dport 7014 lookup 78")
        .unwrap();
    let back = |rule: &RuleStats| rule.outputs[2].interface.as_deref() == Some("veth2");
    daemon.wait_for("cam1", "the third is back", back).unwrap();
    let back = at(&chain.sink, 7014);
    send(&chain);
    back.expect(50, PATIENCE).unwrap();
}

fn sends_by_socket(rule: &RuleStats) -> bool {
    all_up(rule) && rule.outputs[0].by_socket.is_some()
}

/// A rule whose copies leave by the second uplink because of the sources that they keep, and the receiver there.
fn by_kept_source(chain: &Chain, second: &Namespace, options: Options) -> (Daemon, Receiver) {
    let relay = &chain.relay;
    relay.ip("rule add from 10.0.0.0/24 lookup 78").unwrap();
    let daemon = Daemon::start(relay, options).unwrap();
    let output = "10.9.0.12:7012,source=keep";
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &[output])
        .unwrap();
    daemon
        .wait_for("cam1", "a socket sends", sends_by_socket)
        .unwrap();
    let sink = Receiver::bind(second, "10.9.0.12:7012".parse().unwrap()).unwrap();
    (daemon, sink)
}

/// The fields that are kept decide the path of each packet.
#[test]
fn a_rule_by_a_source_that_is_kept_holds_packet_by_packet() {
    let chain = Chain::plain().unwrap();
    let second = second_uplink(&chain);
    let (daemon, sink) = by_kept_source(&chain, &second, Options::default());
    send(&chain);
    let sources = sink.expect(50, PATIENCE).unwrap();
    assert!(sources.iter().all(|source| source.ip() == ip("10.0.0.1")));
    daemon.settled("cam1", 50).unwrap();
}

/// One socket for each of their ports, more than are kept, all at once.
#[test]
fn packets_of_many_ports_that_come_together_leave_by_sockets() {
    let chain = Chain::plain().unwrap();
    let second = second_uplink(&chain);
    let arguments = vec!["--workers".to_owned(), "1".to_owned()];
    let options = Options {
        arguments,
        ..Options::default()
    };
    let (daemon, sink) = by_kept_source(&chain, &second, options);
    let sender = || Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let senders: Vec<Sender> = (0..400).map(|_| sender()).collect();
    for (number, sender) in (0..400_u32).zip(&senders) {
        let payload = number.to_be_bytes();
        sender.send(ip("239.1.1.1"), 5001, &payload).unwrap();
    }
    daemon.settled("cam1", 400).unwrap();
    let datagrams = sink.collect(400, PATIENCE).unwrap();
    let payloads: BTreeSet<_> = datagrams.iter().map(|datagram| &datagram.payload).collect();
    assert_eq!(payloads.len(), 400);
    // The kernel sometimes gives two of the senders the same port.
    let sources: BTreeSet<SocketAddr> = datagrams.iter().map(|datagram| datagram.from).collect();
    assert!(sources.len() > 256, "{}", sources.len());
}

/// The same with a route for one TOS.
#[test]
fn a_route_of_one_tos_takes_the_packets_that_have_it() {
    let chain = Chain::plain().unwrap();
    let second = second_uplink(&chain);
    let relay = &chain.relay;
    let daemon = Daemon::start(relay, Options::default()).unwrap();
    let outputs = ["10.9.0.12:7012", "10.9.0.12:7013,dscp=4"];
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &outputs)
        .unwrap();
    let plain = |rule: &RuleStats| all_up(rule) && rule.path == "kernel";
    daemon.wait_for("cam1", "nobody minds", plain).unwrap();
    relay
        .ip("route add 10.9.0.0/24 tos 0x10 via 10.0.2.2")
        .unwrap();
    let moved = |rule: &RuleStats| {
        let [kept, set] = [0, 1].map(|output| &rule.outputs[output]);
        all_up(rule) && kept.by_socket.is_some() && set.interface.as_deref() == Some("veth4")
    };
    daemon.wait_for("cam1", "a socket sends", moved).unwrap();
    let sinks = [(&chain.sink, 7012), (&second, 7013)]
        .map(|(far, port)| Receiver::bind(far, (ip("10.9.0.12"), port).into()).unwrap());
    send(&chain);
    for sink in sinks {
        sink.expect(50, PATIENCE).unwrap();
    }
    relay
        .ip("route del 10.9.0.0/24 tos 0x10 via 10.0.2.2")
        .unwrap();
    daemon
        .wait_for("cam1", "nobody minds again", plain)
        .unwrap();
}

fn a_route_s_own_source_is_the_copies_too(path: &str) {
    let chain = Chain::plain().unwrap();
    chain.relay.ip("address add 10.77.0.1/32 dev lo").unwrap();
    chain
        .relay
        .ip("route add 10.9.0.0/24 via 10.0.1.2 src 10.77.0.1")
        .unwrap();
    chain.sink.ip("address add 10.9.0.12/32 dev veth3").unwrap();
    chain
        .sink
        .ip("route add 10.77.0.1/32 via 10.0.1.1")
        .unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["10.9.0.12:7012"])
        .unwrap();
    daemon.wait_for("cam1", "it is up", all_up).unwrap();
    let sink = Receiver::bind(&chain.sink, "10.9.0.12:7012".parse().unwrap()).unwrap();
    send(&chain);
    let sources = sink.expect(50, PATIENCE).unwrap();
    assert!(
        sources.iter().all(|source| source.ip() == ip("10.77.0.1")),
        "{sources:?}"
    );
}

fn an_unnumbered_interface_sends_from_another_s_address(path: &str) {
    let chain = Chain::plain().unwrap();
    let relay = &chain.relay;
    relay.ip("address flush dev veth2").unwrap();
    relay.ip("address add 10.77.0.1/32 dev lo").unwrap();
    relay.ip("route add 10.0.1.2/32 dev veth2").unwrap();
    chain.sink.ip("route add 10.77.0.1/32 dev veth3").unwrap();
    chain.sink.ip("route add 10.0.0.2/32 dev veth3").unwrap();
    let daemon = Daemon::start(relay, Options::path(path)).unwrap();
    let outputs = ["10.0.1.2:7012", "239.10.1.1%veth2:6001"];
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &outputs)
        .unwrap();
    daemon.wait_for("cam1", "both are up", all_up).unwrap();
    let sinks = [
        Receiver::bind(&chain.sink, "10.0.1.2:7012".parse().unwrap()).unwrap(),
        Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap(),
    ];
    chain
        .sink
        .sysctl("net/ipv4/conf/all/rp_filter", "0")
        .unwrap();
    chain
        .sink
        .sysctl("net/ipv4/conf/veth3/rp_filter", "0")
        .unwrap();
    let by_kernel = |to: &str| {
        let text = relay.ip(&format!("route get {to}")).unwrap();
        let mut words = text.split_whitespace().skip_while(|word| *word != "src");
        words.nth(1).unwrap().parse::<IpAddr>().unwrap()
    };
    let expected = [by_kernel("10.0.1.2"), by_kernel("239.10.1.1 oif veth2")];
    send(&chain);
    for (sink, expected) in sinks.iter().zip(expected) {
        let sources = sink.expect(50, PATIENCE).unwrap();
        assert!(
            sources.iter().all(|source| source.ip() == expected),
            "{sources:?}, not {expected}"
        );
    }
}

/// Segment routing over IPv6, which this kernel has: the copies carry its header.
#[test]
fn what_a_route_encapsulates_leaves_encapsulated() {
    let chain = Chain::plain().unwrap();
    let encap = "encap seg6 mode encap segs fd00:1::2 dev veth2";
    chain
        .relay
        .ip(&format!("route add 10.9.0.0/24 {encap}"))
        .unwrap();
    chain
        .relay
        .ip(&format!("-6 route add fd09::/64 {encap}"))
        .unwrap();
    // A busy kernel reports late that the interface is up: until then no socket can use it.
    let by_any_socket = || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        Ok(socket.send_to(b"", "10.9.0.12:9").is_ok())
    };
    wait::until("a socket sends by the segment", || {
        chain.relay.run(by_any_socket).unwrap_or(false)
    })
    .unwrap();
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["10.9.0.12:7012"])
        .unwrap();
    daemon
        .add("cam2", "[ff1e::1:1%veth1]:5001", &["[fd09::12]:7012"])
        .unwrap();
    for rule in ["cam1", "cam2"] {
        daemon
            .wait_for(rule, "a socket sends", sends_by_socket)
            .unwrap();
    }
    let capture = Capture::start((&chain.sink, "veth3"), "ip6 proto 43").unwrap();
    send(&chain);
    let six = Sender::open((&chain.sender, "veth0"), ip("fd00:0::1")).unwrap();
    six.send_numbered(ip("ff1e::1:1"), 5001, 50, 400).unwrap();
    daemon.settled("cam1", 50).unwrap();
    daemon.settled("cam2", 50).unwrap();
    let encapsulated = "ipv6.routing && udp.dstport == 7012";
    assert_eq!(capture.finish().unwrap().count(encapsulated).unwrap(), 100);
}

/// Only the kernel path has no sockets.
#[test]
fn what_a_route_encapsulates_is_down_on_the_kernel_path_alone() {
    let chain = Chain::plain().unwrap();
    let encap = "encap seg6 mode encap segs fd00:1::2 dev veth2";
    chain
        .relay
        .ip(&format!("route add 10.9.0.0/24 {encap}"))
        .unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path("kernel")).unwrap();
    let outputs = ["10.9.0.12:7012", "10.0.1.2:7000"];
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &outputs)
        .unwrap();
    let stands = |rule: &RuleStats| {
        let [down, up] = rule.outputs.as_slice() else {
            return false;
        };
        let why = down.reason.as_deref().unwrap_or_default();
        down.state == State::Down && why.contains("encapsulates") && up.state == State::Up
    };
    daemon
        .wait_for("cam1", "one output is down", stands)
        .unwrap();
}
