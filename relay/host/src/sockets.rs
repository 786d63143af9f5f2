//! UDP sockets, and some packet sockets, of this network namespace, and which process has each. The daemon may not see the
//! processes of other users; the client that asked it may.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use procfs::net::UdpNetEntries;
use procfs::process::{FDTarget, Process, all_processes};
use procfs::{FromReadSI, current_system_info};

/// A bound UDP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpSocket {
    /// What it is bound to, unspecified for every address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// `name (pid 7)` of a process that has it, as far as this process may see.
    pub owner: Option<String>,
    inode: u64,
}

/// Lists them, but for those by which daemons keep ports of their rules quiet; what cannot be read is
/// left out.
#[must_use]
pub fn udp_sockets() -> Vec<UdpSocket> {
    let tables = ["udp", "udp6"].map(|table| {
        // Those of the calling thread: net::udp() reads the main thread's.
        let file = format!("/proc/thread-self/net/{table}");
        UdpNetEntries::from_file(file, current_system_info())
    });
    let tables = tables.into_iter().flatten();
    let sockets = tables.flat_map(|table| table.0);
    of_others(sockets.map(|socket| (socket.inode, socket)).collect())
        .map(|(owner, inode, socket)| UdpSocket {
            address: socket.local_address.ip(),
            port: socket.local_address.port(),
            owner,
            inode,
        })
        .collect()
}

/// A packet socket for one protocol alone: it gets packets behind the kernel's hooks at ingress, unlike
/// those for all protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateCapture {
    /// Whether it takes IPv4, or else IPv6.
    pub ipv4: bool,
    /// The interface; `None` for all.
    pub interface: Option<u32>,
    /// Whose it is.
    pub owner: String,
}

/// Lists those of others than daemons.
#[must_use]
pub fn late_captures() -> Vec<LateCapture> {
    let table = fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default();
    let sockets = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, protocol, interface, .., inode] = words[..] else {
            return None;
        };
        let ipv4 = ["0800", "86dd"]
            .iter()
            .position(|known| *known == protocol)?
            == 0;
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

/// Those that no daemon has, each with its owner's name, as far as it may be seen, and its inode.
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
    /// Says which it is: `socat (pid 7), socket 0.0.0.0:7000`. Where its owner is not to be seen, its
    /// inode is told, which [`name_owners`] knows.
    #[must_use]
    pub fn told(&self) -> String {
        let at = SocketAddr::new(self.address, self.port);
        match &self.owner {
            Some(owner) => format!("{owner}, socket {at}"),
            None => format!("{UNKNOWN}{}), socket {at}", self.inode),
        }
    }
}

const UNKNOWN: &str = "another process (inode ";

/// Puts names of processes in the places where whoever wrote the message could not see them, as far as
/// this process can.
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

/// A process that has a socket.
struct Owner {
    name: String,
    is_daemon: bool,
}

/// Which process has which socket, by inode; of several the first, whose children inherited it.
fn owners() -> BTreeMap<u64, Owner> {
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
    fn a_socket_is_told_by_the_process_that_has_it() {
        let bound = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = bound.local_addr().unwrap().port();
        let found = udp_sockets();
        let found = found.iter().find(|socket| socket.port == port).unwrap();
        let pid = format!("(pid {})", std::process::id());
        assert!(found.told().contains(&pid), "{}", found.told());
        let unseen = super::UdpSocket {
            owner: None,
            ..found.clone()
        };
        let message = format!("port {port} is that of {}: stop it", unseen.told());
        let named = name_owners(&message);
        assert!(
            named.contains(&pid) && named.ends_with(": stop it"),
            "{named}"
        );
        let unknown = format!("{UNKNOWN}1), socket 0.0.0.0:1");
        assert_eq!(name_owners(&unknown), unknown);
    }
}
