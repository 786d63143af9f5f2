//! What has to change in the paths to get from one table to the next: the seam's downward half.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::table::{Route, RouteKey, Table};

/// The difference between two tables. A route that is the same in both does not occur.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableDiff {
    /// Keys to take out.
    pub removed: Vec<RouteKey>,
    /// Routes to put in, or to replace where the key is there already.
    pub set: Vec<(RouteKey, Route)>,
    /// Own addresses no longer there.
    pub own_removed: Vec<IpAddr>,
    /// Own addresses that came.
    pub own_added: Vec<IpAddr>,
}

impl TableDiff {
    /// Compares `old` and `new`.
    #[must_use]
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
            own_removed: old
                .own_addresses
                .difference(&new.own_addresses)
                .copied()
                .collect(),
            own_added: new
                .own_addresses
                .difference(&old.own_addresses)
                .copied()
                .collect(),
        }
    }

    /// Says whether nothing has to change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty()
            && self.set.is_empty()
            && self.own_removed.is_empty()
            && self.own_added.is_empty()
    }
}
