//! The maps by which the program chooses between the legs of a rule: `failovers` with `lines` and
//! `choices`, `merges` with `merge_blocks`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use bpf::layout::{ARBITER_FAILOVER, Failover, merge_arbiter};
use bpf::map;
use bpf::merge_layout::MergeBlock;
use compile::table::Route;

use crate::error::Error;
use crate::failover;
use crate::kernel::memory::KernelControl;
use crate::merge::{BlockMemory, MergeParams};
use crate::owners::name::{Hash, Kind, Name, lines_of};

/// The legs of a rule before they have counters, and what is to decide between them.
#[derive(Clone, Debug)]
pub(super) struct WantedLegs {
    rule: String,
    lines: Vec<Hash>,
    failover: Option<Failover>,
    merge: Option<MergeParams>,
}

impl WantedLegs {
    pub(super) fn of(route: &Route) -> Option<Self> {
        let merge = route.merge.as_ref().map(|it| MergeParams::of(&it.how));
        let failover = failover::of_route(route, std::iter::empty());
        let name = |at: &String| Name::Input(&route.rule, at).hash();
        (merge.is_some() || failover.is_some()).then(|| Self {
            rule: route.rule.clone(),
            lines: lines_of(route).map(name).collect(),
            failover,
            merge,
        })
    }

    /// The rule's name and how its legs are merged, if they are.
    pub(super) fn merge(&self) -> Option<(&str, MergeParams)> {
        Some((&self.rule, self.merge?))
    }

    /// The counters of the legs. A leg whose interface is missing may have none yet.
    fn counters(&self, control: &KernelControl) -> Vec<u32> {
        control.slots(Kind::Input, &self.lines)
    }

    /// How the rule fails over, if it does.
    fn failover(&self, control: &KernelControl) -> Option<Failover> {
        let counters = self.counters(control).into_iter();
        Some(failover::between(self.failover?, counters))
    }
}

/// Returns whether the program decides between a rule's inputs by their silence as `wanted` says.
pub(super) fn fails_over_as(
    control: &KernelControl,
    wanted: Option<&WantedLegs>,
    rule: u32,
) -> bool {
    let wanted = wanted.and_then(|wanted| wanted.failover(control));
    control.failovers.of(rule) == wanted.as_ref()
}

/// What decides about packets of an input, as far as it has been set up.
pub(super) fn arbiter(
    control: &KernelControl,
    wanted: Option<&WantedLegs>,
    (rule, input): (u32, u32),
) -> Option<u32> {
    let merge = control.merges.of(rule);
    let Some(wanted) = wanted else {
        return merge.is_none().then_some(0);
    };
    let Some(params) = wanted.merge else {
        return Some(ARBITER_FAILOVER);
    };
    let merge = merge.filter(|merge| merge.params == params)?;
    if !params.format.has_lines() {
        return Some(merge_arbiter(merge.index, 0));
    }
    let legs = control.merges.positions(merge);
    let joined: HashSet<u32> = legs.iter().flatten().copied().collect();
    if joined != wanted.counters(control).into_iter().collect() {
        return None;
    }
    let position = legs.iter().position(|line| *line == Some(input))?;
    Some(merge_arbiter(merge.index, position as u32))
}

/// Sets up what decides about packets of an input, before any packet is judged by it.
pub(super) fn begin(
    control: &mut KernelControl,
    wanted: Option<&WantedLegs>,
    (hash, rule, input): (Hash, u32, u32),
) -> u32 {
    let Some(wanted) = wanted else { return 0 };
    let Some(params) = wanted.merge else {
        return ARBITER_FAILOVER;
    };
    let Some(merge) = control.merges.begin((hash, rule), params) else {
        return 0;
    };
    if !params.format.has_lines() {
        return merge_arbiter(merge.index, 0);
    }
    let lines = wanted.counters(control);
    let position = control.merges.join(merge, input, &lines);
    position.map_or(0, |position| merge_arbiter(merge.index, position))
}

/// Makes the program decide between the inputs of rules by their silence, or not; their counters exist.
pub(super) fn set_failovers(
    control: &mut KernelControl,
    wanted: &HashMap<Hash, Option<WantedLegs>>,
) -> Result<(), Error> {
    for (hash, wanted) in wanted {
        if let Some(rule) = control.counter(hash) {
            let failover = wanted.as_ref().and_then(|wanted| wanted.failover(control));
            control.set_failover(rule, failover)?;
        }
    }
    Ok(())
}

/// Frees what a change leaves unused: positions of removed legs and those of rules that `stopped`, and merges of
/// rules that have none any more.
pub(super) fn finish_merges(
    control: &mut KernelControl,
    wanted: &HashMap<Hash, Option<WantedLegs>>,
    stopped: &[u32],
) -> Result<(), Error> {
    for rule in stopped {
        control.merges.retain_legs(*rule, Some(&[]));
    }
    for (hash, wanted) in wanted {
        if let Some(rule) = control.counter(hash) {
            let wanted = wanted.as_ref().filter(|wanted| wanted.merge.is_some());
            let lines = wanted.map(|wanted| wanted.counters(control));
            control.merges.retain_legs(rule, lines.as_deref());
        }
    }
    control.merges.drop_prepared()
}

/// Blocks that exist and that no merge needs.
pub(super) fn other_blocks(control: &KernelControl) -> Result<Vec<u32>, Error> {
    let wanted = control.merges.block_numbers();
    let existing = control.merges.blocks.keys()?.into_iter();
    Ok(existing.filter(|it| !wanted.contains(it)).collect())
}

impl BlockMemory for map::HashMap<u32, MergeBlock> {
    type Error = Error;

    /// Packets create those that they need.
    fn take(&mut self, _: Range<u32>) -> Result<(), Error> {
        Ok(())
    }

    fn give_back(&self, blocks: Range<u32>) -> Result<(), Error> {
        Ok(self.clone().remove(&blocks.collect::<Vec<u32>>())?)
    }

    fn read(&self, block: u32) -> Option<MergeBlock> {
        self.get(block).ok().flatten()
    }
}
