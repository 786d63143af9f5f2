//! No copy evades an IPsec policy. This machine's kernel has policies but no ESP: encryption is tested in
//! other kernels (`tests/kernels`), here what policies refuse and what they allow.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::Stdio;
use std::time::Duration;

use api::reply::{RuleStats, State};
use lab::capture::Capture;
use lab::daemon::{Daemon, Options};
use lab::namespace::Namespace;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(300);
/// Lets out in clear what there is no security association for, but is a policy all the same.
const OPTIONAL: &str = "tmpl proto esp mode transport level use";
const REQUIRED: &str = "tmpl src 10.0.1.1 dst 10.0.1.2 proto esp mode tunnel";

lab::on_both_paths!(
    a_policy_that_refuses_holds_for_its_output_alone,
    policies_on_groups_and_ipv6_hold_too,
    a_policy_with_a_mark_holds_where_its_mark_is_that_of_copies,
    what_is_to_be_encrypted_waits_for_an_association,
    what_lets_pass_or_is_for_others_changes_nothing,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn xfrm(namespace: &Namespace, policy: &str) {
    namespace
        .ip(&format!("xfrm policy add dir out {policy}"))
        .unwrap();
}

fn sender(chain: &Chain) -> Sender {
    Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap()
}

fn is_refused(rule: &RuleStats, output: usize) -> bool {
    let output = &rule.outputs[output];
    output.state == State::Down
        && output
            .reason
            .as_ref()
            .is_some_and(|why| why.contains("IPsec policy"))
}

fn a_policy_that_refuses_holds_for_its_output_alone(path: &str) {
    let chain = Chain::plain().unwrap();
    xfrm(
        &chain.relay,
        "dst 10.0.1.0/24 proto udp dport 7000 action block",
    );
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let outputs = ["10.0.1.2:7000", "10.0.1.2:7001"];
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &outputs)
        .unwrap();
    let [refused, free] = ["10.0.1.2:7000", "10.0.1.2:7001"]
        .map(|at| Receiver::bind(&chain.sink, at.parse().unwrap()).unwrap());
    let up = |rule: &RuleStats| rule.outputs[1].state == State::Up && is_refused(rule, 0);
    daemon
        .wait_for("cam1", "one output is refused", up)
        .unwrap();
    let rule = daemon.rule("cam1").unwrap();
    let why = rule.outputs[0].reason.as_ref().unwrap();
    assert!(
        why.contains("dst 10.0.1.0/24 proto udp dport 7000 dir out action block"),
        "{why}"
    );
    let send = || {
        sender(&chain)
            .send_numbered(ip("239.1.1.1"), 5001, 50, 400)
            .unwrap()
    };
    send();
    free.expect(50, PATIENCE).unwrap();
    refused.expect_nothing(SILENCE).unwrap();
    let rule = daemon.settled("cam1", 50).unwrap();
    assert_eq!(rule.outputs[0].dropped.get("ipsec_policy"), Some(&50));

    chain.relay.ip("xfrm policy flush").unwrap();
    let up = |rule: &RuleStats| rule.outputs[0].state == State::Up;
    daemon
        .wait_for("cam1", "nothing is refused any more", up)
        .unwrap();
    send();
    refused.expect(50, PATIENCE).unwrap();

    chain.relay.ip("xfrm policy setdefault out block").unwrap();
    let all = |rule: &RuleStats| is_refused(rule, 0) && is_refused(rule, 1);
    daemon
        .wait_for("cam1", "all is refused by default", all)
        .unwrap();
}

fn policies_on_groups_and_ipv6_hold_too(path: &str) {
    let chain = Chain::plain().unwrap();
    xfrm(&chain.relay, "dst 239.10.0.0/16 dev veth2 action block");
    xfrm(&chain.relay, "dst fd00:1::/64 action block");
    xfrm(&chain.relay, "dst 239.11.0.0/16 dev veth1 action block");
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let outputs = ["239.10.1.1%veth2:6001", "239.11.1.1%veth2:6001"];
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &outputs)
        .unwrap();
    let outputs = ["[fd00:1::2]:7000", "[ff1e::10:1%veth2]:6001"];
    daemon
        .add("cam2", "[ff1e::1:1%veth1]:5001", &outputs)
        .unwrap();
    for rule in ["cam1", "cam2"] {
        let stands = |rule: &RuleStats| is_refused(rule, 0) && rule.outputs[1].state == State::Up;
        daemon
            .wait_for(rule, "the first output is refused", stands)
            .unwrap();
    }
}

/// Copies have mark 0, which a policy may name: with any mask.
fn a_policy_with_a_mark_holds_where_its_mark_is_that_of_copies(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let rules = [
        ("cam1", "239.1.1.1%veth1:5001", "10.0.1.2:7000", "10.0.0.1"),
        (
            "cam2",
            "[ff1e::1:1%veth1]:5001",
            "[fd00:1::2]:7000",
            "fd00::1",
        ),
    ];
    for (name, input, output, _) in rules {
        daemon.add(name, input, &[output]).unwrap();
    }
    let sinks = rules
        .map(|(_, _, output, _)| Receiver::bind(&chain.sink, output.parse().unwrap()).unwrap());
    let groups = [ip("239.1.1.1"), ip("ff1e::1:1")];
    let mut settled = 0;
    let mut pass = |is_blocked: bool| {
        settled += 50;
        for (((name, .., source), sink), group) in rules.iter().zip(&sinks).zip(groups) {
            let stands = |rule: &RuleStats| {
                if is_blocked {
                    is_refused(rule, 0)
                } else {
                    rule.outputs[0].state == State::Up
                }
            };
            let rule = daemon.wait_for(name, "it stands so", stands).unwrap();
            // A socket has mark 0, so the kernel need not be asked of each packet.
            assert_eq!(
                (rule.path.as_str(), &rule.outputs[0].by_socket),
                (path, &None)
            );
            let sender = Sender::open((&chain.sender, "veth0"), ip(source)).unwrap();
            sender.send_numbered(group, 5001, 50, 400).unwrap();
            if is_blocked {
                sink.expect_nothing(SILENCE).unwrap()
            } else {
                drop(sink.expect(50, PATIENCE).unwrap())
            }
            daemon.settled(name, settled).unwrap();
        }
    };
    for (mark, is_blocked) in [
        ("mark 7", false),
        ("mark 7 mask 0xf", false),
        ("mark 0 mask 0xff", true),
        ("mark 0", true),
    ] {
        for to in ["10.0.1.2/32", "fd00:1::2/128"] {
            xfrm(&chain.relay, &format!("dst {to} {mark} action block"));
        }
        pass(is_blocked);
        chain.relay.ip("xfrm policy flush").unwrap();
        pass(false);
    }
}

fn what_is_to_be_encrypted_waits_for_an_association(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["10.0.1.2:7000"])
        .unwrap();
    let up = |rule: &RuleStats| rule.outputs[0].state == State::Up;
    daemon.wait_for("cam1", "the output is up", up).unwrap();
    xfrm(&chain.relay, &format!("dst 10.0.1.2/32 {REQUIRED}"));
    daemon
        .wait_for("cam1", "it waits", |rule| is_refused(rule, 0))
        .unwrap();
    let rule = daemon.rule("cam1").unwrap();
    let why = rule.outputs[0].reason.as_ref().unwrap();
    assert!(why.contains("security association"), "{why}");
    let capture = Capture::start((&chain.relay, "veth2"), "udp").unwrap();
    sender(&chain)
        .send_numbered(ip("239.1.1.1"), 5001, 50, 400)
        .unwrap();
    daemon.settled("cam1", 50).unwrap();
    assert_eq!(
        capture.finish().unwrap().count("udp.port == 7000").unwrap(),
        0
    );
    // A key manager is asked, though nothing is sent.
    let mut command = chain.relay.command("ip");
    command.args(["xfrm", "monitor", "acquire"]);
    let mut monitor = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(monitor.stdout.take().unwrap()).lines();
    let asked = lines.find(|line| line.as_ref().unwrap().contains("dport 7000"));
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    assert!(
        asked
            .unwrap()
            .unwrap()
            .contains("dst 10.0.1.2/32 proto udp")
    );
}

fn what_lets_pass_or_is_for_others_changes_nothing(path: &str) {
    let chain = Chain::plain().unwrap();
    for policy in [
        "dst 10.0.1.0/24 priority 1 action allow",
        "dst 10.0.0.0/8 priority 2 action block",
        "dst 10.0.1.2/32 proto tcp action block",
        "dst 10.0.1.2/32 proto udp dport 7001 action block",
        "dst 10.0.1.2/32 mark 7 mask 0xff action block",
        "dst 10.0.1.2/32 if_id 9 action block",
        "src 10.9.0.0/16 dst 10.0.1.2/32 action block",
    ] {
        xfrm(&chain.relay, policy);
    }
    chain
        .relay
        .ip("xfrm policy add dir in dst 10.0.1.2/32 action block")
        .unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["10.0.1.2:7000"])
        .unwrap();
    let sink = Receiver::bind(&chain.sink, "10.0.1.2:7000".parse().unwrap()).unwrap();
    let up = |rule: &RuleStats| rule.outputs[0].state == State::Up;
    daemon.wait_for("cam1", "the output is up", up).unwrap();
    sender(&chain)
        .send_numbered(ip("239.1.1.1"), 5001, 50, 400)
        .unwrap();
    sink.expect(50, PATIENCE).unwrap();
    let rule = daemon.settled("cam1", 50).unwrap();
    assert_eq!(
        (rule.path.as_str(), &rule.outputs[0].by_socket),
        (path, &None)
    );
}

/// Policies are added and removed while the stream runs. The copies by a socket are the same as before.
#[test]
fn what_a_policy_may_be_for_leaves_by_a_socket() {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    let outputs = [
        "10.0.1.2:7000,ttl=9,dscp=46",
        "10.0.1.2:7001,source=keep,ttl=dec",
    ];
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &outputs)
        .unwrap();
    let up = |rule: &RuleStats| rule.outputs.iter().all(|output| output.state == State::Up);
    daemon.wait_for("cam1", "the outputs are up", up).unwrap();
    let sinks = ["10.0.1.2:7000", "10.0.1.2:7001"]
        .map(|at| Receiver::bind(&chain.sink, at.parse().unwrap()).unwrap());
    chain.sink.ip("route add 10.0.0.0/24 via 10.0.1.1").unwrap();
    let sender = sender(&chain);
    let pass = || {
        let capture =
            Capture::start((&chain.sink, "veth3"), "udp dst portrange 7000-7001").unwrap();
        sender
            .send_numbered(ip("239.1.1.1"), 5001, 50, 400)
            .unwrap();
        let sources = sinks
            .each_ref()
            .map(|sink| sink.expect(50, PATIENCE).unwrap());
        let fields = [
            "udp.srcport",
            "udp.dstport",
            "ip.src",
            "ip.ttl",
            "ip.dsfield.dscp",
        ];
        let mut copies = capture.finish().unwrap().fields("udp", &fields).unwrap();
        copies.sort();
        copies.dedup();
        let sources: Vec<_> = sources.into_iter().flatten().collect();
        assert_eq!(sources.len(), 100);
        copies
    };
    let before = pass();
    let rule = daemon.settled("cam1", 50).unwrap();
    assert_eq!(
        (rule.path.as_str(), before.len()),
        ("kernel", 2),
        "{before:?}"
    );

    xfrm(&chain.relay, &format!("dst 10.0.1.2/32 {OPTIONAL}"));
    let moved = |rule: &RuleStats| rule.path == "userspace" && rule.outputs[0].by_socket.is_some();
    daemon.wait_for("cam1", "a socket sends", moved).unwrap();
    assert_eq!(pass(), before);
    let rule = daemon.settled("cam1", 100).unwrap();
    assert!(
        rule.path_reason.contains("IPsec policy"),
        "{}",
        rule.path_reason
    );

    chain.relay.ip("xfrm policy flush").unwrap();
    daemon
        .wait_for("cam1", "it is back", |rule| rule.path == "kernel")
        .unwrap();
    assert_eq!(pass(), before);
    daemon.settled("cam1", 150).unwrap();
}

/// The same of groups and of IPv6.
#[test]
fn groups_and_ipv6_leave_by_sockets_too() {
    let chain = Chain::plain().unwrap();
    xfrm(&chain.relay, &format!("dst 239.10.0.0/16 {OPTIONAL}"));
    xfrm(&chain.relay, &format!("dst fd00:1::/64 {OPTIONAL}"));
    xfrm(&chain.relay, &format!("dst ff1e::/16 {OPTIONAL}"));
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    let outputs = [
        "[fd00:1::2]:7000,ttl=5,dscp=10",
        "[ff1e::10:1%veth2]:6001,source=keep",
    ];
    daemon
        .add("cam2", "[ff1e::1:1%veth1]:5001", &outputs)
        .unwrap();
    let end = (&chain.sink, "veth3");
    let sinks = [
        Receiver::join(end, ip("239.10.1.1"), 6001).unwrap(),
        Receiver::bind(&chain.sink, "[fd00:1::2]:7000".parse().unwrap()).unwrap(),
        Receiver::join(end, ip("ff1e::10:1"), 6001).unwrap(),
    ];
    for (rule, outputs) in [("cam1", 1), ("cam2", 2)] {
        let by_socket = |rule: &RuleStats| {
            let mut sent = rule.outputs.iter();
            sent.all(|output| output.state == State::Up && output.by_socket.is_some())
        };
        let rule = daemon.wait_for(rule, "sockets send", by_socket).unwrap();
        assert_eq!(rule.outputs.len(), outputs);
    }
    sender(&chain)
        .send_numbered(ip("239.1.1.1"), 5001, 50, 400)
        .unwrap();
    let six = Sender::open((&chain.sender, "veth0"), ip("fd00:0::1")).unwrap();
    six.send_numbered(ip("ff1e::1:1"), 5001, 50, 400).unwrap();
    let sources = sinks.map(|sink| sink.expect(50, PATIENCE).unwrap());
    for (sources, expected) in sources.iter().zip(["10.0.1.1", "fd00:1::1", "fd00::1"]) {
        assert!(
            sources.iter().all(|source| source.ip() == ip(expected)),
            "{sources:?}"
        );
    }
    daemon.settled("cam1", 50).unwrap();
    daemon.settled("cam2", 50).unwrap();
}

/// The kernel judges each packet where a policy is for some only.
#[test]
fn a_policy_on_source_ports_holds_packet_by_packet() {
    let chain = Chain::plain().unwrap();
    let [refused, free] = [(); 2].map(|()| sender(&chain));
    let port = refused.port().unwrap();
    xfrm(
        &chain.relay,
        &format!("dst 10.0.1.2/32 proto udp sport {port} action block"),
    );
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["10.0.1.2:7000"])
        .unwrap();
    let up = |rule: &RuleStats| rule.outputs[0].by_socket.is_some();
    daemon.wait_for("cam1", "a socket sends", up).unwrap();
    let sink = Receiver::bind(&chain.sink, "10.0.1.2:7000".parse().unwrap()).unwrap();
    for sender in [&refused, &free] {
        sender
            .send_numbered(ip("239.1.1.1"), 5001, 50, 400)
            .unwrap();
    }
    let sources = sink.expect(50, PATIENCE).unwrap();
    assert!(
        sources
            .iter()
            .all(|source| source.port() == free.port().unwrap())
    );
    let rule = daemon.settled("cam1", 100).unwrap();
    assert_eq!(
        rule.outputs[0].dropped.get("egress_error"),
        Some(&50),
        "{rule:?}"
    );
}

/// What the device's queue or a filter there drops of a socket's packets.
#[test]
fn what_a_device_refuses_of_a_socket_is_not_sent() {
    let chain = Chain::plain().unwrap();
    let relay = &chain.relay;
    xfrm(relay, &format!("dst 239.10.0.0/16 {OPTIONAL}"));
    xfrm(relay, &format!("dst ff1e::/16 {OPTIONAL}"));
    let daemon = Daemon::start(relay, Options::default()).unwrap();
    let senders = ["10.0.0.1", "fd00::1"]
        .map(|from| Sender::open((&chain.sender, "veth0"), ip(from)).unwrap());
    let rules = [
        (
            "cam1",
            "239.1.1.1",
            "239.1.1.1%veth1:5001",
            "239.10.1.1%veth2:6001",
        ),
        (
            "cam2",
            "ff1e::1:1",
            "[ff1e::1:1%veth1]:5001",
            "[ff1e::10:1%veth2]:6001",
        ),
    ];
    for (name, _, input, output) in rules {
        daemon.add(name, input, &[output]).unwrap();
        let by_socket = |rule: &RuleStats| rule.outputs[0].by_socket.is_some();
        daemon.wait_for(name, "a socket sends", by_socket).unwrap();
    }
    relay.tool("nft", "add table netdev guard").unwrap();
    let mut sent = 0;
    for (tool, refuse, allow) in [
        (
            "tc",
            "qdisc add dev veth2 root pfifo limit 0",
            "qdisc del dev veth2 root",
        ),
        (
            "nft",
            "add chain netdev guard out { type filter hook egress device veth2 priority 0 ; policy drop ; }",
            "delete table netdev guard",
        ),
    ] {
        relay.tool(tool, refuse).unwrap();
        sent += 50;
        for ((name, group, ..), sender) in rules.iter().zip(&senders) {
            sender.send_numbered(ip(group), 5001, 50, 400).unwrap();
            let rule = daemon.settled(name, sent).unwrap();
            let dropped = &rule.outputs[0].dropped;
            assert_eq!(dropped.get("egress_full"), Some(&sent), "{tool}: {rule:?}");
        }
        relay.tool(tool, allow).unwrap();
    }
}

#[test]
fn what_is_too_big_for_a_socket_is_told_with_the_route_s_mtu() {
    let chain = Chain::plain().unwrap();
    let route = "route add 10.9.0.0/24 via 10.0.1.2 mtu 400";
    chain.relay.ip(route).unwrap();
    xfrm(&chain.relay, &format!("dst 10.9.0.0/24 {OPTIONAL}"));
    let daemon = Daemon::start(&chain.relay, Options::default()).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["10.9.0.12:7012"])
        .unwrap();
    let by_socket = |rule: &RuleStats| {
        let output = &rule.outputs[0];
        output.by_socket.is_some() && output.mtu == Some(400)
    };
    daemon
        .wait_for("cam1", "a socket sends", by_socket)
        .unwrap();
    sender(&chain)
        .send_numbered(ip("239.1.1.1"), 5001, 50, 400)
        .unwrap();
    let rule = daemon.settled("cam1", 50).unwrap();
    assert_eq!(
        rule.outputs[0].dropped.get("too_big"),
        Some(&50),
        "{rule:?}"
    );
    let told =
        "the MTU of the route by veth2, which is 400, less what encryption or encapsulation adds";
    lab::wait::until("it is told", || daemon.log().contains(told)).unwrap();
}
