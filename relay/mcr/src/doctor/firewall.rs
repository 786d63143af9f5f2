//! Packet filters. Relayed packets bypass them, except those at a device's egress on the userspace path,
//! and the usual ones on the way to sockets of this host and of what a socket sends. IGMP and MLD pass
//! through all of them: a filter that drops queries ends every stream behind a snooping switch after some minutes, one that drops reports
//! at once.

mod chain;
mod legacy;
mod nft;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use chain::{Chain, Fate, ProbePacket, judge};
use compile::host::LOOPBACK;

use super::finding::{Finding, Severity};
use super::snapshot::{Egress, Link, Snapshot};

const ALL_HOSTS: IpAddr = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1));
const IGMPV3_ROUTERS: IpAddr = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 22));
const ALL_NODES: IpAddr = IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
const MLDV2_ROUTERS: IpAddr = IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16));

/// A packet that must get through, and the consequence of its loss.
struct Probe {
    packet: ProbePacket,
    what: &'static str,
    consequence: &'static str,
    /// Whether it bypasses the chains that would judge it.
    is_bypassing: bool,
    /// Whether the host's own stack sends it, and may encrypt or encapsulate it first.
    is_encapsulated: bool,
}

pub(crate) fn nftables(snapshot: &Snapshot) -> Vec<Finding> {
    if snapshot.rules.set.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (subject, package, chains) in [
        ("nftables", "nftables", nft::chains()),
        ("legacy iptables", "iptables", legacy::chains()),
    ] {
        match chains {
            Ok(chains) => {
                findings.extend(verdicts(snapshot, &chains));
                findings.extend(chains.iter().find_map(forward));
            }
            Err(error) => {
                let evidence = format!("its rules cannot be read: {error:#}");
                let finding = Finding::new(Severity::Note, subject, evidence);
                let remedy = format!("install {package} and run as root to have them checked");
                findings.push(finding.remedy(remedy));
            }
        }
    }
    findings
}

/// Runs a tool and returns its standard output.
fn printed(tool: &str, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(tool)
        .args(arguments)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output()
        .with_context(|| format!("cannot start {tool}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{tool}: {}", errors.trim());
    Ok(output.stdout)
}

/// A forward chain that drops: often suspected, but harmless.
fn forward(chain: &Chain) -> Option<Finding> {
    if chain.hook != "forward" || !chain.drops_by_default {
        return None;
    }
    let evidence = format!(
        "chain {chain} drops what the host forwards: does not matter to MCR, whose copies do not \
         pass it"
    );
    Some(Finding::new(Severity::Note, "host", evidence).remedy("leave it as it is"))
}

/// Judges every relevant packet in every chain that it passes.
fn verdicts(snapshot: &Snapshot, chains: &[Chain]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for probe in probes(snapshot) {
        let bases = chains.iter().filter(|chain| chain.sees(&probe.packet));
        for base in bases {
            let (severity, may, by) = match judge(chains, base, &probe.packet) {
                Fate::Passes => continue,
                // The device may get something else than the socket sent.
                Fate::Drops(by) if probe.is_encapsulated && base.hook == "egress" => {
                    (Severity::Harms, "may drop", by)
                }
                Fate::Drops(by) => (Severity::Stops, "drops", by),
                Fate::MayDrop(by) => (Severity::Harms, "may drop", by),
            };
            let (hook, what, consequence) = (&base.hook, probe.what, probe.consequence);
            if probe.is_bypassing {
                findings.push(bypassed(base, &probe.packet));
                continue;
            }
            let evidence = format!("chain {base} (hook {hook}) {may} {what}: {by}; {consequence}");
            let finding = Finding::new(severity, &probe.packet.interface, evidence);
            findings.push(finding.remedy(remedy(base, &probe.packet)));
        }
    }
    findings
}

/// A packet that a tc program redirects bypasses the packet filter at the egress (`nf_skip_egress`).
fn bypassed(base: &Chain, packet: &ProbePacket) -> Finding {
    let evidence = format!(
        "chain {base} (hook {}) would drop relayed copies, but those of the kernel path do not pass \
         it: they leave",
        base.hook
    );
    let finding = Finding::new(Severity::Note, &packet.interface, evidence);
    finding.remedy("remove the output, or put the rule on the userspace path, whose copies pass it")
}

fn remedy(base: &Chain, packet: &ProbePacket) -> String {
    let what = match packet.protocol {
        "igmp" => "meta l4proto igmp",
        "icmpv6" => "icmpv6 type { mld-listener-query, mld2-listener-report }",
        _ => return format!("accept {} in that chain", packet.destination),
    };
    if base.table.ends_with("(legacy)") {
        let (tool, protocol) = match base.family.as_str() {
            "ip" => ("iptables-legacy", "igmp"),
            _ => ("ip6tables-legacy", "ipv6-icmp"),
        };
        return format!("{tool} -I {} -p {protocol} -j ACCEPT", base.name);
    }
    format!("nft insert rule {base} {what} accept")
}

fn probes(snapshot: &Snapshot) -> Vec<Probe> {
    let mut probes = Vec::new();
    let inputs = snapshot.group_inputs();
    for link in snapshot.input_links() {
        let on_link = inputs
            .iter()
            .filter(|(_, _, input)| input.index == link.index);
        let families: BTreeSet<bool> = on_link.map(|(_, endpoint, _)| endpoint.is_ipv4()).collect();
        for is_ipv4 in families.into_iter().rev() {
            probes.extend([true, false].map(|is_inbound| control(link, is_ipv4, is_inbound)));
        }
    }
    let outputs = snapshot.outputs();
    for output in &outputs {
        if output.link.name == LOOPBACK {
            probes.extend(delivered(output));
        } else {
            probes.push(copy(snapshot, output));
        }
    }
    probes
}

fn copy(snapshot: &Snapshot, output: &Egress<'_>) -> Probe {
    let by_socket = snapshot.sends_by_socket(&output.rule.name, &output.spec.target());
    Probe {
        packet: ProbePacket {
            is_copy: !by_socket,
            ..udp(output)
        },
        what: "relayed copies",
        consequence: if by_socket {
            "receivers get nothing of them; they count as egress_error, at the device as egress_full"
        } else {
            "receivers get nothing of them; they count as egress_full"
        },
        is_bypassing: !by_socket && snapshot.is_on_kernel_path(&output.rule.name),
        is_encapsulated: by_socket,
    }
}

/// Copies to sockets of this host leave and arrive on the loopback interface, as those of any local
/// program do.
fn delivered(output: &Egress<'_>) -> [Probe; 2] {
    let probe = |is_inbound, consequence| Probe {
        packet: ProbePacket {
            is_inbound,
            is_copy: false,
            ..udp(output)
        },
        what: "copies to sockets of this host",
        consequence,
        is_bypassing: false,
        is_encapsulated: false,
    };
    [
        probe(false, "they count as egress_error"),
        probe(true, "sockets get nothing of what counts as sent"),
    ]
}

fn udp(output: &Egress<'_>) -> ProbePacket {
    let to = &output.spec.to;
    ProbePacket {
        protocol: "udp",
        is_ipv4: to.is_ipv4(),
        destination: to.destination.address,
        port: Some(to.ports.first),
        icmp_type: None,
        interface: output.link.name.clone(),
        is_inbound: false,
        is_copy: true,
    }
}

/// An inbound query, or an outbound report.
fn control(link: &Link, is_ipv4: bool, is_inbound: bool) -> Probe {
    let (destination, what) = match (is_ipv4, is_inbound) {
        (true, true) => (ALL_HOSTS, "IGMP queries"),
        (true, false) => (IGMPV3_ROUTERS, "IGMP reports"),
        (false, true) => (ALL_NODES, "MLD queries"),
        (false, false) => (MLDV2_ROUTERS, "MLD reports"),
    };
    let (icmp_type, consequence) = if is_inbound {
        (
            "mld-listener-query",
            "this host then never answers, and a snooping switch ends the stream some minutes after the \
             join",
        )
    } else {
        (
            "mld2-listener-report",
            "no switch or router learns that this host wants the stream",
        )
    };
    Probe {
        packet: ProbePacket {
            protocol: if is_ipv4 { "igmp" } else { "icmpv6" },
            is_ipv4,
            destination,
            port: None,
            icmp_type: (!is_ipv4).then_some(icmp_type),
            interface: link.name.clone(),
            is_inbound,
            is_copy: false,
        },
        what,
        consequence,
        is_bypassing: false,
        is_encapsulated: false,
    }
}
