//! The table as a worker executes it, and how it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use compile::diff::BudgetChange;
use compile::table::{OwnAddresses, RouteKey};
use rules::net::Ifindex;

use super::health::Watches;
use super::lookup::{Lookup, RouteIndex};
use super::rewrite::CompiledRoute;
use crate::limits;
use crate::userspace::shared::messages::TableChange;

/// The index of the kernel path's routes among those of [`ActiveTable`].
const ELSEWHERE: RouteIndex = RouteIndex(u32::MAX);

/// The table as it is executed.
#[derive(Default)]
pub(super) struct ActiveTable {
    indices: BTreeMap<RouteKey, RouteIndex>,
    /// The routes by index.
    pub(super) routes: Vec<Option<CompiledRoute>>,
    free: Vec<u32>,
    pub(super) lookup: Lookup,
    /// The same without regard to ports, and with the kernel path's, for fragments.
    pub(super) groups: Lookup,
    /// Keys of the kernel path that take packets of these groups too.
    elsewhere: BTreeSet<RouteKey>,
    own: OwnAddresses,
    /// The same as bits: no bit, no lookup, as on the kernel path.
    own_bits: bpf::layout::Settings,
    /// Cap on what all unicast outputs send together.
    pub(super) budget: Option<bpf::layout::Limit>,
    /// Packets that wait together may leave as one.
    coalesces: bool,
    /// Copies of some route are answered.
    pub(super) answered: bool,
}

impl ActiveTable {
    /// An empty table.
    pub(super) fn new(coalesces: bool) -> Self {
        Self {
            coalesces,
            ..Self::default()
        }
    }

    /// Applies a change. Not hot: it allocates, and rebuilds the lookup.
    pub(super) fn change(&mut self, change: TableChange, watches: &mut Watches) {
        for key in &change.removed {
            if let Some(index) = self.indices.get(key) {
                watches.end(index.0);
            }
            self.remove(key);
        }
        for (key, counted) in &change.set {
            let index = self.index(*key);
            let route = CompiledRoute::compile((index, key), counted, self.coalesces);
            self.routes[index as usize] = Some(route);
            watches.begin(index, key, counted);
        }
        if change.ends_turns {
            let routes = self.routes.iter_mut().flatten();
            routes.for_each(|route| route.turn = None);
        }
        self.answered = self.routes.iter().flatten().any(|route| route.answered);
        let remaining = self.routes.iter().flatten();
        watches.end_others(remaining.filter_map(|route| route.subject));
        if let Some(own) = change.own {
            self.own_bits = bpf::layout::Settings::default();
            let addresses = own.addresses.iter();
            addresses.for_each(|(_, address)| self.own_bits.insert_own(*address));
            self.own = own;
        }
        let keys = self.indices.iter().map(|(key, index)| (*index, key));
        self.lookup = Lookup::build(keys.clone());
        for key in &change.elsewhere_removed {
            self.elsewhere.remove(key);
        }
        self.elsewhere.extend(change.elsewhere_added);
        let elsewhere = self.elsewhere.iter().map(|key| (ELSEWHERE, key));
        self.groups = Lookup::build_groups(keys.chain(elsewhere));
        if let Some(BudgetChange(budget)) = change.budget {
            self.budget = budget.map(limits::new);
        }
    }

    /// Returns whether a packet that arrives by `ingress` is this host's own.
    #[inline]
    pub(super) fn betrays(&self, ingress: u32, source: IpAddr) -> bool {
        self.own_bits.may_be_own(source) && self.own.betray(Ifindex(ingress), source)
    }

    fn index(&mut self, key: RouteKey) -> u32 {
        let index = *self.indices.entry(key).or_insert_with(|| {
            let index = self.free.pop().unwrap_or_else(|| {
                self.routes.push(None);
                self.routes.len() as u32 - 1
            });
            RouteIndex(index)
        });
        index.0
    }

    fn remove(&mut self, key: &RouteKey) {
        if let Some(index) = self.indices.remove(key) {
            self.routes[index.0 as usize] = None;
            self.free.push(index.0);
        }
    }
}
