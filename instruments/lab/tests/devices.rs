//! Inputs and outputs on links other than Ethernet wires: macvlan, bridge, VXLAN, tun.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use api::reply::{RuleStats, State};
use lab::bed::Bed;
use lab::daemon::{Daemon, Options};
use lab::frame::FrameReceiver;
use lab::link;
use lab::process::Process;
use lab::socket::{self, Receiver, Sender};
use lab::topology::Chain;
use lab::wait;

const PATIENCE: Duration = Duration::from_secs(5);

lab::on_both_paths!(
    leaves_by_a_macvlan,
    leaves_by_a_bridge,
    leaves_through_a_vxlan,
    leaves_by_a_tun_device_without_a_link_header,
    comes_in_by_a_bridge,
    comes_in_by_a_macvlan,
    comes_in_through_a_vxlan,
    counts_what_the_queue_of_a_device_refuses,
    a_tunnel_without_a_remote_is_down_until_it_has_one,
    an_output_whose_device_drops_everything_is_degraded,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn start(chain: &Chain, path: &str, input: &str, output: &str) -> (Daemon, Sender) {
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon.add("cam1", input, &[output]).unwrap();
    daemon
        .wait_for("cam1", "the output is up", |rule| {
            rule.outputs[0].state == State::Up
        })
        .unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    (daemon, sender)
}

fn relay_ten(chain: &Chain, path: &str, output: &str, sink: &Receiver, source: &str) {
    let (daemon, sender) = start(chain, path, "239.1.1.1%veth1:5001", output);
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 100)
        .unwrap();
    let sources = sink.expect(10, PATIENCE).unwrap();
    assert!(sources.iter().all(|from| from.ip() == ip(source)));
    daemon.settled("cam1", 10).unwrap();
}

/// With two outputs, as the kernel path sends the last by a redirect, which reports nothing.
fn counts_what_the_queue_of_a_device_refuses(path: &str) {
    let bed = Bed::new(path).unwrap();
    let outputs = ["239.10.2.1%veth2:6001", "239.10.2.2%veth2:6002"];
    bed.daemon
        .add("two", "239.1.2.1%veth1:5001", &outputs)
        .unwrap();
    let relay = &bed.chain.relay;
    relay
        .tool("tc", "qdisc add dev veth2 root pfifo limit 0")
        .unwrap();
    bed.sender
        .send_numbered(ip("239.1.2.1"), 5001, 20, 200)
        .unwrap();
    let rule = bed.daemon.settled("two", 20).unwrap();
    assert_eq!(rule.outputs[0].dropped["egress_full"], 20, "{rule:?}");
    assert_eq!(rule.outputs[0].sent.packets, 0);
    relay.tool("tc", "qdisc del dev veth2 root").unwrap();
    bed.relay(20, 200).unwrap();
}

/// A remote, or what `bridge fdb` lists for groups.
fn a_tunnel_without_a_remote_is_down_until_it_has_one(path: &str) {
    let chain = Chain::plain().unwrap();
    let relay = &chain.relay;
    relay
        .ip("link add vx0 type vxlan id 42 local 10.0.1.1 dstport 4789")
        .unwrap();
    relay
        .ip("link add vx1 type vxlan external dstport 4790")
        .unwrap();
    link::vxlan((&chain.sink, "vx0"), 42, "10.0.1.2", "10.0.1.1").unwrap();
    for (end, addresses) in [
        ((relay, "vx0"), ["10.0.8.1/24", "fd08::1/64"]),
        ((relay, "vx1"), ["10.0.9.1/24", "fd09::1/64"]),
        ((&chain.sink, "vx0"), ["10.0.8.2/24", "fd08::2/64"]),
    ] {
        for address in addresses {
            link::address(end, address).unwrap();
        }
        link::up(end).unwrap();
    }
    let daemon = Daemon::start(relay, Options::path(path)).unwrap();
    let four = ["239.10.1.1%vx0:6001", "239.10.1.1%vx1:6001"];
    let six = ["[ff1e::10:1%vx0]:6001", "[ff1e::10:1%vx1]:6001"];
    let rules = [
        ("four", "239.1.1.1%veth1:5001", four, "239.10.1.1"),
        ("six", "[ff1e::1:1%veth1]:5001", six, "ff1e::10:1"),
    ];
    for (name, input, outputs, _) in rules {
        daemon.add(name, input, &outputs).unwrap();
    }
    let stand = |first: State| {
        for (name, ..) in rules {
            let stands = |rule: &RuleStats| {
                let states = [0, 1].map(|output| rule.outputs[output].state);
                states == [first, State::Down]
            };
            let rule = daemon
                .wait_for(name, "the outputs stand so", stands)
                .unwrap();
            let why = |output: usize| rule.outputs[output].reason.clone().unwrap_or_default();
            assert!(why(1).contains("external"), "{}", why(1));
            assert!(
                first == State::Up || why(0).contains("no remote"),
                "{}",
                why(0)
            );
        }
    };
    stand(State::Down);
    let flood = "fdb append 00:00:00:00:00:00 dev vx0 dst 10.0.1.2";
    relay.tool("bridge", flood).unwrap();
    stand(State::Up);
    for (name, .., group) in rules {
        let is_ipv4 = name == "four";
        let source = if is_ipv4 { "10.0.0.1" } else { "fd00::1" };
        let to = if is_ipv4 { "239.1.1.1" } else { "ff1e::1:1" };
        let sink = Receiver::join((&chain.sink, "vx0"), ip(group), 6001).unwrap();
        let sender = Sender::open((&chain.sender, "veth0"), ip(source)).unwrap();
        sender.send_numbered(ip(to), 5001, 10, 100).unwrap();
        sink.expect(10, PATIENCE).unwrap();
        let rule = daemon.settled(name, 10).unwrap();
        assert_eq!(rule.outputs[0].sent.packets, 10);
        assert_eq!(rule.outputs[1].dropped["no_route"], 10);
    }
    relay
        .tool("bridge", &flood.replace("append", "del"))
        .unwrap();
    stand(State::Down);
}

/// For example, a tunnel without a route to its other end: only the device's own counters show it.
fn an_output_whose_device_drops_everything_is_degraded(path: &str) {
    let chain = Chain::plain().unwrap();
    let relay = &chain.relay;
    link::vxlan((relay, "vx0"), 42, "10.0.1.1", "10.77.0.1").unwrap();
    link::address((relay, "vx0"), "10.0.8.1/24").unwrap();
    let (daemon, sender) = start(&chain, path, "239.1.1.1%veth1:5001", "239.10.1.1%vx0:6001");
    let send = || sender.send_numbered(ip("239.1.1.1"), 5001, 5, 100).unwrap();
    let degraded = |rule: &RuleStats| {
        send();
        rule.state == State::Degraded && rule.outputs[0].state == State::Degraded
    };
    let rule = daemon.wait_for("cam1", "it is degraded", degraded).unwrap();
    let why = rule.outputs[0].reason.clone().unwrap();
    assert!(why.contains("vx0 drops what it is handed"), "{why}");
    assert!(why.contains("ip -s -s link show vx0"), "{why}");
    relay.ip("route add 10.77.0.1/32 via 10.0.1.2").unwrap();
    let up = |rule: &RuleStats| {
        send();
        rule.state == State::Up
    };
    daemon.wait_for("cam1", "it is up again", up).unwrap();
}

fn leaves_by_a_macvlan(path: &str) {
    let chain = Chain::plain().unwrap();
    link::macvlan((&chain.relay, "mv0"), "veth2").unwrap();
    link::address((&chain.relay, "mv0"), "10.0.1.7/24").unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    relay_ten(&chain, path, "239.10.1.1%mv0:6001", &sink, "10.0.1.7");
}

fn leaves_by_a_bridge(path: &str) {
    let chain = Chain::plain().unwrap();
    link::veth((&chain.relay, "wire0"), (&chain.sink, "wire1")).unwrap();
    link::address((&chain.sink, "wire1"), "10.0.6.2/24").unwrap();
    link::snooping_bridge((&chain.relay, "br0")).unwrap();
    link::bridge_port((&chain.relay, "wire0"), "br0").unwrap();
    link::address((&chain.relay, "br0"), "10.0.6.1/24").unwrap();
    let sink = Receiver::join((&chain.sink, "wire1"), ip("239.10.1.1"), 6001).unwrap();
    link::wait_for_member((&chain.relay, "br0"), "239.10.1.1").unwrap();
    relay_ten(&chain, path, "239.10.1.1%br0:6001", &sink, "10.0.6.1");
}

fn leaves_through_a_vxlan(path: &str) {
    let chain = Chain::plain().unwrap();
    link::vxlan((&chain.relay, "vx0"), 42, "10.0.1.1", "10.0.1.2").unwrap();
    link::vxlan((&chain.sink, "vx0"), 42, "10.0.1.2", "10.0.1.1").unwrap();
    link::address((&chain.relay, "vx0"), "10.0.8.1/24").unwrap();
    link::address((&chain.sink, "vx0"), "10.0.8.2/24").unwrap();
    let sink = Receiver::join((&chain.sink, "vx0"), ip("239.10.1.1"), 6001).unwrap();
    relay_ten(&chain, path, "239.10.1.1%vx0:6001", &sink, "10.0.8.1");
}

fn leaves_by_a_tun_device_without_a_link_header(path: &str) {
    let chain = Chain::plain().unwrap();
    // A tun device has a carrier only while a process holds its other end.
    let mut command = chain.relay.command("socat");
    command.args([
        "-u",
        "TUN:10.0.7.1/24,up,iff-no-pi,tun-name=tun0",
        "OPEN:/dev/null",
    ]);
    let holder = Process::start(command).unwrap();
    wait::until("the tun device is there", || {
        chain
            .relay
            .ip("link show dev tun0 up")
            .is_ok_and(|text| text.contains("LOWER_UP"))
    })
    .unwrap_or_else(|error| panic!("{error:#}: {}", holder.stderr()));
    let wire = FrameReceiver::open((&chain.relay, "tun0")).unwrap();
    let output = "239.10.1.1%tun0:6001";
    let (daemon, sender) = start(&chain, path, "239.1.1.1%veth1:5001", output);
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 100)
        .unwrap();
    for number in 0..10 {
        let to_group = |packet: &[u8]| packet.get(16..20) == Some([239, 10, 1, 1].as_slice());
        let packet = wire.receive(PATIENCE, to_group).unwrap().expect("a packet");
        assert_eq!(packet.bytes[12..16], [10, 0, 7, 1], "source");
        assert_eq!(socket::number(&packet.bytes[28..]).unwrap(), number);
    }
    daemon.settled("cam1", 10).unwrap();
}

fn comes_in_by_a_bridge(path: &str) {
    let chain = Chain::plain().unwrap();
    link::snooping_bridge((&chain.relay, "br0")).unwrap();
    link::bridge_port((&chain.relay, "veth1"), "br0").unwrap();
    link::address((&chain.relay, "br0"), "10.0.0.3/24").unwrap();
    let output = "239.10.1.1%veth2:6001";
    let (daemon, sender) = start(&chain, path, "239.1.1.1%br0:5001", output);
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    link::wait_for_member((&chain.relay, "br0"), "239.1.1.1").unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 100)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    daemon.settled("cam1", 10).unwrap();
}

fn comes_in_by_a_macvlan(path: &str) {
    let chain = Chain::plain().unwrap();
    link::macvlan((&chain.relay, "mv0"), "veth1").unwrap();
    link::address((&chain.relay, "mv0"), "10.0.0.7/24").unwrap();
    let output = "239.10.1.1%veth2:6001";
    let (daemon, sender) = start(&chain, path, "239.1.1.1%mv0:5001", output);
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 100)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    daemon.settled("cam1", 10).unwrap();
}

fn comes_in_through_a_vxlan(path: &str) {
    let chain = Chain::plain().unwrap();
    link::vxlan((&chain.sender, "vx0"), 42, "10.0.0.1", "10.0.0.2").unwrap();
    link::vxlan((&chain.relay, "vx0"), 42, "10.0.0.2", "10.0.0.1").unwrap();
    link::address((&chain.sender, "vx0"), "10.0.8.1/24").unwrap();
    link::address((&chain.relay, "vx0"), "10.0.8.2/24").unwrap();
    let output = "239.10.1.1%veth2:6001";
    let (daemon, _) = start(&chain, path, "239.1.1.1%vx0:5001", output);
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "vx0"), ip("10.0.8.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 100)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    daemon.settled("cam1", 10).unwrap();
}

/// A veth that chains what it receives: GRO needs NAPI, and packets that arrive in one poll.
fn chaining() -> Chain {
    let chain = Chain::plain().unwrap();
    link::features((&chain.sender, "veth0"), "tso off tx-udp-segmentation off").unwrap();
    link::features((&chain.relay, "veth1"), "gro on rx-gro-list on").unwrap();
    chain
}

#[test]
fn rx_gro_list_keeps_a_rule_from_the_kernel_path() {
    let chain = chaining();
    let daemon = Daemon::start(&chain.relay, Options::path("kernel")).unwrap();
    let output = ["239.10.1.1%veth2:6001"];
    daemon.add("cam1", "239.1.1.1%veth1:5001", &output).unwrap();
    let rule = daemon.rule("cam1").unwrap();
    assert_eq!(rule.state, State::Down);
    assert!(
        rule.path_reason
            .contains("ethtool -K veth1 rx-gro-list off"),
        "{}",
        rule.path_reason
    );
    // The remedy suffices.
    link::features((&chain.relay, "veth1"), "rx-gro-list off").unwrap();
    daemon
        .wait_for("cam1", "the rule is up", |rule| rule.state == State::Up)
        .unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 100)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    daemon.settled("cam1", 10).unwrap();
}

#[test]
fn rx_gro_list_moves_a_rule_to_the_userspace_path_which_relays_chains() {
    const ROUNDS: u64 = 50;
    const CHAIN: u64 = 16;
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path("auto")).unwrap();
    let output = ["239.10.1.1%veth2:6001"];
    daemon.add("cam1", "239.1.1.1%veth1:5001", &output).unwrap();
    assert_eq!(daemon.rule("cam1").unwrap().path, "kernel");
    link::features((&chain.sender, "veth0"), "tso off tx-udp-segmentation off").unwrap();
    link::features((&chain.relay, "veth1"), "gro on rx-gro-list on").unwrap();
    daemon
        .wait_for("cam1", "the rule takes the userspace path", |rule| {
            rule.path == "userspace" && rule.state == State::Up
        })
        .unwrap();
    let sink = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let tap = FrameReceiver::open((&chain.relay, "veth1")).unwrap();
    for round in 0..ROUNDS {
        sender
            .send_segmented(ip("239.1.1.1"), 5001, round * CHAIN, CHAIN, 300)
            .unwrap();
    }
    sink.expect(ROUNDS * CHAIN, PATIENCE).unwrap();
    assert_eq!(socket::udp_counters(&chain.sink).unwrap().bad_checksums, 0);
    daemon.settled("cam1", ROUNDS * CHAIN).unwrap();
    // The test shows nothing unless packets were chained.
    let chained = tap.receive(PATIENCE, |frame| frame.len() > 600).unwrap();
    assert!(chained.is_some(), "nothing was chained");
}
