//! One change of the route maps: planned and reserved whole, then carried out in an order in which
//! no packet sees a half of it.
//!
//! Order: new output blocks; swing existing routes to theirs, one store each; take removed keys out;
//! wait until no packet uses them any more; put new keys in.
//!
//! A route's gate and what it leads to are two words, and no packet may see a rule's outputs with any
//! gate but the rule's own. So a route that is swung to a rule of a share shuts first, or takes that
//! share's gate at once where it had none, and gets the gate that it is to have when no packet sees the
//! former outputs any more.

use std::collections::{BTreeSet, HashMap};

use bpf::layout::{self, Word};
use bpf::rcu;
use compile::table::{Path, Route, RouteKey};

use crate::error::Error;
use crate::gates::{NONE, SHARES, SHUT};
use crate::kernel::entry::{Entry, Written};
use crate::kernel::key::Key;
use crate::kernel::legs::{self, WantedLegs};
use crate::kernel::plan::Wanted;
use crate::kernel::{Kernel, gates};
use crate::owners::name::Hash;

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
            .filter(|key| self.routes.get(key).is_some_and(|e| !e.placeholder))
            .copied()
            .collect();
        self.reserve(&wanted, &removed)?;
        self.take_gates(&wanted)?;
        self.prepare_merges(&wanted)?;
        let ingress: BTreeSet<u32> = wanted.iter().map(|wanted| wanted.key.ifindex()).collect();
        let ends = self.hook.new_ends(&wanted, &self.routes);
        let is_unattached = |ifindex: &u32| !self.links.has(*ifindex);
        let unattached = ingress.iter().copied().filter(is_unattached);
        self.hook.attach(unattached.chain(ends), &self.pins);
        self.links
            .attach(ingress.into_iter(), &self.pins, &self.program)?;
        for (_, route) in set {
            self.control.register(route);
        }

        let legs = legs_of(&wanted);
        let written = self.write(wanted)?;
        legs::set_failovers(&mut self.control, &legs)?;
        let (swung, new): (Vec<_>, Vec<_>) = written
            .into_iter()
            .partition(|route| self.routes.entries.contains_key(&route.key));
        self.shut_gates(&swung)?;
        self.swing(&swung)?;
        let deleted = self.remove(&removed)?;
        let ranges_removed = removed.iter().any(|key| key.is_range());
        if ranges_removed {
            self.routes.publish_ranges()?;
        }
        let memory = &self.control.memory;
        self.routes
            .publish_groups(removed.iter().copied(), memory)?;
        if deleted && !new.is_empty() {
            self.wait()?;
        }
        let memory = &mut self.control.memory;
        self.routes.insert(&new, memory)?;
        let set = swung.iter().chain(&new).map(|route| route.key);
        self.routes.publish_groups(set, memory)?;
        if new.iter().any(|route| route.key.is_range()) {
            self.routes.publish_ranges()?;
        }
        self.routes.publish_addresses();
        let stopped = self.control.stopped_merges();
        if !stopped.is_empty() {
            self.wait()?;
        }
        legs::finish_merges(&mut self.control, &legs, &stopped)?;
        self.exchange_gates(&swung, &removed)?;
        self.links
            .detach_others(&self.routes.entries_on, &self.pins)
    }

    /// Waits until no packet reads what was unlinked before.
    pub(super) fn wait(&mut self) -> Result<(), Error> {
        rcu::wait().map_err(Error::Grace)?;
        self.routes.grace_period_passed();
        self.gates.grace_period_passed(Path::Kernel);
        if let Err(error) = self.control.merges.free() {
            tracing::debug!("memory of merged legs is not given back: {error}");
        }
        Ok(())
    }

    /// Makes sure that all shares have a gate, and waits for some that were given back if it must.
    fn take_gates(&mut self, wanted: &[Wanted<'_>]) -> Result<(), Error> {
        for share in wanted.iter().filter_map(|route| route.share) {
            if self.gates.acquire(Path::Kernel, share).is_some() {
                continue;
            }
            self.wait()?;
            if self.gates.acquire(Path::Kernel, share).is_none() {
                return Err(Error::GateRoom {
                    share: share.to_owned(),
                    limit: SHARES,
                });
            }
        }
        Ok(())
    }

    /// Makes room for the merges that a change needs, or changes nothing.
    fn prepare_merges(&mut self, wanted: &[Wanted]) -> Result<(), Error> {
        self.control.merges.drop_prepared()?;
        for route in wanted {
            let Some((name, params)) = route.legs.as_ref().and_then(WantedLegs::merge) else {
                continue;
            };
            let hash = route.rule.owner.hash;
            let rule = (hash, self.control.counter(&hash));
            let mut prepared = self.control.merges.prepare(rule, params);
            if matches!(prepared, Ok(false)) && self.control.merges.is_waiting() {
                self.wait()?;
                prepared = self.control.merges.prepare(rule, params);
            }
            if !matches!(prepared, Ok(true)) {
                self.control.merges.drop_prepared()?;
                prepared?;
                return Err(Error::MergeRoom {
                    rule: name.to_owned(),
                    blocks: params.blocks(),
                });
            }
        }
        Ok(())
    }

    /// Takes counters and writes the blocks; on failure nothing is visible or retained.
    fn write(&mut self, wanted: Vec<Wanted<'_>>) -> Result<Vec<Written>, Error> {
        let mut blocks = Vec::with_capacity(wanted.len());
        for route in &wanted {
            let length = route.outputs.len() as u32;
            let taken = self.take_block(length);
            let Ok(Some(first)) = taken else {
                for (first, length) in blocks {
                    self.routes.blocks.put_back(first, length);
                }
                taken?;
                return Err(Error::Capacity {
                    what: "contiguous output slots",
                    wanted: length as usize,
                    limit: self.routes.blocks.room(),
                });
            };
            blocks.push((first, length));
        }
        let mut new_rules = Vec::new();
        let written = wanted
            .into_iter()
            .zip(blocks)
            .map(|(route, (first, _))| self.write_one(route, first, &mut new_rules))
            .collect();
        self.control.memory.begin_latency(&new_rules);
        written
    }

    /// Takes adjacent free slots; where there are none, slots that are still waiting may complete a run.
    fn take_block(&mut self, length: u32) -> Result<Option<u32>, Error> {
        if let Some(first) = self.routes.blocks.take(length) {
            return Ok(Some(first));
        }
        self.wait()?;
        Ok(self.routes.blocks.take(length))
    }

    /// Adds the counters of rules that did not exist to `new_rules`.
    fn write_one(
        &mut self,
        route: Wanted<'_>,
        first: u32,
        new_rules: &mut Vec<u32>,
    ) -> Result<Written, Error> {
        let control = &mut self.control;
        let is_new = control.counter(&route.rule.owner.hash).is_none();
        let gate = gates::wanted(&self.gates, route.share).unwrap_or(SHUT);
        let rule = control.acquire_counter(&route.rule)?;
        let word = Word {
            first,
            count: route.outputs.len() as u16,
            counter: match route.input {
                Some(input) => {
                    let counter = control.acquire_counter(&input)?;
                    let names = (route.rule.owner.hash, rule, counter);
                    let arbiter = legs::begin(control, route.legs.as_ref(), names);
                    control.memory.set_arbiter(counter, rule, arbiter);
                    counter
                }
                None => rule,
            },
            flags: route.flags,
        };
        if is_new {
            control.memory.inspections.forget(rule);
            new_rules.push(rule);
        }
        if is_new && route.key.is_range() {
            control.memory.flows.forget(rule)?;
        }
        let mut answered = false;
        for (slot, (owner, mut output)) in (first..).zip(route.outputs) {
            output.counter = control.acquire_counter(&owner)?;
            answered |= output.flags & layout::OUTPUT_ANSWERS != 0;
            self.routes.outputs.write(slot, &output);
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
            let Some(entry) = self.routes.get(&route.key) else {
                continue;
            };
            self.routes.swing(&entry, route.word);
            let memory = &mut self.control.memory;
            let was_placeholder = entry.placeholder;
            let is_flagged = was_placeholder || entry.answered != route.answered;
            let released = entry.word;
            let before = entry.inspection;
            let is_other = before != route.inspection
                || memory.rule_counter(released) != memory.rule_counter(route.word);
            if is_other {
                memory.retain_health(&entry);
            }
            let entry = Entry {
                word: route.word,
                placeholder: false,
                inspection: route.inspection,
                answered: route.answered,
                ..entry
            };
            if is_other {
                memory.inspections.begin(entry.index, route.inspection)?;
            }
            self.routes.put(route.key, entry);
            if is_flagged || is_other {
                self.routes.flag(route.key);
            }
            if is_other && route.inspection.is_none() {
                memory.inspections.end(entry.index, before)?;
            }
            if !was_placeholder {
                self.release(released);
            }
        }
        Ok(())
    }

    /// Gives routes that are about to be swung to rules of other shares gates by which none of those
    /// rules' packets pass too early.
    fn shut_gates(&mut self, swung: &[Written]) -> Result<(), Error> {
        let mut is_any = false;
        for route in swung {
            let gate = match self.routes.get(&route.key).map(|entry| entry.gate) {
                Some(before) if before == route.gate => continue,
                _ if route.gate == NONE => continue,
                Some(NONE) => route.gate,
                _ => SHUT,
            };
            self.routes.set_gate(route.key, gate);
            is_any = true;
        }
        if is_any {
            self.wait()?;
        }
        Ok(())
    }

    /// Gives routes that were swung their own gates, and removes those of keys that are only a
    /// placeholder now; then gives back the gates that no route has any more.
    fn exchange_gates(&mut self, swung: &[Written], removed: &[Key]) -> Result<(), Error> {
        let removed = removed.iter().map(|key| (*key, NONE));
        let wanted = swung.iter().map(|route| (route.key, route.gate));
        let differs = |(key, gate): &(Key, u16)| {
            let entry = self.routes.get(key);
            entry.is_some_and(|entry| entry.gate != *gate)
        };
        let of_placeholders = removed.filter(|(key, _)| {
            let entry = self.routes.get(key);
            entry.is_some_and(|entry| entry.placeholder)
        });
        let changed: Vec<(Key, u16)> = wanted.chain(of_placeholders).filter(differs).collect();
        if !changed.is_empty() {
            self.wait()?;
        }
        for (key, gate) in changed {
            self.routes.set_gate(key, gate);
        }
        let used = self.routes.entries.values().map(|entry| entry.gate);
        self.gates.release_others(Path::Kernel, used);
        Ok(())
    }

    /// Gives back the block and the counters that a word refers to.
    fn release(&mut self, word: Word) {
        let count = u32::from(word.count);
        for slot in word.first..word.first + count {
            let output = self.routes.outputs.read(slot);
            self.control.release_counter(output.counter);
        }
        let rule = self.control.memory.rule_counter(word);
        self.control.release_counter(rule);
        if rule != word.counter {
            self.control.release_counter(word.counter);
        }
        self.routes.blocks.release(word.first, count);
    }

    /// Takes keys out; returns whether an element of `routes` was deleted.
    fn remove(&mut self, keys: &[Key]) -> Result<bool, Error> {
        let mut deleted = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(entry) = self.routes.get(key) else {
                continue;
            };
            self.release(entry.word);
            if self.routes.sources.contains_key(key) {
                let memory = &mut self.control.memory;
                self.routes.make_placeholder(*key, memory)?;
                continue;
            }
            deleted.push(*key);
            if key.is_specific() {
                deleted.extend(self.routes.remove_source(key.any_source()));
            }
        }
        self.routes.keys.remove(&deleted)?;
        let memory = &mut self.control.memory;
        for key in &deleted {
            if let Some(entry) = self.routes.take(key) {
                memory.retain_health(&entry);
                memory.inspections.end(entry.index, entry.inspection)?;
                self.routes.indices.release(entry.index);
            }
        }
        Ok(!deleted.is_empty())
    }
}

/// The legs of the rules of a change.
fn legs_of(wanted: &[Wanted<'_>]) -> HashMap<Hash, Option<WantedLegs>> {
    let mut legs: HashMap<Hash, Option<WantedLegs>> = HashMap::new();
    for route in wanted {
        let of_rule = legs.entry(route.rule.owner.hash).or_default();
        *of_rule = of_rule.take().or_else(|| route.legs.clone());
    }
    legs
}
