//! The kernel path's control side: turns routes into map entries, one transaction at a time.
//!
//! Invariants: a packet sees each route before or after a change, never in between; whatever a packet
//! may still be reading is reused only after a grace period; nothing is written before everything is
//! known to fit.

mod adopt;
pub(crate) mod allocator;
mod encode;
mod gates;
mod groups;
mod health;
mod key;
mod latency;
mod legs;
mod links;
mod owners;
mod plan;
mod ranges;
mod read;
mod rivals;
pub(crate) mod shadow;
mod transaction;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use bpf::layout::{self, Address, Settings};
use bpf::link::{Hook, Link};
use bpf::pin::Pins;
use bpf::program::Program;
#[cfg(feature = "test-run")]
use bpf::testrun::{Input, Outcome};
use model::diff::{BudgetChange, TableDiff};
use model::table::{Path, RateLimit, RouteKey, Table};
use sys::field;
use sys::memory::Array;

use crate::arrivals::Ticks;
use crate::counters::Traffic;
use crate::error::Error;
use crate::gates::{GateMemory, Gates};
use crate::kernel::allocator::{Blocks, Indices};
use crate::kernel::groups::Groups;
use crate::kernel::health::{Inspection, Kept};
use crate::kernel::key::Key;
use crate::kernel::legs::Legs;
use crate::kernel::links::Links;
use crate::kernel::ranges::Ranges;
use crate::options::Options;
use crate::owners::known::KnownRules;
use crate::owners::name::{Hash, Name};
use crate::owners::{First, Owners};

pub(crate) use read::{Tallies, read as read_counters, read_arrived};
pub use rivals::Rival;
pub(crate) use rivals::rivals;

/// The loaded program and what is in its maps.
#[derive(Debug)]
pub(crate) struct Kernel {
    pins: Pins,
    program: Program,
    links: Links,
    /// Every element of `routes` and `routes6`, placeholders included.
    entries: HashMap<Key, Entry>,
    /// Those whose packets are looked at.
    inspected: HashSet<Key>,
    /// How many of them each interface has, to know where the program has to be attached.
    entries_on: BTreeMap<u32, usize>,
    /// How many of them are for addresses of this host.
    addresses: u64,
    /// How many of them have copies that are answered.
    answered: u64,
    /// Number of (S,G) entries per (*,G) key.
    sources: HashMap<Key, u32>,
    indices: Indices,
    blocks: Blocks,
    ranges: Ranges,
    groups: Groups,
    owners: Owners<Hash, Traffic>,
    known: KnownRules,
    legs: Legs,
    gates: Gates,
    kept: Kept,
    own: HashSet<IpAddr>,
    take_over: TakeOver,
    /// Counters found that no route counts in: of rules whose interface is away, or of a change
    /// that was cut short.
    loose: usize,
}

/// How far the taking over from an earlier process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakeOver {
    /// Its maps are ours; what differs from the rules is still in them.
    SameMaps,
    /// Its program goes on with its own maps until ours hold the rules.
    OwnMaps,
    Done,
}

/// What one element of `routes` leads to.
#[derive(Clone, Copy, Debug)]
struct Entry {
    index: u32,
    word: bpf::layout::Word,
    placeholder: bool,
    /// What its packets pass by, as it stands in the map.
    gate: u16,
    /// What its packets are looked at for.
    inspection: Option<Inspection>,
    /// Whether answers to its copies go back to whoever sent the packets.
    answered: bool,
}

impl Kernel {
    /// Loads the program and takes over what is pinned.
    pub(crate) fn open(
        options: &Options,
        hook: Hook,
        (pins, gates): (Pins, Gates),
    ) -> Result<Self, Error> {
        let program = load(&pins, options)?;
        let (room, wanted) = (program.maps.routes.capacity(), options.capacity.routes);
        if room < wanted {
            tracing::warn!(
                "pinned maps of an earlier run have room for {room} routes, not for {wanted}: stop the \
                 daemon so that nothing goes on forwarding, and start it, to have more"
            );
        }
        Self::take_over(program, hook, (pins, gates))
    }

    /// Knows nothing any more and takes over what is in its own maps, as another process would.
    #[cfg(feature = "rehearsal")]
    pub(crate) fn adopt_again(self) -> Result<Self, Error> {
        Self::take_over(self.program, self.links.hook(), (self.pins, self.gates))
    }

    fn take_over(
        program: Program,
        hook: Hook,
        (pins, gates): (Pins, Gates),
    ) -> Result<Self, Error> {
        let memory = GateMemory {
            gates: program.maps.gates.clone(),
            since: None,
        };
        gates.adopt(Path::Kernel, memory);
        let take_over = match pins.foreign_maps()?.as_slice() {
            [] => TakeOver::SameMaps,
            foreign => {
                tracing::warn!(
                    "pinned maps of an earlier run ({}) cannot be used by this version: its \
                     program forwards until new maps are filled, counters start from zero",
                    foreign.join(", ")
                );
                TakeOver::OwnMaps
            }
        };
        let mut kernel = Self {
            links: Links::adopt(&pins, hook)?,
            indices: Indices::new(program.maps.route_table.len()),
            blocks: Blocks::new(program.maps.outputs.len()),
            ranges: Ranges::new(program.maps.candidates.len()),
            owners: Owners::new(program.maps.identities.len(), First::Fresh),
            groups: Groups::default(),
            entries: HashMap::new(),
            inspected: HashSet::new(),
            entries_on: BTreeMap::new(),
            addresses: 0,
            answered: 0,
            sources: HashMap::new(),
            known: KnownRules::default(),
            legs: Legs::of(&program.maps),
            gates,
            kept: Kept::default(),
            own: HashSet::new(),
            take_over,
            loose: 0,
            pins,
            program,
        };
        kernel.adopt()?;
        kernel.set_clock();
        if take_over == TakeOver::SameMaps {
            kernel.links.replace(&kernel.program)?;
        }
        Ok(kernel)
    }

    /// Makes the maps hold exactly the routes of `table`; those of the userspace path as shadows.
    pub(crate) fn sync(&mut self, table: &Table) -> Result<(), Error> {
        self.check_own_addresses(table.own_addresses.len())?;
        let mut wanted = TableDiff::default();
        let mut keys = HashSet::new();
        for (key, route) in &table.routes {
            keys.insert(encode::route_key(key)?);
            wanted.set.push((*key, route.clone()));
        }
        let stale: Vec<Key> = self
            .entries
            .iter()
            .filter(|(key, entry)| !entry.placeholder && !keys.contains(*key))
            .map(|(key, _)| *key)
            .collect();
        let routes = self.entries.values().filter(|entry| !entry.placeholder);
        let found = routes.count();
        let known = keys.iter().filter(|key| self.entries.contains_key(*key));
        let missing = keys.len() - known.count();
        self.change(&stale, &wanted.set)?;
        // Also where no route differs: the interface may be another one than the one that was left.
        let everywhere: Vec<u32> = self.entries_on.keys().copied().collect();
        let everywhere = everywhere.into_iter();
        self.links.attach(everywhere, &self.pins, &self.program)?;
        self.budget(table.budget);
        let own = table.own_addresses.iter().copied().collect();
        self.own_addresses(own)?;
        if self.take_over == TakeOver::OwnMaps {
            self.links.replace(&self.program)?;
            self.pins.remove_foreign_maps()?;
        }
        let is_first = std::mem::replace(&mut self.take_over, TakeOver::Done) != TakeOver::Done;
        if is_first && found > 0 {
            tracing::info!(
                found,
                removed = stale.len(),
                added = missing,
                loose_counters = self.loose,
                "took pinned routes over from an earlier run"
            );
        }
        Ok(())
    }

    /// Takes `diff` over, whole or not at all.
    pub(crate) fn apply(&mut self, diff: &TableDiff) -> Result<(), Error> {
        let removed = diff.removed.iter().map(encode::route_key);
        let removed = removed.collect::<Result<Vec<_>, _>>()?;
        let own = self.own_after(diff)?;
        self.change(&removed, &diff.set)?;
        if let Some(BudgetChange(budget)) = diff.budget {
            self.budget(budget);
        }
        own.map_or(Ok(()), |own| self.own_addresses(own))
    }

    /// Says whether packets of a route end at the program.
    pub(crate) fn consumes(&self, key: &RouteKey) -> bool {
        let key = encode::route_key(key).ok();
        key.is_some_and(|key| self.entries.contains_key(&key))
    }

    /// When packets were counted for each rule, for any thread.
    pub(crate) fn activity(&self) -> Array<layout::Activity> {
        self.program.maps.activity.clone()
    }

    /// Says whether packets were counted since `seen`.
    pub(crate) fn has_counted(&self, seen: &mut Ticks) -> bool {
        let activity = &self.program.maps.activity;
        let looked = seen.look(self.owners.used(), |entry| activity.read(entry));
        !looked.is_empty()
    }

    /// Says whether something waits until no packet looks at it any more.
    pub(crate) fn is_waiting(&self) -> bool {
        self.legs.merges.is_waiting()
    }

    /// How many counters are looked at for that.
    pub(crate) fn counters(&self) -> u32 {
        self.owners.used()
    }

    /// Makes an input the active one of its rule; `false` if it is none of the rule's lines.
    pub(crate) fn switch(&mut self, rule: &str, input: &str) -> bool {
        let counter = |name: Name<'_>| Some(self.owners.find(&name.hash())?.slot);
        let rule_and_line = (counter(Name::Rule(rule)), counter(Name::Input(rule, input)));
        let (Some(rule), Some(line)) = rule_and_line else {
            return false;
        };
        self.legs.failovers.switch(rule, line)
    }

    /// Looks for interfaces that went away behind the table's back.
    pub(crate) fn tick(&mut self) -> Result<(), Error> {
        self.set_clock();
        if self.legs.merges.is_waiting() {
            self.wait()?;
        }
        self.links.repair(&self.pins, &self.program)
    }

    /// Runs one packet through the program.
    #[cfg(feature = "test-run")]
    pub(crate) fn test_run(&self, input: Input<'_>) -> Result<Outcome, Error> {
        Ok(self.program.test_run(input)?)
    }

    /// Detaches and removes every pin.
    pub(crate) fn detach(self) -> Result<(), Error> {
        Link::remove_all(&self.pins)?;
        Ok(())
    }

    fn put_entry(&mut self, key: Key, entry: Entry) {
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

    fn take_entry(&mut self, key: &Key) -> Option<Entry> {
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

    /// Says in the settings whether packets to addresses of this host are looked at.
    fn publish_addresses(&mut self) {
        let settings = &mut self.program.maps.settings;
        let at = field!(Settings, addresses);
        settings.store(0, at, self.addresses + self.answered);
        settings.store(0, field!(Settings, answers), self.answered);
    }

    fn budget(&mut self, budget: Option<RateLimit>) {
        let settings = &mut self.program.maps.settings;
        let limits = (settings.read(0).budget, encode::limit(budget));
        encode::store_limit(settings, 0, field!(Settings, budget), limits);
    }

    /// The addresses of this host after `diff`, where it changes them.
    fn own_after(&self, diff: &TableDiff) -> Result<Option<HashSet<IpAddr>>, Error> {
        if diff.own_added.is_empty() && diff.own_removed.is_empty() {
            return Ok(None);
        }
        let mut own = self.own.clone();
        own.retain(|address| !diff.own_removed.contains(address));
        own.extend(&diff.own_added);
        self.check_own_addresses(own.len())?;
        Ok(Some(own))
    }

    /// Refuses more addresses than there is room for, before anything is changed.
    fn check_own_addresses(&self, wanted: usize) -> Result<(), Error> {
        let limit = self.program.maps.own_sources.capacity() as usize;
        if wanted <= limit {
            return Ok(());
        }
        Err(Error::Capacity {
            what: "own addresses",
            wanted,
            limit,
        })
    }

    fn own_addresses(&mut self, own: HashSet<IpAddr>) -> Result<(), Error> {
        let added: Vec<Address> = own.difference(&self.own).map(|a| (*a).into()).collect();
        let removed: Vec<Address> = self.own.difference(&own).map(|a| (*a).into()).collect();
        let maps = &mut self.program.maps;
        maps.own_sources.remove(&removed)?;
        maps.own_sources.insert(&added, &vec![1; added.len()])?;
        let mut settings = Settings::default();
        own.iter().for_each(|address| settings.insert_own(*address));
        for (i, word) in settings.own_bloom.iter().enumerate() {
            let at = field!(Settings, own_bloom).skip(i);
            maps.settings.store(0, at, *word);
        }
        self.own = own;
        Ok(())
    }
}

/// Loads the program on the maps of an earlier run. Maps that it cannot run on, or of which only a
/// part is there, are set aside: nobody knows what is in them.
fn load(pins: &Pins, options: &Options) -> Result<Program, Error> {
    let maps = pins.maps();
    let problem = if pins.is_incomplete()? {
        "some are missing".to_owned()
    } else {
        let loaded = Program::load(Some(&maps), options.capacity);
        match loaded.and_then(|program| program.maps.check().map(|()| program)) {
            Ok(program) => return Ok(program),
            Err(error) if pins.is_empty()? => return Err(error.into()),
            Err(error) => error.to_string(),
        }
    };
    tracing::warn!("pinned maps in {} are set aside: {problem}", maps.display());
    pins.set_aside()?;
    Ok(Program::load(Some(&maps), options.capacity)?)
}
