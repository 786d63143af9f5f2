//! Takes over what a former process left in the pinned maps.
//!
//! Nothing there is trusted: anyone who may write to the bpffs may have left anything, and what makes one
//! daemon panic would make each one after it panic as well. Invalid entries are skipped, and the rules
//! restore them.

use std::collections::{HashMap, HashSet};

use bpf::layout::{self, LOOKUP_PLACEHOLDER, Word, merge_of};

use crate::error::Error;
use crate::kernel::entry::Entry;
use crate::kernel::key::Key;
use crate::kernel::{Kernel, gates, legs};

impl Kernel {
    /// Rebuilds this process's state from the maps, and repairs what a process that was killed in the
    /// middle of a change left behind.
    pub(super) fn adopt(&mut self) -> Result<(), Error> {
        let mut elements = self.routes.keys.read()?;
        elements.extend(self.routes.ranges.adopt()?);
        let mut indices = HashSet::new();
        let mut invalid = Vec::new();
        for (key, index) in elements {
            let is_new = index < self.routes.table.len() && indices.insert(index);
            match is_new.then(|| self.entry_at(index)) {
                Some(entry) if entry.placeholder || self.occupy(entry.word) => {
                    self.routes.put(key, entry);
                    let lookup = self.routes.table.read(index).lookup;
                    self.routes.adopt_turn(key, lookup);
                }
                _ => invalid.push(key),
            }
        }
        if !invalid.is_empty() {
            let routes = invalid.len();
            tracing::warn!(routes, "pinned routes make no sense; they are made anew");
            self.routes.keys.remove(&invalid)?;
        }
        self.adopt_sources()?;
        let counting = self.adopt_slots()?;
        self.adopt_legs(&counting)?;
        let entries = self.routes.entries.values();
        let inspected = entries.filter_map(|entry| Some((entry.index, entry.inspection?)));
        self.control.memory.inspections.adopt(inspected)?;
        self.control.reset_future_times();
        self.routes.publish_ranges()?;
        self.routes.publish_addresses();
        let keys: Vec<Key> = self.routes.entries.keys().copied().collect();
        self.routes.groups.adopt()?;
        self.routes.publish_groups(keys, &self.control.memory)?;
        self.own = self.own_sources.entries()?.into_iter().collect();
        Ok(())
    }

    fn entry_at(&self, index: u32) -> Entry {
        let route = self.routes.table.read(index);
        let word = Word::unpack(route.word);
        let placeholder = route.lookup & LOOKUP_PLACEHOLDER != 0;
        Entry {
            answered: !placeholder && self.is_answered(word),
            index,
            word: if placeholder && !self.is_sound(word) {
                Word::default()
            } else {
                word
            },
            placeholder,
            gate: gates::adopted(&self.gates, route.gate),
            inspection: self.control.memory.inspections.adopted(index, route.health),
        }
    }

    /// Marks the block of a word as in use; returns whether all that it refers to exists and is unowned.
    fn occupy(&mut self, word: Word) -> bool {
        let (first, count) = (word.first, word.count.into());
        self.is_sound(word) && self.routes.blocks.occupy_free(first, count)
    }

    /// Returns whether all that a word refers to exists.
    fn is_sound(&self, word: Word) -> bool {
        let (memory, outputs) = (&self.control.memory, &self.routes.outputs);
        let is_counter = |counter: u32| counter < memory.identities.len();
        let end = word.first.checked_add(word.count.into());
        let Some(end) = end.filter(|end| *end <= outputs.len()) else {
            return false;
        };
        let mut counters = (word.first..end).map(|slot| outputs.read(slot).counter);
        is_counter(word.counter)
            && is_counter(memory.rule_counter(word))
            && counters.all(is_counter)
    }

    /// Returns whether copies of the outputs of a word are answered, if those all exist.
    fn is_answered(&self, word: Word) -> bool {
        let outputs = &self.routes.outputs;
        let mut slots = word.first..word.first + u32::from(word.count);
        let answers = |slot| outputs.read(slot).flags & layout::OUTPUT_ANSWERS != 0;
        self.is_sound(word) && slots.any(answers)
    }

    /// Counts the (S,G) entries and corrects the flags of the (*,G) ones.
    fn adopt_sources(&mut self) -> Result<(), Error> {
        let mut sources: HashMap<Key, u32> = HashMap::new();
        for key in self.routes.entries.keys().filter(|key| key.is_specific()) {
            *sources.entry(key.any_source()).or_default() += 1;
        }
        let mut stale = Vec::new();
        for (key, entry) in &self.routes.entries {
            if entry.placeholder && !sources.contains_key(key) {
                stale.push(*key);
            }
        }
        self.routes.keys.remove(&stale)?;
        for key in &stale {
            self.routes.take(key);
        }
        let orphans: Vec<Key> = sources
            .keys()
            .filter(|key| !self.routes.entries.contains_key(*key))
            .copied()
            .collect();
        let routes = &mut self.routes;
        let used = routes.entries.values().map(|entry| entry.index);
        routes.indices.occupy(used);
        routes.sources = sources;
        routes.add_placeholders(&orphans, &mut self.control.memory)?;
        routes.flag_all();
        Ok(())
    }

    /// Marks what routes use; returns the counters that they count in.
    fn adopt_slots(&mut self) -> Result<HashSet<u32>, Error> {
        let mut referenced = Vec::new();
        let routes = &mut self.routes;
        for entry in routes.entries.values().filter(|entry| !entry.placeholder) {
            let word = entry.word;
            let rule = self.control.memory.rule_counter(word);
            referenced.push(rule);
            if rule != word.counter {
                referenced.push(word.counter);
            }
            for slot in word.first..word.first + u32::from(word.count) {
                referenced.push(routes.outputs.read(slot).counter);
            }
        }
        self.control.adopt(&referenced)?;
        self.loose = self.control.row().unused();
        Ok(referenced.into_iter().collect())
    }

    /// Takes over what decides between inputs, and lets those pass whose leg refers to nothing; the rules
    /// restore it.
    fn adopt_legs(&mut self, counting: &HashSet<u32>) -> Result<(), Error> {
        let control = &mut self.control;
        control.adopt_failovers(counting)?;
        let indices = 0..control.merges.limit();
        // One that is off goes on when it is on again, as its other counters do.
        let rules: HashSet<u32> = (0..control.used())
            .filter(|slot| control.row().owner_of(*slot).is_some())
            .collect();
        control.merges.adopt(indices, |rule| rules.contains(&rule));
        for counter in 0..control.used() {
            let identity = control.memory.identities.read(counter);
            let Some(index) = merge_of(identity.arbiter) else {
                continue;
            };
            let merge = control.merges.of(identity.rule);
            if merge.is_none_or(|merge| merge.index != index) {
                control.memory.set_arbiter(counter, identity.rule, 0);
            }
        }
        let others = legs::other_blocks(&self.control)?;
        if !others.is_empty() {
            self.wait()?;
        }
        Ok(self.control.merges.blocks.remove(&others)?)
    }
}
