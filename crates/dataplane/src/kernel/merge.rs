//! Rules whose lines become one stream: which of `merges` and `merge_blocks` are whose.
//!
//! Room is taken before anything else changes, and given back a grace period after nothing leads there
//! any more. A rule whose interfaces are away keeps what it has.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use bpf::Maps;
use bpf::layout::{ARBITER_FAILOVER, merge_arbiter, merge_of};
use bpf::merge::{BLOCKS, Reading, counts};
use bpf::merge_layout::{Merge, MergeBlock};
use model::table::Route;

use crate::counters::MergeCounters;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::kernel::allocator::Indices;
use crate::kernel::plan::Wanted;
use crate::merge::{How, Space, Words, find, join, lines, part_with_others};
use crate::merge::{set_up, set_window, tear_down};
use crate::owners::known::KnownRule;
use crate::owners::name::{Hash, Name};

/// A rule's merge before its lines have counters.
#[derive(Clone, Debug)]
pub(super) struct WantedMerge {
    rule: String,
    how: How,
    lines: Vec<Hash>,
}

/// Where a rule's merge is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) index: u32,
    first_block: u32,
    how: How,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Merges {
    /// By the rule's counter.
    running: BTreeMap<u32, Running>,
    /// What was read of them before, by the same.
    readings: Mutex<HashMap<u32, Reading>>,
    /// Room for rules of a change that is under way.
    prepared: HashMap<Hash, Running>,
    /// What packets in flight may still see.
    waiting: Vec<Running>,
    indices: Indices,
    space: Space,
}

impl WantedMerge {
    pub(super) fn of(route: &Route) -> Option<Self> {
        let merge = route.merge.as_ref()?;
        let name = |at: &String| Name::Input(&route.rule, at).hash();
        Some(Self {
            rule: route.rule.clone(),
            how: How::of(&merge.how),
            lines: merge.lines.iter().map(name).collect(),
        })
    }
}

impl Merges {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            running: BTreeMap::new(),
            readings: Mutex::default(),
            prepared: HashMap::new(),
            waiting: Vec::new(),
            indices: Indices::new(limit),
            space: Space::new(BLOCKS),
        }
    }

    fn readings(&mut self) -> &mut HashMap<u32, Reading> {
        self.readings
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The merge of the rule that counts there.
    pub(super) fn of(&self, rule: u32) -> Option<Running> {
        self.running.get(&rule).copied()
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn take(&mut self, how: How) -> Option<Running> {
        let first_block = self.space.take(how.blocks())?;
        let Some(index) = self.indices.take() else {
            self.space.give_back(first_block);
            return None;
        };
        Some(Running {
            index,
            first_block,
            how,
        })
    }

    /// Gives back what no packet sees, with its blocks.
    fn give_back(&mut self, maps: &mut Maps, merge: Running) -> Result<(), Error> {
        maps.merge_blocks.remove(&merge.block_numbers())?;
        self.space.give_back(merge.first_block);
        self.indices.release(merge.index);
        self.indices.grace_period_passed();
        Ok(())
    }
}

impl Running {
    fn block_numbers(&self) -> Vec<u32> {
        (self.first_block..self.first_block + self.how.blocks()).collect()
    }
}

impl Kernel {
    /// What decides about packets of an input, as far as it has been set up.
    pub(super) fn arbiter(&self, wanted: &Wanted, (rule, input): (u32, u32)) -> Option<u32> {
        if wanted.failover.is_some() {
            return Some(ARBITER_FAILOVER);
        }
        let (Some(merge), running) = (&wanted.merge, self.merges.of(rule)) else {
            return self.merges.of(rule).is_none().then_some(0);
        };
        let running = running.filter(|running| running.how == merge.how)?;
        if !running.how.format.has_lines() {
            return Some(merge_arbiter(running.index, 0));
        }
        let places = lines(&self.program.maps.merge(running.index));
        let there: BTreeSet<u32> = places.iter().flatten().copied().collect();
        if there != self.line_counters(merge).into_iter().collect() {
            return None;
        }
        let place = places.iter().position(|line| *line == Some(input))?;
        Some(merge_arbiter(running.index, place as u32))
    }

    /// Makes room for the merges that a change needs, or leaves all as it was.
    pub(super) fn prepare_merges(&mut self, wanted: &[Wanted]) -> Result<(), Error> {
        self.drop_prepared()?;
        for route in wanted {
            let Some(merge) = &route.merge else { continue };
            let rule = route.rule.hash;
            if self.merges.prepared.contains_key(&rule) || self.can_keep(rule, merge.how) {
                continue;
            }
            if let Err(error) = self.prepare_merge(rule, merge) {
                self.drop_prepared()?;
                return Err(error);
            }
        }
        Ok(())
    }

    fn can_keep(&self, rule: Hash, how: How) -> bool {
        let counter = self.owners.find(&rule).map(|owner| owner.slot);
        let running = counter.and_then(|counter| self.merges.of(counter));
        running.is_some_and(|running| running.how.keeps_memory_of(how))
    }

    fn prepare_merge(&mut self, rule: Hash, merge: &WantedMerge) -> Result<(), Error> {
        let mut taken = self.merges.take(merge.how);
        if taken.is_none() && self.merges.is_waiting() {
            self.wait()?;
            taken = self.merges.take(merge.how);
        }
        let taken = taken.ok_or_else(|| Error::MergeRoom {
            rule: merge.rule.clone(),
            blocks: merge.how.blocks(),
        })?;
        self.merges.prepared.insert(rule, taken);
        let numbers = taken.block_numbers();
        let zero = vec![MergeBlock::default(); numbers.len()];
        Ok(self.program.maps.merge_blocks.insert(&numbers, &zero)?)
    }

    fn drop_prepared(&mut self) -> Result<(), Error> {
        for (_, merge) in std::mem::take(&mut self.merges.prepared) {
            self.merges.give_back(&mut self.program.maps, merge)?;
        }
        Ok(())
    }

    /// Sets up what decides about packets of an input, of which none comes yet that obeys it.
    pub(super) fn begin_arbiter(&mut self, wanted: &Wanted, (rule, input): (u32, u32)) -> u32 {
        if wanted.failover.is_some() {
            return ARBITER_FAILOVER;
        }
        let Some(merge) = &wanted.merge else { return 0 };
        let Some(running) = self.begin_merge(rule, (wanted.rule.hash, merge.how)) else {
            return 0;
        };
        if !running.how.format.has_lines() {
            return merge_arbiter(running.index, 0);
        }
        let lines = self.line_counters(merge);
        let now_ns = sys::clock::kernel_monotonic_ns();
        let place = join(
            &mut self.program.maps,
            running.index,
            (input, &lines),
            now_ns,
        );
        place.map_or(0, |place| merge_arbiter(running.index, place))
    }

    fn begin_merge(&mut self, rule: u32, (hash, how): (Hash, How)) -> Option<Running> {
        let before = self.merges.of(rule);
        let maps = &mut self.program.maps;
        let running = match before.filter(|running| running.how.keeps_memory_of(how)) {
            Some(running) => {
                if running.how != how {
                    set_window(maps, running.index, how.window_ns);
                }
                Running { how, ..running }
            }
            None => {
                let new = self.merges.prepared.remove(&hash)?;
                set_up(maps, new.index, rule, (how, new.first_block));
                self.merges.readings().remove(&rule);
                if let Some(before) = before {
                    tear_down(maps, before.index);
                    self.merges.waiting.push(before);
                }
                new
            }
        };
        self.merges.running.insert(rule, running);
        Some(running)
    }

    /// Gives up what a change leaves over: places of lines that went, merges of rules that have none.
    pub(super) fn finish_merges(
        &mut self,
        wanted: &HashMap<Hash, Option<WantedMerge>>,
    ) -> Result<(), Error> {
        for (rule, wanted) in wanted {
            let Some(rule) = self.owners.find(rule).map(|owner| owner.slot) else {
                continue;
            };
            match (wanted, self.merges.of(rule)) {
                (Some(wanted), Some(running)) => {
                    let lines = self.line_counters(wanted);
                    part_with_others(&mut self.program.maps, running.index, &lines);
                }
                _ => self.end_merge(rule),
            }
        }
        self.drop_prepared()
    }

    /// Ends the merge of a rule; its memory waits for packets in flight.
    pub(super) fn end_merge(&mut self, rule: u32) {
        if let Some(merge) = self.merges.running.remove(&rule) {
            tear_down(&mut self.program.maps, merge.index);
            self.merges.readings().remove(&rule);
            self.merges.waiting.push(merge);
        }
    }

    /// Gives back what waited.
    pub(super) fn free_merges(&mut self) {
        for merge in std::mem::take(&mut self.merges.waiting) {
            if let Err(error) = self.merges.give_back(&mut self.program.maps, merge) {
                tracing::debug!("memory of merged lines is not given back: {error}");
            }
        }
    }

    /// What the lines of a rule brought.
    pub(super) fn merged(&self, rule: u32, known: &KnownRule) -> Option<MergeCounters> {
        let running = self.merges.of(rule)?;
        let running = Some(running).filter(|running| running.how.format.has_lines())?;
        let maps = &self.program.maps;
        let readings = self.merges.readings.lock();
        let mut readings = readings.unwrap_or_else(PoisonError::into_inner);
        let reading = readings.entry(rule).or_default();
        let block = |number| maps.merge_blocks.get(number).ok().flatten();
        let now_ns = sys::clock::kernel_monotonic_ns();
        let counts = counts(|| maps.merge(running.index), reading, block, now_ns);
        let places = lines(&maps.merge(running.index));
        let inputs = known.inputs.iter().filter_map(|(at, hash)| {
            let line = self.owners.find(hash)?.slot;
            let place = places.iter().position(|other| *other == Some(line))?;
            Some((at, place))
        });
        Some(MergeCounters::of(&counts, inputs))
    }

    /// Takes over what a former process left for the rules that count in `counting`.
    pub(super) fn adopt_merges(&mut self, counting: &HashSet<u32>) -> Result<(), Error> {
        let now_ns = sys::clock::kernel_monotonic_ns();
        let maps = &mut self.program.maps;
        let merges = &mut self.merges;
        for index in 0..maps.merges.len() {
            let Some(found) = find(maps, index, now_ns) else {
                tear_down(maps, index);
                continue;
            };
            let is_sound = counting.contains(&found.owner)
                && !merges.running.contains_key(&found.owner)
                && merges.space.occupy(found.first_block, found.how.blocks());
            if is_sound {
                let running = Running {
                    index,
                    first_block: found.first_block,
                    how: found.how,
                };
                merges.running.insert(found.owner, running);
            } else {
                tear_down(maps, index);
            }
        }
        let used = merges.running.values().map(|running| running.index);
        merges.indices.occupy(used);
        self.adopt_arbiters();
        self.adopt_blocks()
    }

    /// Lets inputs pass whose line leads nowhere; the rules bring it back.
    fn adopt_arbiters(&mut self) {
        for counter in 0..self.owners.used() {
            let identity = self.program.maps.identities.read(counter);
            let Some(index) = merge_of(identity.arbiter) else {
                continue;
            };
            let running = self.merges.of(identity.rule);
            if running.is_none_or(|running| running.index != index) {
                self.lead_input(counter, identity.rule, 0);
            }
        }
    }

    fn adopt_blocks(&mut self) -> Result<(), Error> {
        let running = self.merges.running.values();
        let wanted: BTreeSet<u32> = running.flat_map(Running::block_numbers).collect();
        let there: BTreeSet<u32> = self.program.maps.merge_blocks.keys()?.into_iter().collect();
        let missing: Vec<u32> = wanted.difference(&there).copied().collect();
        let others: Vec<u32> = there.difference(&wanted).copied().collect();
        if !others.is_empty() {
            self.wait()?;
        }
        let blocks = &mut self.program.maps.merge_blocks;
        blocks.remove(&others)?;
        Ok(blocks.insert(&missing, &vec![MergeBlock::default(); missing.len()])?)
    }

    /// Lines by their counters. One whose interface is missing may have none yet.
    fn line_counters(&self, wanted: &WantedMerge) -> Vec<u32> {
        let owners = wanted.lines.iter();
        let owners = owners.filter_map(|hash| self.owners.find(hash));
        owners.map(|owner| owner.slot).collect()
    }
}

impl Words for Maps {
    fn merge(&self, merge: u32) -> Merge {
        self.merges.read(merge)
    }

    fn set_merge(&mut self, merge: u32, words: &Merge) {
        self.merges.write(merge, words);
    }

    fn store(&mut self, merge: u32, at: usize, value: u64) {
        self.merges.store(merge, at, value);
    }

    fn add(&mut self, merge: u32, at: usize, value: u64) {
        self.merges.add(merge, at, value);
    }
}
