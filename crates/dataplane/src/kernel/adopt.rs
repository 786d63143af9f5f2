//! Takes over what a former process left in the pinned maps.
//!
//! Nothing there is believed: whoever may write to the bpffs may have left anything, and what makes one
//! daemon panic would make each one after it panic as well. What makes no sense is left out, and the
//! rules bring it back.

use std::collections::{HashMap, HashSet};

use bpf::layout::{self, LOOKUP_PLACEHOLDER, Word, merge_of};
use sys::field;

use crate::error::Error;
use crate::kernel::allocator::Places;
use crate::kernel::key::{self, Key};
use crate::kernel::{Entry, Kernel};

impl Kernel {
    /// Rebuilds this process's picture from the maps, and mends what a process that was killed in
    /// the middle of a change left behind.
    pub(super) fn adopt(&mut self) -> Result<(), Error> {
        let mut elements = key::read(&self.program.maps)?;
        elements.extend(self.ranges.adopt(&mut self.program.maps)?);
        let mut routes = Places::new(self.program.maps.route_table.len());
        let mut outputs = Places::new(self.program.maps.outputs.len());
        let mut senseless = Vec::new();
        for (key, index) in elements {
            let entry = routes.take(index, 1).then(|| self.entry_at(index));
            let entry = entry.filter(|entry| {
                let word = entry.word;
                let is_sound = self.is_sound(word);
                entry.placeholder || is_sound && outputs.take(word.first, word.count.into())
            });
            match entry {
                Some(entry) => self.put_entry(key, entry),
                None => senseless.push(key),
            }
        }
        if !senseless.is_empty() {
            let routes = senseless.len();
            tracing::warn!(routes, "pinned routes make no sense; they are made anew");
            key::remove(&mut self.program.maps, &senseless)?;
        }
        self.adopt_sources()?;
        let counting = self.adopt_slots()?;
        self.adopt_legs(&counting)?;
        self.adopt_health()?;
        self.adopt_times();
        self.publish_ranges()?;
        self.publish_addresses();
        let keys: Vec<Key> = self.entries.keys().copied().collect();
        self.groups.adopt(&mut self.program.maps)?;
        self.publish_groups(keys)?;
        let own = self.program.maps.own_sources.entries()?;
        self.own = own.into_iter().map(|(key, _)| key.into()).collect();
        Ok(())
    }

    fn entry_at(&self, index: u32) -> Entry {
        let route = self.program.maps.route_table.read(index);
        let word = Word::unpack(route.word);
        let placeholder = route.lookup & LOOKUP_PLACEHOLDER != 0;
        Entry {
            answered: !placeholder && self.is_answered(word),
            index,
            word: match placeholder && !self.is_sound(word) {
                true => Word::default(),
                false => word,
            },
            placeholder,
            gate: self.adopted_gate(route.gate),
            inspection: self.adopted_inspection(index, route.health),
        }
    }

    /// Says whether all that a word leads to is there.
    fn is_sound(&self, word: Word) -> bool {
        let maps = &self.program.maps;
        let is_counter = |counter: u32| counter < maps.identities.len();
        let end = word.first.checked_add(word.count.into());
        let Some(end) = end.filter(|end| *end <= maps.outputs.len()) else {
            return false;
        };
        let mut counters = (word.first..end).map(|slot| maps.outputs.read(slot).counter);
        is_counter(word.counter) && is_counter(self.rule_counter(word)) && counters.all(is_counter)
    }

    /// Says whether copies of what a word leads to are answered, if all of that is there.
    fn is_answered(&self, word: Word) -> bool {
        let outputs = &self.program.maps.outputs;
        let mut slots = word.first..word.first + u32::from(word.count);
        let answers = |slot| outputs.read(slot).flags & layout::OUTPUT_ANSWERS != 0;
        self.is_sound(word) && slots.any(answers)
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

    /// Marks what routes use; returns the counters that they count in.
    fn adopt_slots(&mut self) -> Result<HashSet<u32>, Error> {
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
        self.adopt_owners(&referenced)?;
        Ok(referenced.into_iter().collect())
    }

    /// Takes over what decides between inputs, and lets those pass whose line leads nowhere; the rules
    /// bring it back.
    fn adopt_legs(&mut self, counting: &HashSet<u32>) -> Result<(), Error> {
        self.legs.adopt(counting)?;
        for counter in 0..self.owners.used() {
            let identity = self.program.maps.identities.read(counter);
            let Some(index) = merge_of(identity.arbiter) else {
                continue;
            };
            let merge = self.legs.merges.of(identity.rule);
            if merge.is_none_or(|merge| merge.index != index) {
                self.lead_input(counter, identity.rule, 0);
            }
        }
        let others = self.legs.other_blocks()?;
        if !others.is_empty() {
            self.wait()?;
        }
        self.legs.mend_blocks(&others)
    }

    /// Forgets times that are yet to come: a limit would refuse, and a silent line would seem to
    /// deliver, until then.
    fn adopt_times(&mut self) {
        let now_ns = sys::clock::kernel_monotonic_ns();
        let maps = &mut self.program.maps;
        for counter in 0..self.owners.used() {
            let limit = maps.limits.read(counter);
            if limit.due_ns > now_ns.saturating_add(limit.depth_ns) {
                let state = field!(layout::Limit, due_ns);
                maps.limits.store(counter, state, 0);
            }
            self.legs.failovers.mend(counter);
        }
        let budget = maps.settings.read(0).budget;
        if budget.due_ns > now_ns.saturating_add(budget.depth_ns) {
            let state = field!(layout::Settings, budget.due_ns);
            maps.settings.store(0, state, 0);
        }
    }
}
