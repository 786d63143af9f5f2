//! Rules over devices that a host may have and this machine's kernel has not: as input and as output, of
//! both families, bursts on both paths, all of one daemon at once. What a path cannot do it has to say,
//! and nothing may count as sent that no device took.

mod kinds;

use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::reply::{RuleStats, State, Stats};
use lab::daemon::{Daemon, Options};
use lab::frame::FrameReceiver;
use lab::link;
use lab::namespace::Namespace;
use lab::process::Process;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;
use lab::wait;

use kinds::{Fate, KINDS, Kind, PPP};

const PATIENCE: Duration = Duration::from_secs(20);
/// Packets that leave together: a queue's discipline and segmentation see them.
const BURST: u64 = 40;
const PATHS: [&str; 2] = ["kernel", "userspace"];

#[test]
#[ignore = "runs inside a booted kernel"]
fn short() {
    all(|kind| kind.is_short);
}

#[test]
#[ignore = "runs inside a booted kernel"]
fn long() {
    all(|_| true);
}

/// An end of a device.
pub(super) struct Place<'a> {
    /// Number of the pair.
    pub(super) id: usize,
    pub(super) dev: String,
    /// The interface below, with its address and the other end's.
    pub(super) lower: &'a str,
    pub(super) local: &'a str,
    pub(super) remote: &'a str,
    /// The namespace of the other end.
    pub(super) other: &'a str,
    /// Whether it is made before the other end.
    pub(super) is_first: bool,
    pub(super) is_relay: bool,
    namespace: &'a Namespace,
}

/// A rule of one kind, side, family and path, and what has to become of its packets.
struct Case {
    name: String,
    path: &'static str,
    input: String,
    output: String,
    fate: Fate,
    /// Where its packets are sent from, and to where.
    sends: (bool, String, IpAddr, IpAddr),
    receives: (String, IpAddr),
}

/// All kinds that are wanted, and all that fails named.
fn all(wanted: fn(&Kind) -> bool) {
    let chain = Chain::plain().unwrap();
    let (mut cases, mut processes) = (Vec::new(), Vec::new());
    // ESP between two ends that have a VTI is the VTI's.
    for (end, host) in [
        ((&chain.sender, "veth0"), "10.0.0.11/24"),
        ((&chain.relay, "veth1"), "10.0.0.12/24"),
        ((&chain.relay, "veth2"), "10.0.1.11/24"),
        ((&chain.sink, "veth3"), "10.0.1.12/24"),
    ] {
        link::address(end, host).unwrap();
        in_order(end.0, end.1).unwrap();
    }
    for (number, kind) in KINDS.iter().enumerate().filter(|(_, kind)| wanted(kind)) {
        if kind.name == PPP && !std::path::Path::new("/usr/sbin/pppd").exists() {
            eprintln!("skipped: there is no pppd, so nothing of PPP");
            continue;
        }
        for is_input in [true, false] {
            let id = 1 + 2 * number + usize::from(!is_input);
            let places = places(&chain, kind, is_input, id);
            match make(kind, &places, &mut processes) {
                Ok(()) => cases.extend(of_kind(kind, id, is_input)),
                Err(why) => eprintln!("skipped: {}: {why:#}", kind.name),
            }
        }
    }
    protect(&chain).unwrap();
    let failed = judge(&chain, &cases);
    drop(processes);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Both ends of a pair: towards the sender for an input, towards the sink for an output.
fn places<'a>(chain: &'a Chain, kind: &Kind, is_input: bool, id: usize) -> [Place<'a>; 2] {
    let addresses = match (is_input, kind.name == "vti") {
        (true, false) => ["10.0.0.1", "10.0.0.2"],
        (true, true) => ["10.0.0.11", "10.0.0.12"],
        (false, false) => ["10.0.1.1", "10.0.1.2"],
        (false, true) => ["10.0.1.11", "10.0.1.12"],
    };
    let ends = match is_input {
        true => [(&chain.sender, "veth0"), (&chain.relay, "veth1")],
        false => [(&chain.relay, "veth2"), (&chain.sink, "veth3")],
    };
    [(0, 1), (1, 0)].map(|(one, other)| Place {
        id,
        dev: format!("dev{id}"),
        lower: ends[one].1,
        local: addresses[one],
        remote: addresses[other],
        other: ends[other].0.name(),
        is_first: one == 0,
        is_relay: (one == 1) == is_input,
        namespace: ends[one].0,
    })
}

/// Makes both ends, with addresses, up.
fn make(kind: &Kind, places: &[Place<'_>; 2], processes: &mut Vec<Process>) -> Result<()> {
    for place in places {
        let (dev, id) = (&place.dev, place.id);
        let host = if place.is_first { 1 } else { 2 };
        let mut script = String::new();
        match (kind.make)(place) {
            _ if kind.name == PPP => {
                processes.push(ppp(place, id, host)?);
                continue;
            }
            words if words.is_empty() => {}
            words => writeln!(script, "link add {dev} {words}")?,
        }
        if kind.name == "in a VRF" && place.is_relay {
            writeln!(script, "link add vrf{id} type vrf table {}", 100 + id)?;
            writeln!(script, "link set vrf{id} up\nlink set {dev} master vrf{id}")?;
        }
        if ["vti", "xfrm interface"].contains(&kind.name) {
            let ends = (place.local, place.remote, place.is_first);
            let (state, policy) = match kind.name {
                "vti" => (String::new(), format!("mark {id}")),
                _ => (format!("if_id {id}"), format!("if_id {id}")),
            };
            script += &associations(ends, id, &state);
            for all in ["src 0.0.0.0/0 dst 0.0.0.0/0", "src ::/0 dst ::/0"] {
                script += &policies(ends, id, all, &policy);
            }
        }
        writeln!(script, "address add 172.16.{id}.{host}/24 dev {dev}")?;
        if kind.families.1 {
            writeln!(script, "address add fd16:{id}::{host}/64 dev {dev}")?;
        }
        writeln!(script, "link set {dev} up multicast on")?;
        place.namespace.ip_batch(&script)?;
    }
    for place in places.iter().filter(|_| kind.name == PPP) {
        wait::until_within(PATIENCE, "the device to be there", || {
            link::index((place.namespace, &place.dev)).is_ok()
        })?;
        let (dev, id, host) = (&place.dev, place.id, 2 - u8::from(place.is_first));
        place.namespace.ip_batch(&format!(
            "address add fd16:{id}::{host}/64 dev {dev}\nlink set {dev} up multicast on\n"
        ))?;
        in_order(place.namespace, dev)?;
    }
    Ok(())
}

/// Has one processor take in what a device brings. What comes from a terminal, or from a sender that moves to
/// another processor meanwhile, waits in several queues and passes itself.
fn in_order(namespace: &Namespace, dev: &str) -> Result<()> {
    namespace.write_sysfs(&format!("class/net/{dev}/queues/rx-0/rps_cpus"), "1")
}

/// The rules of a kind on one side.
fn of_kind(kind: &Kind, id: usize, is_input: bool) -> Vec<Case> {
    let fates = if is_input { kind.input } else { kind.output };
    let families = [(true, kind.families.0), (false, kind.families.1)];
    let ways = PATHS.into_iter().zip([fates.0, fates.1]).zip(0..);
    let cases = ways.flat_map(|((path, fate), number)| {
        let carried = families.into_iter().filter(|(_, carried)| *carried);
        carried.map(move |(is_ipv4, _)| {
            let dev = format!("dev{id}");
            let group = |net: u8| -> IpAddr {
                let text = match is_ipv4 {
                    true => format!("239.{net}.{id}.{number}"),
                    false => format!("ff1e::{net}:{id}:{number}"),
                };
                text.parse().unwrap()
            };
            let at = |group: IpAddr, dev: &str, port: u16| match is_ipv4 {
                true => format!("{group}%{dev}:{port}"),
                false => format!("[{group}%{dev}]:{port}"),
            };
            let (side, from, to) = match is_input {
                true => ("input", dev.as_str(), "veth2"),
                false => ("output", "veth1", dev.as_str()),
            };
            let source = match (is_input, is_ipv4) {
                (true, true) => format!("172.16.{id}.1"),
                (true, false) => format!("fd16:{id}::1"),
                (false, true) => "10.0.0.1".to_owned(),
                (false, false) => "fd00::1".to_owned(),
            };
            let family = if is_ipv4 { "IPv4" } else { "IPv6" };
            Case {
                name: named(&format!("{} as {side}, {family}, {path}", kind.name)),
                path,
                input: at(group(1), from, 5001),
                output: at(group(10), to, 6001),
                fate,
                sends: (
                    is_input,
                    if is_input {
                        dev.clone()
                    } else {
                        "veth0".to_owned()
                    },
                    source.parse().unwrap(),
                    group(1),
                ),
                receives: (if is_input { "veth3".to_owned() } else { dev }, group(10)),
            }
        })
    });
    cases.collect()
}

/// A rule's name for that, with letters and digits alone.
fn named(what: &str) -> String {
    let words = what.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

/// Runs one daemon with all cases; says what did not become of them what has to.
fn judge(chain: &Chain, cases: &[Case]) -> Vec<String> {
    let mut config = "version = 1\n".to_owned();
    for case in cases {
        let Case {
            name,
            path,
            input,
            output,
            ..
        } = case;
        writeln!(
            config,
            "[[rule]]\nname = {name:?}\npath = {path:?}\ninput = {input:?}\noutputs = [{output:?}]"
        )
        .unwrap();
    }
    config += &protected_rules();
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    let as_it_has_to = |case: &Case, stats: &Stats| {
        let rule = rule(case, stats);
        rule.is_some_and(|rule| match case.fate {
            Fate::Arrive => rule.state == State::Up,
            Fate::Down(words) => rule.state == State::Down && format!("{rule:?}").contains(words),
        })
    };
    let mut failed = Vec::new();
    let stands = wait::until_within(PATIENCE * 4, "all stand as they have to", || {
        daemon
            .stats()
            .is_ok_and(|stats| cases.iter().all(|case| as_it_has_to(case, &stats)))
    });
    let stats = daemon.stats().unwrap();
    if stands.is_err() {
        for case in cases.iter().filter(|case| !as_it_has_to(case, &stats)) {
            let rule = rule(case, &stats);
            failed.push(format!("{}: {:?}, is {}", case.name, case.fate, said(rule)));
        }
    }
    for case in cases {
        if let Err(why) = send(chain, &daemon, case) {
            failed.push(format!("{}: {why:#}", case.name));
        }
    }
    for (input, output, _) in PROTECTED {
        if let Err(why) = send_protected(chain, &daemon, (input, output)) {
            failed.push(format!("{output} under an IPsec policy: {why:#}"));
        }
    }
    failed
}

fn rule<'a>(case: &Case, stats: &'a Stats) -> Option<&'a RuleStats> {
    stats.rules.iter().find(|rule| rule.name == case.name)
}

fn said(rule: Option<&RuleStats>) -> String {
    let Some(rule) = rule else {
        return "not there".to_owned();
    };
    let output = &rule.outputs[0];
    format!(
        "{} on the {} path ({}): {:?}; {} received, dropped {:?}, {} sent, dropped {:?}",
        rule.state.as_str(),
        rule.path,
        rule.path_reason,
        rule.state_reason,
        rule.received.packets,
        rule.dropped,
        output.sent.packets,
        output.dropped,
    )
}

/// A burst through a rule: it arrives, or none of it is said to be sent.
fn send(chain: &Chain, daemon: &Daemon, case: &Case) -> Result<()> {
    let (_, by, source, group) = &case.sends;
    let sink = Receiver::join((&chain.sink, &case.receives.0), case.receives.1, 6001)?;
    let sender = Sender::open((&chain.sender, by), *source)?;
    sender.send_numbered(*group, 5001, BURST, 700)?;
    let words = |why: anyhow::Error| {
        let stats = daemon.stats().ok();
        why.context(said(stats.as_ref().and_then(|stats| rule(case, stats))))
    };
    if case.fate == Fate::Arrive {
        sink.expect(BURST, PATIENCE).map_err(words)?;
        daemon.settled(&case.name, BURST).map_err(words)?;
    }
    let rule = daemon.rule(&case.name)?;
    let sent = rule.outputs[0].sent.packets;
    let arrived = if case.fate == Fate::Arrive { BURST } else { 0 };
    ensure!(
        sent == arrived,
        "{sent} are said to be sent: {}",
        said(Some(&rule))
    );
    Ok(())
}

/// What an IPsec policy protects: input, output, and the family's ends of the relay's link.
const PROTECTED: [(&str, &str, (&str, &str)); 3] = [
    (
        "239.3.1.1%veth1:5001",
        "10.99.0.9:7001",
        ("10.0.1.1", "10.0.1.2"),
    ),
    (
        "239.3.1.2%veth1:5001",
        "239.99.0.9%veth2:7001",
        ("10.0.1.1", "10.0.1.2"),
    ),
    (
        "[ff1e::3:1%veth1]:5001",
        "[fd99::9]:7001",
        ("fd00:1::1", "fd00:1::2"),
    ),
];

fn protected_rules() -> String {
    let rules = PROTECTED.into_iter().map(|(input, output, _)| {
        let name = named(output);
        format!("[[rule]]\nname = {name:?}\ninput = {input:?}\noutputs = [{output:?}]\n")
    });
    rules.collect()
}

/// Networks behind the sink that are reached encrypted alone.
fn protect(chain: &Chain) -> Result<()> {
    for (namespace, is_first) in [(&chain.relay, true), (&chain.sink, false)] {
        let mut script = String::new();
        for ((one, other), id, networks) in [
            (PROTECTED[0].2, 9004, &["10.99.0.0/24", "239.99.0.0/16"][..]),
            (PROTECTED[2].2, 9006, &["fd99::/64"]),
        ] {
            let (local, remote) = if is_first { (one, other) } else { (other, one) };
            let ends = (local, remote, is_first);
            script += &associations(ends, id, "");
            for to in networks {
                let direction = if is_first { "out" } else { "in" };
                let template =
                    format!("tmpl src {one} dst {other} proto esp reqid {id} mode tunnel");
                writeln!(
                    script,
                    "xfrm policy add dst {to} dir {direction} {template}"
                )?;
            }
        }
        script += match is_first {
            true => "route add 10.99.0.0/24 via 10.0.1.2\nroute add fd99::/64 via fd00:1::2\n",
            false => "address add 10.99.0.9/32 dev lo\naddress add fd99::9/128 dev lo\n",
        };
        namespace.ip_batch(&script)?;
    }
    Ok(())
}

/// A burst to a network under a policy: it arrives, and leaves as ESP alone.
fn send_protected(chain: &Chain, daemon: &Daemon, (input, output): (&str, &str)) -> Result<()> {
    let name = named(output);
    daemon.wait_for(&name, "up", |rule| rule.state == State::Up)?;
    let is_ipv4 = !input.starts_with('[');
    let group: IpAddr = input
        .trim_start_matches('[')
        .split('%')
        .next()
        .unwrap()
        .parse()?;
    let source: IpAddr = if is_ipv4 { "10.0.0.1" } else { "fd00::1" }.parse()?;
    let wire = FrameReceiver::open((&chain.relay, "veth2"))?;
    let sink = match output.parse() {
        Ok(at) => Receiver::bind(&chain.sink, at)?,
        Err(_) => Receiver::join((&chain.sink, "veth3"), "239.99.0.9".parse()?, 7001)?,
    };
    let sender = Sender::open((&chain.sender, "veth0"), source)?;
    sender.send_numbered(group, 5001, BURST, 700)?;
    let received = sink.expect(BURST, PATIENCE);
    let rule = daemon.settled(&name, BURST)?;
    received.map_err(|why| why.context(said(Some(&rule))))?;
    let protocol = |frame: &[u8]| match is_ipv4 {
        true => frame.get(23).copied(),
        false => frame.get(20).copied(),
    };
    let association = if is_ipv4 { 9004 } else { 9006 };
    let (mut esp, mut clear) = (0, 0);
    wire.receive(Duration::ZERO, |frame| {
        // Others' associations carry what hosts themselves send by the devices upon them.
        let spi = if is_ipv4 {
            frame.get(34..38)
        } else {
            frame.get(54..58)
        };
        let is_ours = spi == Some(&spi_of(association, true).to_be_bytes()[..]);
        esp += u64::from(protocol(frame) == Some(50) && is_ours);
        clear += u64::from(protocol(frame) == Some(17));
        false
    })?;
    ensure!(
        (esp, clear) == (BURST, 0),
        "{esp} as ESP, {clear} in clear: {}",
        said(Some(&rule))
    );
    Ok(())
}

fn spi_of(association: usize, forth: bool) -> u32 {
    2 * association as u32 + u32::from(forth)
}

/// Associations of both directions, numbered.
fn associations((local, remote, is_first): (&str, &str, bool), id: usize, more: &str) -> String {
    let keys = "enc cbc(aes) 0x000102030405060708090a0b0c0d0e0f \
                auth hmac(sha1) 0x000102030405060708090a0b0c0d0e0f10111213";
    let ways = [(local, remote, is_first), (remote, local, !is_first)];
    let state = ways.map(|(from, to, forth)| {
        let spi = spi_of(id, forth);
        format!(
            "xfrm state add src {from} dst {to} proto esp spi {spi} reqid {id} mode tunnel \
             flag af-unspec {keys} {more}\n"
        )
    });
    state.concat()
}

/// Policies of both directions.
fn policies((local, remote, _): (&str, &str, bool), id: usize, all: &str, more: &str) -> String {
    let ways = [("out", local, remote), ("in", remote, local)];
    let policies = ways.map(|(direction, from, to)| {
        let template = format!("tmpl src {from} dst {to} proto esp reqid {id} mode tunnel");
        format!("xfrm policy add {all} dir {direction} {template} {more}\n")
    });
    policies.concat()
}

/// PPP over a terminal that a pair of programs make of a TCP connection.
fn ppp(place: &Place<'_>, id: usize, host: u8) -> Result<Process> {
    let port = 7000 + id;
    let way = match place.is_first {
        true => format!("TCP-LISTEN:{port},bind={},reuseaddr", place.local),
        false => format!("TCP:{}:{port},retry=50,interval=0.2", place.remote),
    };
    let mut pppd = place.namespace.command("/usr/sbin/pppd");
    let inner = format!("172.16.{id}.{host}:172.16.{id}.{}", 3 - host);
    pppd.args([
        "nodetach",
        "noauth",
        "local",
        "nocrtscts",
        "novj",
        "noccp",
        "+ipv6",
    ]);
    pppd.args([
        "ifname",
        &place.dev,
        "pty",
        &format!("socat - {way}"),
        &inner,
    ]);
    Process::start(pppd).context("pppd")
}
