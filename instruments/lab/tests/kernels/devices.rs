//! Rules over devices that a host may have and this machine's kernel has not: as input and as output,
//! bursts on both paths. What a path cannot do it has to say, and nothing may count as sent that no device
//! took.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use api::reply::State;
use lab::bed::{PORT, RULE};
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::process::Process;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;
use lab::wait;

const PATIENCE: Duration = Duration::from_secs(20);
/// Packets that leave together: a queue's discipline and segmentation see them.
const BURST: u64 = 40;

/// What keeps a device there, if anything has to.
type Made = Result<Option<Process>>;

/// A kind of device.
struct Kind {
    name: &'static str,
    /// Makes one end: its namespace and lower interface, own and peer's address there.
    make: fn(&Namespace, &str, (&str, &str)) -> Made,
    /// Whether the kernel path reads what comes by it, and writes what leaves.
    kernel: (bool, bool),
    /// Whether it has addresses of its own already.
    addressed: bool,
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "gre",
        make: gre,
        kernel: (true, true),
        addressed: false,
    },
    Kind {
        name: "gre to a group",
        make: gre_to_a_group,
        kernel: (false, false),
        addressed: false,
    },
    Kind {
        name: "xfrm interface",
        make: xfrm,
        kernel: (true, true),
        addressed: false,
    },
    Kind {
        name: "vti",
        make: vti,
        kernel: (true, true),
        addressed: false,
    },
    Kind {
        name: "VLAN that keeps its tags",
        make: vlan,
        kernel: (false, true),
        addressed: false,
    },
    Kind {
        name: "PPP",
        make: ppp,
        kernel: (true, true),
        addressed: true,
    },
];

#[test]
#[ignore = "runs inside a booted kernel"]
fn kernel() {
    all("kernel");
}

#[test]
#[ignore = "runs inside a booted kernel"]
fn userspace() {
    all("userspace");
}

#[test]
#[ignore = "runs inside a booted kernel"]
fn auto() {
    all("auto");
}

/// Every kind as input and as output, and all that fails named.
fn all(path: &str) {
    let mut failed = Vec::new();
    for kind in KINDS {
        if kind.name == "PPP" && !std::path::Path::new("/usr/sbin/pppd").exists() {
            eprintln!("skipped: there is no pppd");
            continue;
        }
        for is_input in [true, false] {
            let side = if is_input { "input" } else { "output" };
            match relays(&kind, is_input, path) {
                Ok(said) => println!("{} as {side}, {path}: {said}", kind.name),
                Err(why) => failed.push(format!("{} as {side}, {path}: {why:#}", kind.name)),
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn relays(kind: &Kind, is_input: bool, path: &str) -> Result<String> {
    let chain = Chain::plain()?;
    let ends = match is_input {
        true => [
            (&chain.sender, "veth0", ("10.0.0.1", "10.0.0.2")),
            (&chain.relay, "veth1", ("10.0.0.2", "10.0.0.1")),
        ],
        false => [
            (&chain.relay, "veth2", ("10.0.1.1", "10.0.1.2")),
            (&chain.sink, "veth3", ("10.0.1.2", "10.0.1.1")),
        ],
    };
    let (mut keep, mut done) = (Vec::new(), Vec::new());
    for (number, (namespace, lower, addresses)) in ends.into_iter().enumerate() {
        keep.push((kind.make)(namespace, lower, addresses)?);
        // PPP has its device once both ends have agreed.
        if !kind.addressed {
            link::index((namespace, "dev0"))?;
        }
        done.push((namespace, number));
    }
    for (namespace, number) in done {
        wait::until_within(PATIENCE, "the device to be there", || {
            link::index((namespace, "dev0")).is_ok()
        })?;
        if !kind.addressed {
            link::address((namespace, "dev0"), &format!("172.16.0.{}/24", number + 1))?;
        }
        namespace.ip("link set dev0 up multicast on")?;
    }
    let (sends, source, from) = match is_input {
        true => ("dev0", "172.16.0.1", "dev0"),
        false => ("veth0", "10.0.0.1", "veth1"),
    };
    let (to, receives) = match is_input {
        true => ("veth2", "veth3"),
        false => ("dev0", "dev0"),
    };
    let source: IpAddr = source.parse()?;
    let sender = Sender::open((&chain.sender, sends), source)?;
    let sink = Receiver::join((&chain.sink, receives), "239.10.1.1".parse()?, 6001)?;
    let daemon = Daemon::start(&chain.relay, Options::path(path))?;
    let input = format!("239.1.1.1%{from}:{PORT}");
    let output = format!("239.10.1.1%{to}:6001");
    daemon.add(RULE, &input, &[&output])?;
    let can = match is_input {
        true => kind.kernel.0,
        false => kind.kernel.1,
    };
    if path == "kernel" && !can {
        let rule = daemon.rule(RULE)?;
        let reason = rule.state_reason.unwrap_or_default();
        anyhow::ensure!(rule.state == State::Down, "{:?}: {reason}", rule.state);
        return Ok(format!("down: {reason}"));
    }
    daemon.wait_for(RULE, "up", |rule| rule.state == State::Up)?;
    let group = "239.1.1.1".parse()?;
    sender.send_numbered(group, PORT, BURST, 700)?;
    let received = sink.expect(BURST, PATIENCE);
    let rule = daemon.settled(RULE, BURST)?;
    let counted = format!(
        "{} received, {} sent, dropped {:?} {:?}, path {}",
        rule.received.packets,
        rule.outputs[0].sent.packets,
        rule.dropped,
        rule.outputs[0].dropped,
        rule.path,
    );
    received.map_err(|why| why.context(counted.clone()))?;
    Ok(counted)
}

fn gre(namespace: &Namespace, _: &str, (local, remote): (&str, &str)) -> Made {
    let ends = format!("local {local} remote {remote}");
    namespace.ip(&format!("link add dev0 type gre {ends} ttl 8"))?;
    Ok(None)
}

fn gre_to_a_group(namespace: &Namespace, lower: &str, (local, _): (&str, &str)) -> Made {
    let ends = format!("local {local} remote 239.255.0.1 dev {lower}");
    namespace.ip(&format!("link add dev0 type gre {ends} ttl 8 key 7"))?;
    Ok(None)
}

fn xfrm(namespace: &Namespace, lower: &str, ends: (&str, &str)) -> Made {
    namespace.ip(&format!("link add dev0 type xfrm dev {lower} if_id 7"))?;
    protect(namespace, ends, "if_id 7", "if_id 7")?;
    Ok(None)
}

fn vti(namespace: &Namespace, _: &str, ends: (&str, &str)) -> Made {
    let (local, remote) = ends;
    namespace.ip(&format!(
        "link add dev0 type vti local {local} remote {remote} key 7"
    ))?;
    protect(namespace, ends, "", "mark 7")?;
    Ok(None)
}

/// Associations and policies for all that a device of that `id` carries.
fn protect(
    namespace: &Namespace,
    (local, remote): (&str, &str),
    state_id: &str,
    policy_id: &str,
) -> Result<()> {
    for (direction, from, to) in [("out", local, remote), ("in", remote, local)] {
        let keys = "enc cbc(aes) 0x000102030405060708090a0b0c0d0e0f \
                    auth hmac(sha1) 0x000102030405060708090a0b0c0d0e0f10111213";
        let ends = format!("src {from} dst {to}");
        let id = "proto esp spi 7 reqid 1 mode tunnel";
        namespace.ip(&format!("xfrm state add {ends} {id} {keys} {state_id}"))?;
        let template = format!("tmpl {ends} proto esp reqid 1 mode tunnel");
        let all = "src 0.0.0.0/0 dst 0.0.0.0/0";
        namespace.ip(&format!(
            "xfrm policy add {all} dir {direction} {template} {policy_id}"
        ))?;
    }
    Ok(())
}

fn vlan(namespace: &Namespace, lower: &str, _: (&str, &str)) -> Made {
    // As a card that inserts no tags: the VLAN writes them, and packet sockets would have to bring them.
    link::features((namespace, lower), "txvlan off rxvlan off")?;
    let add = format!("link add link {lower} name dev0 type vlan id 10 reorder_hdr off");
    namespace.ip(&add)?;
    Ok(None)
}

/// PPP over a terminal that a pair of programs make of a TCP connection.
fn ppp(namespace: &Namespace, _: &str, (local, remote): (&str, &str)) -> Made {
    let is_first = local < remote;
    let listen = format!("TCP-LISTEN:7777,bind={local},reuseaddr");
    let connect = format!("TCP:{remote}:7777,retry=50,interval=0.2");
    let (way, number) = match is_first {
        true => (listen, 1),
        false => (connect, 2),
    };
    let mut pppd = namespace.command("/usr/sbin/pppd");
    let inner = format!("172.16.0.{number}:172.16.0.{}", 3 - number);
    pppd.args(["nodetach", "noauth", "local", "nocrtscts", "novj", "noccp"]);
    pppd.args(["ifname", "dev0", "pty", &format!("socat - {way}"), &inner]);
    Ok(Some(Process::start(pppd)?))
}
