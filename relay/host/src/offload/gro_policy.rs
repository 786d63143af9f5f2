//! Whether GRO may merge packets on an interface that the configuration does not name: only if nobody but
//! MCR uses what it receives, and no packet waits for it.
//!
//! Routing, bridging, filtering and captures see super-packets, and may not expect them. The kernel does not
//! merge packets that a UDP socket of this host waits for: GRO looks the socket up (`udp_gro_receive`).

use std::fs;
use std::path::Path;

use bpf::pin::BPFFS;
use compile::host::{Host, Interface};
use rules::net::Mac;

/// Generic receive offload, without which nothing is merged.
const GRO: &str = "rx-gro";

/// The driver of a pair of devices without a wire. Its packets pass at the sender's pace, and through a
/// separate ring and poll only while the receiving end merges (`veth_skb_is_eligible_for_gro`): at 9,000 pps
/// that raised a median of 5 us to 49 us and more.
const VETH: &str = "veth";

/// Why an interface is left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It would merge nothing, so there is nothing to report.
    Nothing,
    /// Another reason, as text.
    Other(String),
}

/// What speaks against merging; `None` if nothing does.
pub(super) fn obstacle(link: &Interface, host: &Host) -> Option<Why> {
    let name = &link.name;
    if !super::is_active(name, GRO) {
        return Some(Why::Nothing);
    }
    let device = sys::ethtool::device(name).unwrap_or_default();
    if device.driver.is_some_and(|driver| driver == VETH) {
        let detour = "it is a veth, where packets that may be merged take a longer way";
        return Some(Why::Other(detour.to_owned()));
    }
    // Bridges, bonds, VLANs, macvlans and tunnels: the device below merges, or it was not measured.
    if device.bus.is_none() {
        return Some(Why::Nothing);
    }
    shared(link, host)
        .or_else(|| forwards(name))
        .or_else(|| other_programs(link.index.0))
        .or_else(|| held_back(name, link))
        .map(Why::Other)
}

/// Other users according to the last reading of the host.
fn shared(link: &Interface, host: &Host) -> Option<String> {
    let others = host.other_users.get(&link.index).into_iter().flatten();
    let mut users = link.shared_with.iter().chain(others).peekable();
    if users.peek().is_some() {
        let names: Vec<&str> = users.map(String::as_str).collect();
        return Some(format!("{} sees its packets, too", names.join(", ")));
    }
    let mut routes = host.multicast_routing.routes.iter();
    let is_routed = routes.any(|(from, _)| *from == link.index);
    is_routed.then(|| "the kernel's multicast routing forwards from it, too".to_owned())
}

/// Whether the kernel routes packets from there. A setting that cannot be read counts as on, except for
/// IPv6, which a host need not have.
fn forwards(name: &str) -> Option<String> {
    let read = |family| {
        let file = format!("/proc/sys/net/{family}/conf/{name}/forwarding");
        fs::read_to_string(file)
    };
    let family = if !read("ipv4").is_ok_and(|text| text.trim() == "0") {
        "ipv4"
    } else if read("ipv6").is_ok_and(|text| text.trim() != "0") {
        "ipv6"
    } else {
        return None;
    };
    Some(format!(
        "it routes for others, too (net.{family}.conf.{name}.forwarding)"
    ))
}

/// Whether its tcx ingress has programs other than that of one instance: a second one is another daemon's. A
/// kernel without tcx has none.
fn other_programs(ifindex: u32) -> Option<String> {
    let own = bpf::attached::are_instances(Path::new(BPFFS), ifindex).unwrap_or_default();
    let has_others = own.len() > usize::from(own.contains(&true));
    has_others.then(|| "another tcx program is there, too".to_owned())
}

/// Whether the device is set to hold packets back until a timer: a packet to merge would wait for it, while
/// without merging none does. Only sysfs shows it.
fn held_back(name: &str, link: &Interface) -> Option<String> {
    match flush_timeout(Path::new(sys::sysfs::INTERFACES), name, link.index.0, link.mac) {
        Some(0) => None,
        Some(nanoseconds) => Some(format!(
            "its gro_flush_timeout is {nanoseconds} ns: so long a packet would wait"
        )),
        None => Some(
            "/sys does not show this network namespace, so that nobody knows whether packets would \
             wait"
            .to_owned(),
        ),
    }
}

/// The timeout in nanoseconds; `None` if this sysfs belongs to another network namespace.
fn flush_timeout(sysfs: &Path, name: &str, index: u32, mac: Option<Mac>) -> Option<u64> {
    let directory = sys::sysfs::interface(sysfs, name, index, mac.map(|mac| mac.0))?;
    let text = fs::read_to_string(directory.join("gro_flush_timeout")).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sysfs_of_another_namespace_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("eth0");
        fs::create_dir(&device).unwrap();
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        for (file, text) in [
            ("ifindex", "7\n"),
            ("address", "02:00:00:00:00:01\n"),
            ("gro_flush_timeout", "50000\n"),
        ] {
            fs::write(device.join(file), text).unwrap();
        }
        let read = |name, index, mac| flush_timeout(directory.path(), name, index, mac);
        assert_eq!(read("eth0", 7, Some(mac)), Some(50_000));
        assert_eq!(read("eth0", 7, None), Some(50_000));
        assert_eq!(read("eth0", 8, Some(mac)), None);
        assert_eq!(read("eth0", 7, Some(Mac([2, 0, 0, 0, 0, 9]))), None);
        assert_eq!(read("eth1", 7, Some(mac)), None);
    }
}
