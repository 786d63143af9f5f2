//! One change of the route maps: planned and reserved whole, then carried out in an order in which
//! no packet sees a half of it.
//!
//! Order: new output blocks; swing existing routes to theirs, one store each; take removed keys out;
//! wait until no packet looks at them any more; put new keys in.

use std::collections::{BTreeSet, HashSet};
use std::mem::offset_of;

use bpf::grace;
use bpf::layout::{self, Identity, Word};
use model::table::{Route, RouteKey};

use crate::Error;
use crate::kernel::adopt::lookup;
use crate::kernel::identity::{Hash, Origin, of_output, of_rule};
use crate::kernel::key::{self, Key};
use crate::kernel::{Entry, Kernel, encode, interfaces};

/// A route that has to be written: its slots still lack their counters.
struct Wanted {
    key: Key,
    flags: u8,
    rule: Hash,
    outputs: Vec<(Hash, layout::Output)>,
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
        self.reserve(&wanted, removed.len())?;
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
        if deleted && !new.is_empty() {
            self.wait()?;
        }
        self.insert(&new)?;
        let interfaces = interfaces(&self.entries);
        self.links.detach_others(&interfaces, &self.pins)
    }

    /// Encodes the routes and leaves out those that are in the maps already, byte for byte.
    fn plan(&self, set: &[(RouteKey, Route)]) -> Result<Vec<Wanted>, Error> {
        let mut wanted = Vec::with_capacity(set.len());
        for (key, route) in set {
            encode::check(key, route)?;
            let output = |output| {
                let owner = of_output(&route.rule, output);
                (owner, encode::output(key, output, 0))
            };
            let route = Wanted {
                key: encode::route_key(key)?,
                flags: encode::flags(route),
                rule: of_rule(&route.rule),
                outputs: route.outputs.iter().map(output).collect(),
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
        let same_output = |(slot, (owner, output)): (u32, &(Hash, layout::Output))| {
            let installed = self.program.maps.outputs.read(slot);
            let expected = layout::Output {
                counter: installed.counter,
                ..*output
            };
            installed == expected && self.registry.owns(*owner, installed.counter)
        };
        !entry.placeholder
            && word.flags == wanted.flags
            && usize::from(word.count) == wanted.outputs.len()
            && self.registry.owns(wanted.rule, word.counter)
            && slots.zip(&wanted.outputs).all(same_output)
    }

    /// Makes sure that everything fits, waiting for a grace period if that makes the room.
    fn reserve(&mut self, wanted: &[Wanted], removed: usize) -> Result<(), Error> {
        let entries = self.new_entries(wanted);
        let slots: usize = wanted.iter().map(|route| route.outputs.len()).sum();
        let owners: HashSet<Hash> = wanted
            .iter()
            .flat_map(|route| route.outputs.iter().map(|(owner, _)| *owner))
            .chain(wanted.iter().map(|route| route.rule))
            .filter(|owner| self.registry.find(*owner).is_none())
            .collect();

        let limit = self.program.maps.routes.capacity() as usize;
        let routes = (self.entries.len() + entries).saturating_sub(removed);
        refuse_above("routes", routes, limit)?;
        refuse_above("route entries", entries, self.indices.room())?;
        refuse_above("free output slots", slots, self.blocks.room())?;
        refuse_above("free counters", owners.len(), self.registry.room())?;
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
    fn counter(&mut self, owner: Hash) -> Result<u32, Error> {
        let taken = self.registry.take(owner).ok_or(Error::Capacity {
            what: "counters",
            wanted: 1,
            limit: 0,
        })?;
        let maps = &mut self.program.maps;
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
            hash: owner,
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
            if entry.placeholder {
                table.store(entry.index, LOOKUP, lookup(true, false));
            } else {
                self.release(entry.word);
            }
            let entry = Entry {
                word: route.word,
                placeholder: false,
                ..entry
            };
            self.entries.insert(route.key, entry);
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
                self.look_up(*key, true, true);
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
        self.look_up(key, false, false);
        None
    }

    /// Sets the flags of a (*,G) entry.
    fn look_up(&mut self, key: Key, sources: bool, placeholder: bool) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.placeholder = placeholder;
            let flags = lookup(sources, placeholder);
            let table = &mut self.program.maps.route_table;
            table.store(entry.index, LOOKUP, flags);
        }
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
        for key in present {
            let placeholder = self.entries[&key].placeholder;
            self.look_up(key, true, placeholder);
        }
        self.add_placeholders(&missing)
    }

    fn insert_elements(&mut self, routes: &[&Written]) -> Result<(), Error> {
        let mut elements = Vec::with_capacity(routes.len());
        for route in routes {
            let sources = self.sources.contains_key(&route.key);
            let index = self.new_entry(route.key, route.word, lookup(sources, false))?;
            elements.push((route.key, index));
        }
        Ok(key::insert(&mut self.program.maps, &elements)?)
    }

    /// Adds (*,G) entries that only say that (S,G) entries exist.
    pub(super) fn add_placeholders(&mut self, keys: &[Key]) -> Result<(), Error> {
        let mut elements = Vec::with_capacity(keys.len());
        for key in keys {
            let index = self.new_entry(*key, Word::default(), lookup(true, true))?;
            elements.push((*key, index));
        }
        Ok(key::insert(&mut self.program.maps, &elements)?)
    }

    fn new_entry(&mut self, key: Key, word: Word, flags: u64) -> Result<u32, Error> {
        let index = self.indices.take().ok_or(Error::Capacity {
            what: "route entries",
            wanted: 1,
            limit: 0,
        })?;
        let table = &mut self.program.maps.route_table;
        table.store(index, LOOKUP, flags);
        table.store(index, WORD, word.pack());
        let entry = Entry {
            index,
            word,
            placeholder: flags == lookup(true, true),
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
