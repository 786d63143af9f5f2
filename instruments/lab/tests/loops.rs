//! Loops: refused where the rules show them, ended by TTL or `own_source` where they do not.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::frame::FrameSender;
use lab::link;
use lab::namespace::Namespace;
use lab::socket::{self, Receiver, Sender};
use lab::topology::Chain;
use packet::craft::Craft;

const PATIENCE: Duration = Duration::from_secs(5);

lab::on_both_paths!(
    a_rule_set_that_feeds_itself_is_refused,
    a_packet_from_an_own_address_is_dropped_and_counted,
    what_this_host_sends_by_lo_is_in_no_loop,
    what_this_host_sends_by_the_input_is_relayed_once,
    what_this_host_sends_by_devices_upon_others_is_relayed_once,
    what_this_host_sends_is_a_leg_as_any_other,
    no_frame_of_the_wire_passes_for_what_this_host_sends,
    a_decrement_ends_a_loop_between_two_relays,
    an_output_may_leave_by_the_input_interface_under_another_group,
    a_group_is_relayed_in_both_directions_and_once_in_each,
);

mod xdp {
    #[test]
    fn what_this_host_sends_by_the_input_is_relayed_once() {
        super::what_this_host_sends_by_the_input_is_relayed_once("xdp");
    }

    #[test]
    fn what_this_host_sends_is_a_leg_as_any_other() {
        super::what_this_host_sends_is_a_leg_as_any_other("xdp");
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn craft(source: &str, ttl: u8) -> Vec<u8> {
    let source: SocketAddr = source.parse().unwrap();
    let destination: SocketAddr = "239.1.1.1:5001".parse().unwrap();
    let mut craft = Craft::new(source, destination, socket::payload(0, 100));
    craft.ttl = ttl;
    craft.frame()
}

fn a_rule_set_that_feeds_itself_is_refused(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("there", "239.1.1.1%veth1:5001", &["239.10.1.1%veth1:6001"])
        .unwrap();
    let back = [
        "add",
        "239.10.1.1%veth1:6001",
        "239.1.1.1%veth1:5001",
        "--name",
        "back",
    ];
    let refused = daemon.client(&back).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("back"), "{}", refused.stderr);
    // Also a loop within one rule: the daemon refuses loops, not the command line.
    let own = ["add", "239.2.2.2%veth1:1", "239.2.2.2%veth1:1,ttl=dec"];
    let refused = daemon.client(&own).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("own input"), "{}", refused.stderr);
    assert_eq!(daemon.stats().unwrap().rules.len(), 1);
}

fn a_packet_from_an_own_address_is_dropped_and_counted(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    let wire = FrameSender::open((&chain.sender, "veth0")).unwrap();
    wire.send(&craft("10.0.1.1:4000", 8)).unwrap();
    let rule = daemon.settled("cam1", 1).unwrap();
    assert_eq!(rule.dropped.get("own_source"), Some(&1));
    // The address of an interface that no output uses is the host's own too.
    wire.send(&craft("10.0.0.2:4000", 8)).unwrap();
    let rule = daemon.settled("cam1", 2).unwrap();
    assert_eq!(rule.dropped.get("own_source"), Some(&2));
    assert_eq!(rule.outputs[0].sent.packets, 0);
}

/// A program of the relay sends by lo.
fn what_this_host_sends_by_lo_is_in_no_loop(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let output = "239.10.1.1%veth2:6001";
    daemon.add("cam1", "239.1.1.1%lo:5001", &[output]).unwrap();
    chain.relay.ip("route add 239.1.1.1 dev lo").unwrap();
    let group = "239.10.1.1".parse().unwrap();
    let receiver = Receiver::join((&chain.sink, "veth3"), group, 6001).unwrap();
    let address = "127.0.0.1".parse().unwrap();
    let sender = Sender::open((&chain.relay, "lo"), address).unwrap();
    sender
        .send_numbered("239.1.1.1".parse().unwrap(), 5001, 20, 100)
        .unwrap();
    receiver.expect(20, Duration::from_secs(5)).unwrap();
    let rule = daemon.settled("cam1", 20).unwrap();
    assert_eq!(rule.dropped.get("own_source"), None);
}

/// A program of the relay sends by the interface that the rule listens on: it leaves there, sockets here
/// hear it, and the rule relays it.
fn what_this_host_sends_by_the_input_is_relayed_once(path: &str) {
    let chain = Chain::plain().unwrap().prepared_for(path).unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let sources = ["10.0.0.2", "fd00::2"];
    relays_what_it_sends_once(&chain, &daemon, ("veth1", sources), "veth0");
}

/// VLANs and bonds are tried in other kernels (`tests/kernels`): this machine's has none.
fn what_this_host_sends_by_devices_upon_others_is_relayed_once(path: &str) {
    let chain = Chain::plain().unwrap();
    let relay = &chain.relay;
    link::macvlan((relay, "mv0"), "veth1").unwrap();
    link::vxlan((&chain.sender, "vx0"), 42, "10.0.0.1", "10.0.0.2").unwrap();
    link::vxlan((relay, "vx0"), 42, "10.0.0.2", "10.0.0.1").unwrap();
    link::veth((&chain.sender, "wire0"), (relay, "wire1")).unwrap();
    relay
        .ip("link add br0 type bridge mcast_snooping 0")
        .unwrap();
    link::up((relay, "br0")).unwrap();
    relay.ip("link set wire1 master br0").unwrap();
    for (namespace, name, ending) in [
        (relay, "mv0", "7"),
        (relay, "vx0", "8:2"),
        (relay, "br0", "9:2"),
        (&chain.sender, "vx0", "8:1"),
        (&chain.sender, "wire0", "9:1"),
    ] {
        let four = match ending.split_once(':') {
            Some((net, host)) => format!("10.0.{net}.{host}/24"),
            None => format!("10.0.0.{ending}/24"),
        };
        link::address((namespace, name), &four).unwrap();
        link::address((namespace, name), &format!("fd00::{ending}/112 nodad")).unwrap();
    }
    let daemon = Daemon::start(relay, Options::path(path)).unwrap();
    for (link, four, six, far) in [
        ("mv0", "10.0.0.7", "fd00::7", "veth0"),
        ("vx0", "10.0.8.2", "fd00::8:2", "vx0"),
        ("br0", "10.0.9.2", "fd00::9:2", "wire0"),
    ] {
        relays_what_it_sends_once(&chain, &daemon, (link, [four, six]), far);
    }
}

/// What programs send on `link`, from those addresses, leaves there to `far`, is received once and relayed once.
fn relays_what_it_sends_once(
    chain: &Chain,
    daemon: &Daemon,
    (link, sources): (&str, [&str; 2]),
    far: &str,
) {
    let groups = [
        ("239.1.1.1", "239.10.1.1", sources[0]),
        ("ff1e::1", "ff1e::a:1", sources[1]),
    ];
    for (name, (input, output, source)) in ["v4", "v6"].into_iter().zip(groups) {
        let at = |group: &str, link: &str, port: u16| {
            if group.contains(':') {
                format!("[{group}%{link}]:{port}")
            } else {
                format!("{group}%{link}:{port}")
            }
        };
        let outputs = [at(output, "veth2", 6001)];
        let add = ["add", &at(input, link, 5001), &outputs[0], "--name"];
        daemon.mcr(&[&add[..], &[name]].concat()).unwrap();
        let beyond = Receiver::join((&chain.sink, "veth3"), ip(output), 6001).unwrap();
        let there = Receiver::join((&chain.sender, far), ip(input), 5001).unwrap();
        let here = Receiver::join((&chain.relay, link), ip(input), 5001).unwrap();
        let sender = Sender::open((&chain.relay, link), ip(source)).unwrap();
        // Who keeps it from this host keeps it from the rule.
        sender.send_numbered(ip(input), 5001, 10, 100).unwrap();
        there.expect(10, PATIENCE).unwrap();
        let sender = Sender::with_loopback((&chain.relay, link), ip(source)).unwrap();
        sender.send_numbered(ip(input), 5001, 20, 1200).unwrap();
        for receiver in [&beyond, &there, &here] {
            receiver.expect(20, PATIENCE).unwrap();
        }
        sender.send_segmented(ip(input), 5001, 20, 10, 500).unwrap();
        for receiver in [&beyond, &there, &here] {
            receiver.expect_these(20..30, PATIENCE).unwrap();
        }
        let rule = daemon.settled(name, 30).unwrap();
        assert!(rule.dropped.is_empty(), "{:?}", rule.dropped);
        // IPv6 is received as the fragments that leave, IPv4 reassembled.
        sender.send_numbered(ip(input), 5001, 1, 3000).unwrap();
        for receiver in [&there, &here] {
            receiver.expect(1, PATIENCE).unwrap();
        }
        if input.contains(':') {
            beyond.expect(1, PATIENCE).unwrap();
        } else {
            let rule = daemon.settled(name, 31).unwrap();
            assert_eq!(rule.outputs[0].dropped.get("too_big"), Some(&1));
        }
        daemon.mcr(&["change", name, "--set", "local=no"]).unwrap();
        sender.send_numbered(ip(input), 5001, 5, 100).unwrap();
        for receiver in [&there, &here] {
            receiver.expect(5, PATIENCE).unwrap();
        }
        for receiver in [&beyond, &there, &here] {
            receiver.expect_nothing(Duration::from_millis(100)).unwrap();
        }
        daemon.mcr(&["remove", name]).unwrap();
    }
}

/// The first leg is sent on the relay, the second arrives by the wire: merged, each packet leaves once; as
/// standby, the active input's packets leave; local sockets receive all of the first leg.
fn what_this_host_sends_is_a_leg_as_any_other(path: &str) {
    let chain = Chain::plain().unwrap().prepared_for(path).unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let groups = [
        ("239.1.1", "239.10.1.1", ["10.0.0.2", "10.0.0.1"]),
        ("ff1e::1:", "ff1e::a:1", ["fd00::2", "fd00::1"]),
    ];
    for (version, (input, output, sources)) in ["v4", "v6"].into_iter().zip(groups) {
        for (number, kind) in [
            "merge = { by = \"payload\", window = \"500ms\" }",
            "failover = { silence = \"30s\" }",
            "merge = { by = \"sequence\", offset = 4, bytes = 8, window = \"500ms\" }",
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("{version}-{number}");
            let [group, other] = [2, 3].map(|leg| {
                if input.ends_with(':') {
                    ip(&format!("{input}1{number}{leg}"))
                } else {
                    ip(&format!("{input}.1{number}{leg}"))
                }
            });
            let at = |group: IpAddr, link: &str, port: u16| {
                if group.is_ipv6() {
                    format!("[{group}%{link}]:{port}")
                } else {
                    format!("{group}%{link}:{port}")
                }
            };
            let inputs = [at(group, "veth1", 5001), at(other, "veth1", 5001)];
            let port = 6001 + number as u16;
            let rule = format!(
                "version = 1\n[[rule]]\nname = {name:?}\ninputs = {inputs:?}\n\
                 outputs = [{:?}]\n{kind}\n",
                at(ip(output), "veth2", port)
            );
            daemon.apply(&rule).unwrap();
            let beyond = Receiver::join((&chain.sink, "veth3"), ip(output), port).unwrap();
            let here = Receiver::join((&chain.relay, "veth1"), group, 5001).unwrap();
            let own = Sender::with_loopback((&chain.relay, "veth1"), ip(sources[0])).unwrap();
            let wire = Sender::open((&chain.sender, "veth0"), ip(sources[1])).unwrap();
            for first in [true, false] {
                let (legs, one) = ([(&own, group), (&wire, other)], usize::from(!first));
                for number in 0..20 {
                    for (sender, group) in [legs[one], legs[1 - one]] {
                        let number = number + if first { 0 } else { 20 };
                        sender
                            .send(group, 5001, &socket::payload(number, 300))
                            .unwrap();
                    }
                }
            }
            // Packets enter the queue by two ways, so their order may change.
            for receiver in [&beyond, &here] {
                let datagrams = receiver.collect(40, PATIENCE).unwrap();
                let number = |one: &socket::Datagram| socket::number(&one.payload).unwrap();
                let received: BTreeSet<u64> = datagrams.iter().map(number).collect();
                assert!(received.into_iter().eq(0..40), "{:#?}", daemon.rule(&name));
            }
            let rule = daemon.settled(&name, 80).unwrap();
            assert_eq!(rule.dropped.values().sum::<u64>(), 40, "{:?}", rule.dropped);
            if kind.starts_with("merge") {
                // Those of a super-packet count one by one.
                own.send_segmented(group, 5001, 40, 10, 500).unwrap();
                for number in 40..50 {
                    let packet = socket::payload(number, 500);
                    wire.send(other, 5001, &packet).unwrap();
                }
                for receiver in [&beyond, &here] {
                    receiver.expect_these(40..50, PATIENCE).unwrap();
                }
                let rule = daemon.settled(&name, 100).unwrap();
                assert_eq!(rule.dropped.values().sum::<u64>(), 50, "{:?}", rule.dropped);
            }
            assert_eq!(rule.dropped.get("own_source"), None);
            for receiver in [&beyond, &here] {
                receiver.expect_nothing(Duration::from_millis(100)).unwrap();
            }
        }
    }
}

/// Workers recognise what a local program sent by its link header, which any sender can forge.
fn no_frame_of_the_wire_passes_for_what_this_host_sends(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth2:6001"])
        .unwrap();
    let beyond = Receiver::join((&chain.sink, "veth3"), ip("239.10.1.1"), 6001).unwrap();
    let wire = FrameSender::open((&chain.sender, "veth0")).unwrap();
    let frame = |source: &str, number| {
        let group = "239.1.1.1:5001".parse().unwrap();
        Craft::new(source.parse().unwrap(), group, socket::payload(number, 100)).frame()
    };
    let mut forged = frame("10.0.0.2:4000", 1);
    forged[..12].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    wire.send(&forged).unwrap();
    wire.send(&frame("10.0.0.1:4000", 0)).unwrap();
    beyond.expect(1, PATIENCE).unwrap();
    beyond.expect_nothing(Duration::from_millis(100)).unwrap();
}

/// Two relays in a ring: `one` sends to `two` by `there`, `two` back to `one` by `back`.
fn a_decrement_ends_a_loop_between_two_relays(path: &str) {
    let (one, two) = (
        Namespace::new("one").unwrap(),
        Namespace::new("two").unwrap(),
    );
    link::veth((&one, "there0"), (&two, "there1")).unwrap();
    link::veth((&two, "back0"), (&one, "back1")).unwrap();
    link::address((&one, "there0"), "10.0.1.1/24").unwrap();
    link::address((&two, "there1"), "10.0.1.2/24").unwrap();
    link::address((&two, "back0"), "10.0.2.1/24").unwrap();
    link::address((&one, "back1"), "10.0.2.2/24").unwrap();
    let first = Daemon::start(&one, Options::path(path)).unwrap();
    let second = Daemon::start(&two, Options::path(path)).unwrap();
    let output = ["239.1.1.1%there0:5001,ttl=dec"];
    first.add("ring", "239.1.1.1%back1:5001", &output).unwrap();
    let output = ["239.1.1.1%back0:5001,ttl=dec"];
    second
        .add("ring", "239.1.1.1%there1:5001", &output)
        .unwrap();

    let wire = FrameSender::open((&two, "back0")).unwrap();
    wire.send(&craft("192.0.2.1:4000", 16)).unwrap();
    let ended = |daemon: &Daemon| {
        let rule = daemon.rule("ring").unwrap();
        let expired = rule.outputs[0].dropped.get("ttl_expired");
        (rule.received.packets, expired.copied().unwrap_or(0))
    };
    lab::wait::until("the packet's TTL has run out", || {
        ended(&first).1 + ended(&second).1 == 1
    })
    .unwrap();
    // It passed a relay at each TTL from 16 down to 1.
    assert_eq!(ended(&first).0 + ended(&second).0, 16);
}

fn a_group_is_relayed_in_both_directions_and_once_in_each(path: &str) {
    let (group, port) = ("239.255.255.250", 1900);
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let at = |link: &str| format!("{group}%{link}:{port}");
    let (here, there) = (at("veth1"), at("veth2"));
    daemon.add("there", &here, &[&there]).unwrap();
    daemon.add("back", &there, &[&here]).unwrap();
    let ends = [
        ((&chain.sender, "veth0"), "10.0.0.1", "there", "10.0.1.1"),
        ((&chain.sink, "veth3"), "10.0.1.2", "back", "10.0.0.2"),
    ];
    for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        let receiver = Receiver::join(to.0, ip(group), port).unwrap();
        let sender = Sender::open(from.0, ip(from.1)).unwrap();
        sender.send_numbered(ip(group), port, 10, 100).unwrap();
        let sources = receiver.expect(10, PATIENCE).unwrap();
        assert!(sources.iter().all(|source| source.ip() == ip(from.3)));
        daemon.settled(from.2, 10).unwrap();
    }
}

fn an_output_may_leave_by_the_input_interface_under_another_group(path: &str) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["239.10.1.1%veth1:6001"])
        .unwrap();
    let back = Receiver::join((&chain.sender, "veth0"), ip("239.10.1.1"), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    sender
        .send_numbered(ip("239.1.1.1"), 5001, 10, 100)
        .unwrap();
    let sources = back.expect(10, PATIENCE).unwrap();
    assert!(sources.iter().all(|source| source.ip() == ip("10.0.0.2")));
    daemon.settled("cam1", 10).unwrap();
}
