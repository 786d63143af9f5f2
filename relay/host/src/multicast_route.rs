//! What the kernel's multicast routing forwards (`ip mroute`, its default table), and from where it could.
//! Read again with the host, and each second, because a route that a packet creates sends no notification to
//! followers of links.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};

use compile::host::{Host, Interface, MulticastRouting};
use rules::net::Ifindex;

/// Reads the routes, and the interfaces that multicast routing takes packets from.
#[must_use]
pub fn read<'a>(interfaces: impl Iterator<Item = &'a Interface> + Clone) -> MulticastRouting {
    let mut routing = MulticastRouting::default();
    for (family, group) in [
        ("ip", group4 as fn(&str) -> Option<IpAddr>),
        ("ip6", group6),
    ] {
        // A kernel without multicast routing has no such files.
        let list = |what| {
            let path = format!("/proc/thread-self/net/{family}_mr_{what}");
            fs::read_to_string(path).unwrap_or_default()
        };
        let vifs = vifs(&list("vif"), interfaces.clone());
        if vifs.is_empty() {
            continue;
        }
        let cache = list("cache");
        let lines = cache.lines().skip(1);
        let routes = lines.filter_map(|line| entry(line, group, &vifs));
        routing.routes.extend(routes);
        let is_ipv4 = family == "ip";
        let inputs = vifs.into_values().map(|link| (is_ipv4, link));
        routing.inputs.extend(inputs);
    }
    routing
}

/// Whether the routes have changed since `host` was read.
pub(super) fn differs(host: &Host) -> bool {
    read(host.interfaces.values()) != host.multicast_routing
}

/// The interface of each number that entries refer to (`ipmr_vif_seq_show`): number, name, counters.
fn vifs<'a>(
    list: &str,
    interfaces: impl Iterator<Item = &'a Interface>,
) -> BTreeMap<String, Ifindex> {
    let names: BTreeMap<&str, Ifindex> = interfaces
        .map(|link| (link.name.as_str(), link.index))
        .collect();
    let vif = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.to_owned();
        Some((number, *names.get(words.next()?)?))
    };
    list.lines().skip(1).filter_map(vif).collect()
}

/// Parses an entry: group, origin, and the number of the input interface (`ipmr_mfc_seq_show`), -1 while the
/// route is unresolved.
fn entry(
    line: &str,
    group: fn(&str) -> Option<IpAddr>,
    vifs: &BTreeMap<String, Ifindex>,
) -> Option<(Ifindex, IpAddr)> {
    let mut words = line.split_ascii_whitespace();
    let group = group(words.next()?)?;
    Some((*vifs.get(words.nth(1)?)?, group))
}

/// Parses the kernel's hexadecimal form.
fn group4(word: &str) -> Option<IpAddr> {
    let bits = u32::from_str_radix(word, 16).ok()?;
    Some(IpAddr::from(bits.to_ne_bytes()))
}

fn group6(word: &str) -> Option<IpAddr> {
    word.parse::<Ipv6Addr>().ok().map(IpAddr::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_lists() {
        let vifs = BTreeMap::from([("0".to_owned(), Ifindex(7))]);
        let ipv4 = "010101EF 0500000A 0          20      2560        0  1:1  ";
        let ipv6 = "ff3e:0000:0000:0000:0000:0000:0000:0001 \
                    fd00:0000:0000:0000:0000:0000:0000:0005 0   20 2560 0  1:1";
        let unresolved = "010101EF 0500000A -1  0  0  0";
        let group = |text: &str| (Ifindex(7), text.parse::<IpAddr>().unwrap());
        if cfg!(target_endian = "little") {
            assert_eq!(entry(ipv4, group4, &vifs), Some(group("239.1.1.1")));
        }
        assert_eq!(entry(ipv6, group6, &vifs), Some(group("ff3e::1")));
        assert_eq!(entry(unresolved, group4, &vifs), None);
    }
}
