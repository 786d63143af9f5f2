//! Takes over what a former process left in the pinned maps.

use std::collections::HashMap;

use bpf::layout::{LOOKUP_PLACEHOLDER, LOOKUP_SOURCES, Route, Word};

use crate::Error;
use crate::kernel::key::{self, Key};
use crate::kernel::{Entry, Kernel};

impl Kernel {
    /// Rebuilds this process's picture from the maps, and mends what a process that was killed in
    /// the middle of a change left behind.
    pub(super) fn adopt(&mut self) -> Result<(), Error> {
        let limit = self.program.maps.route_table.len();
        for (key, index) in key::read(&self.program.maps)? {
            if index >= limit {
                key::remove(&mut self.program.maps, &[key])?;
                continue;
            }
            let route = self.program.maps.route_table.read(index);
            let entry = Entry {
                index,
                word: Word::unpack(route.word),
                placeholder: route.lookup & LOOKUP_PLACEHOLDER != 0,
            };
            self.entries.insert(key, entry);
        }
        self.adopt_sources()?;
        self.adopt_slots();
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
            if key.is_specific() {
                continue;
            }
            let has_sources = sources.contains_key(key);
            if entry.placeholder && !has_sources {
                stale.push(*key);
            } else {
                let lookup = lookup(has_sources, entry.placeholder);
                self.program.maps.route_table.store(
                    entry.index,
                    std::mem::offset_of!(Route, lookup),
                    lookup,
                );
            }
        }
        key::remove(&mut self.program.maps, &stale)?;
        for key in &stale {
            self.entries.remove(key);
        }
        let orphans: Vec<Key> = sources
            .keys()
            .filter(|key| !self.entries.contains_key(*key))
            .copied()
            .collect();
        self.indices.occupy(self.entries.values().map(|e| e.index));
        self.sources = sources;
        self.add_placeholders(&orphans)
    }

    fn adopt_slots(&mut self) {
        let mut referenced = Vec::new();
        for entry in self.entries.values().filter(|entry| !entry.placeholder) {
            let word = entry.word;
            self.blocks.occupy(word.first, u32::from(word.count));
            referenced.push(word.counter);
            for slot in word.first..word.first + u32::from(word.count) {
                referenced.push(self.program.maps.outputs.read(slot).counter);
            }
        }
        let identities = &self.program.maps.identities;
        let mut owners: Vec<_> = (0..identities.len())
            .map(|counter| identities.read(counter).hash)
            .collect();
        let used = owners.iter().rposition(|hash| *hash != [0; 2]);
        owners.truncate(used.map_or(0, |last| last + 1));
        self.registry.adopt(owners, referenced.into_iter());
    }
}

/// The `lookup` word of a (*,G) entry, with the padding behind it.
pub(super) fn lookup(sources: bool, placeholder: bool) -> u64 {
    let sources = if sources { LOOKUP_SOURCES } else { 0 };
    let placeholder = if placeholder { LOOKUP_PLACEHOLDER } else { 0 };
    // The padding is zero on either side of the 32-bit word, whatever the byte order.
    let halves = [sources | placeholder, 0];
    u64::from_ne_bytes(
        [halves[0].to_ne_bytes(), halves[1].to_ne_bytes()]
            .concat()
            .try_into()
            .expect("two halves of four bytes"),
    )
}
