//! Who listens on each link, for every view that shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rules::demand::SourceFilter;
use rules::net::{Ifindex, Prefix};

use crate::codec::Version;
use crate::router::{Querier, Router};

/// Both families' routers of an interface.
#[derive(Debug)]
pub struct Routers {
    /// The interface's name.
    pub name: String,
    /// Of IGMP.
    pub ipv4: Router,
    /// Of MLD.
    pub ipv6: Router,
    /// Why it is not listened there.
    pub problem: Option<String>,
}

type ByLink = BTreeMap<Ifindex, Routers>;

/// Who listens, for whoever shows it.
#[derive(Clone, Debug, Default)]
pub struct Listeners(Arc<Mutex<ByLink>>);

/// A host that listens to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The group.
    pub group: IpAddr,
    /// Its address.
    pub host: IpAddr,
    /// The version that it spoke.
    pub version: Version,
    /// To which sources.
    pub filter: SourceFilter,
    /// Since when.
    pub since: Duration,
    /// Since when it has said nothing more.
    pub silent: Duration,
}

/// How an interface stands, for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStanding {
    /// Its name.
    pub interface: String,
    /// Whether it is IGMP, and not MLD.
    pub ipv4: bool,
    /// Who asks there.
    pub querier: Querier,
    /// How many groups are listened to.
    pub groups: usize,
    /// How many reports were received.
    pub reports: u64,
    /// How much was not remembered because there was no room.
    pub refused: u64,
    /// How much was refused of hosts that may not ask, or not for so much.
    pub barred: u64,
    /// Why it is not listened there.
    pub problem: Option<String>,
}

impl Listeners {
    /// The routers of each interface.
    pub fn lock(&self) -> MutexGuard<'_, ByLink> {
        self.0.lock()
    }

    /// The hosts that listen to groups of a range on an interface, at most so many.
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

    /// How many hosts listen to groups of a range on an interface.
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

    /// How all interfaces with outputs on demand stand.
    pub fn standing(&self) -> Vec<LinkStanding> {
        let routers = self.lock();
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
                barred: router.barred(),
                problem: routers.problem.clone(),
            })
            .collect()
    }
}

impl Routers {
    /// That of a family.
    pub const fn of(&self, ipv4: bool) -> &Router {
        if ipv4 { &self.ipv4 } else { &self.ipv6 }
    }

    /// The same, to change it.
    pub const fn of_mut(&mut self, ipv4: bool) -> &mut Router {
        if ipv4 { &mut self.ipv4 } else { &mut self.ipv6 }
    }
}
