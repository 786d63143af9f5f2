//! What all workers get beside their routes: their number and command, the interfaces they listen on
//! and send by, and what all routes share.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::IpAddr;
use std::task::Waker;

use compile::table::{Egress, OutputState, OwnAddresses, RateLimit, RouteKey};
use rules::net::{Ports, Prefix};
use sys::user::User;

use crate::userspace::shared::messages::{CountedRoute, Means, Way};

/// How the userspace path is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of workers, 0 for one per usable core.
    pub workers: usize,
    /// Program and arguments that run [`crate::userspace::worker::main`].
    pub worker_command: Vec<OsString>,
    /// The user that workers run as; `None` for this process's user.
    pub worker_user: Option<User>,
    /// Woken when a worker has ended.
    pub attention: Waker,
    /// The optional kernel features that workers may use.
    pub means: Means,
}

/// What all routes have in common.
#[derive(Clone, Debug, Default)]
pub(super) struct Common {
    pub own_addresses: OwnAddresses,
    pub budget: Option<RateLimit>,
    /// Keys of the kernel path that take packets of the workers' groups too.
    pub elsewhere: Vec<RouteKey>,
}

/// The interfaces the path listens on, with the groups and addresses wanted there, and the ways it
/// sends by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interfaces {
    pub ingress: BTreeMap<u32, BTreeSet<Prefix>>,
    /// The ports of prefixes that are addresses of this host, not groups.
    pub ports: BTreeMap<(u32, Prefix), BTreeSet<Ports>>,
    pub egress: BTreeSet<Way>,
}

impl Interfaces {
    pub(super) fn of<'a>(routes: impl Iterator<Item = (&'a RouteKey, &'a CountedRoute)>) -> Self {
        let mut interfaces = Self::default();
        for (key, CountedRoute { route, .. }) in routes {
            let groups = interfaces.ingress.entry(key.ingress.0).or_default();
            groups.insert(key.groups);
            if !key.groups.address.is_multicast() {
                let address = (key.ingress.0, key.groups);
                interfaces
                    .ports
                    .entry(address)
                    .or_default()
                    .insert(key.ports);
            }
            for output in &route.outputs {
                if let OutputState::Up(egress) = &output.state {
                    interfaces.egress.insert(Way::of(egress));
                    interfaces.take_answers(egress);
                }
            }
        }
        interfaces
    }

    /// Listens to possible answers to an output's copies: on any port, because they go to the requesters'.
    fn take_answers(&mut self, egress: &Egress) {
        let (true, Some(own)) = (egress.answers, egress.source) else {
            return;
        };
        if egress.answers_by_socket {
            self.egress.insert(Way::Routed);
        }
        let (interface, host) = (egress.interface.0, Prefix::host(own));
        self.ingress.entry(interface).or_default().insert(host);
        let ports = self.ports.entry((interface, host));
        ports.or_default().insert(Ports::ALL);
    }

    /// The groups and addresses to listen to on an interface.
    pub(super) fn listening(&self, interface: u32) -> Listening {
        let mut listening = Listening::default();
        for prefix in self.ingress.get(&interface).into_iter().flatten() {
            match self.ports.get(&(interface, *prefix)) {
                Some(ports) => listening.addresses.push((prefix.address, ports.clone())),
                None => listening.groups.push(*prefix),
            }
        }
        listening
    }
}

/// What to listen to on one interface: groups, and ports of addresses of this host.
#[derive(Clone, Debug, Default)]
pub(super) struct Listening {
    pub groups: Vec<Prefix>,
    pub addresses: Vec<(IpAddr, BTreeSet<Ports>)>,
}
