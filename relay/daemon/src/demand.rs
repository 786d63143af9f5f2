//! Outputs on demand: who listens on their interfaces, by IGMP and MLD.
//!
//! `igmp` decides and does no I/O; `driver` has the sockets and the clock. What is listened to
//! goes to the supervisor as one value, made anew with each change; who listens is read where it is kept.

mod driver;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use compile::host::{Host, Interface};
use igmp::codec::Version;
use igmp::router::{Querier, Router, Setting};
use rules::demand::{Listening, SourceFilter};
use rules::net::{Ifindex, Prefix};
use tokio::sync::watch;

use crate::abort_on_panic;
use crate::events::Events;
use driver::Driver;
use record::Record;

/// How much longer than a change takes to carry out the next one waits: a flood of them leaves most of the
/// time to others.
const REST: u32 = 4;

/// The interfaces that outputs on demand lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Links(pub(crate) BTreeMap<Ifindex, Link>);

/// What the driver is told.
#[derive(Debug, Default)]
struct Told {
    links: Links,
    /// What was listened to before this process; `None` before the supervisor knows.
    recorded: Option<Arc<Listening>>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    name: String,
    up: bool,
    addresses: Vec<IpAddr>,
    may_ask: bool,
    ranges: BTreeSet<Prefix>,
}

impl Link {
    pub(crate) fn of(interface: &Interface) -> Self {
        Self {
            name: interface.name.clone(),
            up: interface.up,
            addresses: interface.addresses.clone(),
            may_ask: false,
            ranges: BTreeSet::new(),
        }
    }

    /// Notes an output.
    pub(crate) fn add(&mut self, range: Prefix, may_ask: bool) {
        self.ranges.insert(range);
        self.may_ask |= may_ask;
    }

    /// What one family's router has to know.
    fn setting(&self, ipv4: bool) -> Setting {
        let own = self
            .addresses
            .iter()
            .copied()
            .find(|address| match address {
                IpAddr::V4(_) => ipv4,
                // MLD is for the link alone (RFC 3810 section 5).
                IpAddr::V6(address) => !ipv4 && address.is_unicast_link_local(),
            });
        let ranges = self.ranges.iter().copied();
        Setting {
            own: own.filter(|_| self.up),
            may_ask: self.may_ask,
            ranges: ranges
                .filter(|range| range.address.is_ipv4() == ipv4)
                .collect(),
        }
    }
}

/// Both families' routers of an interface.
#[derive(Debug)]
struct Routers {
    name: String,
    ipv4: Router,
    ipv6: Router,
    /// Why it is not listened there.
    problem: Option<String>,
}

type Shared = Arc<Mutex<BTreeMap<Ifindex, Routers>>>;

/// Who listens, for whoever shows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listeners(Shared);

/// A host that listens to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) group: IpAddr,
    pub(crate) host: IpAddr,
    pub(crate) version: Version,
    pub(crate) filter: SourceFilter,
    /// Since when, and since when it has said nothing more.
    pub(crate) since: Duration,
    pub(crate) silent: Duration,
}

/// How an interface stands, for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkStanding {
    pub(crate) interface: String,
    pub(crate) ipv4: bool,
    pub(crate) querier: Querier,
    pub(crate) groups: usize,
    pub(crate) reports: u64,
    pub(crate) refused: u64,
    pub(crate) problem: Option<String>,
}

impl Listeners {
    /// The hosts that listen to groups of a range on an interface, at most so many.
    pub(crate) fn members(&self, link: Ifindex, range: Prefix, most: usize) -> Vec<Member> {
        let now = Instant::now();
        let routers = lock(&self.0);
        let Some(routers) = routers.get(&link) else {
            return Vec::new();
        };
        let groups = routers.of(range.address.is_ipv4()).hosts(range);
        let members = groups.flat_map(|(group, hosts)| {
            hosts.iter().map(move |(address, host)| Member {
                group,
                host: *address,
                version: host.version,
                filter: host.filter.clone(),
                since: now.saturating_duration_since(host.since),
                silent: now.saturating_duration_since(host.seen),
            })
        });
        members.take(most).collect()
    }

    /// How many hosts listen to groups of a range on an interface.
    pub(crate) fn count(&self, link: Ifindex, range: Prefix) -> u64 {
        let routers = lock(&self.0);
        let Some(routers) = routers.get(&link) else {
            return 0;
        };
        let groups = routers.of(range.address.is_ipv4()).hosts(range);
        let hosts: BTreeSet<IpAddr> = groups
            .flat_map(|(_, hosts)| hosts.keys())
            .copied()
            .collect();
        hosts.len() as u64
    }

    /// How all interfaces with outputs on demand stand.
    pub(crate) fn standing(&self) -> Vec<LinkStanding> {
        let routers = lock(&self.0);
        let families = routers.values().flat_map(|routers| {
            [(true, &routers.ipv4), (false, &routers.ipv6)].map(|family| (routers, family))
        });
        let standing = families.filter(|(_, (_, router))| router.is_used());
        standing
            .map(|(routers, (ipv4, router))| LinkStanding {
                interface: routers.name.clone(),
                ipv4,
                querier: router.querier(),
                groups: router.wanted().len(),
                reports: router.reports(),
                refused: router.refused(),
                problem: routers.problem.clone(),
            })
            .collect()
    }
}

impl Routers {
    const fn of(&self, ipv4: bool) -> &Router {
        match ipv4 {
            true => &self.ipv4,
            false => &self.ipv6,
        }
    }

    const fn of_mut(&mut self, ipv4: bool) -> &mut Router {
        match ipv4 {
            true => &mut self.ipv4,
            false => &mut self.ipv6,
        }
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, BTreeMap<Ifindex, Routers>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets what a daemon that is gone has written down.
pub(crate) fn end_left(directory: &Path) {
    Record::new(directory).remove();
}

/// The supervisor's end of the driver.
#[derive(Debug)]
pub(crate) struct Demand {
    told: watch::Sender<Told>,
    recorded: Arc<Listening>,
    listening: watch::Receiver<Arc<Listening>>,
    listeners: Listeners,
    record: Record,
    rest_until: Instant,
}

impl Demand {
    /// Starts the driver, which has nothing to do until it is told interfaces.
    pub(crate) fn start(directory: &Path, events: Events) -> Self {
        let (sender_of_links, told) = watch::channel(Told::default());
        let (sender, listening) = watch::channel(Arc::default());
        let listeners = Listeners::default();
        let record = Record::new(directory);
        let driver = Driver::new(listeners.clone(), record.clone(), events, sender);
        abort_on_panic::spawn(driver.run(told));
        Self {
            told: sender_of_links,
            recorded: Arc::default(),
            listening,
            listeners,
            record,
            rest_until: Instant::now(),
        }
    }

    /// Who listens.
    pub(crate) const fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// Begins with what was listened to on this host's interfaces when a daemon before was there last.
    pub(crate) fn begin(&mut self, host: &Host) -> Listening {
        let recorded = self.record.read(host);
        self.recorded = Arc::new(recorded.clone());
        recorded
    }

    /// Sets the interfaces.
    pub(crate) fn set_links(&self, links: Links) {
        self.told.send_if_modified(|told| {
            let differs = told.recorded.is_none() || told.links != links;
            told.links = links;
            told.recorded
                .get_or_insert_with(|| Arc::clone(&self.recorded));
            differs
        });
    }

    /// Waits until something else is listened to. Nothing is lost if it is called off.
    pub(crate) async fn next_change(&mut self) -> Arc<Listening> {
        tokio::time::sleep_until(self.rest_until.into()).await;
        if self.listening.changed().await.is_err() {
            // The driver ends with the process alone.
            std::future::pending::<()>().await;
        }
        self.listening.borrow_and_update().clone()
    }

    /// Notes how long it took to carry a change out.
    pub(crate) fn carried_out(&mut self, took: Duration) {
        self.rest_until = Instant::now() + took * REST;
    }

    /// Writes down what is listened to, for the next daemon.
    pub(crate) fn save(&self) {
        self.record.write(&lock(&self.listeners.0));
    }

    /// Forgets what is written down.
    pub(crate) fn remove(&self) {
        self.record.remove();
    }
}
