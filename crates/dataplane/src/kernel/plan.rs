//! Works out what a change needs and reserves it, before anything is written.

use std::collections::HashSet;

use bpf::layout::{self, Word};
use model::table::{Output, Route, RouteKey};

use crate::error::Error;
use crate::kernel::health::Inspection;
use crate::kernel::key::Key;
use crate::kernel::legs::WantedLegs;
use crate::kernel::ranges::Ranges;
use crate::kernel::{Kernel, encode};
use crate::owners::name::{Hash, Name};

/// A route that has to be written: its slots still lack their counters.
pub(super) struct Wanted {
    pub(super) key: Key,
    pub(super) flags: u8,
    /// Whose gate it has.
    pub(super) share: Option<String>,
    pub(super) rule: CounterFor,
    /// The input, where it has a counter of its own.
    pub(super) input: Option<CounterFor>,
    pub(super) legs: Option<WantedLegs>,
    pub(super) outputs: Vec<(CounterFor, layout::Output)>,
    pub(super) inspection: Option<Inspection>,
}

/// Who a counter is for, and the limit that goes with it.
#[derive(Clone, Copy)]
pub(super) struct CounterFor {
    pub(super) hash: Hash,
    pub(super) limit: layout::Limit,
}

impl Kernel {
    /// Encodes the routes and leaves out those that are in the maps already, byte for byte.
    pub(super) fn plan(&self, set: &[(RouteKey, Route)]) -> Result<Vec<Wanted>, Error> {
        let mut wanted = Vec::with_capacity(set.len());
        for (key, route) in set {
            encode::check(key, route)?;
            let output = |output: &Output| {
                let owner = CounterFor {
                    hash: Name::output(&route.rule, output).hash(),
                    limit: encode::limit(output.limit),
                };
                (owner, encode::output(key, output, 0))
            };
            let key_here = encode::route_key(key)?;
            let route = Wanted {
                key: key_here,
                inspection: Inspection::of(&key_here, route),
                flags: encode::flags(route),
                share: encode::share(route).map(str::to_owned),
                rule: CounterFor {
                    hash: Name::Rule(&route.rule).hash(),
                    limit: encode::limit(route.limit),
                },
                input: encode::input(route).map(|at| CounterFor {
                    hash: Name::Input(&route.rule, at).hash(),
                    limit: encode::limit(None),
                }),
                legs: encode::input(route).and_then(|_| WantedLegs::of(route)),
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
        let same_output = |(slot, (owner, output)): (u32, &(CounterFor, layout::Output))| {
            let installed = self.program.maps.outputs.read(slot);
            let expected = layout::Output {
                counter: installed.counter,
                ..*output
            };
            installed == expected && self.is_owner(*owner, installed.counter)
        };
        !entry.placeholder
            && word.flags == wanted.flags
            && self.is_gated_as(wanted, entry.gate)
            && entry.inspection == wanted.inspection
            && usize::from(word.count) == wanted.outputs.len()
            && self.is_owner(wanted.rule, self.rule_counter(word))
            && self
                .legs
                .fails_over_as(wanted.legs.as_ref(), self.rule_counter(word), &self.owners)
            && wanted
                .input
                .is_none_or(|input| self.is_owner(input, word.counter) && self.is_led(wanted, word))
            && slots.zip(&wanted.outputs).all(same_output)
    }

    /// Says whether what decides about packets of the input is what is wanted.
    fn is_led(&self, wanted: &Wanted, word: Word) -> bool {
        let identity = self.program.maps.identities.read(word.counter);
        let input = (identity.rule, word.counter);
        let arbiter = self.legs.arbiter(wanted.legs.as_ref(), input, &self.owners);
        arbiter == Some(identity.arbiter)
    }

    fn is_owner(&self, owner: CounterFor, counter: u32) -> bool {
        let limit = self.program.maps.limits.read(counter);
        let holder = self.owners.find(&owner.hash);
        holder.is_some_and(|holder| holder.slot == counter)
            && encode::is_same_limit(limit, owner.limit)
    }

    /// Makes sure that everything fits, waiting for a grace period if that makes the room.
    pub(super) fn reserve(&mut self, wanted: &[Wanted], removed: &[Key]) -> Result<(), Error> {
        let entries = self.new_entries(wanted);
        let slots: usize = wanted.iter().map(|route| route.outputs.len()).sum();
        let owners: HashSet<Hash> = wanted
            .iter()
            .flat_map(|route| route.outputs.iter().map(|(owner, _)| owner.hash))
            .chain(wanted.iter().map(|route| route.rule.hash))
            .chain(wanted.iter().filter_map(|route| Some(route.input?.hash)))
            .collect();

        let limit = self.program.maps.routes.capacity() as usize;
        let routes = (self.entries.len() + entries).saturating_sub(removed.len());
        refuse_above("routes", routes, limit)?;
        refuse_above("route entries", entries, self.indices.room())?;
        refuse_above("free output slots", slots, self.blocks.room())?;
        let counters = self.owners.demand(&owners);
        refuse_above("free counters", counters.slots, counters.room)?;
        let candidates = self.new_candidates(wanted, removed);
        refuse_above("range candidates", candidates, self.ranges.room())?;
        let largest = wanted.iter().map(|route| route.outputs.len()).max();
        refuse_above("outputs of one rule", largest.unwrap_or(0), u16::MAX.into())?;
        if self.indices.ready() < entries
            || self.blocks.ready() < slots
            || self.owners.fresh() < counters.slots
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
