//! One change of the route maps: planned and reserved whole, then carried out in an order in which
//! no packet sees a half of it.
//!
//! Order: new output blocks; swing existing routes to theirs, one store each; take removed keys out;
//! wait until no packet looks at them any more; put new keys in.

use std::collections::{BTreeSet, HashSet};
use std::mem::offset_of;

use bpf::grace;
use bpf::layout::{self, Identity, Word};
use model::table::{Output, Route, RouteKey};

use crate::Error;
use crate::kernel::identity::{Hash, Origin, of_output, of_rule};
use crate::kernel::key::{self, Key};
use crate::kernel::ranges::Ranges;
use crate::kernel::{Entry, Kernel, encode, interfaces};

/// A route that has to be written: its slots still lack their counters.
struct Wanted {
    key: Key,
    flags: u8,
    rule: Owner,
    outputs: Vec<(Owner, layout::Output)>,
}

/// Who a counter is for, and the limit that goes with it.
#[derive(Clone, Copy)]
struct Owner {
    hash: Hash,
    limit: layout::Limit,
}

/// A route whose block is written but which no packet sees yet.
struct Written {
    key: Key,
    word: Word,
}

impl Kernel {
    /// Removes and sets routes, all or nothing.
    pub(super) fn change(
        &mut self,
        removed: &[Key],
        set: &[(RouteKey, Route)],
    ) -> Result<(), Error> {
        let wanted = self.plan(set)?;
        let removed: Vec<Key> = removed
            .iter()
            .filter(|key| self.entries.get(key).is_some_and(|e| !e.placeholder))
            .copied()
            .collect();
        self.reserve(&wanted, &removed)?;
        let ingress: BTreeSet<u32> = wanted.iter().map(|wanted| wanted.key.ifindex()).collect();
        let ingress = ingress.into_iter();
        self.links.attach(ingress, &self.pins, &self.program)?;
        for (_, route) in set {
            self.named.learn(route);
        }

        let written = self.write(wanted)?;
        let (swung, new): (Vec<_>, Vec<_>) = written
            .into_iter()
            .partition(|route| self.entries.contains_key(&route.key));
        self.swing(&swung);
        let deleted = self.remove(&removed)?;
        let ranges_removed = removed.iter().any(|key| key.is_range());
        if ranges_removed {
            self.publish_ranges()?;
        }
        if deleted && !new.is_empty() {
            self.wait()?;
        }
        self.insert(&new)?;
        if new.iter().any(|route| route.key.is_range()) {
            self.publish_ranges()?;
        }
        let interfaces = interfaces(&self.entries);
        self.links.detach_others(&interfaces, &self.pins)
    }

    /// Encodes the routes and leaves out those that are in the maps already, byte for byte.
    fn plan(&self, set: &[(RouteKey, Route)]) -> Result<Vec<Wanted>, Error> {
        let mut wanted = Vec::with_capacity(set.len());
        for (key, route) in set {
            encode::check(key, route)?;
            let output = |output: &Output| {
                let owner = Owner {
                    hash: of_output(&route.rule, output),
                    limit: encode::limit(output.limit),
                };
                (owner, encode::output(key, output, 0))
            };
            let route = Wanted {
                key: encode::route_key(key)?,
                flags: encode::flags(route),
                rule: Owner {
                    hash: of_rule(&route.rule),
                    limit: encode::limit(route.limit),
                },
                outputs: encode::outputs(route).iter().map(output).collect(),
            };
            if !self.is_installed(&route) {
                wanted.push(route);
            }
        }
        Ok(wanted)
    }

    fn is_installed(&self, wanted: &Wanted) -> bool {
        let Some(entry) = self.entries.get(&wanted.key) else {
            return false;
        };
        let word = entry.word;
        let slots = word.first..word.first + u32::from(word.count);
        let same_output = |(slot, (owner, output)): (u32, &(Owner, layout::Output))| {
            let installed = self.program.maps.outputs.read(slot);
            let expected = layout::Output {
                counter: installed.counter,
                ..*output
            };
            installed == expected && self.is_owner(*owner, installed.counter)
        };
        !entry.placeholder
            && word.flags == wanted.flags
            && usize::from(word.count) == wanted.outputs.len()
            && self.is_owner(wanted.rule, word.counter)
            && slots.zip(&wanted.outputs).all(same_output)
    }

    fn is_owner(&self, owner: Owner, counter: u32) -> bool {
        let limit = layout::Limit {
            due_ns: 0,
            ..self.program.maps.limits.read(counter)
        };
        self.registry.owns(owner.hash, counter) && limit == owner.limit
    }

    /// Makes sure that everything fits, waiting for a grace period if that makes the room.
    fn reserve(&mut self, wanted: &[Wanted], removed: &[Key]) -> Result<(), Error> {
        let entries = self.new_entries(wanted);
        let slots: usize = wanted.iter().map(|route| route.outputs.len()).sum();
        let owners: HashSet<Hash> = wanted
            .iter()
            .flat_map(|route| route.outputs.iter().map(|(owner, _)| owner.hash))
            .chain(wanted.iter().map(|route| route.rule.hash))
            .filter(|owner| self.registry.find(*owner).is_none())
            .collect();

        let limit = self.program.maps.routes.capacity() as usize;
        let routes = (self.entries.len() + entries).saturating_sub(removed.len());
        refuse_above("routes", routes, limit)?;
        refuse_above("route entries", entries, self.indices.room())?;
        refuse_above("free output slots", slots, self.blocks.room())?;
        refuse_above("free counters", owners.len(), self.registry.room())?;
        let candidates = self.new_candidates(wanted, removed);
        refuse_above("range candidates", candidates, self.ranges.room())?;
        let largest = wanted.iter().map(|route| route.outputs.len()).max();
        refuse_above("outputs of one rule", largest.unwrap_or(0), u16::MAX.into())?;
        if self.indices.ready() < entries
            || self.blocks.ready() < slots
            || self.registry.untouched() < owners.len()
        {
            self.wait()?;
        }
        Ok(())
    }

    /// How many candidates the lists of ranges come to after the change, if it concerns them.
    fn new_candidates(&self, wanted: &[Wanted], removed: &[Key]) -> usize {
        let new = wanted.iter().map(|route| route.key);
        let new = new.filter(|key| key.is_range() && !self.entries.contains_key(key));
        let new: Vec<Key> = new.collect();
        if new.is_empty() {
            return 0;
        }
        let removed: HashSet<&Key> = removed.iter().collect();
        let kept = self.entries.keys().filter(|key| !removed.contains(key));
        Ranges::candidates(kept.copied().chain(new))
    }

    /// How many elements of `routes` the routes need beyond those that exist, placeholders included.
    fn new_entries(&self, wanted: &[Wanted]) -> usize {
        let mut new: HashSet<Key> = HashSet::new();
        for route in wanted {
            new.insert(route.key);
            new.insert(route.key.any_source());
        }
        new.retain(|key| !self.entries.contains_key(key));
        new.len()
    }

    /// Waits until no packet reads what was unlinked before.
    fn wait(&mut self) -> Result<(), Error> {
        grace::wait().map_err(Error::Grace)?;
        self.indices.grace_period_passed();
        self.blocks.grace_period_passed();
        self.ranges.grace_period_passed();
        Ok(())
    }

    /// Takes counters and writes the blocks; on failure nothing of it is visible or kept.
    fn write(&mut self, wanted: Vec<Wanted>) -> Result<Vec<Written>, Error> {
        let mut blocks = Vec::with_capacity(wanted.len());
        for route in &wanted {
            let length = route.outputs.len() as u32;
            let Some(first) = self.blocks.take(length) else {
                for (first, length) in blocks {
                    self.blocks.put_back(first, length);
                }
                return Err(Error::Capacity {
                    what: "contiguous output slots",
                    wanted: length as usize,
                    limit: self.blocks.room(),
                });
            };
            blocks.push((first, length));
        }
        let written = wanted.into_iter().zip(blocks);
        written
            .map(|(route, (first, _))| self.write_one(route, first))
            .collect()
    }

    fn write_one(&mut self, route: Wanted, first: u32) -> Result<Written, Error> {
        let word = Word {
            first,
            count: route.outputs.len() as u16,
            counter: self.counter(route.rule)?,
            flags: route.flags,
        };
        for (slot, (owner, mut output)) in (first..).zip(route.outputs) {
            output.counter = self.counter(owner)?;
            self.program.maps.outputs.write(slot, &output);
        }
        Ok(Written {
            key: route.key,
            word,
        })
    }

    /// Takes one more reference to the owner's counter and writes down whose it is.
    fn counter(&mut self, owner: Owner) -> Result<u32, Error> {
        let taken = self.registry.take(owner.hash).ok_or(Error::Capacity {
            what: "counters",
            wanted: 1,
            limit: 0,
        })?;
        let maps = &mut self.program.maps;
        for (offset, value) in [
            (offset_of!(layout::Limit, per_token), owner.limit.per_token),
            (offset_of!(layout::Limit, depth_ns), owner.limit.depth_ns),
            (offset_of!(layout::Limit, bits), owner.limit.bits),
        ] {
            maps.limits.store(taken.counter, offset, value);
        }
        let base = match taken.origin {
            Origin::Kept => return Ok(taken.counter),
            Origin::New => layout::Tally::default(),
            Origin::Recycled => {
                let raw = maps.counters.read_one(taken.counter)?;
                maps.drops.write(taken.counter, &layout::Drops::default());
                raw
            }
        };
        let identity = Identity {
            hash: owner.hash,
            packets: base.packets,
            bytes: base.bytes,
        };
        maps.identities.write(taken.counter, &identity);
        Ok(taken.counter)
    }

    /// Points existing entries to their new blocks.
    fn swing(&mut self, routes: &[Written]) {
        for route in routes {
            let Some(entry) = self.entries.get(&route.key).copied() else {
                continue;
            };
            let table = &mut self.program.maps.route_table;
            table.store(entry.index, WORD, route.word.pack());
            let was_placeholder = entry.placeholder;
            let released = entry.word;
            let entry = Entry {
                word: route.word,
                placeholder: false,
                ..entry
            };
            self.entries.insert(route.key, entry);
            if was_placeholder {
                self.flag(route.key);
            } else {
                self.release(released);
            }
        }
    }

    /// Gives back the block and the counters that a word refers to.
    fn release(&mut self, word: Word) {
        let count = u32::from(word.count);
        for slot in word.first..word.first + count {
            let output = self.program.maps.outputs.read(slot);
            self.registry.release(output.counter);
        }
        self.registry.release(word.counter);
        self.blocks.release(word.first, count);
    }

    /// Takes keys out; says whether an element of `routes` was deleted.
    fn remove(&mut self, keys: &[Key]) -> Result<bool, Error> {
        let mut deleted = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(entry) = self.entries.get(key).copied() else {
                continue;
            };
            self.release(entry.word);
            if self.sources.contains_key(key) {
                self.make_placeholder(*key);
                continue;
            }
            deleted.push(*key);
            if key.is_specific() {
                deleted.extend(self.remove_source(key.any_source()));
            }
        }
        key::remove(&mut self.program.maps, &deleted)?;
        for key in &deleted {
            if let Some(entry) = self.entries.remove(key) {
                self.indices.release(entry.index);
            }
        }
        Ok(!deleted.is_empty())
    }

    /// Notes that one (S,G) entry of `key` goes; returns `key` if its placeholder goes with it.
    fn remove_source(&mut self, key: Key) -> Option<Key> {
        let count = self.sources.get_mut(&key)?;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.sources.remove(&key);
        if self.entries.get(&key)?.placeholder {
            return Some(key);
        }
        self.flag(key);
        None
    }

    /// Leaves of a (*,G) entry only the word that (S,G) entries exist.
    fn make_placeholder(&mut self, key: Key) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.placeholder = true;
        }
        self.flag(key);
    }

    /// Writes the flags of an entry as they should be by now.
    pub(super) fn flag(&mut self, key: Key) {
        if let Some(entry) = self.entries.get(&key) {
            let flags = self.flags_of(key, entry.placeholder);
            let table = &mut self.program.maps.route_table;
            table.store(entry.index, LOOKUP, flags);
        }
    }

    /// The `lookup` word of an entry, with the padding behind it.
    fn flags_of(&self, key: Key, placeholder: bool) -> u64 {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let any = !key.is_specific() && !key.is_range();
        let flags = flag(placeholder, layout::LOOKUP_PLACEHOLDER)
            | flag(self.sources.contains_key(&key), layout::LOOKUP_SOURCES)
            | flag(any && self.ranges.go_before(key), layout::LOOKUP_RANGES);
        // Two 32-bit words in memory order, the second one zero.
        let [a, b, c, d] = flags.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
    }

    /// Brings the trie of ranges to the entries, and the flags of the exact entries to the trie.
    pub(super) fn publish_ranges(&mut self) -> Result<(), Error> {
        let before = self.ranges.has_specific();
        self.ranges.publish(&mut self.program.maps, &self.entries)?;
        if before || self.ranges.has_specific() {
            let keys: Vec<Key> = self.entries.keys().copied().collect();
            keys.into_iter().for_each(|key| self.flag(key));
        }
        Ok(())
    }

    /// Puts new keys in: source-specific ones first, then the (*,G) entries that point at them.
    fn insert(&mut self, routes: &[Written]) -> Result<(), Error> {
        let (specific, any): (Vec<_>, Vec<_>) =
            routes.iter().partition(|route| route.key.is_specific());
        let mut touched = BTreeSet::new();
        for route in &specific {
            let key = route.key.any_source();
            *self.sources.entry(key).or_default() += 1;
            touched.insert(key);
        }
        self.insert_elements(&specific)?;
        self.insert_elements(&any)?;
        let (present, missing): (Vec<_>, Vec<_>) = touched
            .into_iter()
            .partition(|key| self.entries.contains_key(key));
        present.into_iter().for_each(|key| self.flag(key));
        self.add_placeholders(&missing)
    }

    fn insert_elements(&mut self, routes: &[&Written]) -> Result<(), Error> {
        let mut elements = Vec::with_capacity(routes.len());
        for route in routes {
            let index = self.new_entry(route.key, route.word, false)?;
            elements.push((route.key, index));
        }
        Ok(key::insert(&mut self.program.maps, &elements)?)
    }

    /// Adds (*,G) entries that only say that (S,G) entries exist.
    pub(super) fn add_placeholders(&mut self, keys: &[Key]) -> Result<(), Error> {
        let mut elements = Vec::with_capacity(keys.len());
        for key in keys {
            let index = self.new_entry(*key, Word::default(), true)?;
            elements.push((*key, index));
        }
        Ok(key::insert(&mut self.program.maps, &elements)?)
    }

    fn new_entry(&mut self, key: Key, word: Word, placeholder: bool) -> Result<u32, Error> {
        let index = self.indices.take().ok_or(Error::Capacity {
            what: "route entries",
            wanted: 1,
            limit: 0,
        })?;
        let flags = self.flags_of(key, placeholder);
        let table = &mut self.program.maps.route_table;
        table.store(index, LOOKUP, flags);
        table.store(index, WORD, word.pack());
        let entry = Entry {
            index,
            word,
            placeholder,
        };
        self.entries.insert(key, entry);
        Ok(index)
    }
}

const WORD: usize = offset_of!(layout::Route, word);
const LOOKUP: usize = offset_of!(layout::Route, lookup);

fn refuse_above(what: &'static str, wanted: usize, limit: usize) -> Result<(), Error> {
    if wanted > limit {
        return Err(Error::Capacity {
            what,
            wanted,
            limit,
        });
    }
    Ok(())
}
