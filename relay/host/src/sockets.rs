//! UDP sockets, and some packet sockets, of this network namespace, and the process that owns each. The
//! daemon may not see the processes of other users; its client may.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use procfs::net::UdpNetEntries;
use procfs::process::{FDTarget, Process, all_processes};
use procfs::{FromReadSI, current_system_info};

/// A bound UDP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpSocket {
    /// The address that it is bound to, unspecified for all.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// `name (pid 7)` of a process that owns it, if this process may see that.
    pub owner: Option<String>,
    inode: u64,
}

/// Lists UDP sockets, except those with which daemons suppress ICMP errors for ports of their rules; what
/// cannot be read is omitted.
#[must_use]
pub fn udp_sockets() -> Vec<UdpSocket> {
    let tables = ["udp", "udp6"].map(|table| {
        // The calling thread's namespace: net::udp() reads the main thread's.
        let file = format!("/proc/thread-self/net/{table}");
        UdpNetEntries::from_file(file, current_system_info())
    });
    let sockets = tables.into_iter().flatten().flat_map(|table| table.0);
    of_others(sockets.map(|socket| (socket.inode, socket)).collect())
        .map(|(owner, inode, socket)| UdpSocket {
            address: socket.local_address.ip(),
            port: socket.local_address.port(),
            owner,
            inode,
        })
        .collect()
}

/// A packet socket for a single protocol: it gets packets after the kernel's ingress hooks, unlike those for
/// all protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateCapture {
    /// Whether it takes IPv4; otherwise IPv6.
    pub ipv4: bool,
    /// The interface; `None` for all.
    pub interface: Option<u32>,
    /// Its owner.
    pub owner: String,
}

/// Lists those that do not belong to daemons.
#[must_use]
pub fn late_captures() -> Vec<LateCapture> {
    let table = fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default();
    let sockets = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, protocol, interface, .., inode] = words[..] else {
            return None;
        };
        let ipv4 = ["0800", "86dd"].iter().position(|one| *one == protocol)? == 0;
        let interface: u32 = interface.parse().ok()?;
        Some((inode.parse().ok()?, (ipv4, interface)))
    });
    of_others(sockets.collect())
        .map(|(owner, inode, (ipv4, interface))| LateCapture {
            ipv4,
            interface: (interface > 0).then_some(interface),
            owner: owner.unwrap_or_else(|| format!("{UNKNOWN}{inode})")),
        })
        .collect()
}

/// The sockets that do not belong to a daemon, each with its owner's name, if visible, and its inode.
fn of_others<T>(sockets: Vec<(u64, T)>) -> impl Iterator<Item = (Option<String>, u64, T)> {
    let owners = if sockets.is_empty() {
        BTreeMap::new()
    } else {
        owners()
    };
    sockets.into_iter().filter_map(move |(inode, socket)| {
        let owner = owners.get(&inode);
        let is_daemon = owner.is_some_and(|owner| owner.is_daemon);
        (!is_daemon).then(|| (owner.map(|owner| owner.name.clone()), inode, socket))
    })
}

impl UdpSocket {
    /// Describes it: `socat (pid 7), socket 0.0.0.0:7000`. If its owner is not visible, the text has its
    /// inode, which [`name_owners`] replaces.
    #[must_use]
    pub fn describe(&self) -> String {
        let at = SocketAddr::new(self.address, self.port);
        match &self.owner {
            Some(owner) => format!("{owner}, socket {at}"),
            None => format!("{UNKNOWN}{}), socket {at}", self.inode),
        }
    }
}

const UNKNOWN: &str = "another process (inode ";

/// Replaces inodes in a message by the names of the processes that its writer could not see, if this process
/// can.
#[must_use]
pub fn name_owners(message: &str) -> String {
    let mut parts = message.split(UNKNOWN);
    let mut named = parts.next().unwrap_or_default().to_owned();
    let mut owners = None;
    for part in parts {
        let (inode, rest) = part.split_once(')').unwrap_or((part, ""));
        let owners = owners.get_or_insert_with(self::owners);
        let owner = inode.parse().ok().and_then(|inode: u64| owners.get(&inode));
        match owner {
            Some(owner) => named += &owner.name,
            None => named += &format!("{UNKNOWN}{inode})"),
        }
        named += rest;
    }
    named
}

/// A process that owns a socket.
struct Owner {
    name: String,
    is_daemon: bool,
}

/// The owner of each socket, by inode; of several the first, whose children inherited it.
fn owners() -> BTreeMap<u64, Owner> {
    let mut owners = BTreeMap::new();
    for process in all_processes().into_iter().flatten().flatten() {
        let inode = |target| match target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        };
        let files = process.fd().into_iter().flatten().flatten();
        let sockets: Vec<u64> = files.filter_map(|file| inode(file.target)).collect();
        if sockets.is_empty() {
            continue;
        }
        let name = process.stat().map(|stat| stat.comm).unwrap_or_default();
        let is_daemon = name == "mcr" && is_run(&process);
        for inode in sockets {
            let owner = || Owner {
                name: format!("{name} (pid {})", process.pid()),
                is_daemon,
            };
            owners.entry(inode).or_insert_with(owner);
        }
    }
    owners
}

fn is_run(process: &Process) -> bool {
    let words = process.cmdline().unwrap_or_default();
    words.iter().skip(1).any(|word| word == "run")
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_socket_is_described_by_the_process_that_owns_it() {
        let bound = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = bound.local_addr().unwrap().port();
        let sockets = udp_sockets();
        let listed = sockets.iter().find(|socket| socket.port == port).unwrap();
        let pid = format!("(pid {})", std::process::id());
        assert!(listed.describe().contains(&pid), "{}", listed.describe());
        let unseen = super::UdpSocket {
            owner: None,
            ..listed.clone()
        };
        let message = format!("port {port} is that of {}: stop it", unseen.describe());
        let named = name_owners(&message);
        assert!(
            named.contains(&pid) && named.ends_with(": stop it"),
            "{named}"
        );
        let unknown = format!("{UNKNOWN}1), socket 0.0.0.0:1");
        assert_eq!(name_owners(&unknown), unknown);
    }
}
