//! Rules that reflect, with copies from the relay's own addresses: unicast answers reach the asker, also
//! while no daemon runs, and come from the device that sent them.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::process::Command;
use std::time::Duration;

use api::reply::{RuleStats, State};
use lab::daemon::Daemon;
use lab::link;
use lab::namespace::Namespace;
use lab::process::{self, Process};
use lab::socket::Receiver;
use lab::wait;

use crate::reflect::{Bed, PATIENCE, ip, reflecting};

const GROUP: &str = "239.255.255.250:1900";

lab::on_both_paths!(
    a_search_from_the_relays_address_is_answered,
    a_search_from_the_groups_own_port_is_answered,
    broadcasts_go_both_ways_and_are_answered,
    answers_never_go_past_an_ipsec_policy,
    each_of_two_relays_brings_its_own_answer,
    answers_find_back_while_the_daemon_is_dead_and_after,
    answers_find_back_in_ipv6,
);

/// A device as UPnP has them: answers at once, by unicast, from its own port.
const DEVICE: &str = "
from socket import *
s = socket(AF_INET, SOCK_DGRAM)
s.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
s.bind(('', 1900))
s.setsockopt(IPPROTO_IP, IP_ADD_MEMBERSHIP, inet_aton('239.255.255.250') + inet_aton('10.0.1.100'))
print('listens', flush=True)
while True:
    asked, who = s.recvfrom(2048)
    if asked.startswith(b'M-SEARCH'):
        s.sendto(b'HTTP/1.1 200 OK\\r\\nST: upnp:rootdevice\\r\\nUSN: uuid:1\\r\\n\\r\\n', who)
";

/// A control point: asks once, and prints who answers until a second has passed without another.
const CONTROL_POINT: &str = "
from socket import *
s = socket(AF_INET, SOCK_DGRAM)
s.setsockopt(IPPROTO_IP, IP_MULTICAST_TTL, 2)
s.bind(('10.0.0.100', PORT))
s.sendto(b'M-SEARCH * HTTP/1.1\\r\\nHOST: 239.255.255.250:1900\\r\\nMAN: \"ssdp:discover\"\\r\\n'
         b'MX: 1\\r\\nST: upnp:rootdevice\\r\\n\\r\\n', ('239.255.255.250', 1900))
s.settimeout(20)
try:
    while True:
        answer, who = s.recvfrom(2048)
        print(who[0], who[1], answer.split(b'\\r\\n')[0].decode())
        s.settimeout(1)
except timeout:
    pass
";

fn python(host: &Namespace, program: &str) -> Command {
    let mut python = host.command("/usr/bin/python3");
    python.args(["-c", program]);
    python
}

/// A bed whose routers route nothing.
fn bed(reflectors: usize) -> Bed {
    let bed = Bed::new(reflectors);
    for reflector in &bed.reflectors {
        reflector.sysctl("net/ipv4/ip_forward", "0").unwrap();
    }
    bed
}

/// Searches once for a device in the other network; returns who answered.
fn search(bed: &Bed) -> Vec<String> {
    search_from(bed, 0)
}

/// The same from that port.
fn search_from(bed: &Bed, port: u16) -> Vec<String> {
    let device = Process::start(python(&bed.hosts[1], DEVICE)).unwrap();
    wait::until("the device listens", || device.stdout().contains("listens")).unwrap();
    let script = CONTROL_POINT.replace("PORT", &port.to_string());
    let asker = python(&bed.hosts[0], &script);
    let answers = process::run(asker, PATIENCE * 2)
        .unwrap()
        .success()
        .unwrap();
    answers.lines().map(str::to_owned).collect()
}

fn unreachable(host: &Namespace) -> u64 {
    let snmp = host.read_proc_net("snmp").unwrap();
    let mut lines = snmp.lines().filter(|line| line.starts_with("Icmp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut both = names.split(' ').zip(values.split(' '));
    let (_, count) = both.find(|(name, _)| *name == "OutDestUnreachs").unwrap();
    count.parse().unwrap()
}

fn a_search_from_the_relays_address_is_answered(path: &str) {
    let bed = bed(1);
    let daemons = bed.start(path, &reflecting("ssdp", GROUP, ""));
    assert_eq!(search(&bed), ["10.0.1.100 1900 HTTP/1.1 200 OK"]);
    let rule = daemons[0].settled("ssdp", 2).unwrap();
    assert_eq!(rule.answers, Some(1));
    let sent = rule.outputs.iter().map(|output| output.sent.packets);
    assert_eq!(sent.collect::<Vec<_>>(), [1, 1], "the question, the answer");
    let shown = daemons[0].mcr(&["show", "ssdp"]).unwrap();
    assert!(shown.contains("answers 1"), "{shown}");
    assert_eq!(unreachable(&bed.reflectors[0]), 0, "the stack stays quiet");
}

fn a_search_from_the_groups_own_port_is_answered(path: &str) {
    let bed = bed(1);
    let daemons = bed.start(path, &reflecting("ssdp", GROUP, ""));
    assert_eq!(search_from(&bed, 1900), ["10.0.1.100 1900 HTTP/1.1 200 OK"]);
    assert_eq!(daemons[0].rule("ssdp").unwrap().answers, Some(1));
}

/// A socket of a host that may broadcast.
fn bound(host: &Namespace, at: &str) -> UdpSocket {
    let socket = host.run(|| Ok(UdpSocket::bind(at)?)).unwrap();
    socket.set_broadcast(true).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// As consoles and tuners look for each other: to all hosts, or to all of one's own network.
fn broadcasts_go_both_ways_and_are_answered(path: &str) {
    let bed = bed(1);
    let daemons = bed.start(path, &reflecting("games", "255.255.255.255:9302", ""));
    let bind = |host: usize, at: &str| bound(&bed.hosts[host], at);
    let listening = [bind(0, "0.0.0.0:9302"), bind(1, "0.0.0.0:9302")];
    let mut buffer = [0; 64];
    let mut received = 0;
    for (from, to) in [(0, 1), (1, 0)] {
        let asker = bind(from, &format!("10.0.{from}.100:0"));
        for destination in ["255.255.255.255".to_owned(), format!("10.0.{from}.255")] {
            let question = format!("{from} asks {destination}");
            let at = format!("{destination}:9302");
            asker.send_to(question.as_bytes(), at).unwrap();
            let (length, asked_from) = listening[to].recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], question.as_bytes());
            assert_eq!(asked_from.ip(), ip(&format!("10.0.{to}.1")));
            listening[to].send_to(b"here", asked_from).unwrap();
            let (length, answered_from) = asker.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"here");
            assert_eq!(answered_from.ip(), ip(&format!("10.0.{to}.100")));
            // The asker's own network heard it without the relay's help, once.
            let (length, _) = listening[from].recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], question.as_bytes());
            received += 2;
        }
    }
    let rule = daemons[0].settled("games", received).unwrap();
    assert_eq!(rule.answers, Some(4));
    let silence = Some(Duration::from_millis(200));
    for socket in &listening {
        socket.set_read_timeout(silence).unwrap();
        assert!(socket.recv_from(&mut buffer).is_err(), "nothing goes round");
    }
}

/// What policies may affect is sent by a socket, which the kernel path lacks: it sends no answers.
fn answers_never_go_past_an_ipsec_policy(path: &str) {
    let bed = bed(1);
    let relay = &bed.reflectors[0];
    let policy = |destination: &str| {
        relay.ip("xfrm policy flush").unwrap();
        if !destination.is_empty() {
            let add = format!("xfrm policy add dir out dst {destination} action block");
            relay.ip(&add).unwrap();
        }
    };
    policy("10.0.0.100");
    let daemons = bed.start(path, &reflecting("games", "255.255.255.255:9302", ""));
    let bind = |host: usize, at: &str| bound(&bed.hosts[host], at);
    let responder = bind(1, "0.0.0.0:9302");
    let asker = bind(0, "10.0.0.100:0");
    asker
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let (mut buffer, mut asked) = ([0; 64], 0);
    let mut is_answered = || {
        asked += 1;
        let question = format!("question {asked}");
        asker
            .send_to(question.as_bytes(), "10.0.0.255:9302")
            .unwrap();
        let from = loop {
            let (length, from) = responder.recv_from(&mut buffer).unwrap();
            if &buffer[..length] == question.as_bytes() {
                break from;
            }
        };
        responder.send_to(b"here", from).unwrap();
        let answer = asker.recv_from(&mut buffer);
        answer.is_ok_and(|(_, from)| from.ip() == ip("10.0.1.100"))
    };
    assert!(!is_answered());
    if path == "kernel" {
        let is_degraded = |rule: &RuleStats| {
            let why = rule.state_reason.clone().unwrap_or_default();
            rule.state == State::Degraded && why.contains("no answers go back: the IPsec policy")
        };
        daemons[0]
            .wait_for("games", "that is told", is_degraded)
            .unwrap();
    }
    if path == "userspace" {
        let refused = |rule: &RuleStats| rule.outputs[0].dropped.get("egress_error") == Some(&1);
        daemons[0]
            .wait_for("games", "the kernel refuses it", refused)
            .unwrap();
        let rule = daemons[0].rule("games").unwrap();
        let why = rule.outputs[0].by_socket.clone().unwrap();
        assert!(
            why.contains("dst 10.0.0.100/32 dir out action block"),
            "{why}"
        );
        policy("10.5.0.0/16");
        let others = |rule: &RuleStats| {
            let why = rule.outputs[0].by_socket.as_ref();
            why.is_some_and(|why| why.contains("10.5.0.0/16"))
        };
        daemons[0]
            .wait_for("games", "another policy", others)
            .unwrap();
        wait::until("the kernel lets it pass", &mut is_answered).unwrap();
    }
    policy("");
    wait::until("no policy is left", is_answered).unwrap();
    let sent_plainly = |rule: &RuleStats| rule.outputs[0].by_socket.is_none();
    daemons[0]
        .wait_for("games", "no socket is needed", sent_plainly)
        .unwrap();
}

fn each_of_two_relays_brings_its_own_answer(path: &str) {
    let bed = bed(2);
    let daemons = bed.start(path, &reflecting("ssdp", GROUP, ""));
    let answers = search(&bed);
    let is_the_devices = |answer: &String| answer == "10.0.1.100 1900 HTTP/1.1 200 OK";
    assert!(answers.iter().all(is_the_devices), "{answers:?}");
    assert!((1..=2).contains(&answers.len()), "{answers:?}");
    let count = |daemon: &Daemon| daemon.rule("ssdp").unwrap().answers.unwrap();
    let answered: u64 = daemons.iter().map(count).sum();
    assert_eq!(answered, answers.len() as u64);
    for daemon in &daemons {
        let received = daemon.rule("ssdp").unwrap().received.packets;
        daemon.settled("ssdp", received).unwrap();
    }
}

/// An asker, the device it asks, and the address that the question came from there.
struct Asked {
    asker: UdpSocket,
    answering: UdpSocket,
    from: SocketAddr,
}

impl Asked {
    /// Asks from one network to a group; the device answers from the port it names.
    fn new(bed: &Bed, group: SocketAddr, [asker, device]: [SocketAddr; 2]) -> Self {
        let listens = Receiver::join(bed.host(1), group.ip(), group.port()).unwrap();
        let bind = |host: usize, at| bed.hosts[host].run(|| Ok(UdpSocket::bind(at)?)).unwrap();
        let (asker, answering) = (bind(0, asker), bind(1, device));
        asker.set_read_timeout(Some(PATIENCE)).unwrap();
        let sent = match group {
            SocketAddr::V4(_) => asker.set_multicast_ttl_v4(2),
            SocketAddr::V6(_) => Ok(()),
        };
        sent.unwrap();
        asker.send_to(b"M-SEARCH", group).unwrap();
        let asked = listens.receive(PATIENCE).unwrap().unwrap();
        assert_eq!(asked.payload, b"M-SEARCH");
        assert_eq!(asked.from.port(), asker.local_addr().unwrap().port());
        Self {
            asker,
            answering,
            from: asked.from,
        }
    }

    /// Answers; returns the source address that the asker sees.
    fn answer(&self, text: &[u8]) -> SocketAddr {
        self.answering.send_to(text, self.from).unwrap();
        let mut buffer = [0; 1500];
        let (length, from) = self.asker.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], text);
        from
    }
}

fn answers_find_back_while_the_daemon_is_dead_and_after(path: &str) {
    let bed = bed(1);
    let mut daemons = bed.start(path, &reflecting("ssdp", GROUP, ""));
    let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
    let device = at("10.0.1.100:1900");
    let asked = Asked::new(&bed, at(GROUP), [at("10.0.0.100:0"), device]);
    assert_eq!(asked.from.ip(), ip("10.0.1.1"));
    daemons[0].kill().unwrap();
    assert_eq!(asked.answer(b"while nobody is there"), device);
    daemons[0].start_again().unwrap();
    assert_eq!(asked.answer(b"and after"), device);
    let rule = daemons[0].settled("ssdp", 3).unwrap();
    assert_eq!(rule.answers, Some(2));
}

fn answers_find_back_in_ipv6(path: &str) {
    let bed = bed(1);
    let daemons = bed.start(path, &reflecting("ssdp6", "[ff02::c]:1900", ""));
    let address = "ff02::c".parse().unwrap();
    let index = link::index(bed.host(0)).unwrap();
    let group = SocketAddrV6::new(address, 1900, 0, index).into();
    let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
    let ends = [at("[fd00:0::100]:0"), at("[fd00:1::100]:1900")];
    let asked = Asked::new(&bed, group, ends);
    assert_ne!(asked.from.ip(), ends[0].ip());
    assert_eq!(asked.answer(b"here"), ends[1]);
    let rule = daemons[0].settled("ssdp6", 2).unwrap();
    assert_eq!(rule.answers, Some(1));
    // An answer to no question stays at the relay.
    let (answering, mut elsewhere) = (&asked.answering, asked.from);
    elsewhere.set_port(elsewhere.port() ^ 1);
    answering.send_to(b"nobody asked", elsewhere).unwrap();
    assert_eq!(asked.answer(b"again"), ends[1]);
    let wait = Duration::from_millis(200);
    asked.asker.set_read_timeout(Some(wait)).unwrap();
    assert!(asked.asker.recv_from(&mut [0; 64]).is_err());
}
