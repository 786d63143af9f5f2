//! Reads the program's counters out of the maps and adds them up by rule, input and output.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bpf::layout::{self, FlowKey, Tally};

use crate::arrivals::Ticks;
use crate::counters::{
    Arrived, Counters, Drops, FailoverCounters, Flow, LinesSeen, MergeCounters, MergeSeen,
    OutputCounters, Traffic,
};
use crate::error::Error;
use crate::kernel::{Kernel, health, latency};
use crate::owners::known::KnownRule;
use crate::owners::name::{Hash, Name};
use crate::reading::KernelReading;

/// Adds what the kernel path counted to `counters`, a part of it at a time; says whether there is more.
pub(crate) fn read(
    kernel: &Kernel,
    reading: &mut KernelReading,
    counters: &mut Counters,
) -> Result<bool, Error> {
    if read_tallies(kernel, &mut reading.tallies)? {
        return Ok(true);
    }
    let (raw, progress) = (&reading.tallies, &mut reading.rules);
    kernel.known.read(progress, |name, rule| {
        read_rule(kernel, raw, (name, rule), counters)
    });
    if !progress.is_done() {
        return Ok(true);
    }
    let named = kernel.known.iter().filter_map(|(name, rule)| {
        let owner = kernel.owners.find(&rule.hash)?;
        Some((owner.slot, &**name))
    });
    for (name, health) in health::read(kernel, &named.collect()) {
        let rule = counters.rules.entry(name.to_owned()).or_default();
        rule.add_health(&health);
    }
    latency::read(kernel, counters)?;
    Ok(false)
}

fn read_rule(
    kernel: &Kernel,
    raw: &Tallies,
    (name, rule): (&Arc<str>, &KnownRule),
    counters: &mut Counters,
) {
    let Some((received, dropped)) = one(kernel, raw, rule.hash) else {
        return;
    };
    let total = counters.rules.entry(name.to_string()).or_default();
    total.received.add(received);
    total.dropped.add(&dropped);
    if let Some(owner) = kernel.owners.find(&rule.hash) {
        let failover = kernel.failover(owner.slot, rule).map(Box::new);
        total.failover = failover.or(total.failover.take());
        let merge = kernel.merged(owner.slot, rule).map(Box::new);
        total.merge = merge.or(total.merge.take());
    }
    for (at, hash) in &rule.inputs {
        if let Some((received, dropped)) = one(kernel, raw, *hash) {
            let input = total.inputs.entry(at.clone()).or_default();
            input.received.add(received);
            input.dropped.add(&dropped);
        }
    }
    for (index, hash) in &rule.outputs {
        let Some((sent, dropped)) = one(kernel, raw, *hash) else {
            continue;
        };
        let output: &mut OutputCounters = total.outputs.entry(*index).or_default();
        output.sent.add(sent);
        output.dropped.add(&dropped);
    }
}

/// Adds to `arrived` what these rules received on the kernel path, and what they dropped where they
/// dropped anything.
pub(crate) fn read_arrived(
    kernel: &Kernel,
    names: &[Arc<str>],
    arrived: &mut Arrived,
) -> Result<(), Error> {
    let known = names.iter().filter_map(|name| {
        let rule = kernel.known.get(name)?;
        Some((name, rule, kernel.owners.find(&rule.hash)?.slot))
    });
    let rules: Vec<(&Arc<str>, &KnownRule, u32)> = known.collect();
    let raw = &Tallies::of(kernel, counters_of(kernel, &rules))?;
    for (name, rule, _) in &rules {
        let Some((received, dropped)) = one(kernel, raw, rule.hash) else {
            continue;
        };
        let total = arrived.entry(Arc::clone(name)).or_default();
        total.traffic.add(received);
        total.add_dropped(&dropped);
        total.lines = lines(kernel, raw, rule).or(total.lines.take());
        total.merge = merged(kernel, raw, rule).or(total.merge.take());
        for (index, hash) in &rule.outputs {
            if let Some((sent, dropped)) = one(kernel, raw, *hash) {
                total.add_output(*index, sent, &dropped);
            }
        }
    }
    let names = rules.iter().map(|(name, _, slot)| (*slot, &***name));
    for (name, health) in health::read(kernel, &names.collect()) {
        let total = arrived.entry(name.into()).or_default();
        total.add(Traffic::default(), &health);
    }
    Ok(())
}

/// The counters of these rules that have to be read: of outputs those alone that dropped something.
fn counters_of(kernel: &Kernel, rules: &[(&Arc<str>, &KnownRule, u32)]) -> BTreeSet<u32> {
    let none = layout::Drops::default();
    let slot = |hash: &Hash| Some(kernel.owners.find(hash)?.slot);
    let has_dropped = |counter: &u32| kernel.program.maps.drops.read(*counter) != none;
    let mut counters = BTreeSet::new();
    for (_, rule, counter) in rules {
        counters.insert(*counter);
        counters.extend(rule.inputs.values().filter_map(slot));
        let outputs = rule.outputs.iter().filter_map(|(_, hash)| slot(hash));
        counters.extend(outputs.filter(has_dropped));
    }
    counters
}

/// What some counters count, in runs of neighbours, each by its first.
#[derive(Debug, Default)]
pub(crate) struct Tallies(BTreeMap<u32, Vec<Tally>>);

/// Neighbours between two counters that are rather read than left out: a system call costs as much.
const GAP: u32 = 8;

impl Tallies {
    /// Reads these.
    fn of(kernel: &Kernel, counters: BTreeSet<u32>) -> Result<Self, Error> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for counter in counters {
            match runs.last_mut() {
                Some((_, last)) if counter - *last <= GAP => *last = counter,
                _ => runs.push((counter, counter)),
            }
        }
        let mut tallies = Self::default();
        for (first, last) in runs {
            let mut run = Vec::new();
            while run.len() <= (last - first) as usize {
                let missing = (last - first) as usize + 1 - run.len();
                let from = first + run.len() as u32;
                run.extend(kernel.program.maps.counters.read_run(from, missing)?);
            }
            tallies.0.insert(first, run);
        }
        Ok(tallies)
    }

    fn get(&self, counter: u32) -> Option<&Tally> {
        let (first, run) = self.0.range(..=counter).next_back()?;
        run.get((counter - first) as usize)
    }
}

/// Reads the next counters, each by itself; says whether there were any.
fn read_tallies(kernel: &Kernel, tallies: &mut Tallies) -> Result<bool, Error> {
    let used = kernel.owners.used();
    let tallies = tallies.0.entry(0).or_default();
    let missing = tallies.len() < used as usize;
    if missing {
        kernel.program.maps.counters.read_on(tallies, used)?;
    }
    Ok(missing)
}

impl Kernel {
    /// The rules that packets may have come for since `seen`.
    pub(crate) fn touched(&self, seen: &mut Ticks) -> impl Iterator<Item = Arc<str>> {
        let activity = &self.program.maps.activity;
        let counters = seen.look(self.owners.used(), |entry| activity.read(entry));
        let owners = counters.into_iter();
        let owners = owners.filter_map(|counter| self.owners.owner_of(counter));
        owners.filter_map(|owner| self.known.name(owner).cloned())
    }

    /// Which line of a rule is active.
    fn failover(&self, rule: u32, known: &KnownRule) -> Option<FailoverCounters> {
        let active = self.legs.failovers.active(rule)?;
        let mut inputs = self.inputs(known);
        let (at, _) = inputs.find(|(_, counter)| *counter == active.line)?;
        Some(FailoverCounters {
            active: at.clone(),
            since_ns: active.since_ns,
            changes: active.changes,
        })
    }

    /// What the lines of a rule brought.
    fn merged(&self, rule: u32, known: &KnownRule) -> Option<MergeCounters> {
        self.legs.merges.read(rule, self.inputs(known))
    }

    fn inputs<'a>(&'a self, known: &'a KnownRule) -> impl Iterator<Item = (&'a String, u32)> {
        let inputs = known.inputs.iter();
        inputs.filter_map(|(at, hash)| Some((at, self.owners.find(hash)?.slot)))
    }

    /// Reads the flows of a rule.
    pub(crate) fn flows(&self, rule: &str) -> Result<Vec<Flow>, Error> {
        let Some(owner) = self.owners.find(&Name::Rule(rule).hash()) else {
            return Ok(Vec::new());
        };
        let counter = owner.slot;
        let flows = self.program.maps.flows.read()?.into_iter();
        let own = flows.filter(|(key, _)| key.counter == counter);
        let flow = |(key, counted): (FlowKey, layout::Flow)| Flow {
            group: group_of(&key),
            port: u16::from_be_bytes(key.port),
            received: Traffic::new(counted.packets, counted.bytes),
        };
        Ok(own.map(flow).collect())
    }
}

fn group_of(key: &FlowKey) -> IpAddr {
    let [a, b, c, d, ..] = key.group;
    if key.ipv6 != 0 {
        IpAddr::from(key.group)
    } else {
        IpAddr::from([a, b, c, d])
    }
}

/// What came by each line of a rule whose inputs stand by for each other.
fn lines(kernel: &Kernel, raw: &Tallies, rule: &KnownRule) -> Option<Box<LinesSeen>> {
    let owner = kernel.owners.find(&rule.hash)?;
    let failover = kernel.failover(owner.slot, rule)?;
    let came = |hash: &Hash| traffic(kernel, raw, *hash).map(|(_, came)| came);
    let came =
        { rule.inputs.iter() }.map(|(at, hash)| (at.clone(), came(hash).unwrap_or_default()));
    Some(Box::new(LinesSeen {
        active: failover.active,
        changes: failover.changes,
        came: came.collect(),
    }))
}

/// What the lines of a rule brought that are merged.
fn merged(kernel: &Kernel, raw: &Tallies, rule: &KnownRule) -> Option<Box<MergeSeen>> {
    let owner = kernel.owners.find(&rule.hash)?;
    let counters = kernel.merged(owner.slot, rule)?;
    let last = |hash: &Hash| traffic(kernel, raw, *hash).map_or(0, |(_, came)| came.last_ns);
    let lines = rule.inputs.iter();
    let lines = lines.filter(|(at, _)| counters.lines.contains_key(*at));
    let last_ns = lines.map(|(at, hash)| (at.clone(), last(hash))).collect();
    Some(Box::new(MergeSeen { counters, last_ns }))
}

fn one(kernel: &Kernel, raw: &Tallies, owner: Hash) -> Option<(Traffic, Drops)> {
    let (counter, traffic) = traffic(kernel, raw, owner)?;
    let drops = kernel.program.maps.drops.read(counter).packets;
    Some((traffic, Drops(drops)))
}

/// Which counter is `owner`'s, and what it counted.
fn traffic(kernel: &Kernel, raw: &Tallies, owner: Hash) -> Option<(u32, Traffic)> {
    let owner = kernel.owners.find(&owner)?;
    let raw = raw.get(owner.slot)?;
    let base = owner.base.as_deref().copied().unwrap_or_default();
    Some((owner.slot, Traffic::from(*raw).since(base)))
}
