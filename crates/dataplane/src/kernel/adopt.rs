//! Takes over what a former process left in the pinned maps.

use std::collections::HashMap;

use bpf::layout::{LOOKUP_PLACEHOLDER, Word};

use crate::error::Error;
use crate::kernel::key::{self, Key};
use crate::kernel::{Entry, Kernel};

impl Kernel {
    /// Rebuilds this process's picture from the maps, and mends what a process that was killed in
    /// the middle of a change left behind.
    pub(super) fn adopt(&mut self) -> Result<(), Error> {
        let limit = self.program.maps.route_table.len();
        let mut elements = key::read(&self.program.maps)?;
        elements.extend(self.ranges.adopt(&self.program.maps)?);
        for (key, index) in elements {
            if index >= limit {
                key::remove(&mut self.program.maps, &[key])?;
                continue;
            }
            let route = self.program.maps.route_table.read(index);
            let entry = Entry {
                index,
                word: Word::unpack(route.word),
                placeholder: route.lookup & LOOKUP_PLACEHOLDER != 0,
                inspection: self.adopted_inspection(index, route.health),
            };
            self.put_entry(key, entry);
        }
        self.adopt_sources()?;
        self.adopt_slots();
        self.adopt_health()?;
        self.publish_ranges()?;
        let keys: Vec<Key> = self.entries.keys().copied().collect();
        self.groups.adopt(&mut self.program.maps)?;
        self.publish_groups(keys)?;
        let own = self.program.maps.own_sources.entries()?;
        self.own = own.into_iter().map(|(key, _)| key.into()).collect();
        Ok(())
    }

    /// Counts the (S,G) entries and corrects the flags of the (*,G) ones.
    fn adopt_sources(&mut self) -> Result<(), Error> {
        let mut sources: HashMap<Key, u32> = HashMap::new();
        for key in self.entries.keys().filter(|key| key.is_specific()) {
            *sources.entry(key.any_source()).or_default() += 1;
        }
        let mut stale = Vec::new();
        for (key, entry) in &self.entries {
            if entry.placeholder && !sources.contains_key(key) {
                stale.push(*key);
            }
        }
        key::remove(&mut self.program.maps, &stale)?;
        for key in &stale {
            self.take_entry(key);
        }
        let orphans: Vec<Key> = sources
            .keys()
            .filter(|key| !self.entries.contains_key(*key))
            .copied()
            .collect();
        self.indices.occupy(self.entries.values().map(|e| e.index));
        self.sources = sources;
        self.add_placeholders(&orphans)?;
        let keys: Vec<Key> = self.entries.keys().copied().collect();
        keys.into_iter().for_each(|key| self.flag(key));
        Ok(())
    }

    fn adopt_slots(&mut self) {
        let mut referenced = Vec::new();
        for entry in self.entries.values().filter(|entry| !entry.placeholder) {
            let word = entry.word;
            self.blocks.occupy(word.first, u32::from(word.count));
            let rule = self.rule_counter(word);
            referenced.push(rule);
            if rule != word.counter {
                referenced.push(word.counter);
            }
            for slot in word.first..word.first + u32::from(word.count) {
                referenced.push(self.program.maps.outputs.read(slot).counter);
            }
        }
        self.adopt_owners(&referenced);
    }
}
