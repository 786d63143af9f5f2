//! Who owns the workers' counters, and what each owner has counted.
//!
//! A rule keeps its counters while it has no route, as when its interface is gone for a while.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;

use model::table::{Path, Route};
use packet::latency::Latency;

use super::error::Error;
use super::owner_file::OwnerFile;
use crate::counters::{Arrived, Counters};
use crate::owners::known::{KnownRules, Progress};
use crate::owners::name::{self, Hash, Kind, Name};
use crate::owners::{First, Owners};
use crate::userspace::shared::counted::Counted;
use crate::userspace::shared::flows::FlowOwner;
use crate::userspace::shared::layout::{InputSlot, OutputSlot, RuleSlot, limit};
use crate::userspace::shared::messages::CountedRoute;

/// The owners of all counters.
#[derive(Debug)]
pub(super) struct CounterOwners {
    /// By [`Kind`].
    owners: [Owners<Hash, Counted>; 3],
    known: KnownRules,
    file: Option<OwnerFile>,
}

/// The workers' memory of the slots.
pub(super) trait Slots {
    /// Forgets what was decided with for the slot's former owner.
    fn begin(&self, kind: Kind, slot: u32);
    /// A number that is another one when packets have been counted for the rule of a slot.
    fn activity(&self, rule: u32) -> u64;
    /// Reads what a slot counts, whoever owns it, summed over the workers.
    fn read(&self, kind: Kind, slot: u32) -> Counted;
}

impl Default for CounterOwners {
    fn default() -> Self {
        Self {
            owners: Kind::ALL.map(|kind| Owners::new(limit(kind), First::Freed)),
            known: KnownRules::default(),
            file: None,
        }
    }
}

impl CounterOwners {
    /// Takes over what `file` says, and writes every change into it from now on.
    pub(super) fn keep(&mut self, file: OwnerFile) {
        for kind in Kind::ALL {
            let owners = &mut self.owners[kind as usize];
            for (slot, text, base) in file.read(kind) {
                if let Some(name) = Name::parse(kind, &text) {
                    self.known.learn(name.rule(), [name].into_iter());
                    owners.restore(name.hash(), slot, base);
                }
            }
            owners.free_others(0, |_| false);
        }
        self.file = Some(file);
    }

    /// Makes sure that there is room if `added` came and nothing left.
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
            let demand = self.owners[kind as usize].demand(&names[kind as usize]);
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

    /// Finds or assigns the counters of a route that comes into use; `None` where there is no room.
    /// Before a worker counts under a name, the name is written down.
    pub(super) fn acquire(&mut self, route: &Route, slots: &impl Slots) -> Option<CountedRoute> {
        let rule = RuleSlot(self.acquire_one(Name::Rule(&route.rule), slots)?);
        let mut counted = CountedRoute {
            route: route.clone(),
            rule,
            input: None,
            lines: Vec::new(),
            leg: None,
            gate: None,
            is_seen_whole: true,
            flows: self.flows(&route.rule)?,
            outputs: Vec::with_capacity(route.outputs.len()),
        };
        for name in Name::all_of(route).skip(1) {
            let slot = self.acquire_one(name, slots)?;
            match name {
                Name::Output(..) => counted.outputs.push(OutputSlot(slot)),
                Name::Input(_, at) if route.input.as_deref() == Some(at) => {
                    counted.input = Some(InputSlot(slot));
                }
                Name::Input(..) | Name::Rule(_) => {}
            }
        }
        for at in name::lines_of(route) {
            let input = Name::Input(&route.rule, at).hash();
            let owner = self.owners[Kind::Input as usize].find(&input);
            counted
                .lines
                .extend(owner.map(|owner| InputSlot(owner.slot)));
        }
        self.known.learn(&route.rule, Name::all_of(route));
        Some(counted)
    }

    fn acquire_one(&mut self, name: Name<'_>, slots: &impl Slots) -> Option<u32> {
        let kind = name.kind();
        let Ok(slot) = self.owners[kind as usize].acquire(name.hash(), |slot, _| {
            let base = slots.read(kind, slot);
            slots.begin(kind, slot);
            if let Some(file) = &self.file {
                file.write(kind, slot, &name.to_string(), &base);
            }
            Ok::<_, Infallible>(base)
        });
        slot
    }

    /// Where a rule counts, if it has counted.
    pub(super) fn rule(&self, rule: &str) -> Option<RuleSlot> {
        let owner = self.owners[Kind::Rule as usize].find(&Name::Rule(rule).hash())?;
        Some(RuleSlot(owner.slot))
    }

    /// Below which slot rules may have counted.
    pub(super) fn rules(&self) -> u32 {
        self.owners[Kind::Rule as usize].used()
    }

    /// Whose a rule's flows are.
    pub(super) fn flows(&self, rule: &str) -> Option<FlowOwner> {
        let owner = self.owners[Kind::Rule as usize].find(&Name::Rule(rule).hash())?;
        Some(FlowOwner::new(RuleSlot(owner.slot), owner.epoch))
    }

    /// Gives up the counters of a route that is no longer used.
    pub(super) fn release(&mut self, route: &Route) {
        for name in Name::all_of(route) {
            self.owners[name.kind() as usize].release(&name.hash());
        }
    }

    /// Ends the counters of a rule that no route uses.
    pub(super) fn forget(&mut self, rule: &str) {
        for (kind, hash) in self.known.forget(rule) {
            let freed = self.owners[kind as usize].forget(&hash);
            if let (Some(file), Some(slot)) = (&self.file, freed) {
                file.erase(kind, slot);
            }
        }
    }

    /// Adds everything counted, per rule, for the next rules.
    pub(super) fn read(
        &self,
        slots: &impl Slots,
        progress: &mut Progress,
        counters: &mut Counters,
    ) {
        self.known.read(progress, |name, known| {
            let Some(counted) = self.counted(slots, Kind::Rule, known.hash) else {
                return;
            };
            let rule = counters.rules.entry(name.to_string()).or_default();
            rule.received.add(counted.traffic);
            rule.dropped.add(&counted.drops);
            rule.add_health(&counted.health);
            if counted.latency != Latency::default() {
                let sum = rule.latency.entry(Path::Userspace).or_default();
                sum.add(&counted.latency);
            }
            for (at, hash) in &known.inputs {
                if let Some(counted) = self.counted(slots, Kind::Input, *hash) {
                    let input = rule.inputs.entry(at.clone()).or_default();
                    input.received.add(counted.traffic);
                    input.dropped.add(&counted.drops);
                }
            }
            for (index, hash) in &known.outputs {
                if let Some(counted) = self.counted(slots, Kind::Output, *hash) {
                    let output = rule.outputs.entry(*index).or_default();
                    output.sent.add(counted.traffic);
                    output.dropped.add(&counted.drops);
                }
            }
        });
    }

    /// The rules that packets came for since `seen`.
    pub(super) fn touched(&self, slots: &impl Slots, seen: &mut Vec<u64>) -> Vec<Arc<str>> {
        let owners = &self.owners[Kind::Rule as usize];
        let used = owners.used() as usize;
        seen.resize(used.max(seen.len()), 0);
        let mut touched = Vec::new();
        for (slot, seen) in (0..).zip(seen) {
            let now = slots.activity(slot);
            if std::mem::replace(seen, now) != now {
                let owner = owners.owner_of(slot);
                touched.extend(owner.and_then(|owner| self.known.name(owner)).cloned());
            }
        }
        touched
    }

    /// Adds what these rules received, and what they dropped where they dropped anything.
    pub(super) fn read_arrived(
        &self,
        slots: &impl Slots,
        rules: &[Arc<str>],
        arrived: &mut Arrived,
    ) {
        let known = rules.iter();
        let known = known.filter_map(|name| Some((name, self.known.get(name)?)));
        for (name, known) in known {
            if let Some(counted) = self.counted(slots, Kind::Rule, known.hash) {
                let total = arrived.entry(Arc::clone(name)).or_default();
                total.add(counted.traffic, &counted.health);
                total.add_dropped(&counted.drops);
                for (index, hash) in &known.outputs {
                    if let Some(counted) = self.counted(slots, Kind::Output, *hash) {
                        total.add_output(*index, counted.traffic, &counted.drops);
                    }
                }
            }
        }
    }

    /// Reads what an owner has counted since it came.
    fn counted(&self, slots: &impl Slots, kind: Kind, owner: Hash) -> Option<Counted> {
        let owner = self.owners[kind as usize].find(&owner)?;
        let counted = slots.read(kind, owner.slot);
        Some(match &owner.base {
            Some(base) => counted.since(base),
            None => counted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::userspace::shared::region::Region;

    /// Slots that count nothing.
    struct Nothing;

    impl Slots for Nothing {
        fn begin(&self, _: Kind, _: u32) {}

        fn activity(&self, _: u32) -> u64 {
            0
        }

        fn read(&self, _: Kind, _: u32) -> Counted {
            Counted::default()
        }
    }

    #[test]
    fn a_successor_finds_the_inputs_of_a_rule_by_their_text() {
        let route = |input: Option<&str>| Route {
            rule: "cam1".to_owned(),
            input: input.map(str::to_owned),
            path: Path::Userspace,
            local: model::table::LocalDelivery::Auto,
            limit: None,
            failover: None,
            merge: None,
            share: None,
            inspect: None,
            outputs: Vec::new(),
        };
        let inputs = ["239.1.1.1%eth0:5001", "10.0.0.5@232.1.1.1%eth0:5001"].map(Some);
        let (region, file) = OwnerFile::create().unwrap();
        let mut first = CounterOwners::default();
        first.keep(file);
        let slots = inputs.map(|at| first.acquire(&route(at), &Nothing).unwrap().input);
        assert_eq!(slots, [Some(InputSlot(0)), Some(InputSlot(1))]);
        let alone = first.acquire(&route(None), &Nothing).unwrap();
        assert_eq!(alone.input, None);

        let mut second = CounterOwners::default();
        second.keep(OwnerFile::map(std::os::fd::AsFd::as_fd(&region)).unwrap());
        let again = second.acquire(&route(inputs[1]), &Nothing).unwrap();
        assert_eq!(again.input, slots[1]);
        let mut read = Counters::default();
        second.read(&Nothing, &mut Progress::default(), &mut read);
        let known = read.rules["cam1"].inputs.keys();
        let known: Vec<_> = known.map(|at| Some(&**at)).collect();
        assert_eq!(known, [inputs[1], inputs[0]]);
        // Unused ones go with the rule.
        second.forget("cam1");
        let owners = &second.owners[Kind::Input as usize];
        let owned = |at: Option<&str>| owners.find(&Name::Input("cam1", at.unwrap()).hash());
        assert_eq!(inputs.iter().filter_map(|at| owned(*at)).count(), 1);
    }
}
