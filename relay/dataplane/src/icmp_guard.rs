//! Sockets that keep the host's stack from answering that ports are closed.
//!
//! A tap only copies: what a worker relays of this host's own addresses goes up the stack as well, and the
//! sender of each packet to an unbound port would get an ICMP port unreachable. Where the kernel path's
//! program consumes packets after the taps, none get that far. Where it cannot, a socket that receives
//! nothing is bound to each port. A program that already has the port answers for itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use compile::table::RouteKey;
use sys::udp::null_socket;

/// The most ports that are kept quiet: each takes a socket.
const PORTS_MAX: usize = 4096;

/// Interface, address and port.
type GuardedPort = (u32, IpAddr, u16);

/// The sockets.
#[derive(Debug, Default)]
pub(crate) struct IcmpGuard {
    keys: BTreeSet<RouteKey>,
    /// `None` where another program has the port, or none could be opened.
    sockets: BTreeMap<GuardedPort, Option<OwnedFd>>,
}

impl IcmpGuard {
    /// Forgets all routes; the sockets stay until the next [`IcmpGuard::settle`].
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
    }

    /// Notes whether the ports of a route have to be kept quiet.
    pub(crate) fn set(&mut self, key: RouteKey, is_wanted: bool) {
        if is_wanted {
            self.keys.insert(key)
        } else {
            self.keys.remove(&key)
        };
    }

    /// Opens and closes sockets as the routes need it.
    pub(crate) fn settle(&mut self) {
        if self.keys.is_empty() && self.sockets.is_empty() {
            return;
        }
        let guarded_ports = self.keys.iter().flat_map(|key| {
            let ports = key.ports.first..=key.ports.last;
            ports.map(|port| (key.ingress.0, key.groups.address, port))
        });
        let wanted: BTreeSet<GuardedPort> = guarded_ports.take(PORTS_MAX).collect();
        self.sockets.retain(|guarded, _| wanted.contains(guarded));
        for guarded in wanted {
            let socket = self.sockets.entry(guarded);
            socket.or_insert_with(|| open(guarded));
        }
    }
}

fn open((interface, address, port): GuardedPort) -> Option<OwnedFd> {
    match null_socket::open(interface, address, port) {
        Ok(socket) => Some(socket),
        Err(error) => {
            if error.kind() != io::ErrorKind::AddrInUse {
                tracing::warn!(
                    "senders to {address} port {port} may be told that nobody is there, although it \
                     is relayed: {error}"
                );
            }
            None
        }
    }
}
