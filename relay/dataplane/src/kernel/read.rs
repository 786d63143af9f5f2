//! Reads the program's counters from the maps, a part at a time.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bpf::layout::{self, FlowKey, address_of};
use packet::latency::Latency;

use crate::counters::{Arrived, Counters, FlowStats, Traffic, latency};
use crate::error::Error;
use crate::kernel::Kernel;
use crate::kernel::lanes::{Lanes, Tallies};
use crate::kernel::memory::{KernelControl, KernelMemory};
use crate::owners::name::{Hash, Name};
use crate::owners::registry::Progress;

/// How far the kernel path has been read.
#[derive(Debug, Default)]
pub(crate) struct KernelReading {
    /// What was read from its maps, counters from the first on.
    lanes: Lanes,
    /// Whether that is all.
    is_whole: bool,
    pub(crate) rules: Progress,
}

/// Adds what the kernel path counted to `counters`, a part of it at a time; returns whether there is more.
pub(crate) fn read(
    kernel: &Kernel,
    reading: &mut KernelReading,
    counters: &mut Counters,
) -> Result<bool, Error> {
    let (control, lanes) = (&kernel.control, &mut reading.lanes);
    if lanes
        .tallies
        .read_on(&control.memory.counters, control.used())?
    {
        return Ok(true);
    }
    if !reading.is_whole {
        let inspected = kernel.routes.inspected(&control.memory);
        lanes.health = control.memory.inspections.read(|_| true, inspected);
        lanes.latency = read_latency(&control.memory)?;
        counters.taken_at_xdp = kernel.taken_at_xdp();
        reading.is_whole = true;
    }
    control.read(lanes, &mut reading.rules, counters);
    Ok(!reading.rules.is_done())
}

/// Adds to `arrived` what these rules received on the kernel path, and what they dropped where they
/// dropped anything.
pub(crate) fn read_arrived(
    kernel: &Kernel,
    rules: &[Arc<str>],
    arrived: &mut Arrived,
) -> Result<(), Error> {
    let (control, memory) = (&kernel.control, &kernel.control.memory);
    let counters: BTreeSet<u32> = control.counting(rules).map(|(rule, _)| rule).collect();
    let inspected = kernel.routes.inspected(memory);
    let lanes = Lanes {
        tallies: Tallies::of(&memory.counters, counters_of(control, rules))?,
        health: memory
            .inspections
            .read(|rule| counters.contains(&rule), inspected),
        latency: HashMap::new(),
    };
    control.read_arrived(&lanes, rules, arrived);
    Ok(())
}

/// The counters of these rules that have to be read: of outputs only those that dropped something.
fn counters_of(control: &KernelControl, rules: &[Arc<str>]) -> BTreeSet<u32> {
    let none = layout::Drops::default();
    let counter = |hash: &Hash| control.counter(hash);
    let has_dropped = |counter: &u32| control.memory.drops.read(*counter) != none;
    let mut counters = BTreeSet::new();
    for (rule, names) in control.counting(rules) {
        counters.insert(rule);
        counters.extend(names.inputs.values().filter_map(counter));
        let outputs = names.outputs.iter().filter_map(|(_, hash)| counter(hash));
        counters.extend(outputs.filter(has_dropped));
    }
    counters
}

/// How long packets of each rule stayed. A sample of a quiet rule's packets is empty, and most rules may be
/// quiet.
fn read_latency(memory: &KernelMemory) -> Result<HashMap<u32, Latency>, Error> {
    let mut entries = memory.latency.entries()?;
    entries.retain(|(_, counted)| *counted != layout::Latency::default());
    let latencies = entries.into_iter();
    Ok(latencies.map(|(rule, it)| (rule, latency(&it))).collect())
}

/// Reads the flows of a rule.
pub(crate) fn flows(kernel: &Kernel, rule: &str) -> Result<Vec<FlowStats>, Error> {
    let Some(counter) = kernel.control.counter(&Name::Rule(rule).hash()) else {
        return Ok(Vec::new());
    };
    let flows = kernel.control.memory.flows.read()?.into_iter();
    let own = flows.filter(|(key, _)| key.counter == counter);
    let flow = |(key, counted): (FlowKey, layout::Flow)| FlowStats {
        group: address_of(key.group, key.ipv6 != 0),
        port: u16::from_be_bytes(key.port),
        received: Traffic::new(counted.packets, counted.bytes),
    };
    Ok(own.map(flow).collect())
}
