//! Reads and follows the host through rtnetlink: links, addresses, routes and neighbours of its own network
//! namespace; and changes it: offloads, queues, tunnel interfaces. The doctor, `mcr tap` and `mcr discover`
//! read through here too, so they judge by what the daemon sees.
//!
//! A notification only signals a change; the state is read again, so a lost or reordered notification cannot
//! leave a wrong state.

/// The value taken from the first of a message's attributes that matches a pattern.
macro_rules! first {
    ($attributes:expr, $form:pat => $taken:expr) => {
        $attributes.iter().find_map(|attribute| match attribute {
            $form => Some($taken),
            _ => None,
        })
    };
}

mod addresses;
pub mod backlog;
pub mod bridge;
mod bridge_vlans;
mod co_users;
mod device_drops;
pub mod duplicates;
mod gro_list;
mod ipsec;
mod links;
mod multicast_route;
mod names;
mod next_hop;
pub mod offload;
mod raw;
mod reach;
mod route;
mod route_kinds;
mod routing_policy;
mod sockets;
#[cfg(test)]
mod tests;
pub mod tick;
pub mod tunnels;
pub mod xdp;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use compile::host::{Host, Interface, NextHopQuery};
use futures::StreamExt;
use futures::channel::mpsc::UnboundedReceiver;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::SocketAddr;
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::{Handle, MulticastGroup};
use rules::net::Ifindex;
use sys::abort_on_panic::AbortOnPanic;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

pub use addresses::look_up_all;
pub use co_users::ingress_qdiscs;
pub use device_drops::{EgressCounters, read_egress};
pub use ipsec::Ipsec;
pub use links::{Link, read_links};
pub use multicast_route::read as read_multicast_routes;
pub use names::look_up;
pub use route::{NoRoute, Via, query_route};
pub use route_kinds::RouteKinds;
pub use routing_policy::RoutingPolicy;
pub use sockets::{LateCapture, UdpSocket, late_captures, name_owners, udp_sockets};

use next_hop::NextHops;

/// How long notifications are collected before the host is read again.
const SETTLE: Duration = Duration::from_millis(5);

/// How often neighbours are probed that the kernel does not know to be reachable.
const PROBE: Duration = tick::SECOND;

const GROUPS: [MulticastGroup; 9] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
    MulticastGroup::Neigh,
    MulticastGroup::Tc,
];

/// RTNLGRP_NEXTHOP, _IPV4_NETCONF and _IPV6_NETCONF of linux/rtnetlink.h.
const NEXTHOP_GROUPS: u32 = 1 << 31 | 1 << 23 | 1 << 24;

/// Why the host cannot be read or followed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No netlink socket.
    #[error("cannot open a netlink socket: {0}")]
    Open(#[from] io::Error),
    /// The kernel refused a list.
    #[error("netlink: cannot list {what}: {source}")]
    Dump {
        /// What was requested.
        what: &'static str,
        /// The answer.
        source: rtnetlink::Error,
    },
    /// The task that follows the host has ended.
    #[error("nobody follows the host any more")]
    Gone,
}

/// The host as it was read, and which links were replaced.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Number of the reading. A report is queued, so it may arrive after the answer to a request that was
    /// read later.
    pub reading: u64,
    /// The host.
    pub host: Host,
    /// Links that were deleted since the last report; their index may be in use again.
    pub renewed: BTreeSet<Ifindex>,
    /// Links that were down in an earlier reading that was merged into this one.
    pub were_down: BTreeSet<Ifindex>,
}

impl Snapshot {
    /// Merges another reading: the later one provides the host, both provide what happened in between.
    pub fn take_up(&mut self, mut other: Self) {
        if other.reading > self.reading {
            std::mem::swap(self, &mut other);
        }
        let links = other.host.interfaces.values();
        let down = links.filter(|link| !link.up).map(|link| link.index);
        self.were_down.extend(down);
        self.were_down.append(&mut other.were_down);
        self.renewed.append(&mut other.renewed);
    }

    /// Links that are up and were down, in `before` or since: the listeners behind them may have forgotten
    /// our groups.
    pub fn came_back(&self, before: &Host) -> Vec<Ifindex> {
        let was_down = |link: &Ifindex| {
            let link_before = before.interfaces.get(link);
            self.were_down.contains(link) || link_before.is_some_and(|link| !link.up)
        };
        let up = self.host.interfaces.values().filter(|link| link.up);
        up.map(|link| link.index).filter(was_down).collect()
    }
}

/// A handle to the follower.
#[derive(Clone, Debug)]
pub struct Watch {
    requests: mpsc::Sender<Request>,
    notices: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Request {
    queries: Vec<NextHopQuery>,
    reply: oneshot::Sender<Result<Snapshot, Error>>,
}

impl Watch {
    /// Grows with every notification of the host's network, whether it changes anything or not.
    pub fn notices(&self) -> u64 {
        self.notices.load(Ordering::Relaxed)
    }

    /// Reads the host now, with the next hops of `queries`, which are followed from now on.
    ///
    /// # Errors
    /// The kernel's answers, or that the follower has ended.
    pub async fn read(&self, queries: Vec<NextHopQuery>) -> Result<Snapshot, Error> {
        let (reply, answer) = oneshot::channel();
        let request = Request { queries, reply };
        self.requests.send(request).await.map_err(|_| Error::Gone)?;
        answer.await.map_err(|_| Error::Gone)?
    }
}

/// The name of an interface's driver.
fn driver(interface: &str) -> Option<String> {
    sys::ethtool::device(interface).ok()?.driver
}

/// Opens a netlink socket, served by the caller's runtime.
///
/// # Errors
/// The socket's.
pub fn connect() -> Result<Handle, Error> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    Ok(handle)
}

/// Begins to follow the network namespace of the calling thread; every change is sent to the receiver. A
/// panic of the follower ends the process: one that continues with stale state only seems alive.
///
/// # Errors
/// The sockets'.
pub fn follow() -> Result<(Watch, mpsc::Receiver<Snapshot>), Error> {
    // Requests use a separate socket, so that an overrun of notifications does not affect them.
    let handle = connect()?;
    let (connection, _, notifications) = rtnetlink::new_multicast_connection(&GROUPS)?;
    let (requests, incoming) = mpsc::channel(16);
    let (changes, receiver) = mpsc::channel(16);
    let notices = Arc::new(AtomicU64::new(0));
    let follower = Follower {
        next_hops: NextHops::new(handle.clone()),
        ipsec: Ipsec::follow(),
        nexthops: raw::follow(NETLINK_ROUTE, NEXTHOP_GROUPS)?,
        handle,
        changes,
        notices: Arc::clone(&notices),
        readings: 0,
        host: Host::default(),
        renewed: BTreeSet::new(),
        due: None,
    };
    tokio::spawn(async {
        let _guard = AbortOnPanic;
        tokio::join!(connection, follower.run(notifications, incoming));
    });
    Ok((Watch { requests, notices }, receiver))
}

struct Follower {
    handle: Handle,
    next_hops: NextHops,
    ipsec: Ipsec,
    /// Notifications of nexthop objects, which the other socket's decoder does not support.
    nexthops: raw::Changes,
    changes: mpsc::Sender<Snapshot>,
    notices: Arc<AtomicU64>,
    readings: u64,
    host: Host,
    renewed: BTreeSet<Ifindex>,
    due: Option<Instant>,
}

type Notification = (NetlinkMessage<RouteNetlinkMessage>, SocketAddr);

impl Follower {
    async fn run(
        mut self,
        mut notifications: UnboundedReceiver<Notification>,
        mut requests: mpsc::Receiver<Request>,
    ) {
        let mut probe = tick::next(PROBE);
        loop {
            let due = self.due;
            tokio::select! {
                notification = notifications.next() => match notification {
                    Some((message, _)) => self.note(&message.payload),
                    None => return,
                },
                request = requests.recv() => match request {
                    Some(Request { queries, reply }) => {
                        self.next_hops.follow(queries);
                        if self.next_hops.names.wait_for_new().await {
                            self.next_hops.forget_routes();
                        }
                        self.next_hops.wait_for_addresses().await;
                        // The requester may be gone; then only the answer is lost.
                        let _ = reply.send(self.read().await);
                    }
                    None => return,
                },
                () = self.ipsec.changed() => self.wake(),
                // The removal of a nexthop object removes its routes without notifications for them.
                Some(_) = self.nexthops.next() => {
                    self.next_hops.forget_kinds();
                    self.next_hops.forget_routes();
                    self.wake();
                }
                () = self.next_hops.names.next_change() => {
                    self.next_hops.forget_routes();
                    self.wake();
                }
                () = self.next_hops.all.next_change() => self.wake(),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.report().await;
                }
                () = sleep_until(probe) => {
                    probe = tick::next(PROBE);
                    ipsec::ask_for_associations(&self.host);
                    if self.next_hops.probe().await
                        || gro_list::differs(&self.host)
                        || multicast_route::differs(&self.host)
                    {
                        self.wake();
                    }
                }
            }
        }
    }

    /// Decides whether a notification is a reason to read the host again.
    fn note(&mut self, payload: &NetlinkPayload<RouteNetlinkMessage>) {
        use RouteNetlinkMessage as Message;
        match payload {
            NetlinkPayload::InnerMessage(message) => match message {
                Message::NewNeighbour(entry) | Message::DelNeighbour(entry)
                    if reach::floods(entry) => {}
                Message::NewNeighbour(entry) | Message::DelNeighbour(entry)
                    if !self.next_hops.concerns(entry) =>
                {
                    return;
                }
                Message::NewNeighbour(entry) | Message::DelNeighbour(entry) => {
                    self.next_hops.forget_neighbours();
                    if self.next_hops.may_reroute(entry) {
                        self.next_hops.forget_routes();
                    }
                }
                // A bridge port that leaves its bridge is reported deleted under AF_BRIDGE.
                Message::DelLink(link) if link.header.interface_family == AddressFamily::Unspec => {
                    self.renewed.insert(Ifindex(link.header.index));
                    self.next_hops.forget_routes();
                }
                // Other users of an ingress; routes do not depend on them, nor on classes and filters.
                Message::NewQueueDiscipline(_) | Message::DelQueueDiscipline(_) => {}
                Message::NewTrafficClass(_)
                | Message::DelTrafficClass(_)
                | Message::NewTrafficFilter(_)
                | Message::DelTrafficFilter(_)
                | Message::NewTrafficChain(_)
                | Message::DelTrafficChain(_) => return,
                Message::NewRoute(route) | Message::DelRoute(route) => {
                    if RouteKinds::concern(route) {
                        self.next_hops.forget_kinds();
                    }
                    self.next_hops.forget_routes();
                }
                _ => self.next_hops.forget_routes(),
            },
            // Notifications were lost: no cached state can be trusted.
            _ => {
                self.next_hops.forget_kinds();
                self.next_hops.forget_routes();
                self.next_hops.forget_neighbours();
            }
        }
        self.wake();
    }

    fn wake(&mut self) {
        self.notices.fetch_add(1, Ordering::Relaxed);
        self.due.get_or_insert_with(|| Instant::now() + SETTLE);
    }

    async fn report(&mut self) {
        let before = self.host.clone();
        match self.read().await {
            Ok(now) if now.host == before && now.renewed.is_empty() => {}
            // The supervisor ends only with the whole process.
            Ok(now) => drop(self.changes.send(now).await),
            Err(error) => {
                tracing::warn!(%error, "cannot read the host's network; trying again");
                self.due = Some(Instant::now() + PROBE);
            }
        }
    }

    async fn read(&mut self) -> Result<Snapshot, Error> {
        self.due = None;
        let links = read_links(&self.handle).await?;
        let other_users = co_users::read(&self.handle, &links).await;
        let interfaces: BTreeMap<Ifindex, Interface> = links
            .into_iter()
            .map(|link| (link.interface.index, link.interface))
            .collect();
        let multicast_routing = multicast_route::read(interfaces.values());
        let next_hops = self.next_hops.resolve(&interfaces).await?;
        self.host = Host {
            interfaces,
            next_hops,
            names: self.next_hops.names.resolved(),
            all: self.next_hops.all.resolved(),
            multicast_routing,
            policies: self.ipsec.policies().await,
            // The supervisor fills this in.
            tunnels: BTreeMap::new(),
            other_users,
        };
        self.readings += 1;
        Ok(Snapshot {
            reading: self.readings,
            host: self.host.clone(),
            renewed: std::mem::take(&mut self.renewed),
            were_down: BTreeSet::new(),
        })
    }
}
