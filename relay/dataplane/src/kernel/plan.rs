//! Works out what a change needs and reserves it, before anything is written.

use std::collections::HashSet;

use bpf::layout::{self, Word};
use compile::table::{Output, Route, RouteKey};

use crate::control::Memory;
use crate::error::Error;
use crate::kernel::health::Inspection;
use crate::kernel::key::Key;
use crate::kernel::legs::WantedLegs;
use crate::kernel::memory::CounterFor;
use crate::kernel::ranges::Ranges;
use crate::kernel::{Kernel, encode, gates, legs};
use crate::limits::{self, Limiter};
use crate::owners::name::{Hash, Name};

/// A route that has to be written: its slots still lack their counters.
pub(super) struct Wanted<'a> {
    pub(super) key: Key,
    pub(super) flags: u8,
    /// The share whose gate it has.
    pub(super) share: Option<&'a str>,
    pub(super) rule: CounterFor<'a>,
    /// The input, where it has a counter of its own.
    pub(super) input: Option<CounterFor<'a>>,
    pub(super) legs: Option<WantedLegs>,
    pub(super) outputs: Vec<(CounterFor<'a>, layout::Output)>,
    pub(super) inspection: Option<Inspection>,
}

impl Kernel {
    /// Encodes the routes and leaves out those that are in the maps already, byte for byte.
    pub(super) fn plan<'a>(&self, set: &'a [(RouteKey, Route)]) -> Result<Vec<Wanted<'a>>, Error> {
        let mut wanted = Vec::with_capacity(set.len());
        for (key, route) in set {
            encode::check(key, route)?;
            let output = |output: &'a Output| {
                let name = Name::output(&route.rule, output);
                let owner = CounterFor::new(name, output.limit);
                (owner, encode::output(key, output, 0))
            };
            let map_key = encode::route_key(key)?;
            let route = Wanted {
                key: map_key,
                inspection: Inspection::of(&map_key, route),
                flags: encode::flags(route),
                share: encode::share(route),
                rule: CounterFor::new(Name::Rule(&route.rule), route.limit),
                input: encode::input(route)
                    .map(|at| CounterFor::new(Name::Input(&route.rule, at), None)),
                legs: encode::input(route).and_then(|_| WantedLegs::of(route)),
                outputs: encode::outputs(route).iter().map(output).collect(),
            };
            if !self.is_installed(&route) {
                wanted.push(route);
            }
        }
        Ok(wanted)
    }

    fn is_installed(&self, wanted: &Wanted<'_>) -> bool {
        let Some(entry) = self.routes.get(&wanted.key) else {
            return false;
        };
        let word = entry.word;
        let rule = self.control.memory.rule_counter(word);
        let slots = word.first..word.first + u32::from(word.count);
        let same_output = |(slot, (owner, output)): (u32, &(CounterFor<'_>, layout::Output))| {
            let installed = self.routes.outputs.read(slot);
            let expected = layout::Output {
                counter: installed.counter,
                ..*output
            };
            installed == expected && self.is_owner(owner, installed.counter)
        };
        !entry.placeholder
            && word.flags == wanted.flags
            && gates::wanted(&self.gates, wanted.share) == Some(entry.gate)
            && entry.inspection == wanted.inspection
            && usize::from(word.count) == wanted.outputs.len()
            && self.is_owner(&wanted.rule, rule)
            && legs::fails_over_as(&self.control, wanted.legs.as_ref(), rule)
            && wanted.input.is_none_or(|input| {
                self.is_owner(&input, word.counter) && self.has_arbiter(wanted, word)
            })
            && slots.zip(&wanted.outputs).all(same_output)
    }

    /// Returns whether packets of the input are decided about as wanted.
    fn has_arbiter(&self, wanted: &Wanted<'_>, word: Word) -> bool {
        let identity = self.control.memory.identities.read(word.counter);
        let input = (identity.rule, word.counter);
        let arbiter = legs::arbiter(&self.control, wanted.legs.as_ref(), input);
        arbiter == Some(identity.arbiter)
    }

    fn is_owner(&self, wanted: &CounterFor<'_>, counter: u32) -> bool {
        let limiter = Limiter::Slot(wanted.owner.name.kind(), counter);
        let limit = self.control.memory.limit(limiter);
        self.control.counter(&wanted.owner.hash) == Some(counter)
            && limits::is_same(limit, wanted.limit)
    }

    /// Makes sure that everything fits, waiting for a grace period if that makes the room.
    pub(super) fn reserve(&mut self, wanted: &[Wanted<'_>], removed: &[Key]) -> Result<(), Error> {
        let entries = self.new_entries(wanted);
        let slots: usize = wanted.iter().map(|route| route.outputs.len()).sum();
        let owners: HashSet<Hash> = wanted
            .iter()
            .flat_map(|route| route.outputs.iter().map(|(counter, _)| counter))
            .chain(wanted.iter().map(|route| &route.rule))
            .chain(wanted.iter().filter_map(|route| route.input.as_ref()))
            .map(|counter| counter.owner.hash)
            .collect();

        let here = &self.routes;
        let limit = here.keys.v4.capacity() as usize;
        let routes = (here.entries.len() + entries).saturating_sub(removed.len());
        refuse_above("routes", routes, limit)?;
        refuse_above("route entries", entries, here.indices.room())?;
        refuse_above("free output slots", slots, here.blocks.room())?;
        let counters = self.control.row().demand(&owners);
        refuse_above("free counters", counters.slots, counters.room)?;
        let candidates = self.new_candidates(wanted, removed);
        refuse_above("range candidates", candidates, here.ranges.room())?;
        let largest = wanted.iter().map(|route| route.outputs.len()).max();
        refuse_above("outputs of one rule", largest.unwrap_or(0), u16::MAX.into())?;
        if here.indices.ready() < entries
            || here.blocks.ready() < slots
            || self.control.row().fresh() < counters.slots
        {
            self.wait()?;
        }
        Ok(())
    }

    /// How many candidates the lists of ranges hold after the change, if it concerns them.
    fn new_candidates(&self, wanted: &[Wanted<'_>], removed: &[Key]) -> usize {
        let mut new: Vec<Key> = wanted.iter().map(|route| route.key).collect();
        new.retain(|key| key.is_range() && !self.routes.entries.contains_key(key));
        if new.is_empty() {
            return 0;
        }
        let removed: HashSet<&Key> = removed.iter().collect();
        let remaining = self
            .routes
            .entries
            .keys()
            .filter(|key| !removed.contains(key));
        Ranges::candidates(remaining.copied().chain(new))
    }

    /// How many elements of `routes` the routes need beyond those that exist, placeholders included.
    fn new_entries(&self, wanted: &[Wanted<'_>]) -> usize {
        let mut new: HashSet<Key> = HashSet::new();
        for route in wanted {
            new.insert(route.key);
            new.insert(route.key.any_source());
        }
        new.retain(|key| !self.routes.entries.contains_key(key));
        new.len()
    }
}

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
