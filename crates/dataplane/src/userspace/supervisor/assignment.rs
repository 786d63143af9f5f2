//! Slots and whose they are. An owner that is not used keeps its slot until room runs out; then the
//! longest unused gives way, and what it had counted is the next one's base.

use std::collections::{BTreeMap, BTreeSet};

use crate::userspace::shared::counters::Counted;

/// Slots of one kind.
#[derive(Debug)]
pub(super) struct Assignment<N> {
    /// Who has a slot, used or not.
    pub(super) owners: BTreeMap<N, Owner>,
    /// Names without a use, by the time they lost it.
    unused: BTreeMap<u64, N>,
    clock: u64,
    /// Slots that nobody owns, below `next`.
    free: Vec<u32>,
    next: u32,
    limit: u32,
    /// Slots that changed hands since the book was written: to whom, and what had been counted.
    pub(super) journal: Vec<(u32, Option<(N, Counted)>)>,
}

/// Whoever has a slot.
#[derive(Debug)]
pub(super) struct Owner {
    /// Which.
    pub(super) slot: u32,
    /// Routes that count here.
    pub(super) uses: u32,
    unused_since: u64,
    /// Tells the slot's owners apart.
    pub(super) epoch: u32,
    /// What earlier owners of the slot had counted; most slots have had none.
    base: Option<Box<Counted>>,
}

impl Owner {
    /// What this owner counted, by what its slot counts now.
    pub(super) fn counted(&self, now: Counted) -> Counted {
        match &self.base {
            Some(base) => now.since(base),
            None => now,
        }
    }
}

/// What has to be taken off, if anything has.
fn base(counted: Counted) -> Option<Box<Counted>> {
    (counted != Counted::default()).then(|| Box::new(counted))
}

impl<N: Ord + Clone> Assignment<N> {
    /// Slots from 0 up to `limit`, all of them free.
    pub(super) const fn new(limit: u32) -> Self {
        Self {
            owners: BTreeMap::new(),
            unused: BTreeMap::new(),
            clock: 0,
            free: Vec::new(),
            next: 0,
            limit,
            journal: Vec::new(),
        }
    }

    /// Takes over an owner of an earlier run; nobody uses it yet.
    pub(super) fn restore(&mut self, name: N, slot: u32, counted: Counted) {
        if slot >= self.limit || self.owners.contains_key(&name) {
            return;
        }
        self.clock += 1;
        self.unused.insert(self.clock, name.clone());
        self.next = self.next.max(slot + 1);
        let owner = Owner {
            slot,
            uses: 0,
            unused_since: self.clock,
            epoch: self.clock as u32,
            base: base(counted),
        };
        self.owners.insert(name, owner);
    }

    /// After the last [`Assignment::restore`]: finds the gaps between them.
    pub(super) fn collect_free(&mut self) {
        let owned: BTreeSet<u32> = self.owners.values().map(|owner| owner.slot).collect();
        let gaps = (0..self.next).rev().filter(|slot| !owned.contains(slot));
        self.free = gaps.collect();
    }

    /// How many of `names` would find no slot.
    pub(super) fn shortage(&self, names: &BTreeSet<N>) -> u32 {
        let new = names
            .iter()
            .filter(|name| !self.owners.contains_key(name))
            .count();
        let kept = self.unused.values().filter(|name| names.contains(name));
        let untouched = (self.limit - self.next) as usize + self.free.len();
        let room = untouched + self.unused.len() - kept.count();
        u32::try_from(new.saturating_sub(room)).unwrap_or(u32::MAX)
    }

    /// Finds the name's slot or gives it one, and notes one more use; `now` reads what a slot counts.
    pub(super) fn acquire(&mut self, name: N, now: impl Fn(u32) -> Counted) -> Option<u32> {
        if let Some(owner) = self.owners.get_mut(&name) {
            if owner.uses == 0 {
                self.unused.remove(&owner.unused_since);
            }
            owner.uses += 1;
            return Some(owner.slot);
        }
        let slot = self.free_slot()?;
        let counted = now(slot);
        self.clock += 1;
        let owner = Owner {
            slot,
            uses: 1,
            unused_since: 0,
            epoch: self.clock as u32,
            base: base(counted.clone()),
        };
        self.journal.push((slot, Some((name.clone(), counted))));
        self.owners.insert(name, owner);
        Some(slot)
    }

    fn free_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        if self.next < self.limit {
            self.next += 1;
            return Some(self.next - 1);
        }
        let (_, name) = self.unused.pop_first()?;
        self.owners.remove(&name).map(|owner| owner.slot)
    }

    /// Forgets the unused names from `first` on for as long as they are `wanted`.
    pub(super) fn forget_unused(&mut self, first: N, wanted: impl Fn(&N) -> bool) {
        let names = self.owners.range(first..);
        let names = names.take_while(|(name, _)| wanted(name));
        let unused = names.filter(|(_, owner)| owner.uses == 0);
        let unused: Vec<N> = unused.map(|(name, _)| name.clone()).collect();
        for name in unused {
            if let Some(owner) = self.owners.remove(&name) {
                self.unused.remove(&owner.unused_since);
                self.free.push(owner.slot);
                self.journal.push((owner.slot, None));
            }
        }
    }

    /// Notes one use less.
    pub(super) fn release(&mut self, name: &N) {
        let Some(owner) = self.owners.get_mut(name) else {
            return;
        };
        owner.uses = owner.uses.saturating_sub(1);
        if owner.uses == 0 {
            self.clock += 1;
            owner.unused_since = self.clock;
            self.unused.insert(self.clock, name.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: u32) -> Counted {
        Counted::default()
    }

    /// The packets that a name's slot had counted before.
    fn base_of(slots: &Assignment<&str>, name: &str) -> u64 {
        let base = slots.owners[name].base.as_ref();
        base.map_or(0, |base| base.traffic.packets)
    }

    #[test]
    fn a_name_that_comes_back_finds_its_slot() {
        let mut slots = Assignment::new(4);
        let first = slots.acquire("a", nothing).unwrap();
        slots.release(&"a");
        slots.acquire("b", nothing).unwrap();
        assert_eq!(slots.acquire("a", nothing), Some(first));
    }

    #[test]
    fn the_longest_unused_slot_is_given_away_with_its_base() {
        let mut slots = Assignment::new(2);
        let first = slots.acquire("a", nothing).unwrap();
        slots.acquire("b", nothing).unwrap();
        assert_eq!(slots.acquire("c", nothing), None);
        slots.release(&"a");
        slots.release(&"b");
        let old = |_| {
            let mut counted = Counted::default();
            counted.traffic.packets = 7;
            counted
        };
        assert_eq!(slots.acquire("c", old), Some(first));
        assert_eq!(base_of(&slots, "c"), 7);
        assert!(!slots.owners.contains_key("a"));
    }

    #[test]
    fn a_forgotten_name_starts_anew() {
        let mut slots = Assignment::new(4);
        let first = slots.acquire("a", nothing).unwrap();
        slots.forget_unused("a", |name| *name == "a");
        assert_eq!(slots.acquire("a", nothing), Some(first));
        slots.release(&"a");
        slots.release(&"a");
        slots.forget_unused("a", |name| *name == "a");
        assert!(slots.owners.is_empty());
        let old = |_| {
            let mut counted = Counted::default();
            counted.traffic.packets = 7;
            counted
        };
        assert_eq!(slots.acquire("a", old), Some(first));
        assert_eq!(base_of(&slots, "a"), 7);
    }

    #[test]
    fn a_successor_finds_every_name_where_it_was() {
        let mut first = Assignment::new(4);
        for name in ["a", "b", "c"] {
            first.acquire(name, nothing).unwrap();
        }
        first.release(&"b");
        first.forget_unused("b", |name| *name == "b");
        let mut second = Assignment::new(4);
        second.restore("a", 0, Counted::default());
        second.restore("c", 2, Counted::default());
        second.collect_free();
        assert_eq!(second.acquire("c", nothing), Some(2));
        assert_eq!(second.acquire("d", nothing), Some(1));
        assert_eq!(second.acquire("a", nothing), Some(0));
        assert_eq!(second.acquire("e", nothing), Some(3));
    }

    #[test]
    fn shortage_counts_what_does_not_fit() {
        let mut slots = Assignment::new(2);
        slots.acquire("a", nothing).unwrap();
        assert_eq!(slots.shortage(&BTreeSet::from(["a", "b"])), 0);
        assert_eq!(slots.shortage(&BTreeSet::from(["b", "c"])), 1);
        slots.release(&"a");
        assert_eq!(slots.shortage(&BTreeSet::from(["b", "c"])), 0);
        assert_eq!(slots.shortage(&BTreeSet::from(["a", "b", "c"])), 1);
    }
}
