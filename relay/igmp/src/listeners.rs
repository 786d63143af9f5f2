//! The hosts that listen on each link, for every view that shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rules::demand::SourceFilter;
use rules::net::{Ifindex, Prefix};

use crate::codec::Version;
use crate::router::{Querier, Router};

/// The routers of both families on an interface.
#[derive(Debug)]
pub struct Routers {
    /// The interface's name.
    pub name: String,
    /// The router for IGMP.
    pub ipv4: Router,
    /// The router for MLD.
    pub ipv6: Router,
    /// Why reports are not received there.
    pub problem: Option<String>,
}

type ByLink = BTreeMap<Ifindex, Routers>;

/// The routers of all interfaces, shared with every view of them.
#[derive(Clone, Debug, Default)]
pub struct Listeners(Arc<Mutex<ByLink>>);

/// A host that listens to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The group.
    pub group: IpAddr,
    /// Its address.
    pub host: IpAddr,
    /// The protocol version of its last report.
    pub version: Version,
    /// The sources it listens to.
    pub filter: SourceFilter,
    /// The time since its first report.
    pub since: Duration,
    /// The time since its last report.
    pub silent: Duration,
}

/// The status of an interface for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStanding {
    /// Its name.
    pub interface: String,
    /// Whether it is IGMP rather than MLD.
    pub ipv4: bool,
    /// The querier there.
    pub querier: Querier,
    /// The number of groups with listeners.
    pub groups: usize,
    /// The number of reports received.
    pub reports: u64,
    /// The number of groups, hosts and sources that exceeded a limit.
    pub refused: u64,
    /// The number of records refused because the host may not ask for the group, or not for so many.
    pub barred: u64,
    /// Why reports are not received there.
    pub problem: Option<String>,
}

impl Listeners {
    /// The routers of each interface.
    pub fn lock(&self) -> MutexGuard<'_, ByLink> {
        self.0.lock()
    }

    /// The hosts that listen to groups of a range on an interface, at most `most`.
    pub fn members(&self, link: Ifindex, range: Prefix, most: usize) -> Vec<Member> {
        let now = Instant::now();
        let routers = self.lock();
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

    /// The number of hosts that listen to groups of a range on an interface.
    pub fn count(&self, link: Ifindex, range: Prefix) -> u64 {
        let routers = self.lock();
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

    /// The status of all interfaces with outputs on demand.
    pub fn standing(&self) -> Vec<LinkStanding> {
        let routers = self.lock();
        let families = routers.values().flat_map(|routers| {
            [(true, &routers.ipv4), (false, &routers.ipv6)].map(|family| (routers, family))
        });
        families
            .filter(|(_, (_, router))| router.is_used())
            .map(|(routers, (ipv4, router))| LinkStanding {
                interface: routers.name.clone(),
                ipv4,
                querier: router.querier(),
                groups: router.wanted().len(),
                reports: router.reports(),
                refused: router.refused(),
                barred: router.barred(),
                problem: routers.problem.clone(),
            })
            .collect()
    }
}

impl Routers {
    /// The router of a family.
    pub const fn of(&self, ipv4: bool) -> &Router {
        if ipv4 { &self.ipv4 } else { &self.ipv6 }
    }

    /// The router of a family, mutable.
    pub const fn of_mut(&mut self, ipv4: bool) -> &mut Router {
        if ipv4 { &mut self.ipv4 } else { &mut self.ipv6 }
    }
}
