//! The kernel path's control side: turns routes into map entries, one transaction at a time.
//!
//! Invariants: a packet sees each route before or after a change, never in between; whatever a packet
//! may still be reading is reused only after a grace period; nothing is written before it is certain that
//! everything fits.

mod adopt;
mod encode;
mod entry;
mod gates;
mod groups;
mod health;
mod hook;
mod key;
mod lanes;
mod legs;
mod links;
mod memory;
mod plan;
mod ranges;
mod read;
mod rivals;
mod routes;
pub(crate) mod shadow;
mod transaction;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use bpf::layout::{self, Address, Settings};
use bpf::link::{Hook, Link};
use bpf::map::HashMap;
use bpf::pin::Pins;
use bpf::program::Program;
#[cfg(feature = "test-run")]
use bpf::testrun::{Input, Outcome};
use compile::diff::{BudgetChange, TableDiff};
use compile::hook::Hooks;
use compile::table::{OwnAddresses, Path, RateLimit, RouteKey, Table};
use rules::net::Ifindex;
use sys::field;
use sys::memory::Array;

use crate::error::Error;
use crate::gates::{GateMemory, Gates};
use crate::kernel::hook::Hook as XdpHook;
use crate::kernel::key::Key;
use crate::kernel::links::Links;
use crate::kernel::memory::KernelControl;
use crate::kernel::routes::Routes;
use crate::limits::{self, Limiter};
use crate::options::Options;
use crate::ticks::Ticks;

pub(crate) use read::{KernelReading, flows, read as read_counters, read_arrived};
pub use rivals::Rival;
pub(crate) use rivals::rivals;

/// The loaded program and what is in its maps.
#[derive(Debug)]
pub(crate) struct Kernel {
    pins: Pins,
    program: Program,
    links: Links,
    hook: XdpHook,
    routes: Routes,
    control: KernelControl,
    gates: Gates,
    activity: Array<layout::Activity>,
    settings: Array<Settings>,
    own_sources: HashMap<Address, u32>,
    own: BTreeMap<Address, u32>,
    take_over: TakeOver,
    /// Adopted counters that no route counts in: of rules whose interface is missing, or of an
    /// interrupted change.
    loose: usize,
}

/// Progress of taking over from an earlier process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakeOver {
    /// Its maps are ours; they still hold what differs from the rules.
    SameMaps,
    /// Its program goes on with its own maps until ours hold the rules.
    OwnMaps,
    Done,
}

impl Kernel {
    /// What it counts and decides by.
    pub(crate) const fn control(&self) -> &KernelControl {
        &self.control
    }

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

    /// Discards its state and adopts its own maps, as another process would.
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
            since: program.maps.opened.clone(),
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
        let maps = &program.maps;
        let mut kernel = Self {
            links: Links::adopt(&pins, hook)?,
            hook: XdpHook::default(),
            routes: Routes::over(maps),
            control: KernelControl::over(maps),
            gates,
            activity: maps.activity.clone(),
            settings: maps.settings.clone(),
            own_sources: maps.own_sources.clone(),
            own: BTreeMap::new(),
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
        let own = self.own_entries(&table.own_addresses)?;
        let mut wanted = TableDiff::default();
        let mut keys = HashSet::new();
        for (key, route) in &table.routes {
            keys.insert(encode::route_key(key)?);
            wanted.set.push((*key, route.clone()));
        }
        let entries = &self.routes.entries;
        let adopted = entries.iter().filter(|(_, entry)| !entry.placeholder);
        let mut stale: Vec<Key> = adopted.map(|(key, _)| *key).collect();
        let found = stale.len();
        stale.retain(|key| !keys.contains(key));
        let present = keys.iter().filter(|key| entries.contains_key(*key));
        let missing = keys.len() - present.count();
        self.change(&stale, &wanted.set)?;
        // Also where no route differs: the interface may be another one than before.
        let everywhere = self.routes.entries_on.keys().copied();
        self.links.attach(everywhere, &self.pins, &self.program)?;
        self.set_budget(table.budget);
        self.set_own(own, &table.own_addresses)?;
        if self.take_over == TakeOver::OwnMaps {
            self.links.replace(&self.program)?;
            self.pins.remove_foreign_maps()?;
        }
        let is_first = std::mem::replace(&mut self.take_over, TakeOver::Done) != TakeOver::Done;
        self.settle_hook()?;
        self.control.merges.forget_numbers_of_paused()?;
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

    /// Applies `diff`, whole or not at all.
    pub(crate) fn apply(&mut self, diff: &TableDiff) -> Result<(), Error> {
        let keys = diff.removed.iter().map(encode::route_key);
        let removed = keys.collect::<Result<Vec<_>, _>>()?;
        let own = match &diff.own {
            Some(own) => Some((self.own_entries(own)?, own)),
            None => None,
        };
        self.change(&removed, &diff.set)?;
        if let Some(BudgetChange(budget)) = diff.budget {
            self.set_budget(budget);
        }
        own.map_or(Ok(()), |(entries, own)| self.set_own(entries, own))
    }

    /// Returns whether packets of a route end at the program.
    pub(crate) fn consumes(&self, key: &RouteKey) -> bool {
        let key = encode::route_key(key).ok();
        key.is_some_and(|key| self.routes.entries.contains_key(&key))
    }

    /// Whose packets those of a key are: `None` where there is no such route.
    pub(crate) fn path_of(&self, key: &RouteKey) -> Option<Path> {
        let encoded = encode::route_key(key).ok()?;
        let entry = self.routes.get(&encoded)?;
        let is_shadow = entry.word.flags & layout::ROUTE_SHADOW != 0;
        let path = if is_shadow || self.routes.is_coming(&encoded) {
            Path::Userspace
        } else {
            Path::Kernel
        };
        (!entry.placeholder).then_some(path)
    }

    /// Says which routes change paths from now on, each with the path that it gets.
    pub(crate) fn set_turns<'a>(&mut self, moving: impl Iterator<Item = (&'a RouteKey, Path)>) {
        let turns = moving.filter_map(|(key, path)| {
            let flag = match path {
                Path::Kernel => layout::LOOKUP_COMING,
                Path::Userspace => layout::LOOKUP_LEAVING,
            };
            Some((encode::route_key(key).ok()?, flag))
        });
        self.routes.set_turns(turns.collect());
    }

    /// When packets were counted for each rule, for any thread.
    pub(crate) fn activity(&self) -> Array<layout::Activity> {
        self.activity.clone()
    }

    /// Returns whether packets were counted since `seen`.
    pub(crate) fn has_counted(&self, seen: &mut Ticks) -> bool {
        !self.changed_counters(seen).is_empty()
    }

    /// The rules that packets may have arrived for since `seen`.
    pub(crate) fn changed_rules(&self, seen: &mut Ticks) -> impl Iterator<Item = Arc<str>> {
        self.control.rules_of(self.changed_counters(seen))
    }

    /// The counters in which packets may have been counted since `seen`.
    fn changed_counters(&self, seen: &mut Ticks) -> BTreeSet<u32> {
        seen.changed(self.control.used(), |entry| self.activity.read(entry))
    }

    /// Returns whether something waits until no packet uses it any more.
    pub(crate) fn is_waiting(&self) -> bool {
        self.control.merges.is_waiting()
    }

    /// How many counters are read for that.
    pub(crate) fn counters(&self) -> u32 {
        self.control.used()
    }

    /// Makes an input the active one of its rule; `false` if it is none of the rule's lines.
    pub(crate) fn switch(&mut self, rule: &str, input: &str) -> bool {
        self.control.switch(rule, input)
    }

    /// Ends the counters of a rule that no longer exists: one of that name starts from zero.
    pub(crate) fn forget(&mut self, rule: &str) {
        self.control.forget(rule);
    }

    /// Repairs links of interfaces that were removed without a change of the table.
    pub(crate) fn tick(&mut self) -> Result<(), Error> {
        self.set_clock();
        if self.control.merges.is_waiting() {
            self.wait()?;
        }
        self.links.repair(&self.pins, &self.program)
    }

    /// Runs one packet through the program.
    #[cfg(feature = "test-run")]
    pub(crate) fn test_run(&self, input: Input<'_>) -> Result<Outcome, Error> {
        Ok(self.program.test_run(input)?)
    }

    /// Sets what XDP may be used for from now on.
    pub(crate) fn set_hooks(&mut self, wanted: Hooks) -> Result<(), Error> {
        if self.hook.want(wanted) {
            self.settle_hook()?;
        }
        Ok(())
    }

    /// Leaves an earlier process's programs unchanged until the maps hold the rules.
    fn settle_hook(&mut self) -> Result<(), Error> {
        let interfaces = self.links.interfaces();
        self.hook.load(&self.program, &self.pins, interfaces)?;
        if self.take_over == TakeOver::Done {
            self.hook.settle(&self.pins)?;
        }
        Ok(())
    }

    /// What XDP is used for, and why not.
    pub(crate) fn hooks(&self) -> Hooks {
        self.hook.standing()
    }

    /// How many packets of each interface were handed to devices at XDP.
    pub(crate) fn taken_at_xdp(&self) -> BTreeMap<Ifindex, u64> {
        self.hook.taken()
    }

    /// Injects a frame on an interface as its driver would hand it over.
    #[cfg(feature = "test-run")]
    pub(crate) fn inject(&self, frame: &[u8], ifindex: u32) -> Result<(), Error> {
        Ok(self.hook.xdp()?.inject(frame, ifindex)?)
    }

    /// Detaches and removes every pin.
    pub(crate) fn detach(self) -> Result<(), Error> {
        Link::remove_all(&self.pins)?;
        Ok(())
    }

    fn set_budget(&mut self, budget: Option<RateLimit>) {
        self.control
            .set_limit(Limiter::Budget, budget.map(limits::new).unwrap_or_default());
    }

    /// Publishes to the program the offset between the clock of receive timestamps and its own. To be
    /// called repeatedly: the clock may be set.
    fn set_clock(&mut self) {
        let before = sys::clock::kernel_monotonic_ns();
        let real = sys::clock::realtime_ns();
        let between = before.midpoint(sys::clock::kernel_monotonic_ns());
        let offset = real.wrapping_sub(between);
        self.settings.store(0, field!(Settings, clock_ns), offset);
    }

    /// What the map of this host's addresses is to hold; refuses more than there is room for.
    fn own_entries(&self, own: &OwnAddresses) -> Result<BTreeMap<Address, u32>, Error> {
        let addresses = own.addresses.iter().map(|(scope, address)| {
            let scope = scope.map_or(0, |scope| scope.0);
            (Address::within(scope, *address), 1)
        });
        let mut entries: BTreeMap<_, _> = addresses.collect();
        for (interface, vrf) in &own.vrfs {
            entries.insert(Address::of_interface(interface.0), vrf.0);
        }
        let limit = self.own_sources.capacity() as usize;
        if entries.len() <= limit {
            return Ok(entries);
        }
        Err(Error::Capacity {
            what: "own addresses",
            wanted: entries.len(),
            limit,
        })
    }

    fn set_own(
        &mut self,
        entries: BTreeMap<Address, u32>,
        own: &OwnAddresses,
    ) -> Result<(), Error> {
        let mut removed: Vec<Address> = self.own.keys().copied().collect();
        removed.retain(|key| !entries.contains_key(key));
        let set = entries
            .iter()
            .filter(|(key, value)| self.own.get(*key) != Some(value));
        let (keys, values): (Vec<_>, Vec<_>) = set.map(|(key, value)| (*key, *value)).unzip();
        self.own_sources.remove(&removed)?;
        self.own_sources.insert(&keys, &values)?;
        let mut settings = Settings::default();
        let addresses = own.addresses.iter();
        addresses.for_each(|(_, address)| settings.insert_own(*address));
        for (i, word) in settings.own_bloom.iter().enumerate() {
            let at = field!(Settings, own_bloom).skip(i);
            self.settings.store(0, at, *word);
        }
        self.own = entries;
        Ok(())
    }
}

/// Loads the program on the maps of an earlier run. Maps that it cannot run on, or of which some are
/// missing, are set aside: their content is unknown.
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
