//! The control side of one path, over the memory that it brings: whose counters are whose and what was
//! counted there, which limits are in force, and what decides between the legs of a rule.
//!
//! It is the same for every path. A further executor brings a [`Memory`], and has all of it.

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
use crate::owners::known::KnownRules;
use crate::owners::name::{Hash, Kind, Name};
use crate::owners::{First, Owners};

/// The memory in which a path counts and decides.
pub(crate) trait Memory {
    /// Whose routes use it.
    const PATH: Path;
    /// Which slots are given out first.
    const FIRST: First;
    /// Whether names of all kinds have slots of one row; otherwise each kind has a row of its own.
    const IS_ONE_ROW: bool;
    /// What a slot had counted before its owner came.
    type Base: Default + PartialEq + fmt::Debug;
    /// What has to be read of it beforehand.
    type Lanes: ?Sized;
    /// The numbers that merged legs brought.
    type Blocks: BlockMemory<Error = Self::Error>;
    /// What may go wrong.
    type Error: fmt::Display;

    /// How many slots there are for names of a kind.
    fn slots(&self, kind: Kind) -> u32;

    /// Writes down whose a slot is from now on, and hands back what it counted for others. Limits of
    /// theirs are not in force any more.
    ///
    /// # Errors
    /// The path's; the slot is nobody's then.
    fn begin(
        &mut self,
        owner: &Owner<'_>,
        slot: u32,
        is_fresh: bool,
    ) -> Result<Self::Base, Self::Error>;

    /// Writes down that a slot is nobody's any more.
    fn end(&mut self, kind: Kind, slot: u32);

    /// The limit in force; all zero: there is none.
    fn limit(&self, limiter: Limiter) -> Limit;

    /// Puts another limit in force, which starts full.
    fn set_limit(&mut self, limiter: Limiter, limit: Limit);

    /// Writes down how a rule fails over, where packets go by what is written there.
    ///
    /// # Errors
    /// The path's.
    fn fail_over(&mut self, _rule: u32, _how: Option<&Failover>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// What passed and what was dropped at a slot since its owner came, all lanes together.
    fn traffic(
        &self,
        lanes: &Self::Lanes,
        place: (Kind, u32),
        base: Option<&Self::Base>,
    ) -> Option<(Traffic, Drops)>;

    /// What was found in packets of the rule of a slot, and how long they stayed.
    fn of_rule(
        &self,
        lanes: &Self::Lanes,
        rule: u32,
        base: Option<&Self::Base>,
    ) -> (HealthCounters, Latency);
}

/// Who is to own a slot.
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
    known: KnownRules,
}

impl<M: Memory> Control<M> {
    /// Nobody owns anything yet.
    pub(crate) fn new(memory: M, failovers: Failovers, merges: Merges<M::Blocks>) -> Self {
        let row = |kind: &Kind| Owners::new(memory.slots(*kind), M::FIRST);
        let kinds = if M::IS_ONE_ROW { 1 } else { Kind::ALL.len() };
        Self {
            owners: Kind::ALL[..kinds].iter().map(row).collect(),
            memory,
            failovers,
            merges,
            known: KnownRules::default(),
        }
    }

    /// Whose the slots of a kind are.
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
        let slots = names.iter().filter_map(|name| self.slot(kind, name));
        slots.collect()
    }

    /// Remembers under which names a route counts.
    pub(crate) fn learn(&mut self, route: &Route) {
        self.known.learn(&route.rule, Name::all_of(route));
    }

    /// Takes over an owner that a former process wrote down, and its name.
    pub(crate) fn restore(&mut self, name: Name<'_>, slot: u32, base: M::Base) {
        self.known.learn(name.rule(), [name].into_iter());
        let owners = self.owners_mut(name.kind());
        owners.restore(name.hash(), slot, base);
    }

    /// A slot for one use more of a name; `None` where there is no room. Before packets are counted under
    /// a name, it is written down.
    ///
    /// # Errors
    /// The memory's.
    pub(crate) fn acquire(&mut self, owner: &Owner<'_>) -> Result<Option<u32>, M::Error> {
        let kind = owner.name.kind();
        let Self {
            memory, failovers, ..
        } = self;
        self.owners[row::<M>(kind)].acquire(owner.hash, |slot, is_fresh| {
            match kind {
                Kind::Rule => failovers.forget_choice(slot),
                Kind::Input => failovers.forget_line(slot),
                Kind::Output => {}
            }
            memory.begin(owner, slot, is_fresh)
        })
    }

    /// Ends the counters of a rule that no longer exists: one of that name starts from zero.
    pub(crate) fn forget(&mut self, rule: &str) {
        for (kind, hash) in self.known.forget(rule) {
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

    /// Puts a limit in force. One that differs starts full, the same goes on.
    pub(crate) fn set_limit(&mut self, limiter: Limiter, limit: Limit) {
        if !limits::is_same(self.memory.limit(limiter), limit) {
            self.memory.set_limit(limiter, limit);
        }
    }

    /// Has packets of a rule pass by one leg at a time, or by all.
    ///
    /// # Errors
    /// The memory's.
    pub(crate) fn set_failover(
        &mut self,
        rule: u32,
        failover: Option<Failover>,
    ) -> Result<(), M::Error> {
        let is_news = match failover {
            Some(failover) => self.failovers.set(rule, failover),
            None => self.failovers.end(rule),
        };
        if is_news {
            self.memory.fail_over(rule, failover.as_ref())?;
        }
        Ok(())
    }

    /// Makes an input the active one of its rule; `false` if it is none of the rule's legs.
    pub(crate) fn switch(&self, rule: &str, input: &str) -> bool {
        let slot = |name: Name<'_>| self.slot(name.kind(), &name.hash());
        let found = (slot(Name::Rule(rule)), slot(Name::Input(rule, input)));
        matches!(found, (Some(rule), Some(line)) if self.failovers.switch(rule, line))
    }

    /// The names of the rules that count in some slots.
    pub(crate) fn rules_of(
        &self,
        slots: impl IntoIterator<Item = u32>,
    ) -> impl Iterator<Item = Arc<str>> {
        let owners = slots.into_iter();
        let owners = owners.filter_map(|slot| self.owners(Kind::Rule).owner_of(slot));
        owners.filter_map(|owner| self.known.name(owner).cloned())
    }
}

/// Which row the slots of a kind are in.
const fn row<M: Memory>(kind: Kind) -> usize {
    if M::IS_ONE_ROW { 0 } else { kind as usize }
}

#[cfg(test)]
mod tests;
