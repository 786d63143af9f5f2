//! What the paths must change to get from one table to the next: the seam's downward half.

use serde::{Deserialize, Serialize};

use crate::table::{OwnAddresses, RateLimit, Route, RouteKey, Table};

/// The difference between two tables. A route that is the same in both does not occur.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDiff {
    /// Keys to remove.
    pub removed: Vec<RouteKey>,
    /// Routes to insert, or to replace if the key exists.
    pub set: Vec<(RouteKey, Route)>,
    /// This host's addresses, if they changed.
    pub own: Option<OwnAddresses>,
    /// The budget, if it changed.
    pub budget: Option<BudgetChange>,
}

/// A new budget, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetChange(pub Option<RateLimit>);

impl TableDiff {
    /// Compares `old` and `new`.
    pub fn between(old: &Table, new: &Table) -> Self {
        let removed = old
            .routes
            .keys()
            .filter(|key| !new.routes.contains_key(key));
        let set = new
            .routes
            .iter()
            .filter(|(key, route)| old.routes.get(key) != Some(route));
        Self {
            removed: removed.copied().collect(),
            set: set.map(|(key, route)| (*key, route.clone())).collect(),
            own: (old.own_addresses != new.own_addresses).then(|| new.own_addresses.clone()),
            budget: (old.budget != new.budget).then_some(BudgetChange(new.budget)),
        }
    }

    /// Applies the changes to `table`.
    pub fn apply_to(self, table: &mut Table) {
        for key in &self.removed {
            table.routes.remove(key);
        }
        if self.set.len() > table.routes.len() {
            // Rebuilt from a sorted list, its nodes are full; inserting one by one would leave them half full.
            let routes = std::mem::take(&mut table.routes).into_iter();
            table.routes = routes.chain(self.set).collect();
        } else {
            table.routes.extend(self.set);
        }
        if let Some(own) = self.own {
            table.own_addresses = own;
        }
        if let Some(BudgetChange(budget)) = self.budget {
            table.budget = budget;
        }
    }

    /// Returns whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty()
            && self.set.is_empty()
            && self.own.is_none()
            && self.budget.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::collection::{btree_map, btree_set};
    use proptest::prelude::*;

    use super::*;
    use crate::table::{LocalDelivery, Path};
    use rules::net::{Ifindex, Ports, Prefix};

    fn table() -> impl Strategy<Value = Table> {
        let key = (1_u32..4, 0_u8..4).prop_map(|(ingress, group)| RouteKey {
            ingress: Ifindex(ingress),
            groups: Prefix::host([239, 0, 0, group].into()),
            ports: Ports::single(5001),
            source: None,
        });
        let route = "[ab]".prop_map(|rule| Route {
            rule,
            input: None,
            path: Path::Kernel,
            local: LocalDelivery::Auto,
            limit: None,
            failover: None,
            merge: None,
            share: None,
            inspect: None,
            outputs: Vec::new(),
        });
        let address = (0_u8..4).prop_map(|d| IpAddr::from([10, 0, 0, d]));
        let budget = proptest::option::of(rules::samples::limit());
        (
            btree_map(key, route, 0..8),
            btree_set(address, 0..4),
            budget,
        )
            .prop_map(|(routes, own, budget)| Table {
                routes,
                own_addresses: own.into_iter().collect(),
                budget,
            })
    }

    proptest! {
        #[test]
        fn leads_from_the_old_table_to_the_new_one(old in table(), new in table()) {
            let diff = TableDiff::between(&old, &new);
            prop_assert_eq!(diff.is_empty(), old == new);
            for (key, route) in &diff.set {
                prop_assert_ne!(old.routes.get(key), Some(route));
            }
            let mut patched = old;
            diff.apply_to(&mut patched);
            prop_assert_eq!(patched, new);
        }
    }
}
