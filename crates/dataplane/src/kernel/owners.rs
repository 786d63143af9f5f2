//! Who owns the program's counters, written down in the pinned map `identities`.

use std::collections::HashSet;

use bpf::Maps;
use bpf::layout::{self, Identity, Word};
use sys::field;
use sys::memory::Field;

use crate::counters::Traffic;
use crate::error::Error;
use crate::failover::Failovers;
use crate::kernel::plan::{CounterFor, Wanted};
use crate::kernel::{Kernel, encode};
use crate::owners::name::Hash;

/// What stands beside a counter that has never had an owner.
const NOBODY: Hash = [0; 2];
/// What stands beside one whose owner has gone: it does not start from zero.
const NOBODY_ANY_MORE: Hash = [u64::MAX; 2];

impl Kernel {
    /// Takes over what is written down; routes count in `referenced`, once for each time.
    pub(super) fn adopt_owners(&mut self, referenced: &[u32]) -> Result<(), Error> {
        let maps = &mut self.program.maps;
        let identities = &maps.identities;
        let is_used = |counter: &u32| identities.read(*counter).hash != NOBODY;
        let last = (0..identities.len()).rev().find(is_used);
        let used = last.map_or(0, |last| last + 1);
        let mut tallies = Vec::new();
        while tallies.len() < used as usize {
            maps.counters.read_on(&mut tallies, used)?;
        }
        let mut owned = HashSet::new();
        for (counter, counted) in (0..used).zip(tallies) {
            let identity = maps.identities.read(counter);
            if [NOBODY, NOBODY_ANY_MORE].contains(&identity.hash) {
                continue;
            }
            // Nobody has counted more before than all have by now.
            let sound = Identity {
                packets: identity.packets.min(counted.packets),
                bytes: identity.bytes.min(counted.bytes),
                answers: identity.answers.min(counted.answers),
                ..identity
            };
            if sound != identity {
                maps.identities.write(counter, &sound);
            }
            let base = Traffic {
                answers: sound.answers,
                ..Traffic::new(sound.packets, sound.bytes)
            };
            self.owners.restore(sound.hash, counter, base);
            owned.insert(counter);
        }
        // What else is there would take the room of those to come.
        maps.latency.retain(|counter| owned.contains(counter))?;
        maps.past_health.retain(|counter| owned.contains(counter))?;
        let identities = &maps.identities;
        let counting: HashSet<u32> = referenced.iter().copied().collect();
        self.owners
            .free_others(used, |counter| counting.contains(&counter));
        for counter in referenced {
            self.owners.use_again(&identities.read(*counter).hash);
        }
        self.loose = self.owners.unused();
        Ok(())
    }

    /// Takes one more reference to the owner's counter and writes down whose it is.
    pub(super) fn acquire_counter(&mut self, owner: CounterFor) -> Result<u32, Error> {
        let (maps, failovers) = (&mut self.program.maps, &self.legs.failovers);
        let counter = self.owners.acquire(owner.hash, |counter, is_fresh| {
            begin((maps, failovers), counter, owner.hash, is_fresh)
        })?;
        let counter = counter.ok_or(Error::Capacity {
            what: "counters",
            wanted: 1,
            limit: 0,
        })?;
        let before = maps.limits.read(counter);
        let (at, limits) = (Field::at(0), (before, owner.limit));
        encode::store_limit(&maps.limits, counter, at, limits);
        Ok(counter)
    }

    /// The same for an input, whose counter leads to its rule's.
    pub(super) fn acquire_input_counter(
        &mut self,
        owner: CounterFor,
        (wanted, rule): (&Wanted, u32),
    ) -> Result<u32, Error> {
        let counter = self.acquire_counter(owner)?;
        let input = (wanted.rule.hash, rule, counter);
        let legs = wanted.legs.as_ref();
        let arbiter = self.legs.begin(legs, input, &self.owners);
        self.lead_input(counter, rule, arbiter);
        Ok(counter)
    }

    /// Says whose input counts there and what decides about its packets: one word, for packets may come.
    pub(super) fn lead_input(&mut self, counter: u32, rule: u32, arbiter: u32) {
        let identities = &mut self.program.maps.identities;
        let Identity {
            rule: rule_before,
            arbiter: arbiter_before,
            ..
        } = identities.read(counter);
        if (rule_before, arbiter_before) != (rule, arbiter) {
            let ([a, b, c, d], [e, f, g, h]) = (rule.to_ne_bytes(), arbiter.to_ne_bytes());
            let word = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
            identities.store(counter, field!(Identity, rule), word);
        }
    }

    /// Drops one reference.
    pub(super) fn release_counter(&mut self, counter: u32) {
        let identity = self.program.maps.identities.read(counter);
        self.owners.release(&identity.hash);
    }

    /// The counter of the rule that a word belongs to.
    pub(super) fn rule_counter(&self, word: Word) -> u32 {
        if word.flags & layout::ROUTE_INPUT == 0 {
            return word.counter;
        }
        self.program.maps.identities.read(word.counter).rule
    }

    /// Ends the counters of a rule that no longer exists: one of that name starts from zero.
    pub(crate) fn forget(&mut self, rule: &str) {
        for (_, owner) in self.known.forget(rule) {
            if let Some(counter) = self.owners.forget(&owner) {
                self.legs.forget(counter);
                let identities = &mut self.program.maps.identities;
                let nobody = Identity {
                    hash: NOBODY_ANY_MORE,
                    ..identities.read(counter)
                };
                identities.write(counter, &nobody);
                self.end_latency(counter);
                self.forget_health(counter);
            }
        }
    }
}

/// Writes down that a counter is `owner`'s and returns what it has counted for others; their drops
/// and the state of their limit and of their lines go.
fn begin(
    (maps, failovers): (&Maps, &Failovers),
    counter: u32,
    owner: Hash,
    is_fresh: bool,
) -> Result<Traffic, Error> {
    let mut base = Traffic::default();
    if !is_fresh {
        base = Traffic {
            last_ns: 0,
            ..maps.counters.read_one(counter)?.into()
        };
    }
    // Also of a fresh one: somebody may have written there.
    maps.drops.write(counter, &layout::Drops::default());
    let state = field!(layout::Limit, due_ns);
    maps.limits.store(counter, state, 0);
    failovers.forget_line(counter);
    failovers.forget_choice(counter);
    let identity = Identity {
        hash: owner,
        packets: base.packets,
        bytes: base.bytes,
        answers: base.answers,
        ..Identity::default()
    };
    maps.identities.write(counter, &identity);
    Ok(base)
}
