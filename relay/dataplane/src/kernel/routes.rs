//! The maps that hold routes, and their content: `routes` and `routes6` refer to `route_table`, which refers
//! to blocks of `outputs`; ranges and fragments without ports have maps of their own.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bpf::Maps;
use bpf::layout::{self, Output, Route, Settings, Word};
use sys::field;
use sys::memory::{Array, Field};

use crate::allocator::{Blocks, Indices};
use crate::error::Error;
use crate::gates;
use crate::kernel::entry::{Entry, Written};
use crate::kernel::groups::Groups;
use crate::kernel::key::{Key, Keys};
use crate::kernel::memory::KernelMemory;
use crate::kernel::ranges::Ranges;

/// All routes.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) keys: Keys,
    pub(super) table: Array<Route>,
    pub(super) outputs: Array<Output>,
    settings: Array<Settings>,
    /// Every element, placeholders included.
    pub(super) entries: HashMap<Key, Entry>,
    /// Those that change paths, each with its flag.
    turns: HashMap<Key, u16>,
    /// Those whose packets are inspected.
    inspected: HashSet<Key>,
    /// How many of them each interface has, to know where the program has to be attached.
    pub(super) entries_on: BTreeMap<u32, usize>,
    /// How many of them are for addresses of this host.
    addresses: u64,
    /// How many of them have copies that are answered.
    answered: u64,
    /// Number of (S,G) entries per (*,G) key.
    pub(super) sources: HashMap<Key, u32>,
    pub(super) indices: Indices,
    pub(super) blocks: Blocks,
    pub(super) ranges: Ranges,
    pub(super) groups: Groups,
}

impl Routes {
    /// Empty at first.
    pub(super) fn over(maps: &Maps) -> Self {
        Self {
            keys: Keys::over(maps),
            table: maps.route_table.clone(),
            outputs: maps.outputs.clone(),
            settings: maps.settings.clone(),
            entries: HashMap::new(),
            turns: HashMap::new(),
            inspected: HashSet::new(),
            entries_on: BTreeMap::new(),
            addresses: 0,
            answered: 0,
            sources: HashMap::new(),
            indices: Indices::new(maps.route_table.len()),
            blocks: Blocks::new(maps.outputs.len()),
            ranges: Ranges::over(maps),
            groups: Groups::over(maps),
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Entry> {
        self.entries.get(key).copied()
    }

    /// Those that are inspected, each with its index and its rule's counter.
    pub(super) fn inspected(&self, memory: &KernelMemory) -> impl Iterator<Item = (u32, u32)> {
        self.inspected.iter().filter_map(|key| {
            let entry = self.entries.get(key)?;
            Some((entry.index, memory.rule_counter(entry.word)))
        })
    }

    /// Frees what no packet reads any more.
    pub(super) fn grace_period_passed(&mut self) {
        self.indices.grace_period_passed();
        self.blocks.grace_period_passed();
        self.ranges.grace_period_passed();
    }

    pub(super) fn put(&mut self, key: Key, entry: Entry) {
        match entry.inspection {
            Some(_) => self.inspected.insert(key),
            None => self.inspected.remove(&key),
        };
        self.answered += u64::from(entry.answered);
        match self.entries.insert(key, entry) {
            Some(before) => self.answered -= u64::from(before.answered),
            None => {
                *self.entries_on.entry(key.ifindex()).or_default() += 1;
                self.addresses += u64::from(key.is_address());
            }
        }
    }

    pub(super) fn take(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.inspected.remove(key);
        self.addresses -= u64::from(key.is_address());
        self.answered -= u64::from(entry.answered);
        if let Some(count) = self.entries_on.get_mut(&key.ifindex()) {
            *count -= 1;
            if *count == 0 {
                self.entries_on.remove(&key.ifindex());
            }
        }
        Some(entry)
    }

    /// Publishes in the settings whether packets to addresses of this host are looked up.
    pub(super) fn publish_addresses(&self) {
        let addresses = self.addresses + self.answered;
        let settings = &self.settings;
        settings.store(0, field!(Settings, addresses), addresses);
        settings.store(0, field!(Settings, answers), self.answered);
    }

    /// Points an entry to another block, for all packets at once.
    pub(super) fn swing(&self, entry: &Entry, word: Word) {
        self.table.store(entry.index, WORD, word.pack());
    }

    pub(super) fn set_gate(&mut self, key: Key, gate: u16) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.gate = gate;
            self.flag(key);
        }
    }

    /// Says which routes change paths from now on, each with its flag; entries may follow.
    pub(super) fn set_turns(&mut self, turns: HashMap<Key, u16>) {
        let former = std::mem::replace(&mut self.turns, turns);
        let keys = former.keys().chain(self.turns.keys());
        keys.for_each(|key| self.flag(*key));
    }

    /// Goes on with what a former process, which did not finish, said of an entry.
    pub(super) fn adopt_turn(&mut self, key: Key, lookup: u16) {
        let turn = lookup & (layout::LOOKUP_LEAVING | layout::LOOKUP_COMING);
        if turn != 0 {
            self.turns.insert(key, turn);
        }
    }

    /// Returns whether packets of a key are still the userspace path's.
    pub(super) fn is_coming(&self, key: &Key) -> bool {
        self.turns.get(key) == Some(&layout::LOOKUP_COMING)
    }

    /// Notes that one (S,G) entry of `key` is removed; returns `key` if its placeholder is removed too.
    pub(super) fn remove_source(&mut self, key: Key) -> Option<Key> {
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

    /// Reduces a (*,G) entry to a note that (S,G) entries exist.
    pub(super) fn make_placeholder(
        &mut self,
        key: Key,
        memory: &mut KernelMemory,
    ) -> Result<(), Error> {
        let Some(entry) = self.get(&key) else {
            return Ok(());
        };
        memory.retain_health(&entry);
        let placeholder = Entry {
            placeholder: true,
            inspection: None,
            answered: false,
            ..entry
        };
        self.put(key, placeholder);
        self.flag(key);
        memory.inspections.end(entry.index, entry.inspection)
    }

    /// Writes the current flags of an entry.
    pub(super) fn flag(&self, key: Key) {
        if let Some(entry) = self.entries.get(&key) {
            let flags = self.flags_of(key, entry);
            self.table.store(entry.index, LOOKUP, flags);
        }
    }

    /// The same of all.
    pub(super) fn flag_all(&self) {
        self.entries.keys().for_each(|key| self.flag(*key));
    }

    /// The `lookup` word of an entry, with its gate and the `health` word behind it.
    fn flags_of(&self, key: Key, entry: &Entry) -> u64 {
        let flag = |set: bool, flag: u16| if set { flag } else { 0 };
        let any = !key.is_specific() && !key.is_range();
        let flags = flag(entry.placeholder, layout::LOOKUP_PLACEHOLDER)
            | flag(self.sources.contains_key(&key), layout::LOOKUP_SOURCES)
            | flag(any && self.ranges.go_before(key), layout::LOOKUP_RANGES)
            | flag(entry.answered, layout::LOOKUP_ANSWERED)
            | self.turns.get(&key).copied().unwrap_or(0);
        // Two 16-bit words and one of 32 in memory order.
        let health = entry.inspection.map_or(0, |_| entry.index + 1);
        let ([a, b], [c, d]) = (flags.to_ne_bytes(), entry.gate.to_ne_bytes());
        let [e, f, g, h] = health.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }

    /// Updates the trie of ranges to match the entries, and the flags of exact entries to match the trie.
    pub(super) fn publish_ranges(&mut self) -> Result<(), Error> {
        let before = self.ranges.has_specific();
        self.ranges.publish(&self.entries)?;
        if before || self.ranges.has_specific() {
            self.flag_all();
        }
        Ok(())
    }

    /// Updates the routes of fragments without ports to match the entries of `keys`.
    pub(super) fn publish_groups(
        &mut self,
        keys: impl IntoIterator<Item = Key>,
        memory: &KernelMemory,
    ) -> Result<(), Error> {
        for key in keys {
            let entry = self.entries.get(&key).filter(|entry| !entry.placeholder);
            let route = entry.map(|entry| (entry.index, memory.rule_counter(entry.word)));
            self.groups.note(key, route);
        }
        self.groups.publish()
    }

    /// Puts new keys in: source-specific ones first, then the (*,G) entries that point at them.
    pub(super) fn insert(
        &mut self,
        routes: &[Written],
        memory: &mut KernelMemory,
    ) -> Result<(), Error> {
        let (specific, any): (Vec<_>, Vec<_>) =
            routes.iter().partition(|route| route.key.is_specific());
        let mut any_sources = BTreeSet::new();
        for route in &specific {
            let key = route.key.any_source();
            *self.sources.entry(key).or_default() += 1;
            any_sources.insert(key);
        }
        let elements = |routes: Vec<&Written>| -> Vec<(Key, Entry)> {
            let elements = routes.into_iter();
            elements.map(|route| (route.key, route.entry())).collect()
        };
        self.insert_elements(&elements(specific), memory)?;
        self.insert_elements(&elements(any), memory)?;
        let (present, missing): (Vec<_>, Vec<_>) = any_sources
            .into_iter()
            .partition(|key| self.entries.contains_key(key));
        present.into_iter().for_each(|key| self.flag(key));
        self.add_placeholders(&missing, memory)
    }

    /// Adds (*,G) entries that only note that (S,G) entries exist.
    pub(super) fn add_placeholders(
        &mut self,
        keys: &[Key],
        memory: &mut KernelMemory,
    ) -> Result<(), Error> {
        let placeholder = Entry {
            index: 0,
            word: Word::default(),
            placeholder: true,
            gate: gates::NONE,
            inspection: None,
            answered: false,
        };
        let elements: Vec<_> = keys.iter().map(|key| (*key, placeholder)).collect();
        self.insert_elements(&elements, memory)
    }

    /// Assigns indices to entries, writes the entries there, and then inserts their keys.
    fn insert_elements(
        &mut self,
        entries: &[(Key, Entry)],
        memory: &mut KernelMemory,
    ) -> Result<(), Error> {
        let mut elements = Vec::with_capacity(entries.len());
        for (key, entry) in entries {
            let index = self.indices.take().ok_or(Error::Capacity {
                what: "route entries",
                wanted: 1,
                limit: 0,
            })?;
            let entry = Entry { index, ..*entry };
            memory.inspections.begin(index, entry.inspection)?;
            let flags = self.flags_of(*key, &entry);
            self.table.store(index, LOOKUP, flags);
            self.table.store(index, WORD, entry.word.pack());
            self.put(*key, entry);
            elements.push((*key, index));
        }
        Ok(self.keys.insert(&elements)?)
    }
}

const WORD: Field<Route> = field!(Route, word);
const LOOKUP: Field<Route> = field!(Route, lookup);
