//! The next hops of unicast destinations: the route to each, and the link address of its next hop.
//!
//! Routes and neighbours are cached until a notification invalidates them. Forwarding at tc does not touch
//! the neighbour table, so entries in use would age out: neighbours that are not known to be reachable are
//! probed again (NTF_USE), as the kernel does for its own packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use compile::host::{Destination, Interface, NextHop, NextHopQuery};
use futures::channel::mpsc::UnboundedReceiver;
use futures::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{Handle, MulticastGroup};
use rules::net::{Ifindex, Mac};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::addresses::AllNames;
use super::names::Names;
use super::route::{NoRoute, Via, query_route};
use super::route_kinds::RouteKinds;
use super::routing_policy::RoutingPolicy;
use super::{Error, Notification};

/// How long a change waits for new names.
const NAME_PATIENCE: Duration = Duration::from_millis(250);
/// How long the answers of probed neighbours are waited for.
const PATIENCE: Duration = Duration::from_millis(50);

pub(super) struct NextHops {
    handle: Handle,
    pub(super) names: Names,
    /// The names that are resolved to all addresses.
    pub(super) all: AllNames,
    queries: BTreeSet<NextHopQuery>,
    /// Answers of the routing table, by query.
    routes: BTreeMap<NextHopQuery, Result<Via, NoRoute>>,
    /// What routes are chosen by; `None`: not read.
    policy: Option<RoutingPolicy>,
    /// Which kinds of routes exist; `None`: not read.
    kinds: Option<RouteKinds>,
    /// The next hops' entries of the neighbour table; `None`: not read.
    neighbours: Option<BTreeMap<Via, Neighbour>>,
    /// Neighbours that did not answer the kernel, until they do.
    silent: BTreeSet<Via>,
}

#[derive(Clone, Debug)]
struct Neighbour {
    state: NeighbourState,
    mac: Option<Mac>,
}

impl NextHops {
    pub(super) fn new(handle: Handle) -> Self {
        Self {
            handle,
            names: Names::default(),
            all: AllNames::default(),
            queries: BTreeSet::new(),
            routes: BTreeMap::new(),
            policy: None,
            kinds: None,
            neighbours: None,
            silent: BTreeSet::new(),
        }
    }

    /// Sets the destinations to follow.
    pub(super) fn follow(&mut self, queries: Vec<NextHopQuery>) {
        self.queries = queries.into_iter().collect();
        let destinations = self.queries.iter().map(|query| &query.destination);
        let names = destinations.clone().filter_map(|one| match one {
            Destination::Name { name, .. } => Some(name),
            Destination::Address(_) | Destination::All { .. } => None,
        });
        self.names.follow(&names.collect());
        let all = destinations.filter(|one| matches!(one, Destination::All { .. }));
        self.all.follow(all);
    }

    /// Waits a moment for answers about new names, so that the first table is right.
    pub(super) async fn wait_for_addresses(&mut self) {
        let deadline = Instant::now() + NAME_PATIENCE;
        while self.all.has_new() {
            if timeout_at(deadline, self.all.next_change()).await.is_err() {
                return;
            }
        }
    }

    /// The queries; one for all addresses of a name is expanded to one for each address.
    fn single(&self) -> BTreeSet<NextHopQuery> {
        let each = self
            .queries
            .iter()
            .flat_map(|query| match &query.destination {
                Destination::All { .. } => query.each(self.all.used(&query.destination)).collect(),
                _ => vec![query.clone()],
            });
        each.collect()
    }

    pub(super) fn forget_routes(&mut self) {
        self.routes.clear();
        self.policy = None;
    }

    /// Forgets which kinds of routes exist.
    pub(super) fn forget_kinds(&mut self) {
        self.kinds = None;
    }

    /// A name that has no address yet has no next hop.
    fn address(&self, destination: &Destination) -> Option<IpAddr> {
        match destination {
            Destination::Address(address) => Some(*address),
            Destination::Name { name, ipv4 } => self.names.address(name, *ipv4),
            Destination::All { .. } => None,
        }
    }

    pub(super) fn forget_neighbours(&mut self) {
        self.neighbours = None;
    }

    /// Whether a neighbour table entry is that of a next hop, or of one whose route is being read again: a
    /// link that flaps loses its routes first and its neighbours afterwards.
    pub(super) fn concerns(&self, entry: &NeighbourMessage) -> bool {
        if self.is_by_neighbour() {
            return true;
        }
        let Some(address) = destination(entry) else {
            return false;
        };
        let interface = Ifindex(entry.header.ifindex);
        let cached = self.neighbours.iter().flat_map(BTreeMap::keys);
        let mut vias = self.routes.values().flatten().chain(cached);
        vias.any(|via| via.interface == interface && via.address == address)
    }

    fn is_by_neighbour(&self) -> bool {
        self.policy
            .as_ref()
            .is_some_and(RoutingPolicy::is_by_neighbour)
    }

    /// Whether the kernel may send by another neighbour now: IPv6 skips routers that do not answer
    /// (`rt6_score_route`), IPv4 skips next hops of a route if it is configured to.
    pub(super) fn may_reroute(&self, entry: &NeighbourMessage) -> bool {
        let has_failed = entry.header.state == NeighbourState::Failed;
        has_failed && entry.header.family == AddressFamily::Inet6 || self.is_by_neighbour()
    }

    /// Answers all queries.
    pub(super) async fn resolve(
        &mut self,
        interfaces: &BTreeMap<Ifindex, Interface>,
    ) -> Result<BTreeMap<NextHopQuery, NextHop>, Error> {
        let queries = self.single();
        self.routes.retain(|query, _| queries.contains(query));
        let is_missing = |query: &&NextHopQuery| !self.routes.contains_key(query);
        let missing: Vec<NextHopQuery> = queries.iter().filter(is_missing).cloned().collect();
        if !missing.is_empty() && self.policy.is_none() {
            let kinds = match self.kinds.take() {
                Some(cached) => cached,
                None => RouteKinds::read(&self.handle).await,
            };
            self.kinds = Some(kinds.clone());
            self.policy = Some(RoutingPolicy::read(&self.handle, kinds).await);
        }
        let policy = self.policy.clone().unwrap_or_default();
        // A thousand outputs to one host have a thousand ports; most routing tables do not distinguish them.
        let mut vias = BTreeMap::new();
        for query in missing {
            let Some(address) = self.address(&query.destination) else {
                continue;
            };
            let packet = policy.relevant(query.packet);
            let by = query.interface.as_deref();
            let via = match vias.get(&(address, query.interface.clone(), packet)) {
                Some(via) => *via,
                None => {
                    let table = (&self.handle, &policy);
                    let via = query_route(table, address, (by, packet), interfaces).await;
                    vias.insert((address, query.interface.clone(), packet), via);
                    via
                }
            };
            self.routes.insert(query, via);
        }
        self.read_neighbours(interfaces).await?;
        let answers = self.routes.iter().map(|(query, via)| {
            let next_hop = via.map_or_else(NextHop::NoRoute, |via| self.next_hop(via, interfaces));
            (query.clone(), next_hop)
        });
        Ok(answers.collect())
    }

    /// Probes neighbours that are not known to be reachable. Returns whether they should be read again.
    pub(super) async fn probe(&mut self) -> bool {
        if self.policy.as_ref().is_some_and(RoutingPolicy::is_outdated) {
            self.forget_routes();
            return true;
        }
        // If there is no cache, a reading is due that fills it.
        let Some(cached) = &self.neighbours else {
            return false;
        };
        let is_doubtful = |entry: Option<&Neighbour>| entry.is_none_or(Neighbour::is_doubtful);
        let vias = self.routes.values().flatten();
        let uncertain = vias.filter(|via| via.has_neighbour() && is_doubtful(cached.get(via)));
        let doubtful: BTreeSet<Via> = uncertain.copied().collect();
        if doubtful.is_empty() {
            return false;
        }
        // A probe makes a permanent entry lose that state (NEIGH_UPDATE_F_USE, __neigh_update in
        // net/core/neighbour.c), so entries that were set since are left alone.
        let Ok(table) = self.read_table().await else {
            return false;
        };
        for via in &doubtful {
            if is_doubtful(table.get(&key(via))) {
                self.probe_neighbour(*via).await;
            }
        }
        self.forget_neighbours();
        true
    }

    fn next_hop(&self, via: Via, interfaces: &BTreeMap<Ifindex, Interface>) -> NextHop {
        let own = interfaces.get(&via.interface).and_then(|link| link.mac);
        let neighbour = self.neighbours.as_ref().and_then(|cached| cached.get(&via));
        let mac = neighbour.and_then(Neighbour::valid_mac);
        if via.local || via.detour.is_some() || own.is_none() || mac.is_some() {
            return via.next_hop(mac.filter(|_| own.is_some()));
        }
        NextHop::Unresolved {
            interface: via.interface,
            via: via.address,
            silent: self.silent.contains(&via),
            source: via.source,
        }
    }

    /// Reads the neighbour table if it is not cached, probes what is missing, and waits a moment for
    /// answers: most arrive within a millisecond, so that the first table is right.
    async fn read_neighbours(
        &mut self,
        interfaces: &BTreeMap<Ifindex, Interface>,
    ) -> Result<(), Error> {
        let hops = self.routes.values().flatten().copied();
        let vias: BTreeSet<Via> = hops.filter(Via::has_neighbour).collect();
        let is_cached = |via: &Via| {
            let neighbours = self.neighbours.as_ref();
            neighbours.is_some_and(|cached| cached.contains_key(via))
        };
        if vias.iter().all(is_cached) {
            return Ok(());
        }
        // Listens before it probes, so that no answer is missed.
        let mut answers = Answers::listen()?;
        let mut table = self.read_table().await?;
        let mut probed = BTreeSet::new();
        for via in &vias {
            let has_header = |link: &Interface| link.mac.is_some();
            let can_probe = interfaces.get(&via.interface).is_some_and(has_header);
            if can_probe && !table.contains_key(&key(via)) && self.probe_neighbour(*via).await {
                probed.insert(key(via));
            }
        }
        let has_probed = !probed.is_empty();
        let deadline = Instant::now() + PATIENCE;
        while !probed.is_empty() && answers.wait(&mut probed, deadline).await {}
        if has_probed {
            table = self.read_table().await?;
        }
        let entry = |via: &Via| table.get(&key(via)).cloned().unwrap_or(Neighbour::UNKNOWN);
        let entries: BTreeMap<Via, Neighbour> = vias.iter().map(|v| (*v, entry(v))).collect();
        self.silent.retain(|via| {
            let entry = entries.get(via);
            entry.is_some_and(|entry| entry.valid_mac().is_none())
        });
        let failed = entries.iter().filter(|(_, entry)| entry.has_failed());
        self.silent.extend(failed.map(|(via, _)| *via));
        self.neighbours = Some(entries);
        Ok(())
    }

    async fn read_table(&self) -> Result<BTreeMap<(Ifindex, IpAddr), Neighbour>, Error> {
        let dump = |source| Error::Dump {
            what: "neighbours",
            source,
        };
        let request = self.handle.neighbours().get().execute();
        let entries: Vec<NeighbourMessage> = request.try_collect().await.map_err(dump)?;
        Ok(entries.iter().filter_map(neighbour).collect())
    }

    /// Makes the kernel resolve or confirm a neighbour; returns whether it can.
    async fn probe_neighbour(&self, via: Via) -> bool {
        let request = self
            .handle
            .neighbours()
            .add(via.interface.0, via.address)
            .state(NeighbourState::None)
            .flags(NeighbourFlags::Use)
            .replace();
        // A link that is down or removed cannot be probed; it is read again when that changes.
        let probed = request.execute().await;
        if let Err(error) = &probed {
            tracing::debug!(%error, address = %via.address, "cannot ask for a neighbour");
        }
        probed.is_ok()
    }
}

impl Neighbour {
    const UNKNOWN: Self = Self {
        state: NeighbourState::None,
        mac: None,
    };

    fn valid_mac(&self) -> Option<Mac> {
        use NeighbourState as State;
        let valid = matches!(
            self.state,
            State::Reachable
                | State::Stale
                | State::Delay
                | State::Probe
                | State::Noarp
                | State::Permanent
        );
        self.mac.filter(|_| valid)
    }

    fn has_failed(&self) -> bool {
        self.state == NeighbourState::Failed
    }

    const fn is_doubtful(&self) -> bool {
        use NeighbourState as State;
        matches!(
            self.state,
            State::None | State::Stale | State::Failed | State::Other(_)
        )
    }
}

/// Notifications of neighbours while answers are waited for.
struct Answers {
    notifications: UnboundedReceiver<Notification>,
    connection: JoinHandle<()>,
}

impl Answers {
    fn listen() -> Result<Self, Error> {
        let groups = [MulticastGroup::Neigh];
        let (connection, _, notifications) = rtnetlink::new_multicast_connection(&groups)?;
        Ok(Self {
            notifications,
            connection: tokio::spawn(connection),
        })
    }

    /// Waits for the next notification and removes its neighbour from `probed` if it has answered, or failed
    /// for good; `false` at the deadline.
    async fn wait(&mut self, probed: &mut BTreeSet<(Ifindex, IpAddr)>, deadline: Instant) -> bool {
        let next = timeout_at(deadline, self.notifications.next()).await;
        let Ok(Some((message, _))) = next else {
            return false;
        };
        if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(entry)) =
            &message.payload
            && let Some((key, neighbour)) = neighbour(entry)
            && (neighbour.valid_mac().is_some() || neighbour.has_failed())
        {
            probed.remove(&key);
        }
        true
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

const fn key(via: &Via) -> (Ifindex, IpAddr) {
    (via.interface, via.address)
}

fn destination(entry: &NeighbourMessage) -> Option<IpAddr> {
    use NeighbourAddress::{Inet, Inet6};
    use NeighbourAttribute::Destination;
    let ipv4 = first!(entry.attributes, Destination(Inet(address)) => (*address).into());
    ipv4.or_else(|| first!(entry.attributes, Destination(Inet6(address)) => (*address).into()))
}

fn neighbour(entry: &NeighbourMessage) -> Option<((Ifindex, IpAddr), Neighbour)> {
    let mac = first!(entry.attributes, NeighbourAttribute::LinkLayerAddress(bytes) => bytes);
    let neighbour = Neighbour {
        state: entry.header.state,
        mac: mac.and_then(|bytes| bytes.as_slice().try_into().ok().map(Mac)),
    };
    let key = (Ifindex(entry.header.ifindex), destination(entry)?);
    Some((key, neighbour))
}
