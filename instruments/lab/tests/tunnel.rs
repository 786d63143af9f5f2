//! Tunnels: whole ranges of groups over a network without multicast, to another relay or to whatever
//! else takes VXLAN, with headers as at the source.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod life;
mod throughput;

use std::net::IpAddr;
use std::time::Duration;

use api::reply::{RuleStats, State};
use lab::capture::{Capture, wait_for_received};
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::process::{self, Process};
use lab::socket::{Receiver, Sender};
use lab::wait;

const PATIENCE: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_millis(200);
/// Groups that go through together.
const GROUPS: u8 = 200;

lab::on_both_paths!(
    headers_arrive_as_at_the_source,
    two_hundred_groups_go_through_one_port_pair,
    ipv6_goes_through_and_over_ipv6,
    a_stock_linux_host_receives,
    both_directions_go_through_at_once,
    what_does_not_fit_is_told_with_both_mtus,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Sender, near relay, router, far relay, sink. Nothing routes multicast in between.
struct Bed {
    /// Owns `veth0`, 192.168.1.2 and fd01::2.
    sender: Namespace,
    /// Owns `in` towards the sender, and `net`, 10.0.0.1 and fd0a::1.
    near: Namespace,
    /// Owns `near` and `far`.
    router: Namespace,
    /// Owns `net`, 10.9.9.9 and fd0b::9, and `out` towards the sink.
    far: Namespace,
    /// Owns `veth3`, 192.168.2.2 and fd02::2.
    sink: Namespace,
}

impl Bed {
    fn new() -> Self {
        let [sender, near, router, far, sink] =
            ["sender", "near", "router", "far", "sink"].map(|name| Namespace::new(name).unwrap());
        for (one, other) in [
            ((&sender, "veth0"), (&near, "in")),
            ((&near, "net"), (&router, "near")),
            ((&router, "far"), (&far, "net")),
            ((&far, "out"), (&sink, "veth3")),
        ] {
            link::veth(one, other).unwrap();
        }
        for (end, four, six) in [
            ((&sender, "veth0"), "192.168.1.2/24", "fd01::2/64"),
            ((&near, "in"), "192.168.1.1/24", "fd01::1/64"),
            ((&near, "net"), "10.0.0.1/24", "fd0a::1/64"),
            ((&router, "near"), "10.0.0.254/24", "fd0a::fe/64"),
            ((&router, "far"), "10.9.9.254/24", "fd0b::fe/64"),
            ((&far, "net"), "10.9.9.9/24", "fd0b::9/64"),
            ((&far, "out"), "192.168.2.1/24", "fd02::1/64"),
            ((&sink, "veth3"), "192.168.2.2/24", "fd02::2/64"),
        ] {
            link::address(end, four).unwrap();
            end.0
                .ip(&format!("address add {six} dev {} nodad", end.1))
                .unwrap();
        }
        for (relay, four, six) in [
            (&near, "10.0.0.254", "fd0a::fe"),
            (&far, "10.9.9.254", "fd0b::fe"),
        ] {
            relay.ip(&format!("route add default via {four}")).unwrap();
            relay
                .ip(&format!("-6 route add default via {six}"))
                .unwrap();
        }
        router.sysctl("net/ipv4/ip_forward", "1").unwrap();
        router.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
        link::multicast_route((&sender, "veth0")).unwrap();
        Self {
            sender,
            near,
            router,
            far,
            sink,
        }
    }

    /// The relay at the sender's side, with a tunnel `wan` and these further keys of it, and rules.
    fn near(&self, path: &str, tunnel: &str, rules: &str) -> Daemon {
        start(&self.near, path, "10.0.0.1", "10.9.9.9", tunnel, rules)
    }

    fn far(&self, path: &str, tunnel: &str, rules: &str) -> Daemon {
        start(&self.far, path, "10.9.9.9", "10.0.0.1", tunnel, rules)
    }

    /// Both relays, with 239.1.1.0/24 from the sender to the sink.
    fn relays(&self, path: &str) -> [Daemon; 2] {
        [self.near(path, "", OUT), self.far(path, "", IN)]
    }

    fn sender(&self) -> Sender {
        Sender::open((&self.sender, "veth0"), ip("192.168.1.2")).unwrap()
    }

    fn sink(&self, group: &str, port: u16) -> Receiver {
        Receiver::join((&self.sink, "veth3"), ip(group), port).unwrap()
    }
}

/// Into the tunnel, where sources are kept without a word.
const OUT: &str = "[[rule]]\nname = \"out\"\ninput = \"239.1.1.0/24%in:5000-5299\"\n\
                   outputs = [\"239.1.1.0/24%wan:5000-5299\"]\n";
/// Out of it.
const IN: &str = "[[rule]]\nname = \"in\"\ninput = \"239.1.1.0/24%wan:5000-5299\"\n\
                  outputs = [\"239.1.1.0/24%out:5000-5299,source=keep\"]\n";

fn config(local: &str, remote: &str, tunnel: &str, rules: &str) -> String {
    format!(
        "version = 1\n[interface.wan]\nover = \"udp\"\nlocal = \"{local}\"\nremote = \"{remote}\"\n\
         {tunnel}\n{rules}"
    )
}

fn start(
    namespace: &Namespace,
    path: &str,
    local: &str,
    remote: &str,
    tunnel: &str,
    rules: &str,
) -> Daemon {
    let options = Options {
        config: Some(config(local, remote, tunnel, rules)),
        ..Options::path(path)
    };
    let daemon = Daemon::start(namespace, options).unwrap();
    for rule in daemon.stats().unwrap().rules {
        let is_up = |rule: &RuleStats| rule.state == State::Up;
        daemon.wait_for(&rule.name, "it is up", is_up).unwrap();
    }
    daemon
}

/// With socat at both ends; tshark reads what is in flight and what arrives.
fn headers_arrive_as_at_the_source(path: &str) {
    let bed = Bed::new();
    // Checksums as on a wire, not as an offload leaves them.
    link::features((&bed.sender, "veth0"), "tx off").unwrap();
    let [near, far] = bed.relays(path);
    let mut listen = bed.sink.command("socat");
    listen.args([
        "-d",
        "-d",
        "-u",
        "UDP4-RECV:5007,ip-add-membership=239.1.1.7:veth3",
        "-",
    ]);
    let listens = Process::start(listen).unwrap();
    wait::until("socat listens", || {
        listens.stderr().contains("starting data transfer loop")
    })
    .unwrap();
    let source = Capture::start((&bed.sender, "veth0"), "udp port 5007").unwrap();
    let under_way = Capture::start((&bed.router, "far"), "udp port 4789").unwrap();
    let there = Capture::start((&bed.sink, "veth3"), "udp port 5007").unwrap();
    let mut send = bed.sender.command("socat");
    let to = "UDP4-SENDTO:239.1.1.7:5007,bind=192.168.1.2:4321,ip-multicast-ttl=9,ip-tos=0xb8";
    send.args(["-u", "EXEC:echo first", to]);
    process::run(send, PATIENCE).unwrap().success().unwrap();
    wait::until("socat has it", || listens.stdout() == "first\n").unwrap();

    let fields = [
        "ip.src",
        "udp.srcport",
        "ip.dst",
        "udp.dstport",
        "ip.ttl",
        "ip.dsfield.dscp",
        "ip.flags.df",
        "ip.id",
        "udp.checksum",
        "udp.checksum.status",
    ];
    let [source, there] = [source, there].map(|capture| {
        let rows = capture
            .finish()
            .unwrap()
            .fields("udp.port == 5007", &fields)
            .unwrap();
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows.into_iter().next().unwrap()
    });
    assert_eq!(there, source, "{fields:?}");
    assert_eq!(
        there[..6],
        ["192.168.1.2", "4321", "239.1.1.7", "5007", "9", "46"]
    );
    assert_eq!(there[9], "1", "the checksum is good");
    let fields = [
        "ip.src",
        "ip.dst",
        "udp.dstport",
        "ip.dsfield.dscp",
        "vxlan.vni",
    ];
    let outer = under_way
        .finish()
        .unwrap()
        .fields("vxlan && udp.port == 5007", &fields)
        .unwrap();
    // Each lists the outer header's value first.
    let expected = [
        "10.0.0.1,192.168.1.2",
        "10.9.9.9,239.1.1.7",
        "4789,5007",
        "46,46",
        "1",
    ];
    assert_eq!(outer, [expected]);
    near.settled("out", 1).unwrap();
    far.settled("in", 1).unwrap();
    let shown = near.mcr(&["show", "out"]).unwrap();
    assert!(
        shown.contains("tunnel  to 10.9.9.9; sources are kept"),
        "{shown}"
    );
    let status = near.mcr(&["status"]).unwrap();
    let expected = "wan up, to 10.9.9.9 port 4789 id 1, MTU 1450, by net";
    assert!(status.contains(expected), "{status}");
}

fn two_hundred_groups_go_through_one_port_pair(path: &str) {
    let bed = Bed::new();
    let [near, far] = bed.relays(path);
    let end = (&bed.sink, "veth3");
    let before = link::statistics(end).unwrap().received;
    let there = Capture::start(end, "udp and dst net 239.1.1.0/24").unwrap();
    let sender = bed.sender();
    for group in 1..=GROUPS {
        let to = IpAddr::from([239, 1, 1, group]);
        sender
            .send(to, 5000 + u16::from(group), b"one of many")
            .unwrap();
    }
    far.settled("in", GROUPS.into()).unwrap();
    wait_for_received(end, before, GROUPS.into()).unwrap();
    let captured = there.finish().unwrap();
    let fields = ["ip.src", "ip.dst", "udp.dstport", "ip.ttl"];
    let mut rows = captured.fields("udp", &fields).unwrap();
    rows.sort();
    let expected = (1..=GROUPS).map(|group| {
        let port = 5000 + u16::from(group);
        [
            "192.168.1.2",
            &format!("239.1.1.{group}"),
            &port.to_string(),
            "16",
        ]
        .map(str::to_owned)
    });
    let mut expected: Vec<_> = expected.map(Vec::from).collect();
    expected.sort();
    assert_eq!(rows, expected);
    for daemon in [near, far] {
        lab::accounting::check(&daemon.stats().unwrap()).unwrap();
    }
}

/// The network in between has only IPv6; groups of both families pass through it.
fn ipv6_goes_through_and_over_ipv6(path: &str) {
    let bed = Bed::new();
    let rules = |six: &str, four: &str| {
        format!("[[rule]]\nname = \"six\"\n{six}\n[[rule]]\nname = \"four\"\n{four}\n")
    };
    let out = rules(
        "input = \"[ff3e::/120%in]:5000\"\noutputs = [\"[ff3e::/120%wan]:5000\"]",
        "input = \"239.1.1.0/24%in:5000\"\noutputs = [\"239.1.1.0/24%wan:5000\"]",
    );
    let back = rules(
        "input = \"[ff3e::/120%wan]:5000\"\noutputs = [\"[ff3e::/120%out]:5000,source=keep\"]",
        "input = \"239.1.1.0/24%wan:5000\"\noutputs = [\"239.1.1.0/24%out:5000,source=keep\"]",
    );
    let near = start(&bed.near, path, "fd0a::1", "fd0b::9", "id = 70000", &out);
    let far = start(&bed.far, path, "fd0b::9", "fd0a::1", "id = 70000", &back);
    let [six, four] = [bed.sink("ff3e::7", 5000), bed.sink("239.1.1.7", 5000)];
    let under_way = Capture::start((&bed.router, "far"), "ip6 and udp port 4789").unwrap();
    let sender = Sender::open((&bed.sender, "veth0"), ip("fd01::2")).unwrap();
    sender.send_numbered(ip("ff3e::7"), 5000, 20, 400).unwrap();
    bed.sender()
        .send_numbered(ip("239.1.1.7"), 5000, 20, 400)
        .unwrap();
    let from = six.expect(20, PATIENCE).unwrap();
    assert!(
        from.iter().all(|from| from.ip() == ip("fd01::2")),
        "{from:?}"
    );
    let from = four.expect(20, PATIENCE).unwrap();
    assert!(
        from.iter().all(|from| from.ip() == ip("192.168.1.2")),
        "{from:?}"
    );
    let captured = under_way.finish().unwrap();
    // Workers send what waits together as one, so there may be fewer than datagrams.
    for inner in ["ipv6.dst == ff3e::7", "ip.dst == 239.1.1.7"] {
        let filter = format!("vxlan.vni == 70000 && {inner}");
        assert!(captured.count(&filter).unwrap() > 0, "{filter}");
    }
    // A checksum over IPv6 is there: none would be a peer's to allow (RFC 6936).
    assert_eq!(
        captured
            .count("udp.dstport == 4789 && udp.checksum == 0")
            .unwrap(),
        0
    );
    let status = near.mcr(&["status"]).unwrap();
    assert!(status.contains("MTU 1430, by net"), "{status}");
    for (daemon, rule) in [
        (&near, "six"),
        (&far, "six"),
        (&near, "four"),
        (&far, "four"),
    ] {
        daemon.settled(rule, 20).unwrap();
    }
}

/// No second relay: the kernel's own tunnel, and a program that joins on it.
fn a_stock_linux_host_receives(path: &str) {
    let bed = Bed::new();
    let near = bed.near(path, "", OUT);
    link::vxlan((&bed.far, "vx"), 1, "10.9.9.9", "10.0.0.1").unwrap();
    bed.far.ip("address add 172.31.0.2/32 dev vx").unwrap();
    let mut listen = bed.far.command("socat");
    listen.args([
        "-d",
        "-d",
        "-u",
        "UDP4-RECV:5007,ip-add-membership=239.1.1.7:vx",
        "-",
    ]);
    let listens = Process::start(listen).unwrap();
    wait::until("socat listens", || {
        listens.stderr().contains("starting data transfer loop")
    })
    .unwrap();
    let other = Receiver::join((&bed.far, "vx"), ip("239.1.1.8"), 5008).unwrap();
    let sender = bed.sender();
    sender.send(ip("239.1.1.7"), 5007, b"first\n").unwrap();
    wait::until("socat has it", || listens.stdout() == "first\n").unwrap();
    sender
        .send_numbered(ip("239.1.1.8"), 5008, 20, 1400)
        .unwrap();
    let from = other.expect(20, PATIENCE).unwrap();
    assert!(
        from.iter().all(|from| from.ip() == ip("192.168.1.2")),
        "{from:?}"
    );
    near.settled("out", 21).unwrap();
}

/// The same groups both ways: what enters at one end leaves at the other, and never returns.
fn both_directions_go_through_at_once(path: &str) {
    let bed = Bed::new();
    link::multicast_route((&bed.sink, "veth3")).unwrap();
    let back = |to: &str| {
        format!(
            "[[rule]]\nname = \"back\"\ninput = \"239.1.1.0/24%{}:5000-5299\"\n\
         outputs = [\"239.1.1.0/24%{to}:5000-5299,source=keep\"]\n",
            if to == "wan" { "out" } else { "wan" }
        )
    };
    let near = bed.near(path, "", &format!("{OUT}{}", back("in")));
    let far = bed.far(path, "", &format!("{IN}{}", back("wan")));
    let here = Receiver::join((&bed.sender, "veth0"), ip("239.1.1.7"), 5007).unwrap();
    let there = bed.sink("239.1.1.7", 5007);
    let answers = Sender::open((&bed.sink, "veth3"), ip("192.168.2.2")).unwrap();
    bed.sender()
        .send_numbered(ip("239.1.1.7"), 5007, 20, 100)
        .unwrap();
    there.expect(20, PATIENCE).unwrap();
    answers
        .send_numbered(ip("239.1.1.7"), 5007, 20, 100)
        .unwrap();
    let from = here.collect(40, Duration::from_secs(1)).unwrap();
    let from = from
        .iter()
        .filter(|from| from.from.ip() == ip("192.168.2.2"));
    assert_eq!(from.count(), 20);
    for (daemon, rule) in [
        (&near, "out"),
        (&near, "back"),
        (&far, "in"),
        (&far, "back"),
    ] {
        daemon.settled(rule, 20).unwrap();
    }
    there.expect_nothing(SILENCE).unwrap();
}

/// An Ethernet of 1500 bytes leaves room for packets of 1450.
fn what_does_not_fit_is_told_with_both_mtus(path: &str) {
    let bed = Bed::new();
    let [near, far] = bed.relays(path);
    let sink = bed.sink("239.1.1.7", 5007);
    bed.sender()
        .send_numbered(ip("239.1.1.7"), 5007, 10, 1472)
        .unwrap();
    let rule = near.settled("out", 10).unwrap();
    assert_eq!(rule.outputs[0].dropped["too_big"], 10);
    wait::until("it is told", || {
        let log = near.log();
        log.contains("too_big") && log.contains("1500") && log.contains("1450")
    })
    .unwrap();
    bed.sender()
        .send_numbered(ip("239.1.1.7"), 5007, 10, 1422)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();

    // Whole, in fragments of the tunnel's own packets.
    for (daemon, local, remote, rules) in [
        (&near, "10.0.0.1", "10.9.9.9", OUT),
        (&far, "10.9.9.9", "10.0.0.1", IN),
    ] {
        daemon
            .apply(&config(local, remote, "mtu = 1500", rules))
            .unwrap();
    }
    let doctor = near.client(&["doctor"]).unwrap();
    let expected = "takes packets of 1500 bytes and sends them by net, whose MTU is 1500";
    assert!(doctor.stdout.contains(expected), "{}", doctor.stdout);
    bed.sender()
        .send_numbered(ip("239.1.1.7"), 5007, 10, 1472)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
}

/// Cut by the rule where its packets may be cut.
#[test]
fn a_rule_may_fragment_for_the_tunnel() {
    let bed = Bed::new();
    let cutting = OUT.replace("%wan:5000-5299", "%wan:5000-5299,fragment=yes");
    let near = bed.near("auto", "", &cutting);
    let far = bed.far("auto", "", IN);
    let sink = bed.sink("239.1.1.7", 5007);
    // Sockets that are opened after this leave DF clear.
    bed.sender.sysctl("net/ipv4/ip_no_pmtu_disc", "1").unwrap();
    bed.sender()
        .send_numbered(ip("239.1.1.7"), 5007, 10, 1472)
        .unwrap();
    sink.expect(10, PATIENCE).unwrap();
    let rule = near.settled("out", 10).unwrap();
    assert_eq!(rule.path, "userspace");
    far.settled("in", 20).unwrap();
}
