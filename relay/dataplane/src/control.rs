//! The control side of one path, over that path's memory: the owners of counters and what was counted
//! there, which limits are in force, and what decides between the legs of a rule.
//!
//! It is the same for every path: a further executor only provides a [`Memory`].

mod read;

use std::fmt;
use std::sync::Arc;

use bpf::layout::{Failover, Limit};
use compile::table::{Path, Route};
use packet::latency::Latency;

use crate::counters::{Drops, HealthCounters, Traffic};
use crate::failover::Failovers;
use crate::limits::{self, Limiter};
use crate::merge::{BlockMemory, Merges};
use crate::owners::name::{Hash, Kind, Name};
use crate::owners::registry::RuleRegistry;
use crate::owners::{First, Owners};

/// The memory in which a path counts and decides.
pub(crate) trait Memory {
    /// The path whose routes use it.
    const PATH: Path;
    /// Which slots are given out first.
    const FIRST: First;
    /// Whether all kinds of names share one row of slots; otherwise each kind has a row of its own.
    const IS_ONE_ROW: bool;
    /// What a slot had counted before its owner got it.
    type Base: Default + PartialEq + fmt::Debug;
    /// What has to be read from it beforehand.
    type Lanes: ?Sized;
    /// The numbers that merged legs delivered.
    type Blocks: BlockMemory<Error = Self::Error>;
    /// What may go wrong.
    type Error: fmt::Display;

    /// How many slots there are for names of a kind.
    fn slots(&self, kind: Kind) -> u32;

    /// Records the new owner of a slot, and returns what the slot counted for others. Their limits are no
    /// longer in force.
    ///
    /// # Errors
    /// The path's; the slot has no owner then.
    fn begin(
        &mut self,
        owner: &Owner<'_>,
        slot: u32,
        is_fresh: bool,
    ) -> Result<Self::Base, Self::Error>;

    /// Records that a slot has no owner any more.
    fn end(&mut self, kind: Kind, slot: u32);

    /// The limit in force; all zero if there is none.
    fn limit(&self, limiter: Limiter) -> Limit;

    /// Puts another limit in force, which starts full.
    fn set_limit(&mut self, limiter: Limiter, limit: Limit);

    /// Records how a rule fails over, on a path whose packets read it there.
    ///
    /// # Errors
    /// The path's.
    fn fail_over(&mut self, _rule: u32, _how: Option<&Failover>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// What passed and what was dropped at a slot since its owner got it, all lanes together.
    fn traffic(
        &self,
        lanes: &Self::Lanes,
        slot: (Kind, u32),
        base: Option<&Self::Base>,
    ) -> Option<(Traffic, Drops)>;

    /// The health and the latency of the packets of the rule of a slot.
    fn of_rule(
        &self,
        lanes: &Self::Lanes,
        rule: u32,
        base: Option<&Self::Base>,
    ) -> (HealthCounters, Latency);
}

/// The future owner of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    pub(crate) name: Name<'a>,
    pub(crate) hash: Hash,
}

impl<'a> From<Name<'a>> for Owner<'a> {
    fn from(name: Name<'a>) -> Self {
        let hash = name.hash();
        Self { name, hash }
    }
}

/// The control side.
#[derive(Debug)]
pub(crate) struct Control<M: Memory> {
    pub(crate) memory: M,
    pub(crate) failovers: Failovers,
    pub(crate) merges: Merges<M::Blocks>,
    /// By [`Kind`], or in one row.
    owners: Vec<Owners<Hash, M::Base>>,
    registry: RuleRegistry,
}

impl<M: Memory> Control<M> {
    /// Without any owners.
    pub(crate) fn new(memory: M, failovers: Failovers, merges: Merges<M::Blocks>) -> Self {
        let row = |kind: &Kind| Owners::new(memory.slots(*kind), M::FIRST);
        let kinds = if M::IS_ONE_ROW { 1 } else { Kind::ALL.len() };
        Self {
            owners: Kind::ALL[..kinds].iter().map(row).collect(),
            memory,
            failovers,
            merges,
            registry: RuleRegistry::default(),
        }
    }

    /// The owners of the slots of a kind.
    pub(crate) fn owners(&self, kind: Kind) -> &Owners<Hash, M::Base> {
        &self.owners[row::<M>(kind)]
    }

    /// The same, to change.
    pub(crate) fn owners_mut(&mut self, kind: Kind) -> &mut Owners<Hash, M::Base> {
        &mut self.owners[row::<M>(kind)]
    }

    /// The slot of a name that owns one.
    pub(crate) fn slot(&self, kind: Kind, name: &Hash) -> Option<u32> {
        Some(self.owners(kind).find(name)?.slot)
    }

    /// The slots of names of one kind, as far as they own any.
    pub(crate) fn slots(&self, kind: Kind, names: &[Hash]) -> Vec<u32> {
        let slot = |name| self.slot(kind, name);
        names.iter().filter_map(slot).collect()
    }

    /// Registers the names under which a route counts.
    pub(crate) fn register(&mut self, route: &Route) {
        self.registry.register(&route.rule, Name::all_of(route));
    }

    /// Takes over an owner that a former process recorded, and its name.
    pub(crate) fn restore(&mut self, name: Name<'_>, slot: u32, base: M::Base) {
        self.registry.register(name.rule(), [name].into_iter());
        let owners = self.owners_mut(name.kind());
        owners.restore(name.hash(), slot, base);
    }

    /// A slot for one more use of a name; `None` where there is no room. A name is recorded before packets
    /// are counted under it.
    ///
    /// # Errors
    /// The memory's.
    pub(crate) fn acquire(&mut self, owner: &Owner<'_>) -> Result<Option<u32>, M::Error> {
        let kind = owner.name.kind();
        let Self {
            memory,
            failovers,
            merges,
            ..
        } = self;
        self.owners[row::<M>(kind)].acquire(owner.hash, |slot, is_fresh| {
            match kind {
                Kind::Rule => {
                    failovers.forget_choice(slot);
                    merges.end(slot);
                }
                Kind::Input => failovers.forget_line(slot),
                Kind::Output => {}
            }
            memory.begin(owner, slot, is_fresh)
        })
    }

    /// Ends the counters of a rule that no longer exists: one of that name starts from zero.
    pub(crate) fn forget(&mut self, rule: &str) {
        for (kind, hash) in self.registry.forget(rule) {
            let Some(slot) = self.owners_mut(kind).forget(&hash) else {
                continue;
            };
            if kind == Kind::Rule {
                if let Err(error) = self.set_failover(slot, None) {
                    tracing::debug!("how a rule failed over is not forgotten: {error}");
                }
                self.merges.end(slot);
            }
            self.memory.end(kind, slot);
        }
    }

    /// Merged rules that have legs although no route of theirs is left: they are off.
    pub(crate) fn stopped_merges(&self) -> Vec<u32> {
        let rules = self.merges.rules().into_iter();
        rules
            .filter(|rule| !self.is_used(*rule) && self.merges.is_running(*rule))
            .collect()
    }

    /// Whether any route counts for the rule of a slot.
    pub(crate) fn is_used(&self, rule: u32) -> bool {
        let owners = self.owners(Kind::Rule);
        let owner = owners.owner_of(rule).and_then(|name| owners.find(name));
        owner.is_some_and(|owner| owner.uses > 0)
    }

    /// Puts a limit in force. One that differs starts full, an unchanged one continues.
    pub(crate) fn set_limit(&mut self, limiter: Limiter, limit: Limit) {
        if !limits::is_same(self.memory.limit(limiter), limit) {
            self.memory.set_limit(limiter, limit);
        }
    }

    /// Lets packets of a rule pass by one leg at a time, or by all.
    ///
    /// # Errors
    /// The memory's.
    pub(crate) fn set_failover(
        &mut self,
        rule: u32,
        failover: Option<Failover>,
    ) -> Result<(), M::Error> {
        let has_changed = match failover {
            Some(failover) => self.failovers.set(rule, failover),
            None => self.failovers.end(rule),
        };
        if has_changed {
            self.memory.fail_over(rule, failover.as_ref())?;
        }
        Ok(())
    }

    /// Makes an input the active one of its rule; `false` if it is none of the rule's legs.
    pub(crate) fn switch(&self, rule: &str, input: &str) -> bool {
        let slot = |name: Name<'_>| self.slot(name.kind(), &name.hash());
        let slots = (slot(Name::Rule(rule)), slot(Name::Input(rule, input)));
        matches!(slots, (Some(rule), Some(line)) if self.failovers.switch(rule, line))
    }

    /// The names of the rules that count in some slots.
    pub(crate) fn rules_of(
        &self,
        slots: impl IntoIterator<Item = u32>,
    ) -> impl Iterator<Item = Arc<str>> {
        slots.into_iter().filter_map(|slot| {
            let owner = self.owners(Kind::Rule).owner_of(slot)?;
            self.registry.name(owner).cloned()
        })
    }
}

/// The row of a kind's slots.
const fn row<M: Memory>(kind: Kind) -> usize {
    if M::IS_ONE_ROW { 0 } else { kind as usize }
}

#[cfg(test)]
mod tests;
