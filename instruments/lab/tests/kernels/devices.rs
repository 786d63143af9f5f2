//! Rules on devices that this machine's kernel lacks: as input and as output, in both families, bursts on
//! both paths, all in one daemon at once. A path has to report what it does not support, and nothing may
//! count as sent that no device accepted.

mod ipsec;
mod kinds;

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::reply::{RuleStats, State, Stats};
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::process::Process;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;
use lab::wait;

use ipsec::{PROTECTED, associations, policies, protect, protected_rules, send_protected};
use kinds::{BOND, Fate, KINDS, Kind, PPP};

const PATIENCE: Duration = Duration::from_secs(20);
/// Packets that are sent together: a queue's discipline and segmentation see them.
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
    all(|kind| !kind.is_short);
}

/// An end of a device.
pub(super) struct DeviceEnd<'a> {
    /// Number of the pair.
    pub(super) id: usize,
    pub(super) dev: String,
    /// The interface below, with its address and the other end's.
    pub(super) lower: &'a str,
    pub(super) local: &'a str,
    pub(super) remote: &'a str,
    /// The namespace of the other end.
    pub(super) other: &'a str,
    /// Whether it is created before the other end.
    pub(super) is_first: bool,
    pub(super) is_relay: bool,
    namespace: &'a Namespace,
}

/// A rule of one kind, side, family and path, and the expected fate of its packets.
struct Case {
    name: String,
    path: &'static str,
    input: String,
    output: String,
    fate: Fate,
    /// Where its packets are sent from, and their destination.
    sends: (bool, String, IpAddr, IpAddr),
    receives: (String, IpAddr),
}

/// Tests all `wanted` kinds and reports every failure at once: a run may be cut short.
fn all(wanted: fn(&Kind) -> bool) {
    let chain = Chain::plain().unwrap();
    let (mut cases, mut processes) = (Vec::new(), Vec::new());
    // ESP between two ends with a VTI belongs to the VTI.
    for (end, host) in [
        ((&chain.sender, "veth0"), "10.0.0.11/24"),
        ((&chain.relay, "veth1"), "10.0.0.12/24"),
        ((&chain.relay, "veth2"), "10.0.1.11/24"),
        ((&chain.sink, "veth3"), "10.0.1.12/24"),
    ] {
        let (net, number) = (&host[5..6], &host[7..9]);
        link::address(end, host).unwrap();
        link::address(end, &format!("fd00:{net}::{number}/64 nodad")).unwrap();
        in_order(end.0, end.1).unwrap();
    }
    for (number, kind) in KINDS.iter().enumerate().filter(|(_, kind)| wanted(kind)) {
        if kind.name == PPP && !std::path::Path::new("/usr/sbin/pppd").exists() {
            eprintln!("skipped: there is no pppd, so nothing of PPP");
            continue;
        }
        for is_input in [true, false] {
            let id = 1 + 2 * number + usize::from(!is_input);
            let ends = ends_of(&chain, kind, is_input, id);
            match make(kind, &ends, &mut processes) {
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
fn ends_of<'a>(chain: &'a Chain, kind: &Kind, is_input: bool, id: usize) -> [DeviceEnd<'a>; 2] {
    let addresses = match (is_input, kind.name.starts_with("vti")) {
        (true, false) => ["10.0.0.1", "10.0.0.2"],
        (true, true) => ["10.0.0.11", "10.0.0.12"],
        (false, false) => ["10.0.1.1", "10.0.1.2"],
        (false, true) => ["10.0.1.11", "10.0.1.12"],
    };
    let ends = if is_input {
        [(&chain.sender, "veth0"), (&chain.relay, "veth1")]
    } else {
        [(&chain.relay, "veth2"), (&chain.sink, "veth3")]
    };
    [(0, 1), (1, 0)].map(|(one, other)| DeviceEnd {
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
fn make(kind: &Kind, ends: &[DeviceEnd<'_>; 2], processes: &mut Vec<Process>) -> Result<()> {
    for end in ends {
        let (dev, id) = (&end.dev, end.id);
        let host = if end.is_first { 1 } else { 2 };
        let mut script = String::new();
        match (kind.make)(end) {
            _ if kind.name == PPP => {
                processes.push(ppp(end, id, host)?);
                continue;
            }
            words if words.is_empty() => {}
            words => writeln!(script, "link add {dev} {words}")?,
        }
        if kind.name == BOND && end.is_relay {
            for wire in ["x", "y"] {
                let peer = format!("peer name {dev}{wire} netns {}", end.other);
                writeln!(script, "link add {dev}{wire} type veth {peer}")?;
                writeln!(
                    script,
                    "link set {dev}{wire} master {dev}\nlink set {dev}{wire} up"
                )?;
            }
        }
        if kind.name == "in a VRF" && end.is_relay {
            writeln!(script, "link add vrf{id} type vrf table {}", 100 + id)?;
            writeln!(script, "link set vrf{id} up\nlink set {dev} master vrf{id}")?;
        }
        if ["vti", "vti6", "xfrm interface"].contains(&kind.name) {
            let six = end.addresses6();
            let (local, remote) = match kind.name {
                "vti6" => (six.0.as_str(), six.1.as_str()),
                _ => (end.local, end.remote),
            };
            let ends = (local, remote, end.is_first);
            let (state, policy) = match kind.name {
                "xfrm interface" => (format!("if_id {id}"), format!("if_id {id}")),
                _ => (String::new(), format!("mark {id}")),
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
        end.namespace.ip_batch(&script)?;
    }
    for end in ends {
        let of_bond = ["x", "y"].iter().filter(|_| kind.name == BOND);
        for wire in of_bond.map(|wire| format!("{}{wire}", end.dev)) {
            if !end.is_relay {
                let port = format!("link set {wire} master {}\nlink set {wire} up\n", end.dev);
                end.namespace.ip_batch(&port)?;
            }
            in_order(end.namespace, &wire)?;
        }
    }
    for end in ends.iter().filter(|_| kind.name == PPP) {
        wait::until_within(PATIENCE, "the device to be there", || {
            link::index((end.namespace, &end.dev)).is_ok()
        })?;
        let (dev, id, host) = (&end.dev, end.id, 2 - u8::from(end.is_first));
        end.namespace.ip_batch(&format!(
            "address add fd16:{id}::{host}/64 dev {dev}\nlink set {dev} up multicast on\n"
        ))?;
        in_order(end.namespace, dev)?;
    }
    Ok(())
}

/// Makes one processor receive a device's packets. Those from a terminal, or from a sender that moves to another
/// processor meanwhile, wait in several queues and are reordered.
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
                let text = if is_ipv4 {
                    format!("239.{net}.{id}.{number}")
                } else {
                    format!("ff1e::{net}:{id}:{number}")
                };
                text.parse().unwrap()
            };
            let at = |group: IpAddr, dev: &str, port: u16| {
                if is_ipv4 {
                    format!("{group}%{dev}:{port}")
                } else {
                    format!("[{group}%{dev}]:{port}")
                }
            };
            let wildcard = format!("{dev}*");
            let (side, from, to) = match is_input {
                true if kind.name == BOND => ("input", wildcard.as_str(), "veth2"),
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

/// A rule's name from that description, with only letters and digits.
fn named(what: &str) -> String {
    let parts = what.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
    words.join("-")
}

/// Runs one daemon with all cases; returns those that failed.
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
    for dev in cases.iter().filter_map(Case::xdp_device) {
        writeln!(config, "[interface.{dev}]\nxdp = \"on\"").unwrap();
    }
    config += &protected_rules();
    let options = Options {
        config: Some(config),
        ..Options::default()
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    let is_as_expected = |case: &Case, stats: &Stats| {
        let rule = rule(case, stats);
        rule.is_some_and(|rule| match case.fate {
            Fate::Arrive => rule.state == State::Up && case.has_hook_reason(rule),
            Fate::Down(words) => rule.state == State::Down && format!("{rule:?}").contains(words),
        })
    };
    let mut failed = Vec::new();
    let mut fail = |what: String| {
        eprintln!("failed: {what}");
        failed.push(what);
    };
    let ready = wait::until_within(PATIENCE * 4, "all stand as they have to", || {
        daemon
            .stats()
            .is_ok_and(|stats| cases.iter().all(|case| is_as_expected(case, &stats)))
    });
    let stats = daemon.stats().unwrap();
    if ready.is_err() {
        for case in cases.iter().filter(|case| !is_as_expected(case, &stats)) {
            let rule = rule(case, &stats);
            fail(format!(
                "{}: {:?}, is {}",
                case.name,
                case.fate,
                describe(rule)
            ));
        }
    }
    for case in cases {
        eprintln!("{}", case.name);
        if let Err(why) = send(chain, &daemon, case) {
            fail(format!("{}: {why:#}", case.name));
        }
    }
    for (input, output, _) in PROTECTED {
        if let Err(why) = send_protected(chain, &daemon, (input, output)) {
            fail(format!("{output} under an IPsec policy: {why:#}"));
        }
    }
    failed
}

impl Case {
    /// PPP's device, if XDP is requested for it: of one IPv4 rule on the kernel path.
    fn xdp_device(&self) -> Option<&str> {
        let (is_input, by, source, _) = &self.sends;
        let is_requested = self.name.starts_with(PPP) && self.path == PATHS[0] && source.is_ipv4();
        let dev = if *is_input { by } else { &self.receives.0 };
        is_requested.then_some(dev)
    }

    /// Whether the rule reports why XDP receives nothing of it, if XDP is requested.
    fn has_hook_reason(&self, rule: &RuleStats) -> bool {
        let why = rule.inputs[0].hook_reason.as_deref();
        let is_input = self.sends.0;
        self.xdp_device().is_none()
            || !is_input
            || why.is_some_and(|why| why.contains("without an Ethernet header"))
    }
}

fn rule<'a>(case: &Case, stats: &'a Stats) -> Option<&'a RuleStats> {
    stats.rules.iter().find(|rule| rule.name == case.name)
}

fn describe(rule: Option<&RuleStats>) -> String {
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

/// A burst through a rule: it arrives, or none of it counts as sent.
fn send(chain: &Chain, daemon: &Daemon, case: &Case) -> Result<()> {
    let (_, by, source, group) = &case.sends;
    let sink = Receiver::join((&chain.sink, &case.receives.0), case.receives.1, 6001)?;
    let sender = Sender::open((&chain.sender, by), *source)?;
    sender.send_numbered(*group, 5001, BURST, 700)?;
    let words = |why: anyhow::Error| {
        let stats = daemon.stats().ok();
        why.context(describe(stats.as_ref().and_then(|stats| rule(case, stats))))
    };
    if case.fate == Fate::Arrive {
        sink.expect(BURST, PATIENCE).map_err(words)?;
        daemon.settled(&case.name, BURST).map_err(words)?;
    }
    let mut arrived = if case.fate == Fate::Arrive { BURST } else { 0 };
    if arrived > 0 && relays_own_packets(chain, case)? {
        // A program of the relay also sends by the input.
        let other = match source {
            IpAddr::V4(source) => Ipv4Addr::from_bits(source.to_bits() + 1).into(),
            IpAddr::V6(source) => Ipv6Addr::from_bits(source.to_bits() + 1).into(),
        };
        let own = Sender::with_loopback((&chain.relay, by), other)?;
        own.send_numbered(*group, 5001, BURST, 700)?;
        sink.expect(BURST, PATIENCE)
            .context("of a program")
            .map_err(words)?;
        arrived = 2 * BURST;
        daemon.settled(&case.name, arrived).map_err(words)?;
    }
    let rule = daemon.rule(&case.name)?;
    let sent = rule.outputs[0].sent.packets;
    ensure!(
        sent == arrived,
        "{sent} are said to be sent: {}",
        describe(Some(&rule))
    );
    Ok(())
}

/// Returns whether a rule relays packets that programs of the relay send by its input: workers ignore those on
/// devices without Ethernet headers.
fn relays_own_packets(chain: &Chain, case: &Case) -> Result<bool> {
    let (is_input, by, ..) = &case.sends;
    if !is_input || case.path == PATHS[0] {
        return Ok(*is_input);
    }
    let shown = chain.relay.ip(&format!("link show dev {by}"))?;
    Ok(shown.contains("link/ether"))
}

/// PPP over a terminal that a pair of programs emulate over a TCP connection.
fn ppp(end: &DeviceEnd<'_>, id: usize, host: u8) -> Result<Process> {
    let port = 7000 + id;
    let address = if end.is_first {
        format!("TCP-LISTEN:{port},bind={},reuseaddr", end.local)
    } else {
        format!("TCP:{}:{port},retry=50,interval=0.2", end.remote)
    };
    let mut pppd = end.namespace.command("/usr/sbin/pppd");
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
        &end.dev,
        "pty",
        &format!("socat - {address}"),
        &inner,
    ]);
    Process::start(pppd).context("pppd")
}
