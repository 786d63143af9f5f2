//! Where XDP may be used: on which of the requested interfaces packets are taken, and which devices
//! accept the frames that it hands over. `auto` makes nothing worse: it yields to any other user of an
//! interface. Nothing is attached here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use bpf::pin::BPFFS;
use compile::hook::{AtTc, Hooks};
use compile::host::{Host, Interface};
use config::{InterfaceSettings, Xdp};
use rules::net::Ifindex;
use sys::{capture_sign, netdev};

use super::driver;
use super::offload::is_active;

/// Drivers on which `auto` uses XDP because tests proved it: none yet.
const PROVEN: [&str; 0] = [];
/// The feature that takes received VLAN tags out of frames.
const STRIPS_TAGS: &str = "rx-vlan-hw-parse";
/// Protocols of packet sockets that see what rules take (linux/if_ether.h): all, IPv4, IPv6.
const LISTENS: [&str; 3] = ["0003", "0800", "86DD"];

/// Packet sockets, which see nothing of what XDP takes or hands over.
struct Listeners {
    /// Interfaces on which `mcr` captures.
    captured: BTreeSet<u32>,
    /// The kernel's list of packet sockets.
    sockets: String,
}

/// Judges all interfaces: `default` applies to those that the settings do not name.
#[must_use]
pub fn judge(default: Xdp, settings: &BTreeMap<String, InterfaceSettings>, host: &Host) -> Hooks {
    let choice = |link: &Interface| {
        let named = settings.get(&link.name).and_then(|named| named.xdp);
        named.unwrap_or(default)
    };
    let links = host.interfaces.values();
    let mut inputs: BTreeMap<Ifindex, Result<(), AtTc>> = links
        .filter(|link| choice(link) != Xdp::Off)
        .map(|link| (link.index, input(link, choice(link), host)))
        .collect();
    // Most hosts request nothing, and this runs every second.
    if !inputs.values().any(Result::is_ok) {
        return Hooks {
            inputs,
            ..Hooks::default()
        };
    }
    let listeners = Listeners::read();
    for (index, verdict) in &mut inputs {
        if let (Ok(()), Some(link)) = (&verdict, host.interfaces.get(index)) {
            *verdict = listeners.allow(link, choice(link)).map_err(AtTc::from);
        }
    }
    let features = netdev::xdp_features();
    let mut ends = BTreeSet::new();
    let output = |link: &Interface| {
        let name = &link.name;
        let verdict = match &features {
            Err(error) => Err(format!(
                "the kernel does not say which devices take what XDP hands over ({error}; Linux 6.3)"
            )),
            Ok(by_link) => match by_link.get(&link.index.0) {
                _ if link.mac.is_none() => Err(format!(
                    "{name} takes packets without an Ethernet header, and XDP hands over none such"
                )),
                Some(features) if features & netdev::TAKES_FRAMES != 0 => {
                    listeners.allow_leaving(link)
                }
                Some(features) if features & netdev::RUNS_PROGRAMS != 0 && !is_veth(name) => {
                    if choice(link) == Xdp::On {
                        ends.insert(link.index);
                    }
                    Err(format!(
                        "{name} takes nothing that XDP hands over before it has a program itself; xdp = \"on\" \
                         in [interface.{name}] gives it one"
                    ))
                }
                _ => Err(format!(
                    "{name} takes nothing that XDP hands over: its driver cannot, or has too few queues \
                     (`ethtool -L {name} combined N`); of a veth the far end has GRO off"
                )),
            },
        };
        (link.index, verdict)
    };
    Hooks {
        outputs: host.interfaces.values().map(output).collect(),
        inputs,
        ends,
    }
}

/// Why packets of an interface are left to tc.
fn input(link: &Interface, choice: Xdp, host: &Host) -> Result<(), AtTc> {
    let name = &link.name;
    if choice == Xdp::Auto && !is_proven(name) {
        return Err(AtTc::unasked(format!(
            "xdp = \"auto\" takes drivers that tests proved, and that of {name} is none; xdp = \"on\" in \
             [interface.{name}] tries it"
        )));
    }
    if link.mac.is_none() {
        return Err(format!(
            "{name} brings packets without an Ethernet header, and XDP reads none such"
        )
        .into());
    }
    if let Some(other) = link.shared_with.first() {
        return Err(format!("{other} gets packets of {name} too").into());
    }
    let users = host.other_users.get(&link.index);
    if let Some(qdisc) = users
        .into_iter()
        .flatten()
        .find(|user| user.contains("qdisc"))
    {
        return Err(format!("{qdisc} of {name} has to see its packets first").into());
    }
    let tcx = bpf::attached::are_instances(Path::new(BPFFS), link.index.0);
    if tcx.is_ok_and(|own| own.first() == Some(&false)) {
        return Err(format!("another tcx program has to see packets of {name} first").into());
    }
    match driver(name).as_deref() {
        Some("tun") => {
            return Err(format!(
                "{name} is a tap device, which runs XDP in its driver for some of what is written to it alone"
            )
            .into());
        }
        Some("bonding") => {
            return Err(format!("{name} is a bond, and XDP takes packets by its members").into());
        }
        _ => {}
    }
    if is_active(name, STRIPS_TAGS) {
        return Err(format!(
            "{name} takes VLAN tags out of frames, and tagged packets would look untagged; \
             `ethtool -K {name} rxvlan off`"
        )
        .into());
    }
    Ok(())
}

fn is_proven(name: &str) -> bool {
    !PROVEN.is_empty() && driver(name).is_some_and(|driver| PROVEN.contains(&driver.as_str()))
}

/// Whether a device is a veth, for which its peer decides what it accepts.
fn is_veth(name: &str) -> bool {
    driver(name).is_some_and(|driver| driver == "veth")
}

impl Listeners {
    fn read() -> Self {
        Self {
            captured: capture_sign::captured(),
            sockets: fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default(),
        }
    }

    fn allow(&self, link: &Interface, choice: Xdp) -> Result<(), String> {
        let name = &link.name;
        if self.captured.contains(&link.index.0) {
            return Err(format!(
                "mcr captures on {name}, and would see nothing of what XDP takes"
            ));
        }
        if choice == Xdp::Auto && self.is_listened_to(link.index) {
            return Err(format!(
                "a packet socket listens on {name}, and would see nothing of what XDP takes; xdp = \"on\" in \
                 [interface.{name}] takes them all the same"
            ));
        }
        Ok(())
    }

    fn allow_leaving(&self, link: &Interface) -> Result<(), String> {
        if self.captured.contains(&link.index.0) {
            Err(format!(
                "mcr captures on {}, and would see nothing of what XDP hands over",
                link.name
            ))
        } else {
            Ok(())
        }
    }

    /// Whether a packet socket receives packets of an interface.
    fn is_listened_to(&self, index: Ifindex) -> bool {
        // sk RefCnt Type Proto Iface R Rmem User Inode
        self.sockets.lines().skip(1).any(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let at = |column: usize| columns.get(column).copied().unwrap_or_default();
            let is_here = at(4) == "0" || at(4) == index.0.to_string();
            LISTENS.contains(&at(3)) && is_here && at(5) == "1"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_leaves_to_tc_what_a_packet_socket_listens_to() {
        let line = |protocol, interface, runs| {
            format!(
                "0000000012345678 3      3    {protocol}   {interface}     {runs} 0      0      4711\n"
            )
        };
        let sees = |line: String| {
            let listeners = Listeners {
                captured: BTreeSet::new(),
                sockets: format!("sk RefCnt Type Proto  Iface R Rmem   User   Inode\n{line}"),
            };
            listeners.is_listened_to(Ifindex(7))
        };
        for protocol in LISTENS {
            assert!(sees(line(protocol, 7, 1)) && sees(line(protocol, 0, 1)));
            assert!(!sees(line(protocol, 8, 1)) && !sees(line(protocol, 7, 0)));
        }
        // ARP, and one that receives nothing.
        assert!(!sees(line("0806", 7, 1)) && !sees(line("0000", 7, 1)));
    }
}
