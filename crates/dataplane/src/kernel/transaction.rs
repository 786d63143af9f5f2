//! One change of the route maps: planned and reserved whole, then carried out in an order in which
//! no packet sees a half of it.
//!
//! Order: new output blocks; swing existing routes to theirs, one store each; take removed keys out;
//! wait until no packet looks at them any more; put new keys in. Gates shut a grace period before the
//! swing and open one after it ([`gates`](super::gates)).

use std::collections::{BTreeSet, HashMap};

use bpf::grace;
use bpf::layout::{self, Word};
use model::table::{Path, Route, RouteKey};
use sys::field;
use sys::memory::Field;

use crate::error::Error;
use crate::gates;
use crate::kernel::health::Inspection;
use crate::kernel::key::{self, Key};
use crate::kernel::legs::WantedLegs;
use crate::kernel::plan::Wanted;
use crate::kernel::{Entry, Kernel};
use crate::owners::name::{Hash, Name};

/// A route whose block is written but which no packet sees yet.
pub(super) struct Written {
    pub(super) key: Key,
    word: Word,
    pub(super) gate: u16,
    inspection: Option<Inspection>,
    answered: bool,
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
        self.take_gates(&wanted)?;
        self.prepare_merges(&wanted)?;
        let ingress: BTreeSet<u32> = wanted.iter().map(|wanted| wanted.key.ifindex()).collect();
        let ingress = ingress.into_iter();
        self.links.attach(ingress, &self.pins, &self.program)?;
        for (_, route) in set {
            self.known.learn(&route.rule, Name::all_of(route));
        }

        let legs = legs_of(&wanted);
        let written = self.write(wanted)?;
        self.legs.set_failovers(&legs, &self.owners)?;
        let (swung, new): (Vec<_>, Vec<_>) = written
            .into_iter()
            .partition(|route| self.entries.contains_key(&route.key));
        self.shut_gates(&swung)?;
        self.swing(&swung)?;
        let deleted = self.remove(&removed)?;
        let ranges_removed = removed.iter().any(|key| key.is_range());
        if ranges_removed {
            self.publish_ranges()?;
        }
        self.publish_groups(removed.iter().copied())?;
        if deleted && !new.is_empty() {
            self.wait()?;
        }
        self.insert(&new)?;
        self.publish_groups(swung.iter().chain(&new).map(|route| route.key))?;
        if new.iter().any(|route| route.key.is_range()) {
            self.publish_ranges()?;
        }
        self.publish_addresses();
        self.legs.finish_merges(&legs, &self.owners)?;
        self.exchange_gates(&swung, &removed)?;
        self.links.detach_others(&self.entries_on, &self.pins)
    }

    /// Waits until no packet reads what was unlinked before.
    pub(super) fn wait(&mut self) -> Result<(), Error> {
        grace::wait().map_err(Error::Grace)?;
        self.indices.grace_period_passed();
        self.blocks.grace_period_passed();
        self.ranges.grace_period_passed();
        self.gates.grace_period_passed(Path::Kernel);
        if let Err(error) = self.legs.merges.free() {
            tracing::debug!("memory of merged lines is not given back: {error}");
        }
        Ok(())
    }

    /// Makes room for the merges that a change needs, or leaves all as it was.
    fn prepare_merges(&mut self, wanted: &[Wanted]) -> Result<(), Error> {
        self.legs.merges.drop_prepared()?;
        for route in wanted {
            let Some((name, params)) = route.legs.as_ref().and_then(WantedLegs::merge) else {
                continue;
            };
            let rule = route.rule.hash;
            let counter = self.owners.find(&rule).map(|owner| owner.slot);
            if !self.legs.merges.lacks((rule, counter), params) {
                continue;
            }
            let mut prepared = self.legs.merges.prepare(rule, params);
            if matches!(prepared, Ok(false)) && self.legs.merges.is_waiting() {
                self.wait()?;
                prepared = self.legs.merges.prepare(rule, params);
            }
            if !matches!(prepared, Ok(true)) {
                self.legs.merges.drop_prepared()?;
                prepared?;
                return Err(Error::MergeRoom {
                    rule: name.to_owned(),
                    blocks: params.blocks(),
                });
            }
        }
        Ok(())
    }

    /// Takes counters and writes the blocks; on failure nothing of it is visible or kept.
    fn write(&mut self, wanted: Vec<Wanted>) -> Result<Vec<Written>, Error> {
        let mut blocks = Vec::with_capacity(wanted.len());
        for route in &wanted {
            let length = route.outputs.len() as u32;
            let taken = self.take_block(length);
            let Ok(Some(first)) = taken else {
                for (first, length) in blocks {
                    self.blocks.put_back(first, length);
                }
                taken?;
                return Err(Error::Capacity {
                    what: "contiguous output slots",
                    wanted: length as usize,
                    limit: self.blocks.room(),
                });
            };
            blocks.push((first, length));
        }
        let mut new_rules = Vec::new();
        let written = wanted.into_iter().zip(blocks);
        let written = written
            .map(|(route, (first, _))| self.write_one(route, first, &mut new_rules))
            .collect();
        self.begin_latency(&new_rules);
        written
    }

    /// Takes free slots that stand together; where there are none, those that still wait may make a
    /// run of them whole.
    fn take_block(&mut self, length: u32) -> Result<Option<u32>, Error> {
        if let Some(first) = self.blocks.take(length) {
            return Ok(Some(first));
        }
        self.wait()?;
        Ok(self.blocks.take(length))
    }

    /// Adds the counters of rules that were not there to `new_rules`.
    fn write_one(
        &mut self,
        route: Wanted,
        first: u32,
        new_rules: &mut Vec<u32>,
    ) -> Result<Written, Error> {
        let is_new = self.owners.find(&route.rule.hash).is_none();
        let gate = self.gate_of(&route);
        let rule = self.acquire_counter(route.rule)?;
        let word = Word {
            first,
            count: route.outputs.len() as u16,
            counter: match route.input {
                Some(input) => self.acquire_input_counter(input, (&route, rule))?,
                None => rule,
            },
            flags: route.flags,
        };
        if is_new {
            self.forget_health(rule);
            new_rules.push(rule);
        }
        if is_new && route.key.is_range() {
            self.program.maps.flows.forget(rule)?;
        }
        let mut answered = false;
        for (slot, (owner, mut output)) in (first..).zip(route.outputs) {
            output.counter = self.acquire_counter(owner)?;
            answered |= output.flags & layout::OUTPUT_ANSWERS != 0;
            self.program.maps.outputs.write(slot, &output);
        }
        Ok(Written {
            key: route.key,
            word,
            gate,
            inspection: route.inspection,
            answered,
        })
    }

    /// Points existing entries to their new blocks.
    fn swing(&mut self, routes: &[Written]) -> Result<(), Error> {
        for route in routes {
            let Some(entry) = self.entries.get(&route.key).copied() else {
                continue;
            };
            let table = &mut self.program.maps.route_table;
            table.store(entry.index, WORD, route.word.pack());
            let was_placeholder = entry.placeholder;
            let released = entry.word;
            let before = entry.inspection;
            let is_other = before != route.inspection
                || self.rule_counter(released) != self.rule_counter(route.word);
            if is_other {
                self.keep_health(&entry);
            }
            let entry = Entry {
                word: route.word,
                placeholder: false,
                inspection: route.inspection,
                answered: route.answered,
                ..entry
            };
            if is_other {
                self.begin_inspection(entry.index, route.inspection)?;
            }
            self.put_entry(route.key, entry);
            if was_placeholder || is_other {
                self.flag(route.key);
            }
            if is_other && route.inspection.is_none() {
                self.end_inspection(entry.index, before)?;
            }
            if !was_placeholder {
                self.release(released);
            }
        }
        Ok(())
    }

    /// Gives back the block and the counters that a word refers to.
    fn release(&mut self, word: Word) {
        let count = u32::from(word.count);
        for slot in word.first..word.first + count {
            let output = self.program.maps.outputs.read(slot);
            self.release_counter(output.counter);
        }
        let rule = self.rule_counter(word);
        self.release_counter(rule);
        if rule != word.counter {
            self.release_counter(word.counter);
        }
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
                self.make_placeholder(*key)?;
                continue;
            }
            deleted.push(*key);
            if key.is_specific() {
                deleted.extend(self.remove_source(key.any_source()));
            }
        }
        key::remove(&mut self.program.maps, &deleted)?;
        for key in &deleted {
            if let Some(entry) = self.take_entry(key) {
                self.keep_health(&entry);
                self.end_inspection(entry.index, entry.inspection)?;
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
    fn make_placeholder(&mut self, key: Key) -> Result<(), Error> {
        if let Some(entry) = self.entries.get(&key).copied() {
            self.keep_health(&entry);
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return Ok(());
        };
        entry.placeholder = true;
        self.answered -= u64::from(std::mem::take(&mut entry.answered));
        let (index, inspection) = (entry.index, entry.inspection.take());
        self.inspected.remove(&key);
        self.flag(key);
        self.end_inspection(index, inspection)
    }

    /// Writes the flags of an entry as they should be by now.
    pub(super) fn flag(&mut self, key: Key) {
        if let Some(entry) = self.entries.get(&key) {
            let flags = self.flags_of(key, entry);
            let table = &mut self.program.maps.route_table;
            table.store(entry.index, LOOKUP, flags);
        }
    }

    /// The `lookup` word of an entry, with its gate and the `health` word behind it.
    fn flags_of(&self, key: Key, entry: &Entry) -> u64 {
        let flag = |set: bool, flag: u16| if set { flag } else { 0 };
        let any = !key.is_specific() && !key.is_range();
        let flags = flag(entry.placeholder, layout::LOOKUP_PLACEHOLDER)
            | flag(self.sources.contains_key(&key), layout::LOOKUP_SOURCES)
            | flag(any && self.ranges.go_before(key), layout::LOOKUP_RANGES);
        // Two 16-bit words and one of 32 in memory order.
        let health = entry.inspection.map_or(0, |_| entry.index + 1);
        let ([a, b], [c, d]) = (flags.to_ne_bytes(), entry.gate.to_ne_bytes());
        let [e, f, g, h] = health.to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
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

    /// Brings what fragments without ports go by to what the entries of `keys` are now.
    pub(super) fn publish_groups(
        &mut self,
        keys: impl IntoIterator<Item = Key>,
    ) -> Result<(), Error> {
        for key in keys {
            let entry = self.entries.get(&key).filter(|entry| !entry.placeholder);
            let route = entry.map(|entry| (entry.index, self.rule_counter(entry.word)));
            self.groups.note(key, route);
        }
        self.groups.publish(&mut self.program.maps)
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
            let entry = Entry {
                index: 0,
                word: route.word,
                placeholder: false,
                gate: route.gate,
                inspection: route.inspection,
                answered: route.answered,
            };
            elements.push((route.key, self.new_entry(route.key, entry)?));
        }
        Ok(key::insert(&mut self.program.maps, &elements)?)
    }

    /// Adds (*,G) entries that only say that (S,G) entries exist.
    pub(super) fn add_placeholders(&mut self, keys: &[Key]) -> Result<(), Error> {
        let mut elements = Vec::with_capacity(keys.len());
        for key in keys {
            let entry = Entry {
                index: 0,
                word: Word::default(),
                placeholder: true,
                gate: gates::NONE,
                inspection: None,
                answered: false,
            };
            elements.push((*key, self.new_entry(*key, entry)?));
        }
        Ok(key::insert(&mut self.program.maps, &elements)?)
    }

    /// Gives an entry its index and puts it where that leads.
    fn new_entry(&mut self, key: Key, entry: Entry) -> Result<u32, Error> {
        let index = self.indices.take().ok_or(Error::Capacity {
            what: "route entries",
            wanted: 1,
            limit: 0,
        })?;
        let entry = Entry { index, ..entry };
        self.begin_inspection(index, entry.inspection)?;
        let flags = self.flags_of(key, &entry);
        let table = &mut self.program.maps.route_table;
        table.store(index, LOOKUP, flags);
        table.store(index, WORD, entry.word.pack());
        self.put_entry(key, entry);
        Ok(index)
    }
}

/// The legs of the rules of a change.
fn legs_of(wanted: &[Wanted]) -> HashMap<Hash, Option<WantedLegs>> {
    let mut legs: HashMap<Hash, Option<WantedLegs>> = HashMap::new();
    for route in wanted {
        let of_rule = legs.entry(route.rule.hash).or_default();
        *of_rule = of_rule.take().or_else(|| route.legs.clone());
    }
    legs
}

const WORD: Field<layout::Route> = field!(layout::Route, word);
const LOOKUP: Field<layout::Route> = field!(layout::Route, lookup);
