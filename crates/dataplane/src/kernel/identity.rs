//! Whose counter is whose, in a way that a restarted daemon, or another version of it, finds again.
//!
//! A counter belongs to a rule (by name), to an input (by rule and endpoint) or to an output (by rule,
//! position and destination). When its last route goes, it keeps its owner and its value until the room is needed: an interface that
//! comes back finds its counters where they stood.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use model::table::{Output, Route};

/// 128 bits that stand for a rule, an input or an output.
pub(super) type Hash = [u64; 2];

pub(super) fn of_rule(rule: &str) -> Hash {
    hash(&[b"rule", rule.as_bytes()])
}

/// Inputs that change places keep their counters.
pub(super) fn of_input(rule: &str, at: &str) -> Hash {
    hash(&[b"input", rule.as_bytes(), at.as_bytes()])
}

pub(super) fn of_output(rule: &str, output: &Output) -> Hash {
    let index = output.index.to_le_bytes();
    hash(&[b"output", rule.as_bytes(), &index, output.to.as_bytes()])
}

/// FNV-1a, 128 bits: stable across versions and machines, which the standard hasher is not.
fn hash(parts: &[&[u8]]) -> Hash {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mix = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    let hash = parts.iter().fold(OFFSET, |hash, part| {
        let hash = (part.len() as u64)
            .to_le_bytes()
            .into_iter()
            .fold(hash, mix);
        part.iter().copied().fold(hash, mix)
    });
    [hash as u64, (hash >> 64) as u64]
}

/// The counters and their owners.
#[derive(Debug)]
pub(super) struct Registry {
    by_hash: HashMap<Hash, u32>,
    owners: Vec<Hash>,
    references: Vec<u32>,
    limit: u32,
    /// Owned but unreferenced, the longest so first; entries that were referenced again are skipped.
    idle: VecDeque<u32>,
    idle_count: usize,
}

/// A counter that was just taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) counter: u32,
    pub(super) origin: Origin,
}

/// Where a counter came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It has been this owner's and goes on from its value.
    Kept,
    /// Never used.
    New,
    /// Another owner's before; its value has to be discounted.
    Recycled,
}

impl Registry {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            by_hash: HashMap::new(),
            owners: Vec::new(),
            references: Vec::new(),
            limit,
            idle: VecDeque::new(),
            idle_count: 0,
        }
    }

    /// Rebuilds from the owners found in the maps and the counters that routes refer to.
    pub(super) fn adopt(&mut self, owners: Vec<Hash>, referenced: impl Iterator<Item = u32>) {
        self.references = vec![0; owners.len()];
        for counter in referenced {
            if let Some(count) = self.references.get_mut(counter as usize) {
                *count += 1;
            }
        }
        for (counter, owner) in (0..).zip(&owners) {
            if *owner != Hash::default() {
                self.by_hash.insert(*owner, counter);
            }
            if self.references[counter as usize] == 0 {
                self.idle.push_back(counter);
            }
        }
        self.idle_count = self.idle.len();
        self.owners = owners;
    }

    pub(super) fn find(&self, owner: Hash) -> Option<u32> {
        self.by_hash.get(&owner).copied()
    }

    /// Counters ever used: all others are untouched and zero.
    pub(super) fn used(&self) -> u32 {
        self.owners.len() as u32
    }

    /// How many more owners there can be, recycled counters included.
    pub(super) fn room(&self) -> usize {
        self.untouched() + self.idle_count
    }

    /// How many more owners there can be without recycling.
    pub(super) fn untouched(&self) -> usize {
        self.limit as usize - self.owners.len()
    }

    /// Takes one more reference to `owner`'s counter; `None` when there is no room.
    pub(super) fn take(&mut self, owner: Hash) -> Option<Taken> {
        if let Some(counter) = self.find(owner) {
            let references = &mut self.references[counter as usize];
            self.idle_count -= usize::from(*references == 0);
            *references += 1;
            return Some(Taken {
                counter,
                origin: Origin::Kept,
            });
        }
        let taken = if self.owners.len() < self.limit as usize {
            self.owners.push(owner);
            self.references.push(1);
            Taken {
                counter: self.owners.len() as u32 - 1,
                origin: Origin::New,
            }
        } else {
            let counter = self.recycle()?;
            self.owners[counter as usize] = owner;
            self.references[counter as usize] = 1;
            Taken {
                counter,
                origin: Origin::Recycled,
            }
        };
        self.by_hash.insert(owner, taken.counter);
        Some(taken)
    }

    fn recycle(&mut self) -> Option<u32> {
        loop {
            let counter = self.idle.pop_front()?;
            if self.references[counter as usize] == 0 {
                self.idle_count -= 1;
                self.by_hash.remove(&self.owners[counter as usize]);
                return Some(counter);
            }
        }
    }

    /// Drops one reference.
    pub(super) fn release(&mut self, counter: u32) {
        let references = &mut self.references[counter as usize];
        *references = references.saturating_sub(1);
        if *references == 0 {
            self.idle.push_back(counter);
            self.idle_count += 1;
        }
    }

    /// Ends the ownership of a counter that no route refers to; returns the counter.
    pub(super) fn forget(&mut self, owner: Hash) -> Option<u32> {
        let counter = self.find(owner)?;
        if self.references[counter as usize] > 0 {
            return None;
        }
        self.by_hash.remove(&owner);
        self.owners[counter as usize] = Hash::default();
        Some(counter)
    }

    /// Says whether `counter` is still `owner`'s.
    pub(super) fn owns(&self, owner: Hash, counter: u32) -> bool {
        self.owners.get(counter as usize) == Some(&owner)
    }
}

/// The counters of the rules this process knows by name.
#[derive(Debug, Default)]
pub(super) struct Named {
    rules: BTreeMap<Arc<str>, NamedRule>,
}

/// One rule's counters.
#[derive(Debug)]
pub(super) struct NamedRule {
    pub(super) hash: Hash,
    /// Owner of the counter of each input that is or was one of several.
    pub(super) inputs: BTreeMap<String, Hash>,
    /// Owner of each output's counter beside the output's index in the rule, in their order.
    pub(super) outputs: Vec<(u32, Hash)>,
}

impl Named {
    pub(super) fn learn(&mut self, route: &Route) {
        let name = Arc::from(route.rule.as_str());
        let rule = self.rules.entry(name).or_insert_with(|| NamedRule {
            hash: of_rule(&route.rule),
            inputs: BTreeMap::new(),
            outputs: Vec::new(),
        });
        if let Some(at) = &route.input {
            let inputs = &mut rule.inputs;
            inputs.insert(at.clone(), of_input(&route.rule, at));
        }
        let outputs = &mut rule.outputs;
        outputs.reserve_exact(route.outputs.len().saturating_sub(outputs.len()));
        for output in &route.outputs {
            let hash = of_output(&route.rule, output);
            match outputs.binary_search_by_key(&output.index, |(index, _)| *index) {
                Ok(at) => outputs[at].1 = hash,
                Err(at) => outputs.insert(at, (output.index, hash)),
            }
        }
    }

    pub(super) fn forget(&mut self, rule: &str) -> Option<NamedRule> {
        self.rules.remove(rule)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &NamedRule)> {
        self.rules.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_a_counter_for_its_owner_until_room_is_needed() {
        let mut registry = Registry::new(2);
        let first = registry.take([1, 0]).expect("room");
        registry.release(first.counter);
        let again = registry.take([1, 0]).expect("room");
        assert_eq!(again.origin, Origin::Kept);
        assert_eq!(again.counter, first.counter);
        registry.release(again.counter);
        assert_eq!(registry.take([2, 0]).expect("room").origin, Origin::New);
        let recycled = registry.take([3, 0]).expect("room");
        assert_eq!(recycled.origin, Origin::Recycled);
        assert_eq!(recycled.counter, first.counter);
        assert_eq!(registry.find([1, 0]), None);
        assert_eq!(registry.take([4, 0]), None);
        assert_eq!(registry.room(), 0);
    }

    #[test]
    fn rebuilds_from_the_owners_in_the_maps() {
        let mut registry = Registry::new(4);
        registry.adopt(vec![[7, 7], [8, 8]], [1].into_iter());
        assert_eq!(registry.find([7, 7]), Some(0));
        assert_eq!(registry.room(), 3);
        assert_eq!(registry.take([8, 8]).expect("room").counter, 1);
        assert_eq!(registry.take([7, 7]).expect("room").origin, Origin::Kept);
        assert_eq!(registry.room(), 2);
    }

    #[test]
    fn hashes_do_not_run_parts_together() {
        assert_ne!(hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]));
    }
}
