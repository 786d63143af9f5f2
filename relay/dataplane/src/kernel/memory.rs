//! The memory of the program that is indexed by counters: their owners, recorded in the pinned map
//! `identities`, and what is counted and decided there.

use std::collections::HashSet;

use bpf::Maps;
use bpf::flows::Flows;
use bpf::layout::{self, Failover, Identity, Limit, Settings, Word, merge_of};
use bpf::map::{self, Counters};
use bpf::merge_layout::{Merge, MergeBlock};
use compile::table::{Path, RateLimit};
use packet::latency::Latency;
use sys::field;
use sys::memory::{Array, Field};

use crate::clock::Clock;
use crate::control::{Control, Memory, Owner};
use crate::counters::{Drops, HealthCounters, Traffic, of_tally};
use crate::error::Error;
use crate::failover::Failovers;
use crate::kernel::entry::Entry;
use crate::kernel::health::Inspections;
use crate::kernel::lanes::Lanes;
use crate::limits::{self, Limiter};
use crate::merge::Merges;
use crate::owners::name::{Hash, Kind, Name};
use crate::owners::{First, Owners};

/// Identity of a counter that has never had an owner.
const NOBODY: Hash = [0; 2];
/// Identity of one whose owner was removed: it does not start from zero.
const FORMER_OWNER: Hash = [u64::MAX; 2];

/// The control side of the kernel path.
pub(super) type KernelControl = Control<KernelMemory>;

/// The maps.
#[derive(Debug)]
pub(crate) struct KernelMemory {
    pub(super) identities: Array<Identity>,
    merges: Array<Merge>,
    pub(super) counters: Counters,
    pub(super) drops: Array<layout::Drops>,
    limits: Array<Limit>,
    settings: Array<Settings>,
    failovers: map::HashMap<u32, Failover>,
    pub(super) latency: map::HashMap<u32, layout::Latency>,
    pub(super) flows: Flows,
    pub(super) inspections: Inspections,
}

impl KernelControl {
    /// Over these maps; none of their content is taken over yet.
    pub(super) fn over(maps: &Maps) -> Self {
        let memory = KernelMemory {
            identities: maps.identities.clone(),
            merges: maps.merges.clone(),
            counters: maps.counters.clone(),
            drops: maps.drops.clone(),
            limits: maps.limits.clone(),
            settings: maps.settings.clone(),
            failovers: maps.failovers.clone(),
            latency: maps.latency.clone(),
            flows: maps.flows.clone(),
            inspections: Inspections::over(maps),
        };
        let (lines, choices) = (maps.lines.clone(), maps.choices.clone());
        let failovers = Failovers::new(lines, choices, Clock::Kernel);
        let (merges, blocks) = (maps.merges.clone(), maps.merge_blocks.clone());
        Self::new(
            memory,
            failovers,
            Merges::new(merges, blocks, Clock::Kernel),
        )
    }

    /// Takes over the recorded owners; routes count in `referenced`, once for each mention.
    pub(super) fn adopt(&mut self, referenced: &[u32]) -> Result<(), Error> {
        let identities = self.memory.identities.clone();
        let is_used = |counter: &u32| identities.read(*counter).hash != NOBODY;
        let last = (0..identities.len()).rev().find(is_used);
        let used = last.map_or(0, |last| last + 1);
        let mut tallies = Vec::new();
        while tallies.len() < used as usize {
            self.memory.counters.read_on(&mut tallies, used)?;
        }
        let mut owned = HashSet::new();
        for (counter, counted) in (0..used).zip(tallies) {
            let identity = identities.read(counter);
            if [NOBODY, FORMER_OWNER].contains(&identity.hash) {
                continue;
            }
            // No owner can have counted more than all owners together.
            let sound = Identity {
                packets: identity.packets.min(counted.packets),
                bytes: identity.bytes.min(counted.bytes),
                answers: identity.answers.min(counted.answers),
                ..identity
            };
            if sound != identity {
                identities.write(counter, &sound);
            }
            let base = Traffic {
                answers: sound.answers,
                ..Traffic::new(sound.packets, sound.bytes)
            };
            self.row_mut().restore(sound.hash, counter, base);
            owned.insert(counter);
        }
        // The rest would take the room of new ones.
        self.memory.latency.retain(|at| owned.contains(at))?;
        self.memory.inspections.retain(|at| owned.contains(&at))?;
        let counting: HashSet<u32> = referenced.iter().copied().collect();
        self.row_mut()
            .free_others(used, |counter| counting.contains(&counter));
        for counter in referenced {
            self.row_mut().use_again(&identities.read(*counter).hash);
        }
        Ok(())
    }

    /// Takes over how rules that count in `counting` fail over.
    pub(super) fn adopt_failovers(&mut self, counting: &HashSet<u32>) -> Result<(), Error> {
        let mut entries = self.memory.failovers.entries()?;
        entries.retain(|(rule, failover)| {
            !(counting.contains(rule) && self.failovers.adopt(*rule, *failover))
        });
        let invalid: Vec<u32> = entries.into_iter().map(|(rule, _)| rule).collect();
        Ok(self.memory.failovers.remove(&invalid)?)
    }

    /// Resets times in the future: until then a limit would refuse, and a silent leg would seem to
    /// deliver.
    pub(super) fn reset_future_times(&self) {
        let now_ns = Clock::Kernel.now_ns();
        let is_late = |limit: Limit| limit.due_ns > now_ns.saturating_add(limit.depth_ns);
        let KernelMemory {
            limits, settings, ..
        } = &self.memory;
        for counter in 0..self.used() {
            if is_late(limits.read(counter)) {
                limits.store(counter, field!(Limit, due_ns), 0);
            }
            self.failovers.reset_future_times(counter);
        }
        if is_late(settings.read(0).budget) {
            settings.store(0, field!(Settings, budget.due_ns), 0);
        }
    }

    /// Whose the counters are.
    pub(super) fn row(&self) -> &Owners<Hash, Traffic> {
        self.owners(Kind::Rule)
    }

    fn row_mut(&mut self) -> &mut Owners<Hash, Traffic> {
        self.owners_mut(Kind::Rule)
    }

    /// Counters from 0 up to this one are or were owned.
    pub(super) fn used(&self) -> u32 {
        self.row().used()
    }

    /// The counter of a name that owns one.
    pub(super) fn counter(&self, name: &Hash) -> Option<u32> {
        self.slot(Kind::Rule, name)
    }

    /// Takes one more reference to the owner's counter and puts its limit in force.
    pub(super) fn acquire_counter(&mut self, wanted: &CounterFor<'_>) -> Result<u32, Error> {
        let counter = self.acquire(&wanted.owner)?.ok_or(Error::Capacity {
            what: "counters",
            wanted: 1,
            limit: 0,
        })?;
        let limiter = Limiter::Slot(wanted.owner.name.kind(), counter);
        self.set_limit(limiter, wanted.limit);
        Ok(counter)
    }

    /// Drops one reference.
    pub(super) fn release_counter(&mut self, counter: u32) {
        let identity = self.memory.identities.read(counter);
        self.row_mut().release(&identity.hash);
    }
}

impl KernelMemory {
    /// Sets the rule of the input that counts there and what decides about its packets: in one word,
    /// because packets may be arriving.
    pub(super) fn set_arbiter(&self, counter: u32, rule: u32, arbiter: u32) {
        let before = self.identities.read(counter);
        if (before.rule, before.arbiter) != (rule, arbiter) {
            let ([a, b, c, d], [e, f, g, h]) = (rule.to_ne_bytes(), arbiter.to_ne_bytes());
            let word = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
            self.identities.store(counter, field!(Identity, rule), word);
        }
    }

    /// The counter of the rule that a word belongs to.
    pub(super) fn rule_counter(&self, word: Word) -> u32 {
        if word.flags & layout::ROUTE_INPUT == 0 {
            return word.counter;
        }
        self.identities.read(word.counter).rule
    }

    /// Retains for a rule what was found in packets of one of its routes, before the route is removed; if
    /// its legs are merged, their packets are inspected for another route from then on.
    pub(super) fn retain_health(&mut self, entry: &Entry) {
        let rule = self.rule_counter(entry.word);
        if let Some(merge) = merge_of(self.identities.read(entry.word.counter).arbiter)
            && self.merges.read(merge).watch == entry.index + 1
        {
            self.merges.store(merge, field!(Merge, watch), 0);
        }
        self.inspections.retire(entry.index, entry.inspection, rule);
    }

    /// Makes room for the latency of new rules, by their counters. Without it their packets are relayed
    /// all the same.
    pub(super) fn begin_latency(&mut self, counters: &[u32]) {
        let none = vec![layout::Latency::default(); counters.len()];
        if let Err(error) = self.latency.insert(counters, &none) {
            tracing::debug!("how long packets of new rules stay is not counted: {error}");
        }
    }

    /// Writes a limit. Its state goes last, because packets read the state before the rest.
    fn write_limit<T: layout::Plain>(map: &Array<T>, index: u32, at: Field<T>, limit: Limit) {
        for (word, value) in [
            (field!(Limit, per_token), limit.per_token),
            (field!(Limit, depth_ns), limit.depth_ns),
            (field!(Limit, bits), limit.bits),
            (field!(Limit, due_ns), 0),
        ] {
            map.store(index, at.of_entry(0, word), value);
        }
    }
}

impl Memory for KernelMemory {
    const PATH: Path = Path::Kernel;
    const FIRST: First = First::Fresh;
    const IS_ONE_ROW: bool = true;
    type Base = Traffic;
    type Lanes = Lanes;
    type Blocks = map::HashMap<u32, MergeBlock>;
    type Error = Error;

    fn slots(&self, _: Kind) -> u32 {
        self.identities.len()
    }

    /// Drops are reset.
    fn begin(&mut self, owner: &Owner<'_>, counter: u32, is_fresh: bool) -> Result<Traffic, Error> {
        let mut base = Traffic::default();
        if !is_fresh {
            base = Traffic {
                last_ns: 0,
                ..of_tally(self.counters.read_one(counter)?)
            };
        }
        // Even if it is fresh: another process may have written there.
        self.drops.write(counter, &layout::Drops::default());
        self.limits.store(counter, field!(Limit, due_ns), 0);
        let identity = Identity {
            hash: owner.hash,
            packets: base.packets,
            bytes: base.bytes,
            answers: base.answers,
            ..Identity::default()
        };
        self.identities.write(counter, &identity);
        Ok(base)
    }

    fn end(&mut self, _: Kind, counter: u32) {
        let nobody = Identity {
            hash: FORMER_OWNER,
            ..self.identities.read(counter)
        };
        self.identities.write(counter, &nobody);
        if let Err(error) = self.latency.remove(&[counter]) {
            tracing::debug!("how long packets of an old rule stayed is not forgotten: {error}");
        }
        self.inspections.forget(counter);
    }

    fn limit(&self, limiter: Limiter) -> Limit {
        match limiter {
            Limiter::Slot(_, counter) => self.limits.read(counter),
            Limiter::Budget => self.settings.read(0).budget,
        }
    }

    fn set_limit(&mut self, limiter: Limiter, limit: Limit) {
        match limiter {
            Limiter::Slot(_, counter) => {
                Self::write_limit(&self.limits, counter, Field::at(0), limit);
            }
            Limiter::Budget => {
                Self::write_limit(&self.settings, 0, field!(Settings, budget), limit);
            }
        }
    }

    fn fail_over(&mut self, rule: u32, how: Option<&Failover>) -> Result<(), Error> {
        match how {
            Some(how) => Ok(self.failovers.insert(&[rule], &[*how])?),
            None => Ok(self.failovers.remove(&[rule])?),
        }
    }

    fn traffic(
        &self,
        lanes: &Lanes,
        (_, counter): (Kind, u32),
        base: Option<&Traffic>,
    ) -> Option<(Traffic, Drops)> {
        let tally = lanes.tallies.get(counter)?;
        let base = base.copied().unwrap_or_default();
        let drops = self.drops.read(counter).packets;
        Some((of_tally(*tally).since(base), Drops(drops)))
    }

    fn of_rule(&self, lanes: &Lanes, rule: u32, _: Option<&Traffic>) -> (HealthCounters, Latency) {
        let health = lanes.health.get(&rule).copied();
        let latency = lanes.latency.get(&rule).copied();
        (health.unwrap_or_default(), latency.unwrap_or_default())
    }
}

/// Who a counter is for, and the limit that goes with it.
#[derive(Clone, Copy)]
pub(super) struct CounterFor<'a> {
    pub(super) owner: Owner<'a>,
    pub(super) limit: layout::Limit,
}

impl<'a> CounterFor<'a> {
    pub(super) fn new(name: Name<'a>, limit: Option<RateLimit>) -> Self {
        Self {
            owner: name.into(),
            limit: limit.map(limits::new).unwrap_or_default(),
        }
    }
}
