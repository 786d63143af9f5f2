//! The peers: socat, kernel multicast routing through smcroute, and the bare tc redirect.

use std::fmt::Write;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::running::Running;
use crate::bench::run::bed::Bed;
use crate::bench::run::plan::{Address, Family, Plan};
use crate::link;
use crate::mark;
use crate::namespace::Namespace;
use crate::process::Process;
use crate::topology::EGRESS_INDEX;
use crate::wait;

/// The object of the floor (`floor.bpf.c`), program section `classifier`.
static FLOOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/floor.bpf.o"));

/// Time limit of smcrouted: it cannot set 10,000 routes in [`wait::PATIENCE`].
const MANY_ROUTES: Duration = Duration::from_secs(40);

/// One socat per output, as in its manual: `UDP4-RECV` to `UDP4-DATAGRAM`. All copies of one
/// stream share the port, and each process gets every datagram (`reuseaddr`).
pub(super) fn socat(bed: &Bed, plan: Plan) -> Result<Running> {
    let mut processes = Vec::new();
    for (index, relay) in bed.relays.iter().enumerate() {
        let is_last = index + 1 == bed.relays.len();
        let before = processes.len();
        for stream in plan.numbers() {
            let from = plan.input(stream).after(index);
            if !is_last {
                let to = plan.input(stream).after(index + 1);
                processes.push(one_socat(bed, relay, from, to, "veth2")?);
                continue;
            }
            let egresses = bed.egresses.iter().cycle();
            for (to, link) in plan.outputs(stream).zip(egresses) {
                processes.push(one_socat(bed, relay, from, to, link)?);
            }
        }
        wait_for_sockets(relay, plan.family, processes.len() - before)?;
    }
    let roots = processes.iter().map(Process::id).collect();
    Ok(Running::new(roots, move || drop(processes)))
}

fn one_socat(
    bed: &Bed,
    relay: &Namespace,
    from: Address,
    to: Address,
    egress: &str,
) -> Result<Process> {
    let mut command = relay.command_on(&bed.relay_cores(), "socat");
    let (from_port, to_port) = (from.port, to.port);
    command.arg("-u");
    match (from.group, to.group) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let source = address_of(relay, egress)?;
            command.arg(format!(
                "UDP4-RECV:{from_port},bind={from},ip-add-membership={from}:veth1,reuseaddr"
            ));
            command.arg(format!(
                "UDP4-DATAGRAM:{to}:{to_port},ip-multicast-if={source},ip-multicast-ttl=16,\
                 ip-multicast-loop=0"
            ));
        }
        // Its only way to choose the interface of an IPv6 group is to bind to it.
        (from, to) => {
            command.arg(format!(
                "UDP6-RECV:{from_port},bind=[{from}],ipv6-join-group=[{from}]:veth1,reuseaddr"
            ));
            command.arg(format!(
                "UDP6-DATAGRAM:[{to}]:{to_port},so-bindtodevice={egress}"
            ));
        }
    }
    Process::start(command)
}

fn address_of(namespace: &Namespace, interface: &str) -> Result<String> {
    let shown = namespace.ip(&format!("-4 -o address show dev {interface}"))?;
    let mut words = shown.split_whitespace().skip_while(|word| *word != "inet");
    let address = words.nth(1).context("no IPv4 address")?;
    Ok(address.split('/').next().unwrap_or(address).to_owned())
}

fn wait_for_sockets(namespace: &Namespace, family: Family, count: usize) -> Result<()> {
    let table = match family {
        Family::V4 => "udp",
        Family::V6 => "udp6",
    };
    wait::until("every socat has joined", || {
        let sockets = namespace.read_proc_net(table).unwrap_or_default();
        // Each has a receiving socket on its port and a sending one on another.
        sockets.lines().skip(1).count() >= count
    })
}

/// Kernel multicast routing. It rewrites nothing: the sinks see the sender's groups.
pub(super) fn kernel_routing(bed: &Bed, plan: Plan) -> Result<Running> {
    let mut held = Vec::new();
    let table = match plan.family {
        Family::V4 => "ip_mr_cache",
        Family::V6 => "ip6_mr_cache",
    };
    for relay in &bed.relays {
        // Its joins share one socket, so at the default of 20 it loses all groups beyond.
        relay.sysctl("net/ipv4/igmp_max_memberships", "60000")?;
        let directory = mark::directory()?;
        let file = directory.path().join("smcroute.conf");
        fs::write(&file, smcroute_config(bed, plan))?;
        let mut command = relay.command_on(&bed.relay_cores(), "smcrouted");
        command.args(["-n", "-N", "-l", "notice", "-f"]).arg(&file);
        command.arg("-P").arg(directory.path().join("pid"));
        command.arg("-u").arg(directory.path().join("socket"));
        let process = Process::start(command)?;
        held.push((process, directory));
        // The sender uses TTL 16: with 1 the copies would expire at the relay.
        wait::until_within(MANY_ROUTES, "smcrouted has its routes", || {
            let routes = relay.read_proc_net(table).unwrap_or_default();
            routes.lines().skip(1).count() >= usize::from(plan.streams)
        })
        .with_context(|| {
            held.iter()
                .map(|(process, _)| process.stderr())
                .collect::<String>()
        })?;
    }
    let roots = held.iter().map(|(process, _)| process.id()).collect();
    Ok(Running::new(roots, move || drop(held)))
}

fn smcroute_config(bed: &Bed, plan: Plan) -> String {
    let (egresses, source) = (&bed.egresses, bed.source(plan.family));
    let mut text = String::from("phyint veth1 enable\n");
    for link in egresses {
        let _ = writeln!(text, "phyint {link} enable");
    }
    let to = egresses.join(" ");
    for stream in plan.numbers() {
        let group = plan.input(stream).group;
        let _ = writeln!(text, "mgroup from veth1 group {group}");
        let _ = writeln!(
            text,
            "mroute from veth1 source {source} group {group} to {to}"
        );
    }
    text
}

/// A tc program that redirects every IPv4 packet to `EGRESS_INDEX` and does nothing else.
pub(super) fn floor(bed: &Bed) -> Result<Running> {
    let directory = mark::directory()?;
    let path = directory.path().join("floor.o");
    fs::write(&path, FLOOR)?;
    let file = path.to_str().context("temporary directory")?;
    for relay in &bed.relays {
        let index = link::index((relay, "veth2"))?;
        ensure!(
            index == EGRESS_INDEX,
            "the floor's egress has index {index}, not {EGRESS_INDEX}"
        );
        relay.tool("tc", "qdisc add dev veth1 clsact")?;
        let filter = format!("filter add dev veth1 ingress bpf da obj {file} sec classifier");
        relay.tool("tc", &filter)?;
    }
    Ok(Running::new(Vec::new(), || ()))
}
