//! The memory that workers count in, and its owners, recorded for the next supervisor.
//!
//! A rule keeps its counters while it has no route, for instance while its interface is missing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bpf::layout::Limit;
use compile::table::{Path, Route};
use packet::latency::Latency;

use super::error::Error;
use super::handover::CounterRegion;
use super::owner_file::OwnerFile;
use crate::control::{Control, Memory, Owner};
use crate::counters::{Drops, HealthCounters, Traffic};
use crate::limits::{self, Limiter};
use crate::owners::First;
use crate::owners::name::{self, Hash, Kind, Name};
use crate::userspace::shared::counted::Counted;
use crate::userspace::shared::flows::FlowOwner;
use crate::userspace::shared::layout::{InputSlot, OutputSlot, RuleSlot, limit};
use crate::userspace::shared::merges::SharedBlocks;
use crate::userspace::shared::messages::CountedRoute;

/// The control side of this path.
pub(crate) type WorkerControl = Control<WorkerMemory>;

/// The memory in which workers count.
#[derive(Debug, Default)]
pub(crate) struct WorkerMemory {
    /// Those of running workers, and of former ones.
    pub(super) regions: Vec<Arc<CounterRegion>>,
    file: Option<OwnerFile>,
    /// The limits in force. What is booked on them is in the workers' own words.
    limits: HashMap<Limiter, Limit>,
    /// Those whose words have to be reset, once no worker books on the previous limit: they hold a debt at
    /// another rate.
    pub(super) fresh: Vec<Limiter>,
}

impl WorkerMemory {
    /// Reads what a slot counts, whoever owns it, summed over the workers.
    fn counted(&self, kind: Kind, slot: u32) -> Counted {
        let mut sum = Counted::default();
        for region in &self.regions {
            sum.add(&region.counters.counted(kind, slot));
        }
        sum
    }

    /// A number that changes when packets are counted for the rule of a slot.
    fn activity(&self, rule: u32) -> u64 {
        let regions = self.regions.iter();
        let each = regions.map(|region| region.counters.activity(RuleSlot(rule)));
        each.fold(0, u64::wrapping_add)
    }
}

impl Memory for WorkerMemory {
    const PATH: Path = Path::Userspace;
    const FIRST: First = First::Freed;
    const IS_ONE_ROW: bool = false;
    type Base = Counted;
    type Lanes = ();
    type Blocks = SharedBlocks;
    type Error = Error;

    fn slots(&self, kind: Kind) -> u32 {
        limit(kind)
    }

    fn begin(&mut self, owner: &Owner<'_>, slot: u32, _: bool) -> Result<Counted, Error> {
        let kind = owner.name.kind();
        let base = self.counted(kind, slot);
        self.limits.remove(&Limiter::Slot(kind, slot));
        if let Some(file) = &self.file {
            file.write(kind, slot, &owner.name.to_string(), &base);
        }
        Ok(base)
    }

    fn end(&mut self, kind: Kind, slot: u32) {
        if let Some(file) = &self.file {
            file.erase(kind, slot);
        }
    }

    fn limit(&self, limiter: Limiter) -> Limit {
        self.limits.get(&limiter).copied().unwrap_or_default()
    }

    fn set_limit(&mut self, limiter: Limiter, limit: Limit) {
        self.limits.insert(limiter, limit);
        self.fresh.push(limiter);
    }

    fn traffic(
        &self,
        (): &(),
        (kind, slot): (Kind, u32),
        base: Option<&Counted>,
    ) -> Option<(Traffic, Drops)> {
        let (mut traffic, mut drops) = (Traffic::default(), Drops::default());
        for region in &self.regions {
            let (passed, dropped) = region.counters.traffic(kind, slot);
            traffic.add(passed);
            drops.add(&dropped);
        }
        Some(match base {
            Some(base) => (traffic.since(base.traffic), drops.since(&base.drops)),
            None => (traffic, drops),
        })
    }

    fn of_rule(&self, (): &(), rule: u32, base: Option<&Counted>) -> (HealthCounters, Latency) {
        let mut counted = self.counted(Kind::Rule, rule);
        if let Some(base) = base {
            counted = counted.since(base);
        }
        (counted.health, counted.latency)
    }
}

impl WorkerControl {
    /// Takes over the owners in `file`, and writes every change into it from now on.
    pub(super) fn adopt_owners(&mut self, file: OwnerFile) {
        for kind in Kind::ALL {
            for (slot, text, base) in file.read(kind) {
                if let Some(name) = Name::parse(kind, &text) {
                    self.restore(name, slot, base);
                }
            }
            self.owners_mut(kind).free_others(0, |_| false);
        }
        self.memory.file = Some(file);
    }

    /// Checks that there is room if `added` were added and nothing removed.
    ///
    /// # Errors
    /// [`Error::Capacity`].
    pub(super) fn check_room<'a>(
        &self,
        added: impl Iterator<Item = &'a Route>,
    ) -> Result<(), Error> {
        let mut names: [HashSet<Hash>; 3] = Default::default();
        for name in added.flat_map(Name::all_of) {
            names[name.kind() as usize].insert(name.hash());
        }
        let lacking = |kind: Kind| {
            let demand = self.owners(kind).demand(&names[kind as usize]);
            let lacking = demand.slots.saturating_sub(demand.room);
            u32::try_from(lacking).unwrap_or(u32::MAX)
        };
        match Kind::ALL.map(lacking) {
            [0, 0, 0] => Ok(()),
            [rules, outputs, inputs] => Err(Error::Capacity {
                rules,
                inputs,
                outputs,
            }),
        }
    }

    /// Looks up or assigns the counters of a route that comes into use, and puts its limits in force; `None`
    /// where there is no room.
    ///
    /// # Errors
    /// None are known.
    pub(super) fn acquire_route(&mut self, route: &Route) -> Result<Option<CountedRoute>, Error> {
        let Some(rule) = self.acquire(&Name::Rule(&route.rule).into())? else {
            return Ok(None);
        };
        let Some(flows) = self.flows(&route.rule) else {
            return Ok(None);
        };
        let limit = route.limit.map(limits::new).unwrap_or_default();
        self.set_limit(Limiter::Slot(Kind::Rule, rule), limit);
        let mut counted = CountedRoute {
            route: route.clone(),
            rule: RuleSlot(rule),
            input: None,
            lines: Vec::new(),
            leg: None,
            gate: None,
            is_seen_whole: true,
            turn: None,
            flows,
            outputs: Vec::with_capacity(route.outputs.len()),
        };
        for name in Name::all_of(route).skip(1) {
            let Some(slot) = self.acquire(&name.into())? else {
                return Ok(None);
            };
            match name {
                Name::Output(..) => counted.outputs.push(OutputSlot(slot)),
                Name::Input(_, at) if route.input.as_deref() == Some(at) => {
                    counted.input = Some(InputSlot(slot));
                }
                Name::Input(..) | Name::Rule(_) => {}
            }
        }
        for (slot, output) in counted.outputs.iter().zip(&route.outputs) {
            let limiter = Limiter::Slot(Kind::Output, slot.0);
            self.set_limit(limiter, output.limit.map(limits::new).unwrap_or_default());
        }
        let hash = |at: &String| Name::Input(&route.rule, at).hash();
        let lines: Vec<Hash> = name::lines_of(route).map(hash).collect();
        let slots = self.slots(Kind::Input, &lines);
        counted.lines = slots.into_iter().map(InputSlot).collect();
        self.register(route);
        Ok(Some(counted))
    }

    /// Gives up the counters of a route that is no longer used.
    pub(super) fn release_route(&mut self, route: &Route) {
        for name in Name::all_of(route) {
            self.owners_mut(name.kind()).release(&name.hash());
        }
    }

    /// The owner of a rule's flows.
    pub(super) fn flows(&self, rule: &str) -> Option<FlowOwner> {
        let owner = self.owners(Kind::Rule).find(&Name::Rule(rule).hash())?;
        Some(FlowOwner::new(RuleSlot(owner.slot), owner.epoch))
    }

    /// The rules that packets have arrived for since `seen`.
    pub(super) fn changed_rules(&self, seen: &mut Vec<u64>) -> Vec<Arc<str>> {
        let used = self.owners(Kind::Rule).used();
        seen.resize(seen.len().max(used as usize), 0);
        let changed = (0..used).zip(seen).filter_map(|(slot, seen)| {
            let now = self.memory.activity(slot);
            (std::mem::replace(seen, now) != now).then_some(slot)
        });
        self.rules_of(changed).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use bpf::merge::Windows;
    use compile::table::{LocalDelivery, RateLimit, RateUnit};
    use sys::shared_memory::Region;

    use super::*;
    use crate::counters::Counters;
    use crate::owners::registry::Progress;
    use crate::userspace::shared::merges;
    use crate::userspace::shared::state::SharedState;

    fn control() -> WorkerControl {
        let (_, state) = SharedState::create().unwrap();
        let merges = merges::of_region(Windows::create().unwrap());
        Control::new(WorkerMemory::default(), state.failovers(), merges)
    }

    fn route(input: Option<&str>) -> Route {
        Route {
            rule: "cam1".to_owned(),
            input: input.map(str::to_owned),
            path: Path::Userspace,
            local: LocalDelivery::Auto,
            limit: None,
            failover: None,
            merge: None,
            share: None,
            inspect: None,
            outputs: Vec::new(),
        }
    }

    fn acquire(control: &mut WorkerControl, route: &Route) -> CountedRoute {
        let counted = control.acquire_route(route).unwrap();
        counted.expect("there is room")
    }

    #[test]
    fn a_successor_finds_the_inputs_of_a_rule_by_their_text() {
        let inputs = ["239.1.1.1%eth0:5001", "10.0.0.5@232.1.1.1%eth0:5001"].map(Some);
        let (region, file) = OwnerFile::create().unwrap();
        let mut first = control();
        first.adopt_owners(file);
        let slots = inputs.map(|at| acquire(&mut first, &route(at)).input);
        assert_eq!(slots, [Some(InputSlot(0)), Some(InputSlot(1))]);
        assert_eq!(acquire(&mut first, &route(None)).input, None);

        let mut second = control();
        second.adopt_owners(OwnerFile::map(region.as_fd()).unwrap());
        assert_eq!(acquire(&mut second, &route(inputs[1])).input, slots[1]);
        let mut read = Counters::default();
        second.read(&(), &mut Progress::default(), &mut read);
        let texts = read.rules["cam1"].inputs.keys();
        let read_inputs: Vec<_> = texts.map(|at| Some(&**at)).collect();
        assert_eq!(read_inputs, [inputs[1], inputs[0]]);
        // Unused ones are removed with the rule.
        second.forget("cam1");
        let slot =
            |at: Option<&str>| second.slot(Kind::Input, &Name::Input("cam1", at.unwrap()).hash());
        assert_eq!(inputs.iter().filter_map(|at| slot(*at)).count(), 1);
    }

    #[test]
    fn words_of_limits_are_reset_when_the_limit_or_its_owner_changes() {
        let limited = |rate: Option<u64>| Route {
            limit: rate.map(|rate| RateLimit {
                unit: RateUnit::Packets,
                rate,
                burst: 1,
            }),
            ..route(None)
        };
        let mut control = control();
        let mut fresh = |route: &Route| {
            acquire(&mut control, route);
            std::mem::take(&mut control.memory.fresh).len()
        };
        let rates = [None, Some(5), Some(5), Some(6)];
        assert_eq!(rates.map(|rate| fresh(&limited(rate))), [0, 1, 0, 1]);
        for _ in rates {
            control.release_route(&route(None));
        }
        control.forget("cam1");
        acquire(&mut control, &limited(Some(6)));
        assert_eq!(control.memory.fresh.len(), 1, "the slot has another owner");
    }
}
