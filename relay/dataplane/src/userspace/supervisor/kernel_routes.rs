//! Routes of the kernel path that workers need: those that would take the same packets of a group as
//! theirs, but for the ports. A fragment without ports then belongs to none of them.

use std::collections::{BTreeMap, BTreeSet};

use compile::diff::TableDiff;
use compile::table::{Path, RouteKey, Table};
use rules::net::Prefix;

use super::worker_spec::Interfaces;

/// The kernel path's keys.
#[derive(Debug, Default)]
pub(super) struct KernelRoutes {
    /// All of them, which may be ten thousand.
    keys: BTreeSet<RouteKey>,
    /// What workers listen to, and the lengths of the prefixes among it.
    groups: BTreeMap<u32, BTreeSet<Prefix>>,
    lengths: BTreeSet<u8>,
    /// Those that workers have.
    published: BTreeSet<RouteKey>,
    /// Whether what workers have must be compared as a whole.
    is_stale: bool,
}

impl KernelRoutes {
    /// Takes over a whole difference. To be followed by [`KernelRoutes::changes`].
    pub(super) fn apply(&mut self, diff: &TableDiff) {
        for key in &diff.removed {
            self.keys.remove(key);
        }
        for (key, route) in &diff.set {
            match route.path {
                Path::Kernel => self.keys.insert(*key),
                Path::Userspace => self.keys.remove(key),
            };
        }
    }

    /// Starts anew with the kernel path's routes of a whole table.
    pub(super) fn replace(&mut self, table: &Table) {
        let routes = table.routes.iter();
        let kernel = routes.filter(|(_, route)| route.path == Path::Kernel);
        self.keys = kernel.map(|(key, _)| *key).collect();
        self.is_stale = true;
    }

    /// The keys that workers have to remove and to add after `diff`, and if they listen to other
    /// `interfaces` than before.
    pub(super) fn changes(
        &mut self,
        diff: &TableDiff,
        interfaces: Option<&Interfaces>,
    ) -> (Vec<RouteKey>, Vec<RouteKey>) {
        let mut is_stale = std::mem::take(&mut self.is_stale);
        if let Some(interfaces) = interfaces.filter(|there| there.ingress != self.groups) {
            self.groups.clone_from(&interfaces.ingress);
            let groups = self.groups.values().flatten();
            self.lengths = groups.map(|prefix| prefix.length).collect();
            is_stale = true;
        }
        let candidates: Vec<RouteKey> = if is_stale {
            self.keys.union(&self.published).copied().collect()
        } else {
            let set = diff.set.iter().map(|(key, _)| key);
            diff.removed.iter().chain(set).copied().collect()
        };
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        for key in candidates {
            if self.keys.contains(&key) && self.concerns_workers(&key) {
                if self.published.insert(key) {
                    added.push(key);
                }
            } else if self.published.remove(&key) {
                removed.push(key);
            }
        }
        (removed, added)
    }

    /// Those that workers have.
    pub(super) fn published(&self) -> impl Iterator<Item = RouteKey> + '_ {
        self.published.iter().copied()
    }

    /// Returns whether workers listen to a group that this key takes.
    fn concerns_workers(&self, key: &RouteKey) -> bool {
        let Some(groups) = self.groups.get(&key.ingress.0) else {
            return false;
        };
        let address = key.groups.address;
        let around = |length: &u8| groups.contains(&Prefix::new(address, *length));
        let mut wider = self.lengths.range(..=key.groups.length);
        // The first that begins within the key's own range, if any does.
        let from = Prefix { address, length: 0 };
        let within = groups.range(from..).next();
        wider.any(around) || within.is_some_and(|prefix| prefix.overlaps(key.groups))
    }
}

#[cfg(test)]
mod tests {
    use compile::table::{LocalDelivery, Route};
    use rules::net::{Ifindex, Ports};

    use super::*;

    fn key(groups: &str, length: u8, port: u16) -> RouteKey {
        RouteKey {
            ingress: Ifindex(1),
            groups: Prefix::new(groups.parse().unwrap(), length),
            ports: Ports::single(port),
            source: None,
        }
    }

    fn set(keys: &[RouteKey], path: Path) -> TableDiff {
        let route = Route {
            rule: "cam1".to_owned(),
            input: None,
            path,
            local: LocalDelivery::Auto,
            limit: None,
            failover: None,
            merge: None,
            share: None,
            inspect: None,
            outputs: vec![],
        };
        TableDiff {
            set: keys.iter().map(|key| (*key, route.clone())).collect(),
            ..TableDiff::default()
        }
    }

    fn listening(groups: &[(&str, u8)]) -> Interfaces {
        let prefix = |(group, length): &(&str, u8)| Prefix::new(group.parse().unwrap(), *length);
        let groups = groups.iter().map(prefix).collect();
        Interfaces {
            ingress: [(1, groups)].into(),
            ..Interfaces::default()
        }
    }

    #[test]
    fn workers_get_routes_that_may_take_packets_of_their_groups() {
        let same = key("239.1.1.1", 32, 5001);
        let around = key("239.1.0.0", 16, 5001);
        let within = key("239.2.3.0", 24, 5001);
        let other = key("239.1.1.2", 32, 5001);
        let mapped = key("ff3e::1", 128, 5001);
        let all = set(&[same, around, within, other, mapped], Path::Kernel);
        let mut kernel_routes = KernelRoutes::default();
        kernel_routes.apply(&all);
        let theirs = listening(&[("239.1.1.1", 32), ("239.2.0.0", 16)]);
        let (removed, mut added) = kernel_routes.changes(&all, Some(&theirs));
        added.sort();
        let mut expected = vec![same, around, within];
        expected.sort();
        assert_eq!((removed, added), (vec![], expected));
        // Unchanged routes are not sent again.
        let again = kernel_routes.changes(&TableDiff::default(), None);
        assert_eq!(again, (vec![], vec![]));
        let (removed, added) =
            kernel_routes.changes(&TableDiff::default(), Some(&listening(&[("ff3e::", 32)])));
        assert_eq!((removed.len(), added), (3, vec![mapped]));
    }

    #[test]
    fn workers_drop_routes_that_are_removed_or_become_theirs() {
        let (one, two) = (key("239.1.1.1", 32, 5001), key("239.1.1.1", 32, 5002));
        let theirs = listening(&[("239.1.1.1", 32)]);
        let mut kernel_routes = KernelRoutes::default();
        let both = set(&[one, two], Path::Kernel);
        kernel_routes.apply(&both);
        assert_eq!(kernel_routes.changes(&both, Some(&theirs)).1.len(), 2);
        let mut diff = set(&[one], Path::Userspace);
        diff.removed.push(two);
        kernel_routes.apply(&diff);
        let (mut removed, added) = kernel_routes.changes(&diff, Some(&theirs));
        removed.sort();
        assert_eq!((removed, added), (vec![one, two], vec![]));
        assert_eq!(kernel_routes.published().count(), 0);
    }
}
