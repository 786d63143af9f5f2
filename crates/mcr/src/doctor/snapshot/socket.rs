//! UDP sockets of this network namespace, and which process has each.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A bound UDP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UdpSocket {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    /// `name (pid)` of a process that has it, as far as this process may see.
    pub(crate) owner: Option<String>,
}

/// Lists them; what cannot be read is left out.
pub(super) fn list() -> Vec<UdpSocket> {
    let mut sockets = Vec::new();
    for table in ["udp", "udp6"] {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}"));
        let text = text.unwrap_or_default();
        sockets.extend(text.lines().skip(1).filter_map(parse));
    }
    if sockets.is_empty() {
        return Vec::new();
    }
    let owners = owners();
    let named = sockets.into_iter().map(|(address, port, inode)| UdpSocket {
        address,
        port,
        owner: owners.get(&inode).cloned(),
    });
    named.collect()
}

/// A line of `/proc/net/udp`: address and port are hexadecimal, the address in host order of each
/// 32-bit word.
fn parse(line: &str) -> Option<(IpAddr, u16, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (address, port) = words.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let inode = words.get(9)?.parse().ok()?;
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        _ => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let mut octets = [0; 16];
            octets.copy_from_slice(words.as_flattened());
            IpAddr::V6(Ipv6Addr::from(octets))
        }
    };
    Some((address, port, inode))
}

/// Which process has which socket, by inode.
fn owners() -> BTreeMap<u64, String> {
    let mut owners = BTreeMap::new();
    let Ok(processes) = fs::read_dir("/proc") else {
        return owners;
    };
    for process in processes.flatten() {
        let pid = process.file_name();
        let Some(pid) = pid.to_str().filter(|pid| pid.parse::<u32>().is_ok()) else {
            continue;
        };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        for file in files.flatten() {
            let Ok(target) = fs::read_link(file.path()) else {
                continue;
            };
            let inode = target.to_str().and_then(|target| {
                let inode = target.strip_prefix("socket:[")?.strip_suffix(']')?;
                inode.parse().ok()
            });
            if let Some(inode) = inode {
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                owners.insert(inode, format!("{} (pid {pid})", name.trim()));
            }
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_lines() {
        let line = "  812: 0101EFEF:1389 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 31337 2 0000000000000000 0";
        let (address, port, inode) = parse(line).unwrap();
        assert_eq!(
            address,
            IpAddr::V4(Ipv4Addr::from(0x0101_EFEF_u32.to_ne_bytes()))
        );
        assert_eq!((port, inode), (5001, 31337));
        let line = "  1: 00000000000000000000000000000000:1770 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 7 2 0 0";
        assert_eq!(parse(line).unwrap().0, IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        assert_eq!(parse("nonsense"), None);
    }
}
