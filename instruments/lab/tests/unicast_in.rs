//! Unicast and broadcast inputs: to groups, with stock tools at both ends, between two relays over a network
//! without multicast, and nothing that no rule names.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use api::reply::State;
use lab::capture::{Capture, Captured};
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::process::{self, Process};
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;
use lab::wait;

const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(200);
const TO: &str = "239.9.9.9%veth2:6001";

lab::on_both_paths!(
    what_socat_sends_reaches_socat_in_a_group,
    nothing_but_the_port_is_taken,
    addresses_are_followed,
    broadcasts_and_only_named_senders_are_taken,
    ipv6_comes_in,
    two_relays_carry_groups_over_a_network_without,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn start(chain: &Chain, path: &str, input: &str, outputs: &[&str]) -> Daemon {
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon.add("in", input, outputs).unwrap();
    daemon
}

fn sender(chain: &Chain) -> Sender {
    Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap()
}

fn sink(chain: &Chain) -> Receiver {
    Receiver::join((&chain.sink, "veth3"), ip("239.9.9.9"), 6001).unwrap()
}

/// Sends `text` by socat.
fn socat(namespace: &Namespace, text: &str, to: &str) {
    let mut command = namespace.command("socat");
    command.args(["-u", &format!("EXEC:echo {text}"), to]);
    process::run(command, PATIENCE).unwrap().success().unwrap();
}

fn what_socat_sends_reaches_socat_in_a_group(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = start(&chain, path, "10.0.0.2%veth1:7000", &[TO]);
    let input = &daemon.rule("in").unwrap().inputs[0];
    assert!(input.joined && input.reason.is_none(), "{input:?}");
    let joined = chain.relay.read_proc_net("igmp").unwrap();
    assert_eq!(
        joined.matches("0900").count(),
        0,
        "nothing is joined: {joined}"
    );
    let mut command = chain.sink.command("socat");
    command.args([
        "-d",
        "-d",
        "-u",
        "UDP4-RECV:6001,ip-add-membership=239.9.9.9:veth3",
        "-",
    ]);
    let socat_there = Process::start(command).unwrap();
    wait::until("socat listens", || {
        socat_there.stderr().contains("starting data transfer loop")
    })
    .unwrap();
    socat(&chain.sender, "first", "UDP4-SENDTO:10.0.0.2:7000");
    wait::until("socat has it", || socat_there.stdout() == "first\n").unwrap();
    let shown = daemon.mcr(&["show", "in"]).unwrap();
    assert!(shown.contains("10.0.0.2%veth1:7000"), "{shown}");
    daemon.settled("in", 1).unwrap();
}

/// Other ports are the host's: a socket receives its own, and without one the sender gets an ICMP error.
fn nothing_but_the_port_is_taken(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = start(&chain, path, "unicast%veth1:7000", &[TO]);
    let (sender, sink) = (sender(&chain), sink(&chain));
    let own = Receiver::bind(&chain.relay, at("10.0.0.2:7001")).unwrap();
    let capture = Capture::start((&chain.sender, "veth0"), "icmp").unwrap();
    sender.send_numbered(ip("10.0.0.2"), 7000, 20, 400).unwrap();
    sink.expect(20, PATIENCE).unwrap();
    sender.send_numbered(ip("10.0.0.2"), 7001, 5, 5000).unwrap();
    own.expect(5, PATIENCE).unwrap();
    // Each from its own socket, which the answer to the first would close.
    socat(&chain.sender, "nobody", "UDP4-SENDTO:10.0.0.2:7002");
    // In fragments, from their first on.
    sender.send_numbered(ip("10.0.0.2"), 7000, 5, 5000).unwrap();
    sink.expect(5, PATIENCE).unwrap();
    sink.expect_nothing(SILENCE).unwrap();
    let captured = capture.finish().unwrap();
    let refused = captured.fields("icmp.type == 3", &["udp.dstport"]).unwrap();
    assert_eq!(refused, [["7002"]], "ports that are not reachable");
    let rule = daemon.rule("in").unwrap();
    assert_eq!(rule.received.packets, 20 + 5 * 4);
}

fn addresses_are_followed(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon.add("all", "unicast%veth1:7000", &[TO]).unwrap();
    let named = "10.0.0.77%veth1:7001";
    daemon.add("one", named, &["239.9.9.9%veth2:6001"]).unwrap();
    let waiting = daemon.rule("one").unwrap();
    assert_eq!(waiting.state, State::Down);
    let why = "interface veth1 has no address 10.0.0.77 (have: 10.0.0.2, 10.0.0.255); waits for it; \
               if a group was meant, those begin with 224 to 239, or ff";
    assert_eq!(waiting.inputs[0].reason.as_deref(), Some(why));
    let (sender, sink) = (sender(&chain), sink(&chain));
    sender.send_numbered(ip("10.0.0.2"), 7000, 5, 100).unwrap();
    sink.expect(5, PATIENCE).unwrap();
    chain.relay.ip("addr add 10.0.0.77/24 dev veth1").unwrap();
    let up = |rule: &api::reply::RuleStats| rule.state == State::Up;
    daemon.wait_for("one", "the address is there", up).unwrap();
    sender.send_numbered(ip("10.0.0.77"), 7000, 5, 100).unwrap();
    sink.expect(5, PATIENCE).unwrap();
    sender.send_numbered(ip("10.0.0.77"), 7001, 5, 100).unwrap();
    sink.expect(5, PATIENCE).unwrap();
    chain.relay.ip("addr del 10.0.0.77/24 dev veth1").unwrap();
    let down = |rule: &api::reply::RuleStats| rule.state == State::Down;
    daemon.wait_for("one", "the address is gone", down).unwrap();
    daemon.settled("all", 10).unwrap();
    daemon.settled("one", 5).unwrap();
}

fn broadcasts_and_only_named_senders_are_taken(path: &str) {
    let chain = Chain::plain().unwrap();
    chain.sender.ip("addr add 10.0.0.65/24 dev veth0").unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let config = "version = 1
[[rule]]
name = \"all\"
inputs = [\"255.255.255.255%veth1:9999\", \"10.0.0.255%veth1:9999\"]
outputs = [\"239.9.9.9%veth2:6001\"]
[[rule]]
name = \"known\"
input = \"10.0.0.64/26@unicast%veth1:7000\"
outputs = [\"239.9.9.9%veth2:6001\"]
";
    daemon.apply(config).unwrap();
    let sink = sink(&chain);
    for to in ["255.255.255.255", "10.0.0.255"] {
        let bound = "so-bindtodevice=veth0";
        socat(
            &chain.sender,
            "all",
            &format!("UDP4-DATAGRAM:{to}:9999,broadcast,{bound}"),
        );
        sink.receive(PATIENCE).unwrap().unwrap();
    }
    daemon.settled("all", 2).unwrap();
    let named = Sender::open((&chain.sender, "veth0"), ip("10.0.0.65")).unwrap();
    sender(&chain)
        .send_numbered(ip("10.0.0.2"), 7000, 5, 100)
        .unwrap();
    named.send_numbered(ip("10.0.0.2"), 7000, 5, 100).unwrap();
    sink.expect(5, PATIENCE).unwrap();
    sink.expect_nothing(SILENCE).unwrap();
    daemon.settled("known", 5).unwrap();
}

fn ipv6_comes_in(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = start(
        &chain,
        path,
        "[fd00::/64@unicast%veth1]:7000-7255",
        &["[ff1e::9:0/120%veth2]:6001"],
    );
    let sink = Receiver::join((&chain.sink, "veth3"), ip("ff1e::9:4d"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("fd00::1")).unwrap();
    sender.send_numbered(ip("fd00::2"), 7077, 20, 400).unwrap();
    sink.expect(20, PATIENCE).unwrap();
    sender.send_numbered(ip("fd00::2"), 7077, 2, 5000).unwrap();
    sink.expect(2, PATIENCE).unwrap();
    sink.expect_nothing(SILENCE).unwrap();
    let rule = daemon.rule("in").unwrap();
    assert_eq!(rule.received.packets, 20 + 2 * 4);
}

/// Groups to ports of one address here, ports to groups there: each leaves as the group it was.
fn two_relays_carry_groups_over_a_network_without(path: &str) {
    let chain = Chain::plain().unwrap();
    let far = Namespace::new("far").unwrap();
    link::veth((&chain.sink, "veth4"), (&far, "veth5")).unwrap();
    link::address((&chain.sink, "veth4"), "10.0.9.1/24").unwrap();
    link::address((&far, "veth5"), "10.0.9.9/24").unwrap();
    let here = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let there = Daemon::start(&chain.sink, Options::path(path)).unwrap();
    let (groups, ports) = ("239.1.1.0/24", "7000-7255");
    let input = format!("{groups}%veth1:5000");
    here.add("out", &input, &[&format!("10.0.1.2:{ports},ttl=64")])
        .unwrap();
    let up = |rule: &api::reply::RuleStats| rule.outputs[0].state == State::Up;
    here.wait_for("out", "the neighbour is known", up).unwrap();
    let input = format!("10.0.1.1@unicast%veth3:{ports}");
    let output = format!("{groups}%veth4:5000");
    there.add("in", &input, &[&output]).unwrap();

    let between = Capture::start((&chain.sink, "veth3"), "udp").unwrap();
    let behind = Capture::start((&far, "veth5"), "udp").unwrap();
    let sinks = ["239.1.1.0", "239.1.1.77", "239.1.1.255"].map(|group| {
        let sink = Receiver::join((&far, "veth5"), ip(group), 5000).unwrap();
        (group, sink)
    });
    let sender = sender(&chain);
    for (group, sink) in &sinks {
        sender.send_numbered(ip(group), 5000, 10, 400).unwrap();
        sink.expect(10, PATIENCE).unwrap();
    }
    here.settled("out", 30).unwrap();
    there.settled("in", 30).unwrap();
    let between = between.finish().unwrap();
    assert_eq!(between.count("ip.dst == 224.0.0.0/4 && udp").unwrap(), 0);
    // Packets that wait together may leave as one, which the next device divides.
    let bytes = |captured: &Captured, filter: &str| {
        let rows = captured.fields(filter, &["udp.length"]).unwrap();
        let lengths = rows.iter().map(|row| row[0].parse::<usize>().unwrap() - 8);
        lengths.sum::<usize>()
    };
    for port in [7000, 7077, 7255] {
        let one = format!("ip.src == 10.0.1.1 && ip.dst == 10.0.1.2 && udp.dstport == {port}");
        assert_eq!(bytes(&between, &one), 10 * 400, "{port}");
    }
    let behind = behind.finish().unwrap();
    for (group, _) in sinks {
        let one = format!(
            "ip.dst == {group} && udp.dstport == 5000 && ip.src == 10.0.9.1 && ip.ttl == 64"
        );
        assert_eq!(bytes(&behind, &one), 10 * 400, "{group}");
    }
}

#[test]
fn a_port_that_a_program_has_is_refused_with_its_name() {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path("auto")).unwrap();
    let listen = |port: u16| {
        let mut command = chain.relay.command("socat");
        let at = format!("UDP4-RECV:{port}");
        command.args(["-d", "-d", "-u", &at, "-"]);
        let socat = Process::start(command).unwrap();
        wait::until("socat listens", || {
            socat.stderr().contains("starting data transfer loop")
        })
        .unwrap();
        socat
    };
    let early = listen(7000);
    let add = |more: &[&str]| {
        let rule = [
            "add",
            "unicast%veth1:6990-7009",
            "239.9.9.9%veth2:6001-6020",
        ];
        let command = [&rule[..], &["--name", "in"], more].concat();
        daemon.client(&command).unwrap()
    };
    let refused = add(&[]);
    let why = format!(
        "port 7000 is taken by socat (pid {}), socket 0.0.0.0:7000; stop that program",
        early.id()
    );
    assert!(refused.stderr.contains(&why), "{}", refused.stderr);
    assert!(daemon.rule("in").is_err());
    assert!(add(&["--local", "yes"]).status.success());
    daemon.mcr(&["remove", "in"]).unwrap();
    drop(early);
    assert!(add(&[]).status.success());
    // A program that starts later gets its copy, and the doctor reports it.
    let late = listen(7001);
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.9.9.9"), 6012).unwrap();
    socat(&chain.sender, "both", "UDP4-SENDTO:10.0.0.2:7001");
    sink.receive(PATIENCE).unwrap().unwrap();
    wait::until("the program has it too", || late.stdout() == "both\n").unwrap();
    let doctor = daemon.client(&["doctor"]).unwrap().stdout;
    let both = format!("socat (pid {}), socket 0.0.0.0:7001", late.id());
    assert!(doctor.contains(&both), "{doctor}");
    assert!(doctor.contains("takes packets of anybody"), "{doctor}");
    // The exemption at its addition does not apply to another change.
    daemon.mcr(&["disable", "in"]).unwrap();
    let refused = daemon.client(&["enable", "in"]).unwrap();
    assert!(refused.stderr.contains("port 7001"), "{}", refused.stderr);
}

/// Without a program of the kernel path that consumes after the taps the stack still does not answer.
#[test]
fn senders_are_not_told_that_nobody_is_there() {
    let chain = Chain::plain().unwrap();
    let mut options = Options::path("auto");
    options.arguments = ["--without", "bpf_loop"].map(str::to_owned).to_vec();
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    daemon.add("in", "unicast%veth1:7000", &[TO]).unwrap();
    assert_eq!(daemon.rule("in").unwrap().path, "userspace");
    let (sender, sink) = (sender(&chain), sink(&chain));
    let capture = Capture::start((&chain.sender, "veth0"), "icmp").unwrap();
    sender.send_numbered(ip("10.0.0.2"), 7000, 20, 400).unwrap();
    sink.expect(20, PATIENCE).unwrap();
    daemon.settled("in", 20).unwrap();
    let captured = capture.finish().unwrap();
    assert_eq!(captured.count("icmp").unwrap(), 0);
    daemon.mcr(&["remove", "in"]).unwrap();
    let freed = Receiver::bind(&chain.relay, at("10.0.0.2:7000")).unwrap();
    sender.send_numbered(ip("10.0.0.2"), 7000, 5, 400).unwrap();
    freed.expect(5, PATIENCE).unwrap();
}

/// A bridge floods, and an interface may listen to all of it.
#[test]
fn frames_for_other_hosts_are_not_taken() {
    for path in ["kernel", "userspace"] {
        let chain = Chain::plain().unwrap();
        let daemon = start(&chain, path, "unicast%veth1:7000", &[TO]);
        chain.relay.ip("link set veth1 promisc on").unwrap();
        let (sender, sink) = (sender(&chain), sink(&chain));
        let other = "neigh replace 10.0.0.2 lladdr 02:00:00:00:77:77 dev veth0";
        chain.sender.ip(other).unwrap();
        sender.send_numbered(ip("10.0.0.2"), 7000, 5, 400).unwrap();
        sink.expect_nothing(SILENCE).unwrap();
        chain.sender.ip("neigh del 10.0.0.2 dev veth0").unwrap();
        sender.send_numbered(ip("10.0.0.2"), 7000, 5, 400).unwrap();
        sink.expect(5, PATIENCE).unwrap();
        daemon.settled("in", 5).unwrap();
    }
}
