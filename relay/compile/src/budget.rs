//! The budget: what all unicast outputs may send together, a guard against amplification. One packet
//! to a group may become thousands to hosts that did not request them; no more than this leaves, whatever
//! the rules.

use crate::diff::TableDiff;
use crate::table::{OutputState, Path, RateLimit, Route, Table};

/// How many routes of each path send to hosts, which alone decides each path's share of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spenders {
    kernel: usize,
    userspace: usize,
}

impl Spenders {
    /// Counts the routes of a table.
    pub fn of(table: &Table) -> Self {
        let mut spenders = Self::default();
        table.routes.values().for_each(|route| spenders.add(route));
        spenders
    }

    /// Counts the routes of `table` as it will be after `diff`. Only changed routes are visited.
    #[must_use]
    pub fn after(mut self, table: &Table, diff: &TableDiff) -> Self {
        let replaced = diff.set.iter().map(|(key, _)| key);
        let keys = diff.removed.iter().chain(replaced);
        let removed = keys.filter_map(|key| table.routes.get(key));
        removed.for_each(|route| self.subtract(route));
        diff.set.iter().for_each(|(_, route)| self.add(route));
        self
    }

    /// What each path may send of `whole`: all of it, or half if both have unicast outputs, because they
    /// count separately.
    pub fn share(self, whole: RateLimit) -> RateLimit {
        if self.kernel == 0 || self.userspace == 0 {
            return whole;
        }
        RateLimit {
            rate: (whole.rate / 2).max(1),
            burst: (whole.burst / 2).max(1),
            ..whole
        }
    }

    fn add(&mut self, route: &Route) {
        if has_unicast(route) {
            *self.on(route.path) += 1;
        }
    }

    fn subtract(&mut self, route: &Route) {
        if has_unicast(route) {
            *self.on(route.path) -= 1;
        }
    }

    const fn on(&mut self, path: Path) -> &mut usize {
        match path {
            Path::Kernel => &mut self.kernel,
            Path::Userspace => &mut self.userspace,
        }
    }
}

fn has_unicast(route: &Route) -> bool {
    let is_unicast = |state: &OutputState| match state {
        OutputState::Up(egress) => !egress.destination.address.is_multicast(),
        OutputState::Down(_) => false,
    };
    route.outputs.iter().any(|output| is_unicast(&output.state))
}
