//! The owners of counters, on both paths and across restarts.
//!
//! A name owns a slot: an index into the memory that its path counts in. A name that is no longer
//! used keeps its slot until room runs out; then the longest unused gives way. What a slot had
//! counted before its owner got it is that owner's base, and has to be subtracted. Each path records this
//! for the next process in its own way.

pub(crate) mod name;
pub(crate) mod registry;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;

/// The owners of the slots of one memory; `N` names an owner, `B` is what a slot counts.
#[derive(Debug)]
pub(crate) struct Owners<N, B> {
    /// Every owner of a slot, used or not.
    owners: HashMap<N, Owner<B>>,
    /// The owner of each slot.
    names: Vec<Option<N>>,
    /// Owners without a use, by the time they lost it.
    unused: BTreeMap<u64, N>,
    clock: u64,
    /// Slots without an owner, below `next`.
    freed: Vec<u32>,
    next: u32,
    limit: u32,
    first: First,
}

/// Which slots are given out first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// Those that were given back: their memory is in use already.
    Freed,
    /// Those that have never had an owner: no packet can still be counting there.
    Fresh,
}

/// The owner of a slot.
#[derive(Debug)]
pub(crate) struct Owner<B> {
    /// The slot.
    pub(crate) slot: u32,
    /// Routes that count here.
    pub(crate) uses: u32,
    unused_since: u64,
    /// Distinguishes successive owners of the slot.
    pub(crate) epoch: u32,
    /// What the slot had counted for others; most slots have had no other owner.
    pub(crate) base: Option<Box<B>>,
}

/// What some names would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Names that have no slot yet.
    pub(crate) slots: usize,
    /// Slots available for them.
    pub(crate) room: usize,
}

impl<N: Eq + Hash + Clone, B: Default + PartialEq> Owners<N, B> {
    /// Slots from 0 up to `limit`, all of them fresh.
    pub(crate) fn new(limit: u32, first: First) -> Self {
        Self {
            owners: HashMap::new(),
            names: Vec::new(),
            unused: BTreeMap::new(),
            clock: 0,
            freed: Vec::new(),
            next: 0,
            limit,
            first,
        }
    }

    /// Takes over an owner of an earlier process, without a use yet.
    pub(crate) fn restore(&mut self, name: N, slot: u32, base: B) {
        if slot >= self.limit || self.owners.contains_key(&name) {
            return;
        }
        self.clock += 1;
        self.unused.insert(self.clock, name.clone());
        self.next = self.next.max(slot + 1);
        self.own(name, slot, 0, base);
    }

    /// After the last [`Owners::restore`]: frees the slots without an owner before `used` and among those
    /// restored, unless packets are still counted there.
    pub(crate) fn free_others(&mut self, used: u32, is_counting: impl Fn(u32) -> bool) {
        self.next = self.next.max(used);
        let owned: HashSet<u32> = self.owners.values().map(|owner| owner.slot).collect();
        let others = (0..self.next).rev().filter(|slot| !owned.contains(slot));
        self.freed = others.filter(|slot| !is_counting(*slot)).collect();
    }

    /// The owner of that name, if it has a slot.
    pub(crate) fn find(&self, name: &N) -> Option<&Owner<B>> {
        self.owners.get(name)
    }

    /// The name of a slot's owner.
    pub(crate) fn owner_of(&self, slot: u32) -> Option<&N> {
        self.names.get(slot as usize)?.as_ref()
    }

    /// Slots from 0 up to this one are or were owned; all others have never counted.
    pub(crate) const fn used(&self) -> u32 {
        self.next
    }

    /// How many slots have never been owned.
    pub(crate) const fn fresh(&self) -> usize {
        (self.limit - self.next) as usize
    }

    /// How many owners have no use.
    pub(crate) fn unused(&self) -> usize {
        self.unused.len()
    }

    /// What it would take to give each of `names` a slot.
    pub(crate) fn demand(&self, names: &HashSet<N>) -> Demand {
        let owners = names.iter().filter_map(|name| self.owners.get(name));
        let (existing, revived) = owners.fold((0, 0), |(existing, revived), owner| {
            (existing + 1, revived + usize::from(owner.uses == 0))
        });
        Demand {
            slots: names.len() - existing,
            room: self.fresh() + self.freed.len() + self.unused.len() - revived,
        }
    }

    /// The name's slot, for one more use; a new slot if it has none, `None` where there is no room.
    /// `begin` gets a new owner's slot and whether it is fresh, records the owner, and reads what the slot
    /// has counted so far.
    ///
    /// # Errors
    /// Those of `begin`; nothing has been given out then.
    pub(crate) fn acquire<E>(
        &mut self,
        name: N,
        begin: impl FnOnce(u32, bool) -> Result<B, E>,
    ) -> Result<Option<u32>, E> {
        if let Some(slot) = self.use_again(&name) {
            return Ok(Some(slot));
        }
        let Some((slot, is_fresh)) = self.take() else {
            return Ok(None);
        };
        match begin(slot, is_fresh) {
            Ok(base) => {
                self.clock += 1;
                self.own(name, slot, 1, base);
                Ok(Some(slot))
            }
            Err(error) => {
                self.freed.push(slot);
                Err(error)
            }
        }
    }

    /// Adds a use of a name that owns a slot.
    pub(crate) fn use_again(&mut self, name: &N) -> Option<u32> {
        let owner = self.owners.get_mut(name)?;
        if owner.uses == 0 {
            self.unused.remove(&owner.unused_since);
        }
        owner.uses += 1;
        Some(owner.slot)
    }

    /// Removes a use.
    pub(crate) fn release(&mut self, name: &N) {
        let Some(owner) = self.owners.get_mut(name).filter(|owner| owner.uses > 0) else {
            return;
        };
        owner.uses -= 1;
        if owner.uses == 0 {
            self.clock += 1;
            owner.unused_since = self.clock;
            self.unused.insert(self.clock, name.clone());
        }
    }

    /// Frees the slot of a name without uses, and returns it.
    pub(crate) fn forget(&mut self, name: &N) -> Option<u32> {
        let owner = self.owners.get(name).filter(|owner| owner.uses == 0)?;
        let slot = owner.slot;
        self.unused.remove(&owner.unused_since);
        self.owners.remove(name);
        self.names[slot as usize] = None;
        self.freed.push(slot);
        Some(slot)
    }

    fn own(&mut self, name: N, slot: u32, uses: u32, base: B) {
        let owner = Owner {
            slot,
            uses,
            unused_since: self.clock,
            epoch: self.clock as u32,
            base: (base != B::default()).then(|| Box::new(base)),
        };
        let index = slot as usize;
        if self.names.len() <= index {
            self.names.resize(index + 1, None);
        }
        self.names[index] = Some(name.clone());
        self.owners.insert(name, owner);
    }

    /// A slot for a new owner, and whether it is fresh.
    fn take(&mut self) -> Option<(u32, bool)> {
        let is_fresh = self.next < self.limit;
        let reuses = self.first == First::Freed || !is_fresh;
        if let Some(slot) = self.freed.pop_if(|_| reuses) {
            return Some((slot, false));
        }
        if is_fresh {
            self.next += 1;
            return Some((self.next - 1, true));
        }
        let (_, name) = self.unused.pop_first()?;
        self.owners.remove(&name).map(|owner| (owner.slot, false))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    type Packets = Owners<&'static str, u64>;

    /// Gives a name a slot that has counted so many packets.
    fn acquire(owners: &mut Packets, name: &'static str, packets: u64) -> Option<u32> {
        let Ok(slot) = owners.acquire(name, |_, _| Ok::<_, Infallible>(packets));
        slot
    }

    /// The packets that a name's slot had counted before.
    fn base_of(owners: &Packets, name: &'static str) -> u64 {
        let owner = owners.find(&name).unwrap();
        owner.base.as_deref().copied().unwrap_or_default()
    }

    fn shortage<const N: usize>(owners: &Packets, names: [&'static str; N]) -> usize {
        let demand = owners.demand(&HashSet::from(names));
        demand.slots.saturating_sub(demand.room)
    }

    #[test]
    fn a_name_that_is_used_again_gets_its_slot_back() {
        let mut owners = Packets::new(4, First::Freed);
        let first = acquire(&mut owners, "a", 0).unwrap();
        owners.release(&"a");
        acquire(&mut owners, "b", 0).unwrap();
        assert_eq!(acquire(&mut owners, "a", 0), Some(first));
    }

    #[test]
    fn the_longest_unused_slot_is_given_away_with_its_base() {
        let mut owners = Packets::new(2, First::Freed);
        let first = acquire(&mut owners, "a", 0).unwrap();
        acquire(&mut owners, "b", 0).unwrap();
        assert_eq!(acquire(&mut owners, "c", 0), None);
        owners.release(&"a");
        owners.release(&"b");
        assert_eq!(acquire(&mut owners, "c", 7), Some(first));
        assert_eq!(base_of(&owners, "c"), 7);
        assert!(owners.find(&"a").is_none());
        assert_eq!(owners.owner_of(first), Some(&"c"));
        owners.release(&"c");
        owners.forget(&"c");
        assert_eq!(owners.owner_of(first), None);
    }

    #[test]
    fn a_forgotten_name_starts_anew() {
        let mut owners = Packets::new(4, First::Freed);
        let first = acquire(&mut owners, "a", 0).unwrap();
        assert_eq!(owners.forget(&"a"), None);
        assert_eq!(acquire(&mut owners, "a", 0), Some(first));
        owners.release(&"a");
        owners.release(&"a");
        assert_eq!(owners.forget(&"a"), Some(first));
        assert!(owners.owners.is_empty());
        assert_eq!(acquire(&mut owners, "a", 7), Some(first));
        assert_eq!(base_of(&owners, "a"), 7);
    }

    #[test]
    fn a_successor_finds_every_name_where_it_was() {
        let mut first = Packets::new(4, First::Freed);
        for name in ["a", "b", "c"] {
            acquire(&mut first, name, 0).unwrap();
        }
        first.release(&"b");
        first.forget(&"b");
        let mut second = Packets::new(4, First::Freed);
        second.restore("a", 0, 0);
        second.restore("c", 2, 0);
        second.free_others(0, |_| false);
        assert_eq!(acquire(&mut second, "c", 0), Some(2));
        assert_eq!(acquire(&mut second, "d", 0), Some(1));
        assert_eq!(acquire(&mut second, "a", 0), Some(0));
        assert_eq!(acquire(&mut second, "e", 0), Some(3));
    }

    #[test]
    fn shortage_counts_what_does_not_fit() {
        let mut owners = Packets::new(2, First::Freed);
        acquire(&mut owners, "a", 0).unwrap();
        assert_eq!(shortage(&owners, ["a", "b"]), 0);
        assert_eq!(shortage(&owners, ["b", "c"]), 1);
        owners.release(&"a");
        assert_eq!(shortage(&owners, ["b", "c"]), 0);
        assert_eq!(shortage(&owners, ["a", "b", "c"]), 1);
    }

    #[test]
    fn keeps_a_slot_for_its_owner_until_room_is_needed() {
        let mut owners = Packets::new(2, First::Fresh);
        let mut fresh = Vec::new();
        let mut take = |owners: &mut Packets, name| {
            let Ok(slot) = owners.acquire(name, |_, is_fresh| {
                fresh.push(is_fresh);
                Ok::<_, Infallible>(0)
            });
            slot
        };
        let first = take(&mut owners, "a").unwrap();
        owners.release(&"a");
        assert_eq!(take(&mut owners, "a"), Some(first));
        owners.release(&"a");
        take(&mut owners, "b").unwrap();
        assert_eq!(take(&mut owners, "c"), Some(first));
        assert!(owners.find(&"a").is_none());
        assert_eq!(take(&mut owners, "d"), None);
        assert_eq!(owners.demand(&HashSet::new()).room, 0);
        assert_eq!(fresh, [true, true, false]);
    }

    #[test]
    fn rebuilds_from_recorded_owners() {
        let mut owners = Packets::new(4, First::Fresh);
        owners.restore("a", 0, 0);
        owners.restore("b", 1, 0);
        owners.free_others(2, |_| false);
        owners.use_again(&"b");
        let room = |owners: &Packets| owners.demand(&HashSet::new()).room;
        assert_eq!(owners.find(&"a").unwrap().slot, 0);
        assert_eq!(room(&owners), 3);
        assert_eq!(acquire(&mut owners, "b", 9), Some(1));
        assert_eq!(acquire(&mut owners, "a", 9), Some(0));
        assert_eq!(base_of(&owners, "a"), 0);
        assert_eq!(room(&owners), 2);
    }

    #[test]
    fn a_slot_that_packets_are_counted_in_is_not_given_out() {
        let mut owners = Packets::new(3, First::Freed);
        owners.free_others(2, |slot| slot == 0);
        assert_eq!(acquire(&mut owners, "a", 0), Some(1));
        assert_eq!(acquire(&mut owners, "b", 0), Some(2));
        assert_eq!(acquire(&mut owners, "c", 0), None);
    }
}
