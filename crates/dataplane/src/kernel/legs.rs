//! What the program decides by between the inputs of a rule that stand by for each other or are merged:
//! `failovers` with `lines` and `choices`, `merges` with `merge_blocks`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use bpf::Maps;
use bpf::layout::{ARBITER_FAILOVER, Failover, merge_arbiter};
use bpf::map;
use bpf::merge_layout::MergeBlock;
use model::table::Route;

use crate::clock::Clock;
use crate::counters::Traffic;
use crate::error::Error;
use crate::failover::{self, Failovers};
use crate::merge::{Blocks, MergeParams, Merges};
use crate::owners::Owners;
use crate::owners::name::{Hash, Name, lines_of};

/// The legs of a rule before they have counters, and what is to decide between them.
#[derive(Clone, Debug)]
pub(super) struct WantedLegs {
    rule: String,
    lines: Vec<Hash>,
    failover: Option<Failover>,
    merge: Option<MergeParams>,
}

/// The legs of all rules.
#[derive(Debug)]
pub(super) struct Legs {
    pub(super) failovers: Failovers,
    /// Where the program finds how a rule fails over.
    program: map::HashMap<u32, Failover>,
    pub(super) merges: Merges<map::HashMap<u32, MergeBlock>>,
}

impl WantedLegs {
    pub(super) fn of(route: &Route) -> Option<Self> {
        let merge = route.merge.as_ref();
        let merge = merge.map(|merge| MergeParams::of(&merge.how));
        let failover = failover::of_route(route, std::iter::empty());
        let name = |at: &String| Name::Input(&route.rule, at).hash();
        (merge.is_some() || failover.is_some()).then(|| Self {
            rule: route.rule.clone(),
            lines: lines_of(route).map(name).collect(),
            failover,
            merge,
        })
    }

    /// The rule's name and how its lines are merged, if they are.
    pub(super) fn merge(&self) -> Option<(&str, MergeParams)> {
        Some((&self.rule, self.merge?))
    }

    /// The legs by their counters. One whose interface is missing may have none yet.
    fn counters(&self, owners: &Owners<Hash, Traffic>) -> Vec<u32> {
        let owners = self.lines.iter().filter_map(|hash| owners.find(hash));
        owners.map(|owner| owner.slot).collect()
    }

    /// How the rule fails over, if it does.
    fn failover(&self, owners: &Owners<Hash, Traffic>) -> Option<Failover> {
        let counters = self.counters(owners).into_iter();
        Some(failover::between(self.failover?, counters))
    }
}

impl Legs {
    /// None yet.
    pub(super) fn of(maps: &Maps) -> Self {
        let (lines, choices) = (maps.lines.clone(), maps.choices.clone());
        let (merges, blocks) = (maps.merges.clone(), maps.merge_blocks.clone());
        Self {
            failovers: Failovers::new(lines, choices, Clock::Kernel),
            program: maps.failovers.clone(),
            merges: Merges::new(merges, blocks, Clock::Kernel),
        }
    }

    /// Says whether the program decides between a rule's inputs by their silence as is wanted.
    pub(super) fn fails_over_as(
        &self,
        wanted: Option<&WantedLegs>,
        rule: u32,
        owners: &Owners<Hash, Traffic>,
    ) -> bool {
        let wanted = wanted.and_then(|wanted| wanted.failover(owners));
        self.failovers.of(rule) == wanted.as_ref()
    }

    /// What decides about packets of an input, as far as it has been set up.
    pub(super) fn arbiter(
        &self,
        wanted: Option<&WantedLegs>,
        (rule, input): (u32, u32),
        owners: &Owners<Hash, Traffic>,
    ) -> Option<u32> {
        let merge = self.merges.of(rule);
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
        let places = self.merges.places(merge);
        let there: HashSet<u32> = places.iter().flatten().copied().collect();
        if there != wanted.counters(owners).into_iter().collect() {
            return None;
        }
        let place = places.iter().position(|line| *line == Some(input))?;
        Some(merge_arbiter(merge.index, place as u32))
    }

    /// Sets up what decides about packets of an input, of which none comes yet that obeys it.
    pub(super) fn begin(
        &mut self,
        wanted: Option<&WantedLegs>,
        (hash, rule, input): (Hash, u32, u32),
        owners: &Owners<Hash, Traffic>,
    ) -> u32 {
        let Some(wanted) = wanted else { return 0 };
        let Some(params) = wanted.merge else {
            return ARBITER_FAILOVER;
        };
        let Some(merge) = self.merges.begin((hash, rule), params) else {
            return 0;
        };
        if !params.format.has_lines() {
            return merge_arbiter(merge.index, 0);
        }
        let place = self.merges.join(merge, input, &wanted.counters(owners));
        place.map_or(0, |place| merge_arbiter(merge.index, place))
    }

    /// Has the program decide between the inputs of rules by their silence, or not; their counters are
    /// there.
    pub(super) fn set_failovers(
        &mut self,
        wanted: &HashMap<Hash, Option<WantedLegs>>,
        owners: &Owners<Hash, Traffic>,
    ) -> Result<(), Error> {
        for (hash, wanted) in wanted {
            let Some(rule) = owners.find(hash).map(|owner| owner.slot) else {
                continue;
            };
            let failover = wanted.as_ref().and_then(|wanted| wanted.failover(owners));
            let Some(failover) = failover else {
                self.end_failover(rule)?;
                continue;
            };
            if self.failovers.set(rule, failover) {
                self.program.insert(&[rule], &[failover])?;
            }
        }
        Ok(())
    }

    /// Gives up what a change leaves over: places of lines that went, merges of rules that have none.
    pub(super) fn finish_merges(
        &mut self,
        wanted: &HashMap<Hash, Option<WantedLegs>>,
        owners: &Owners<Hash, Traffic>,
    ) -> Result<(), Error> {
        for (hash, wanted) in wanted {
            let Some(rule) = owners.find(hash).map(|owner| owner.slot) else {
                continue;
            };
            match wanted.as_ref().filter(|wanted| wanted.merge.is_some()) {
                Some(wanted) => self.merges.part_with_others(rule, &wanted.counters(owners)),
                None => self.merges.end(rule),
            }
        }
        self.merges.drop_prepared()
    }

    /// Lets a rule relay each of its inputs.
    fn end_failover(&mut self, rule: u32) -> Result<(), Error> {
        if self.failovers.end(rule) {
            self.program.remove(&[rule])?;
        }
        Ok(())
    }

    /// Ends all that decides for a rule that no longer exists.
    pub(super) fn forget(&mut self, rule: u32) {
        if let Err(error) = self.end_failover(rule) {
            tracing::debug!("how a rule failed over is not forgotten: {error}");
        }
        self.merges.end(rule);
    }

    /// Takes over what a former process left for the rules that count in `counting`; others get theirs with
    /// their routes.
    pub(super) fn adopt(&mut self, counting: &HashSet<u32>) -> Result<(), Error> {
        let entries = self.program.entries()?.into_iter();
        let senseless = entries.filter(|(rule, failover)| {
            !(counting.contains(rule) && self.failovers.adopt(*rule, *failover))
        });
        let senseless: Vec<u32> = senseless.map(|(rule, _)| rule).collect();
        self.program.remove(&senseless)?;
        let indices = 0..self.merges.limit();
        self.merges.adopt(indices, |rule| counting.contains(&rule));
        Ok(())
    }

    /// Makes the blocks that merges need, and takes back others, which no packet sees any more.
    pub(super) fn mend_blocks(&mut self, others: &[u32]) -> Result<(), Error> {
        let there: HashSet<u32> = self.merges.blocks.keys()?.into_iter().collect();
        let missing = self.merges.block_numbers().into_iter();
        let missing: Vec<u32> = missing.filter(|number| !there.contains(number)).collect();
        self.merges.blocks.remove(others)?;
        let zero = vec![MergeBlock::default(); missing.len()];
        Ok(self.merges.blocks.insert(&missing, &zero)?)
    }

    /// Blocks that no merge needs.
    pub(super) fn other_blocks(&self) -> Result<Vec<u32>, Error> {
        let wanted = self.merges.block_numbers();
        let there = self.merges.blocks.keys()?.into_iter();
        Ok(there.filter(|number| !wanted.contains(number)).collect())
    }
}

impl Blocks for map::HashMap<u32, MergeBlock> {
    type Error = Error;

    fn take(&mut self, blocks: Range<u32>) -> Result<(), Error> {
        let numbers: Vec<u32> = blocks.collect();
        let zero = vec![MergeBlock::default(); numbers.len()];
        Ok(self.insert(&numbers, &zero)?)
    }

    fn give_back(&mut self, blocks: Range<u32>) -> Result<(), Error> {
        Ok(self.remove(&blocks.collect::<Vec<u32>>())?)
    }

    fn read(&self, block: u32) -> Option<MergeBlock> {
        self.get(block).ok().flatten()
    }
}
