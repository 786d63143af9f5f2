//! UDP sockets of this network namespace, and which process has each.

use std::collections::BTreeMap;
use std::net::IpAddr;

use procfs::net::UdpNetEntries;
use procfs::process::{FDTarget, all_processes};
use procfs::{FromReadSI, current_system_info};

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
    let tables = ["udp", "udp6"].map(|table| {
        // Those of the calling thread: net::udp() reads the main thread's.
        let file = format!("/proc/thread-self/net/{table}");
        UdpNetEntries::from_file(file, current_system_info())
    });
    let tables = tables.into_iter().flatten();
    let sockets: Vec<_> = tables.flat_map(|table| table.0).collect();
    if sockets.is_empty() {
        return Vec::new();
    }
    let owners = owners();
    let named = sockets.into_iter().map(|socket| UdpSocket {
        address: socket.local_address.ip(),
        port: socket.local_address.port(),
        owner: owners.get(&socket.inode).cloned(),
    });
    named.collect()
}

/// Which process has which socket, by inode; of several the first, whose children inherited it.
fn owners() -> BTreeMap<u64, String> {
    let mut owners = BTreeMap::new();
    for process in all_processes().into_iter().flatten().flatten() {
        let files = process.fd().into_iter().flatten().flatten();
        let sockets = files.filter_map(|file| match file.target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        });
        let sockets: Vec<u64> = sockets.collect();
        if sockets.is_empty() {
            continue;
        }
        let name = process.stat().map(|stat| stat.comm).unwrap_or_default();
        for inode in sockets {
            let owner = || format!("{name} (pid {})", process.pid());
            owners.entry(inode).or_insert_with(owner);
        }
    }
    owners
}
