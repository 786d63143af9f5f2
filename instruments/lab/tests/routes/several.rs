//! Routes with several next hops, nexthop objects, routes with an MTU and those that refuse: copies take
//! the path and the source of a socket's packets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use api::reply::{RuleStats, State};
use lab::daemon::{Daemon, Options};
use lab::namespace::Namespace;
use lab::socket::{Receiver, Sender, wait_until_free};
use lab::topology::Chain;
use lab::wait;

use super::{all_up, ip, second_uplink, send};

lab::on_both_paths!(
    copies_take_the_next_hop_of_a_socket_s_packets,
    nexthop_objects_are_followed,
    a_route_s_mtu_is_the_output_s,
    a_route_that_refuses_is_named,
);

const BOTH: &str = "nexthop via 10.0.1.2 nexthop via 10.0.2.2";
const TO: &str = "10.9.0.12";

/// Where packets arrive, and from whom: by next hop.
struct Arrivals([Receiver; 2]);

impl Arrivals {
    fn at(chain: &Chain, second: &Namespace, to: IpAddr, port: u16) -> Self {
        let at = |far| Receiver::bind(far, (to, port).into()).unwrap();
        Self([at(&chain.sink), at(second)])
    }

    /// Of the next packet.
    fn next(&self) -> (usize, IpAddr) {
        wait::some_within(wait::PATIENCE, "a packet arrives", || {
            let mut all = self.0.iter().enumerate();
            all.find_map(|(hop, at)| {
                let datagram = at.receive(Duration::from_millis(5)).unwrap()?;
                Some((hop, datagram.from.ip()))
            })
        })
        .unwrap()
    }
}

fn by_socket(relay: &Namespace, from: u16, to: SocketAddr) {
    let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
    let send = || {
        UdpSocket::bind((any, from))?.send_to(b"socket", to)?;
        wait_until_free(from)
    };
    relay.run(send).unwrap();
}

fn divide_by(relay: &Namespace, family: &str, policy: &str) {
    let key = format!("net/{family}/fib_multipath_hash_policy");
    relay.sysctl(&key, policy).unwrap();
}

/// With ports that are known beforehand the table can be asked.
fn copies_take_the_next_hop_of_a_socket_s_packets(path: &str) {
    let chain = Chain::plain().unwrap();
    let second = second_uplink(&chain);
    let relay = &chain.relay;
    relay
        .ip(&format!("route replace 10.9.0.0/24 {BOTH}"))
        .unwrap();
    let daemon = Daemon::start(relay, Options::path(path)).unwrap();
    for policy in ["0", "1"] {
        divide_by(relay, "ipv4", policy);
        let ports: Vec<u16> = (7100..7108).collect();
        let texts: Vec<String> = ports
            .iter()
            .map(|port| format!("{TO}:{port},sport={}", port + 1000))
            .collect();
        let outputs: Vec<&str> = texts.iter().map(String::as_str).collect();
        daemon
            .add("cam1", "239.1.1.1%veth1:5001", &outputs)
            .unwrap();
        let at = |port: &u16| (*port, Arrivals::at(&chain, &second, ip(TO), *port));
        let arrivals: BTreeMap<u16, Arrivals> = ports.iter().map(at).collect();
        let mut expected = Vec::new();
        for (port, arrival) in &arrivals {
            by_socket(relay, port + 1000, (ip(TO), *port).into());
            expected.push(arrival.next());
        }
        let there = |rule: &RuleStats| {
            let mut outputs = rule.outputs.iter().zip(&expected);
            all_up(rule)
                && outputs.all(|(output, (_, source))| {
                    output.source.as_deref() == Some(source.to_string().as_str())
                        && output.by_socket.is_none()
                })
        };
        daemon
            .wait_for("cam1", "outputs are where a socket is", there)
            .unwrap();
        let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
        sender.send(ip("239.1.1.1"), 5001, b"stream").unwrap();
        let found: Vec<_> = arrivals.values().map(Arrivals::next).collect();
        assert_eq!(found, expected, "policy {policy}");
        daemon.mcr(&["remove", "cam1"]).unwrap();
    }
}

/// Where a packet goes depends on a field that is kept: a socket sends it then.
#[test]
fn what_is_kept_divides_packet_by_packet() {
    let chain = Chain::plain().unwrap();
    let second = second_uplink(&chain);
    let relay = &chain.relay;
    relay
        .ip(&format!("route replace 10.9.0.0/24 {BOTH}"))
        .unwrap();
    let daemon = Daemon::start(relay, Options::default()).unwrap();
    let outputs = ["10.9.0.12:7012", "10.9.0.12:7013,source=keep"];
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &outputs)
        .unwrap();
    let sockets = |first: bool| {
        move |rule: &RuleStats| {
            let by_socket = [0, 1].map(|output: usize| rule.outputs[output].by_socket.is_some());
            all_up(rule) && by_socket == [first, true]
        }
    };
    // By addresses: only those of a kept source are not known.
    daemon
        .wait_for("cam1", "a socket sends the second", sockets(false))
        .unwrap();
    for policy in ["1", "3"] {
        divide_by(relay, "ipv4", policy);
        let fields = "net/ipv4/fib_multipath_hash_fields";
        relay.sysctl(fields, "55").unwrap();
        daemon
            .wait_for("cam1", "a socket sends both", sockets(true))
            .unwrap();
        let arrivals = Arrivals::at(&chain, &second, ip(TO), 7012);
        for _ in 0..8 {
            let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
            // First: afterwards a worker has the port.
            by_socket(relay, sender.port().unwrap(), (ip(TO), 7012).into());
            let expected = arrivals.next();
            sender.send(ip("239.1.1.1"), 5001, b"stream").unwrap();
            assert_eq!(arrivals.next(), expected, "policy {policy}");
        }
    }
}

fn nexthop_objects_are_followed(path: &str) {
    let chain = Chain::plain().unwrap();
    let second = second_uplink(&chain);
    let relay = &chain.relay;
    relay.ip("route del 10.9.0.0/24").unwrap();
    for objects in [
        "nexthop add id 1 via 10.0.1.2 dev veth2",
        "nexthop add id 2 via 10.0.2.2 dev veth4",
        "route add 10.9.0.0/24 nhid 1",
        "route add 10.8.0.0/15 nhid 2",
    ] {
        relay.ip(objects).unwrap();
    }
    // The kernel then notifies of no routes.
    relay.sysctl("net/ipv4/nexthop_compat_mode", "0").unwrap();
    let daemon = Daemon::start(relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["10.9.0.12:7012"])
        .unwrap();
    let sinks =
        [&chain.sink, &second].map(|far| Receiver::bind(far, (ip(TO), 7012).into()).unwrap());
    let leaves = |name: &'static str, sink: &Receiver| {
        let by =
            |rule: &RuleStats| all_up(rule) && rule.outputs[0].interface.as_deref() == Some(name);
        daemon.wait_for("cam1", name, by).unwrap();
        send(&chain);
        sink.expect(50, super::PATIENCE).unwrap();
    };
    leaves("veth2", &sinks[0]);
    relay
        .ip("nexthop replace id 1 via 10.0.2.2 dev veth4")
        .unwrap();
    leaves("veth4", &sinks[1]);
    relay
        .ip("nexthop replace id 1 via 10.0.1.2 dev veth2")
        .unwrap();
    leaves("veth2", &sinks[0]);
    // It takes its route along.
    relay.ip("nexthop del id 1").unwrap();
    leaves("veth4", &sinks[1]);
}

fn a_route_s_mtu_is_the_output_s(path: &str) {
    let chain = Chain::plain().unwrap();
    let relay = &chain.relay;
    chain.sink.ip("address add 10.9.0.12/32 dev veth3").unwrap();
    relay
        .ip("route add 10.9.0.0/24 via 10.0.1.2 mtu 400")
        .unwrap();
    let daemon = Daemon::start(relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["10.9.0.12:7012"])
        .unwrap();
    daemon.wait_for("cam1", "it is up", all_up).unwrap();
    send(&chain);
    let too_big = |rule: &RuleStats| rule.outputs[0].dropped.get("too_big") == Some(&50);
    daemon.wait_for("cam1", "all are too big", too_big).unwrap();
    let told = "larger than the MTU of the route by veth2, which is 400";
    lab::wait::until("it is told", || daemon.log().contains(told)).unwrap();
    relay
        .ip("route replace 10.9.0.0/24 via 10.0.1.2 mtu 1000")
        .unwrap();
    let larger = |rule: &RuleStats| rule.outputs[0].mtu == Some(1000);
    daemon
        .wait_for("cam1", "the route is followed", larger)
        .unwrap();
    let sink = Receiver::bind(&chain.sink, (ip(TO), 7012).into()).unwrap();
    send(&chain);
    sink.expect(50, super::PATIENCE).unwrap();
}

fn a_route_that_refuses_is_named(path: &str) {
    let chain = Chain::plain().unwrap();
    let relay = &chain.relay;
    relay.ip("route add default via 10.0.1.2").unwrap();
    relay.ip("-6 route add default via fd00:1::2").unwrap();
    let daemon = Daemon::start(relay, Options::path(path)).unwrap();
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &["10.9.0.12:7012"])
        .unwrap();
    daemon
        .add("cam2", "[ff1e::1:1%veth1]:5001", &["[fd09::12]:7012"])
        .unwrap();
    for kind in ["blackhole", "unreachable", "prohibit"] {
        let routes = [
            format!("route add {kind} 10.9.0.0/24"),
            format!("-6 route add {kind} fd09::/64"),
        ];
        for route in &routes {
            relay.ip(route).unwrap();
        }
        for rule in ["cam1", "cam2"] {
            let named = |rule: &RuleStats| {
                let [output] = rule.outputs.as_slice() else {
                    return false;
                };
                let why = output.reason.as_deref().unwrap_or_default();
                output.state == State::Down && why.contains(&format!("of the type {kind}"))
            };
            daemon.wait_for(rule, kind, named).unwrap();
        }
        for route in &routes {
            relay.ip(&route.replace("add", "del")).unwrap();
        }
        for rule in ["cam1", "cam2"] {
            daemon.wait_for(rule, "it is up again", all_up).unwrap();
        }
    }
}

/// Routes for one source: that source's packets use them.
#[test]
fn a_route_of_one_source_takes_the_packets_that_have_it() {
    let chain = Chain::plain().unwrap();
    let relay = &chain.relay;
    chain
        .sink
        .ip("-6 address add fd09::12/128 dev veth3 nodad")
        .unwrap();
    relay
        .ip("-6 route add fd09::/64 from fd00::/32 via fd00:1::2")
        .unwrap();
    let daemon = Daemon::start(relay, Options::default()).unwrap();
    for (rule, output) in [
        ("cam1", "[fd09::12]:7012,source=keep"),
        ("cam2", "[fd09::12]:7013,source=fd00:0:7::1"),
    ] {
        daemon
            .add(rule, "[ff1e::1:1%veth1]:5001", &[output])
            .unwrap();
        daemon.wait_for(rule, "it is up", all_up).unwrap();
        let port = if rule == "cam1" { 7012 } else { 7013 };
        let sink = Receiver::bind(&chain.sink, (ip("fd09::12"), port).into()).unwrap();
        chain
            .sink
            .ip("-6 route replace default via fd00:1::1")
            .unwrap();
        let sender = Sender::open((&chain.sender, "veth0"), ip("fd00::1")).unwrap();
        sender
            .send_numbered(ip("ff1e::1:1"), 5001, 50, 400)
            .unwrap();
        sink.expect(50, super::PATIENCE).unwrap();
        daemon.mcr(&["remove", rule]).unwrap();
    }
}
