//! Outputs to the relay itself: local sockets receive each packet once, rewritten as at any other
//! output, with valid checksums.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use api::reply::{RuleStats, State};
use lab::bed::{Bed, GROUP, INPUT, OUTPUT, PORT, RULE};
use lab::capture::Capture;
use lab::daemon::{Daemon, Options};
use lab::frame::FrameSender;
use lab::socket::{Receiver, Sender, payload, udp_counters};
use lab::topology::Chain;
use packet::craft::{Craft, CraftChecksum};

const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(200);

lab::on_both_paths!(what_comes_to_the_loopback_interface_is_relayed_from_there);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A bed without a rule yet, with a relay that filters source addresses as strictly as Linux can.
fn bed(path: &str) -> Bed {
    let bed = Bed::without_rule(Chain::plain().unwrap(), Options::path(path)).unwrap();
    for interface in ["all", "lo"] {
        let strict = format!("net/ipv4/conf/{interface}/rp_filter");
        bed.chain.relay.sysctl(&strict, "1").unwrap();
    }
    bed
}

/// Adds the rule and waits until all its outputs can send.
fn add(bed: &Bed, outputs: &[&str]) -> RuleStats {
    bed.daemon.add(RULE, INPUT, outputs).unwrap();
    let up = |rule: &RuleStats| rule.outputs.iter().all(|output| output.state == State::Up);
    bed.daemon.wait_for(RULE, "the outputs are up", up).unwrap()
}

fn group_on_loopback(bed: &Bed, group: &str, port: u16) -> Receiver {
    Receiver::join((&bed.chain.relay, "lo"), ip(group), port).unwrap()
}

fn socket(bed: &Bed, address: &str) -> Receiver {
    Receiver::bind(&bed.chain.relay, at(address)).unwrap()
}

/// Each of `count` packets was sent once by every output and none was dropped.
fn all_sent(bed: &Bed, count: u64) {
    let rule = bed.daemon.settled(RULE, count).unwrap();
    for output in &rule.outputs {
        assert_eq!(output.sent.packets, count, "{output:?}");
    }
    assert_eq!(udp_counters(&bed.chain.relay).unwrap().bad_checksums, 0);
}

#[test]
fn sockets_of_the_relay_get_each_packet_once_and_so_does_the_network() {
    let bed = bed("auto");
    let outputs = [
        ("127.0.0.1:7001", "127.0.0.1"),
        // Of the input's interface, and of another.
        ("10.0.0.2:7002", "10.0.0.2"),
        ("10.0.1.1%veth2:7003", "10.0.1.1"),
        ("127.0.0.1:7004,source=keep", "10.0.0.1"),
        ("10.0.1.1:7005,source=192.0.2.7", "192.0.2.7"),
    ];
    let group = "239.7.7.7%lo:7006,ttl=9,dscp=34,sport=4444";
    let mut all: Vec<&str> = outputs.iter().map(|(output, _)| *output).collect();
    all.extend([group, OUTPUT]);
    let rule = add(&bed, &all);
    assert_eq!(rule.path, "userspace");
    let why =
        "the kernel path cannot deliver to sockets of this host, as output 127.0.0.1:7001 asks";
    assert!(rule.path_reason.contains(why), "{}", rule.path_reason);

    let joined = group_on_loopback(&bed, "239.7.7.7", 7006);
    let sockets: Vec<(Receiver, &str)> = outputs
        .iter()
        .map(|(output, source)| {
            let address = output.split([',']).next().unwrap().replace("%veth2", "");
            (socket(&bed, &address), *source)
        })
        .collect();
    let capture = Capture::start_beside_load((&bed.chain.relay, "lo"), "udp").unwrap();
    bed.relay(50, 150).unwrap();
    for (socket, source) in &sockets {
        let sources = socket.expect(50, PATIENCE).unwrap();
        assert!(
            sources.iter().all(|from| from.ip() == ip(source)),
            "{sources:?}"
        );
        socket.expect_nothing(SILENCE).unwrap();
    }
    let sources = joined.expect(50, PATIENCE).unwrap();
    assert!(sources.iter().all(|from| *from == at("127.0.0.1:4444")));
    joined.expect_nothing(SILENCE).unwrap();
    bed.sink.expect_nothing(SILENCE).unwrap();
    all_sent(&bed, 50);

    let captured = capture.finish().unwrap();
    let copies = captured.count("udp.dstport >= 7001 && udp.dstport <= 7006");
    assert_eq!(copies.unwrap(), 6 * 50);
    let bad = captured.count("udp.checksum.status != 1 || ip.checksum.status != 1");
    assert_eq!(bad.unwrap(), 0, "checksums that tshark does not find good");
    let rewritten = "udp.dstport == 7006 && ip.ttl == 9 && ip.dsfield.dscp == 34";
    assert_eq!(captured.count(rewritten).unwrap(), 50);
    let unchanged = "udp.dstport == 7001 && ip.ttl == 16";
    assert_eq!(captured.count(unchanged).unwrap(), 50);
}

#[test]
fn super_packets_and_empty_ones_come_as_the_datagrams_they_are() {
    let bed = bed("auto");
    add(&bed, &["127.0.0.1:7001", "239.7.7.7%lo:7002", OUTPUT]);
    let near = socket(&bed, "127.0.0.1:7001");
    let group = group_on_loopback(&bed, "239.7.7.7", 7002);
    for round in 0..4 {
        bed.sender
            .send_segmented(ip(GROUP), PORT, round * 10, 10, 777)
            .unwrap();
    }
    for receiver in [&near, &group, &bed.sink] {
        receiver.expect(40, PATIENCE).unwrap();
    }
    bed.sender.send(ip(GROUP), PORT, b"").unwrap();
    for receiver in [&near, &group, &bed.sink] {
        assert_eq!(receiver.receive(PATIENCE).unwrap().unwrap().payload, b"");
        receiver.expect_nothing(SILENCE).unwrap();
    }
    all_sent(&bed, 41);
}

#[test]
fn checksums_hold_whatever_state_they_came_in() {
    let bed = bed("userspace");
    add(&bed, &["127.0.0.1:7001", OUTPUT]);
    let near = socket(&bed, "127.0.0.1:7001");
    let sender = FrameSender::open((&bed.chain.sender, "veth0")).unwrap();
    let capture = Capture::start_beside_load((&bed.chain.relay, "lo"), "udp").unwrap();
    for number in 0..96 {
        let (from, to) = (at("10.0.0.1:4000"), SocketAddr::new(ip(GROUP), PORT));
        let mut craft = Craft::new(from, to, payload(number, 100 + number as usize % 7));
        craft.checksum = match number / 64 {
            0 => CraftChecksum::Complete,
            _ => CraftChecksum::Zero,
        };
        sender.send(&craft.frame()).unwrap();
    }
    near.expect(96, PATIENCE).unwrap();
    bed.sink.expect(96, PATIENCE).unwrap();
    all_sent(&bed, 96);
    let captured = capture.finish().unwrap();
    assert_eq!(captured.count("udp.checksum.status == 1").unwrap(), 64);
    assert_eq!(captured.count("udp.checksum == 0").unwrap(), 32);
}

#[test]
fn sockets_of_the_relay_get_ipv6_too() {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path("auto")).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("fd00::1")).unwrap();
    let outputs = ["[::1]:7001", "[fd00:1::1]:7002", "[ff15::7%lo]:7003"];
    daemon
        .add(RULE, "[ff1e::1:1%veth1]:5001", &outputs)
        .unwrap();
    let near = Receiver::bind(&chain.relay, at("[::1]:7001")).unwrap();
    let own = Receiver::bind(&chain.relay, at("[fd00:1::1]:7002")).unwrap();
    let group = Receiver::join((&chain.relay, "lo"), ip("ff15::7"), 7003).unwrap();
    let rule = daemon
        .wait_for(RULE, "the unicast outputs are up", |rule| {
            let up = |output: usize| rule.outputs[output].state == State::Up;
            up(0) && up(1)
        })
        .unwrap();
    // Linux has no route for IPv6 groups there, so it would not deliver them from a socket either.
    assert_eq!(rule.outputs[2].state, State::Down);
    let remedy = "ip -6 route add local ff15::7 dev lo table local";
    assert!(rule.outputs[2].reason.as_ref().unwrap().contains(remedy));
    sender
        .send_numbered(ip("ff1e::1:1"), 5001, 20, 200)
        .unwrap();
    let sources = near.expect(20, PATIENCE).unwrap();
    assert!(sources.iter().all(|from| from.ip() == ip("::1")));
    let sources = own.expect(20, PATIENCE).unwrap();
    assert!(sources.iter().all(|from| from.ip() == ip("fd00:1::1")));
    group.expect_nothing(SILENCE).unwrap();
    let rule = daemon.settled(RULE, 20).unwrap();
    assert_eq!(rule.outputs[2].dropped.get("no_route"), Some(&20));

    chain.relay.ip(remedy.strip_prefix("ip ").unwrap()).unwrap();
    daemon
        .wait_for(RULE, "the group's output is up", |rule| {
            rule.outputs[2].state == State::Up
        })
        .unwrap();
    sender
        .send_segmented(ip("ff1e::1:1"), 5001, 0, 20, 200)
        .unwrap();
    for receiver in [&near, &own, &group] {
        receiver.expect(20, PATIENCE).unwrap();
        receiver.expect_nothing(SILENCE).unwrap();
    }
    daemon.settled(RULE, 40).unwrap();
}

#[test]
fn an_address_that_moves_to_the_relay_is_delivered_there() {
    let bed = bed("auto");
    bed.chain
        .sink
        .ip("addr add 10.0.1.77/24 dev veth3")
        .unwrap();
    let away = Receiver::bind(&bed.chain.sink, at("10.0.1.77:7001")).unwrap();
    add(&bed, &["10.0.1.77:7001"]);
    bed.sender.send_numbered(ip(GROUP), PORT, 10, 100).unwrap();
    away.expect(10, PATIENCE).unwrap();

    bed.chain
        .sink
        .ip("addr del 10.0.1.77/24 dev veth3")
        .unwrap();
    bed.chain
        .relay
        .ip("addr add 10.0.1.77/32 dev veth2")
        .unwrap();
    let here = socket(&bed, "10.0.1.77:7001");
    bed.daemon
        .wait_for(RULE, "the rule delivers here", |rule| {
            rule.path_reason.contains("sockets of this host")
        })
        .unwrap();
    bed.sender.send_numbered(ip(GROUP), PORT, 10, 100).unwrap();
    here.expect(10, PATIENCE).unwrap();
    here.expect_nothing(SILENCE).unwrap();
    all_sent(&bed, 20);
}

#[test]
fn a_forced_kernel_path_is_told_apart_from_silence() {
    let bed = bed("kernel");
    bed.daemon.add(RULE, INPUT, &["127.0.0.1:7001"]).unwrap();
    let rule = bed.daemon.rule(RULE).unwrap();
    assert_eq!(rule.state, State::Down);
    let why = "--path kernel forces the kernel path, but the kernel path cannot deliver to sockets";
    assert!(rule.path_reason.contains(why), "{}", rule.path_reason);
}

#[test]
fn delivery_goes_on_when_a_worker_or_the_daemon_is_killed() {
    let mut bed = bed("auto");
    add(&bed, &["127.0.0.1:7001", "239.7.7.7%lo:7002", OUTPUT]);
    let near = socket(&bed, "127.0.0.1:7001");
    let group = group_on_loopback(&bed, "239.7.7.7", 7002);
    let relay = |bed: &Bed| {
        bed.relay(20, 100).unwrap();
        near.expect(20, PATIENCE).unwrap();
        group.expect(20, PATIENCE).unwrap();
    };
    relay(&bed);
    bed.daemon.kill().unwrap();
    relay(&bed);
    bed.daemon.start_again().unwrap();
    relay(&bed);
    all_sent(&bed, 60);
    for worker in &bed.daemon.stats().unwrap().workers {
        bed.daemon.kill_worker(worker.id).unwrap();
    }
    let running = lab::wait::until("the workers run again", || {
        let stats = bed.daemon.stats().unwrap();
        let is_back = |worker: &api::reply::WorkerStats| worker.restarts > 0;
        stats.workers.iter().all(is_back)
    });
    running.unwrap();
    let mut sent = 60;
    lab::wait::until("the new workers forward", || {
        bed.sender.send(ip(GROUP), PORT, b"probe").unwrap();
        sent += 1;
        let received = bed.sink.receive(Duration::from_millis(50)).unwrap();
        received.is_some()
    })
    .unwrap();
    for receiver in [&near, &group] {
        while receiver.receive(SILENCE).unwrap().is_some() {}
    }
    relay(&bed);
}

#[test]
fn fragments_are_whole_at_a_socket_of_the_relay_and_none_is_too_big() {
    let bed = bed("auto");
    add(&bed, &["127.0.0.1:7001", "239.7.7.7%lo:7002"]);
    let near = socket(&bed, "127.0.0.1:7001");
    let group = group_on_loopback(&bed, "239.7.7.7", 7002);
    bed.sender.send_numbered(ip(GROUP), PORT, 10, 5000).unwrap();
    near.expect(10, PATIENCE).unwrap();
    group.expect(10, PATIENCE).unwrap();
    let rule = bed
        .daemon
        .wait_for(RULE, "all fragments are counted", |rule| {
            rule.outputs.iter().all(|output| output.sent.packets == 40)
        });
    rule.unwrap();
    assert_eq!(udp_counters(&bed.chain.relay).unwrap().bad_checksums, 0);
}

#[test]
fn what_is_larger_than_the_loopback_interface_takes_is_dropped_or_cut() {
    let bed = bed("auto");
    bed.chain.relay.ip("link set lo mtu 1000").unwrap();
    add(&bed, &["127.0.0.1:7001", "10.0.1.1:7002,fragment=yes"]);
    let small = socket(&bed, "127.0.0.1:7001");
    let cut = socket(&bed, "10.0.1.1:7002");
    // Sockets opened after this sysctl leave DF clear.
    let sender = &bed.chain.sender;
    sender.sysctl("net/ipv4/ip_no_pmtu_disc", "1").unwrap();
    let plain = Sender::open((sender, "veth0"), ip("10.0.0.1")).unwrap();
    plain.send_numbered(ip(GROUP), PORT, 10, 1400).unwrap();
    cut.expect(10, PATIENCE).unwrap();
    plain.send_segmented(ip(GROUP), PORT, 0, 10, 1400).unwrap();
    cut.expect(10, PATIENCE).unwrap();
    small.expect_nothing(SILENCE).unwrap();
    let rule = bed.daemon.settled(RULE, 20).unwrap();
    assert_eq!(rule.outputs[0].dropped.get("too_big"), Some(&20));
    assert_eq!(rule.outputs[1].sent.packets, 20);
    assert_eq!(udp_counters(&bed.chain.relay).unwrap().bad_checksums, 0);
}

/// What the host's own filter refuses on the way out is a drop that counts.
#[test]
fn a_packet_filter_that_refuses_copies_is_counted() {
    let bed = bed("auto");
    add(&bed, &["127.0.0.1:7001", OUTPUT]);
    let rules = "add table inet guard; \
                 add chain inet guard out { type filter hook output priority 0; }; \
                 add rule inet guard out udp dport 7001 drop";
    let nft = bed.chain.relay.tool("nft", rules);
    if let Err(error) = nft {
        println!("skipped: no nft here: {error}");
        return;
    }
    bed.relay(20, 100).unwrap();
    let rule = bed.daemon.settled(RULE, 20).unwrap();
    assert_eq!(rule.outputs[0].dropped.get("egress_error"), Some(&20));
    assert_eq!(rule.outputs[1].sent.packets, 20);
}

fn what_comes_to_the_loopback_interface_is_relayed_from_there(path: &str) {
    let bed = bed("auto");
    add(&bed, &["239.7.7.7%lo:7001"]);
    let refuses = |input: &str, output: &str, word: &str| {
        let refused = bed.daemon.client(&["add", input, output]).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains(word), "{}", refused.stderr);
    };
    // What is sent there is received again.
    refuses("239.7.7.7%lo:7001", INPUT, "loop");
    refuses("239.7.7.7%lo:7001", "239.7.7.7%lo:7001", "own input");
    let on = [
        "add",
        "239.7.7.7%lo:7001",
        OUTPUT,
        "--name",
        "on",
        "--path",
        path,
    ];
    bed.daemon.mcr(&on).unwrap();
    bed.daemon
        .wait_for("on", "the rule is up", |rule| rule.state == State::Up)
        .unwrap();
    bed.relay(20, 100).unwrap();
    bed.sink.expect_nothing(SILENCE).unwrap();
    bed.daemon.settled(RULE, 20).unwrap();
    let rule = bed.daemon.settled("on", 20).unwrap();
    assert_eq!(
        (rule.path.as_str(), rule.outputs[0].sent.packets),
        (path, 20)
    );
}
