//! Merge: what the control side does to the words that packets decide by, alike on both paths. Legs and
//! rules are named by the slots that they count in.
//!
//! Room is taken before anything else changes, and given back when nothing leads there any more. A leg
//! keeps its position among a rule's four while others are added and removed, because the words count by
//! position what each leg delivered ([`words`]).

mod params;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use bpf::merge::{Counts, RULES, Reading, When, counts};
use bpf::merge_layout::{CELL_BLOCKS, CELLS, Merge, MergeBlock, RINGS, TABLE};
use parking_lot::Mutex;
use rules::merge::LINES_MAX;
use sys::memory::Array;

use crate::allocator::{Blocks, Indices};
use crate::clock::Clock;
use crate::counters::MergeCounters;
use crate::owners::name::Hash;

pub(crate) use params::MergeParams;
pub(crate) use words::lines;

/// Packets that saw a cell are done with it after this long.
const GRACE_NS: u64 = 1_000_000_000;

/// The memory of numbers, by blocks.
pub(crate) trait BlockMemory: fmt::Debug {
    /// What may go wrong.
    type Error;
    /// Makes blocks that hold no numbers.
    ///
    /// # Errors
    /// The path's.
    fn take(&mut self, blocks: Range<u32>) -> Result<(), Self::Error>;
    /// Gives back the memory of blocks that no packet sees any more.
    ///
    /// # Errors
    /// The path's.
    fn give_back(&self, blocks: Range<u32>) -> Result<(), Self::Error>;
    /// Copies one out.
    fn read(&self, block: u32) -> Option<MergeBlock>;
}

/// The merges of one path.
#[derive(Debug)]
pub(crate) struct Merges<B> {
    words: Array<Merge>,
    pub(crate) blocks: B,
    clock: Clock,
    /// All packets that had arrived by then have been judged.
    judged_ns: AtomicU64,
    indices: Indices,
    space: Blocks,
    /// By rule.
    active: BTreeMap<u32, ActiveMerge>,
    /// The last readings, by rule.
    readings: Mutex<HashMap<u32, RuleReading>>,
    /// Room for rules of a change that is under way.
    prepared: HashMap<Hash, ActiveMerge>,
    /// Merges that packets are about to see for the first time, or again.
    begun: BTreeSet<u32>,
    /// Rules of a change that is under way whose merge goes on after a pause.
    resumed: BTreeSet<u32>,
    /// What packets in flight may still see.
    waiting: Vec<ActiveMerge>,
    /// Likewise, cells of rules that ended.
    retired: Vec<u32>,
}

/// The last reading of a rule's merge.
#[derive(Debug, Default)]
struct RuleReading {
    own: Reading,
    cells: HashMap<u32, Reading>,
    /// Cells that packets may still be using, and since when they can no longer be found.
    retired: Vec<(u32, u64)>,
    /// Streams of cells that were given back.
    streams: u64,
}

/// The entry and the memory of a rule's merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActiveMerge {
    /// Index of its words.
    pub(crate) index: u32,
    first_block: u32,
    pub(crate) params: MergeParams,
}

impl ActiveMerge {
    /// The blocks in which its streams are recorded.
    fn blocks(&self) -> Range<u32> {
        self.first_block..self.first_block + self.params.blocks()
    }

    /// The blocks of packets without numbers.
    fn table(&self) -> Range<u32> {
        let first = RINGS + self.index * TABLE;
        first..first + TABLE
    }
}

impl<B: BlockMemory> Merges<B> {
    /// None yet; `words` has room for the most there may be.
    pub(crate) fn new(words: Array<Merge>, blocks: B, clock: Clock) -> Self {
        Self {
            indices: Indices::new(words.len()),
            words,
            blocks,
            clock,
            judged_ns: AtomicU64::new(u64::MAX),
            space: Blocks::new(RINGS),
            active: BTreeMap::new(),
            readings: Mutex::default(),
            prepared: HashMap::new(),
            begun: BTreeSet::new(),
            resumed: BTreeSet::new(),
            waiting: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// Takes over those of `indices` that a former process left for rules that `is_counting` accepts, so
    /// that nothing that has passed passes again.
    pub(crate) fn adopt(
        &mut self,
        indices: impl Iterator<Item = u32>,
        is_counting: impl Fn(u32) -> bool,
    ) {
        let now_ns = self.clock.now_ns();
        let indices: Vec<u32> = indices.collect();
        let owned = indices.iter().copied();
        for index in owned.filter(|index| words::is_owned(&self.words, *index)) {
            match words::recover(&self.words, index, now_ns) {
                Some((rule, merge))
                    if is_counting(rule)
                        && !self.active.contains_key(&rule)
                        && self
                            .space
                            .occupy_free(merge.first_block, merge.params.blocks()) =>
                {
                    self.active.insert(rule, merge);
                }
                _ => words::tear_down(&self.words, index),
            }
        }
        self.indices
            .occupy(self.active.values().map(|merge| merge.index));
        let active: BTreeSet<u32> = self.active.values().map(|merge| merge.index).collect();
        let is_orphan = |rule: u32| !active.contains(&rule);
        for index in indices {
            if words::rule_of_cell(&self.words, index).is_some_and(is_orphan) {
                words::clear_cell(&self.words, index);
            }
        }
    }

    /// The most there may be.
    pub(crate) const fn limit(&self) -> u32 {
        self.words.len()
    }

    /// The merge of a rule.
    pub(crate) fn of(&self, rule: u32) -> Option<ActiveMerge> {
        self.active.get(&rule).copied()
    }

    /// The rules that have one.
    pub(crate) fn rules(&self) -> BTreeSet<u32> {
        self.active.keys().copied().collect()
    }

    /// Blocks of all that are active.
    pub(crate) fn block_numbers(&self) -> BTreeSet<u32> {
        let mut numbers = BTreeSet::new();
        for merge in self.active.values() {
            numbers.extend(merge.blocks().chain(merge.table()));
            for cell in words::cells(&self.words, merge.index) {
                numbers.extend(self.blocks_of_cell(cell));
            }
        }
        numbers
    }

    /// Returns whether something waits until no packet uses it any more.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Makes room to merge a rule, which counts at the given slot if it has one, unless it is merged so
    /// already; returns whether there was any. Merges of rules that are off give way, and then
    /// [wait](Self::is_waiting).
    ///
    /// # Errors
    /// The blocks'.
    pub(crate) fn prepare(
        &mut self,
        (hash, rule): (Hash, Option<u32>),
        params: MergeParams,
    ) -> Result<bool, B::Error> {
        let active = rule.and_then(|rule| self.of(rule));
        let is_unchanged = active.is_some_and(|merge| merge.params.keeps_memory_of(params));
        if is_unchanged {
            self.resumed.extend(rule);
        }
        if is_unchanged || self.prepared.contains_key(&hash) {
            return Ok(true);
        }
        let first_block = self.space.take(params.blocks());
        let Some((first_block, index)) = first_block.zip(self.take_index()) else {
            if let Some(first_block) = first_block {
                self.space.put_back(first_block, params.blocks());
            }
            for (rule, _) in self.paused() {
                self.end(rule);
            }
            return Ok(false);
        };
        let merge = ActiveMerge {
            index,
            first_block,
            params,
        };
        self.prepared.insert(hash, merge);
        self.blocks.take(merge.blocks())?;
        self.blocks.take(merge.table())?;
        Ok(true)
    }

    /// An entry that packets have not taken.
    fn take_index(&mut self) -> Option<u32> {
        let mut taken = Vec::new();
        let index = loop {
            let index = self.indices.take();
            match index {
                Some(index) if !words::reserve(&self.words, index) => taken.push(index),
                _ => break index,
            }
        };
        for index in taken {
            self.indices.release(index);
        }
        self.indices.grace_period_passed();
        index
    }

    /// The blocks in which the streams of a cell are recorded.
    fn blocks_of_cell(&self, cell: u32) -> Range<u32> {
        let number = cell - (self.words.len() - self.words.len().min(CELLS));
        let first = RINGS + RULES * TABLE + number * CELL_BLOCKS;
        first..first + CELL_BLOCKS
    }

    /// Gives back what was prepared and not used.
    ///
    /// # Errors
    /// The blocks'.
    pub(crate) fn drop_prepared(&mut self) -> Result<(), B::Error> {
        self.resumed.clear();
        for (_, merge) in std::mem::take(&mut self.prepared) {
            self.give_back(merge)?;
        }
        Ok(())
    }

    /// Gives a rule the merge that was prepared for it, or changes the one that it has; `None` where there
    /// is no room.
    pub(crate) fn begin(
        &mut self,
        (hash, rule): (Hash, u32),
        params: MergeParams,
    ) -> Option<ActiveMerge> {
        let before = self.of(rule);
        let merge = match before.filter(|merge| merge.params.keeps_memory_of(params)) {
            Some(merge) => {
                words::change(&self.words, merge.index, params);
                if !self.is_running(rule) && self.begun.insert(merge.index) {
                    words::reopen(&self.words, merge.index);
                }
                ActiveMerge { params, ..merge }
            }
            None => {
                let new = self.prepared.remove(&hash)?;
                words::set_up(&self.words, rule, &new);
                self.end(rule);
                self.begun.insert(new.index);
                new
            }
        };
        self.active.insert(rule, merge);
        Some(merge)
    }

    /// Gives a leg of a rule its position among the rule's `lines`, or a new one.
    pub(crate) fn join(&self, merge: ActiveMerge, line: u32, lines: &[u32]) -> Option<u32> {
        let when = (self.clock.now_ns(), self.begun.contains(&merge.index));
        words::join(&self.words, merge.index, (line, lines), when)
    }

    /// The leg at each position.
    pub(crate) fn positions(&self, merge: ActiveMerge) -> [Option<u32>; LINES_MAX] {
        lines(&self.words.read(merge.index))
    }

    /// Whether a rule is merged and has legs: it has none while it is off.
    pub(crate) fn is_running(&self, rule: u32) -> bool {
        self.of(rule)
            .is_some_and(|merge| self.positions(merge).iter().any(Option::is_some))
    }

    /// The merges of rules that are off and not about to go on.
    fn paused(&self) -> Vec<(u32, ActiveMerge)> {
        let is_paused = |(rule, merge): &(u32, ActiveMerge)| {
            let goes_on = self.resumed.contains(rule) || self.begun.contains(&merge.index);
            merge.params.format.has_lines() && !goes_on && !self.is_running(*rule)
        };
        let active = self.active.iter().map(|(rule, merge)| (*rule, *merge));
        active.filter(is_paused).collect()
    }

    /// Gives back the memory of rules that are off, where nothing of their streams is in flight; their counts
    /// remain.
    ///
    /// # Errors
    /// The blocks'.
    pub(crate) fn forget_numbers_of_paused(&self) -> Result<(), B::Error> {
        let now_ns = self.clock.now_ns();
        let mut paused = self.paused();
        paused.retain(|(_, merge)| words::is_quiet(&self.words.read(merge.index), now_ns));
        for (_, merge) in paused {
            self.blocks.give_back(merge.blocks())?;
            self.blocks.give_back(merge.table())?;
            for cell in words::cells(&self.words, merge.index) {
                self.blocks.give_back(self.blocks_of_cell(cell))?;
            }
        }
        Ok(())
    }

    /// Frees the positions of a rule's legs that are no longer among `lines`, or ends its merge where it
    /// has none. By now packets see it. A rule that is off has no legs, and its merge remains: what it counted, and
    /// what it knows of its streams.
    pub(crate) fn retain_legs(&mut self, rule: u32, lines: Option<&[u32]>) {
        match (lines, self.of(rule)) {
            (Some(lines), Some(merge)) => {
                self.release(rule, merge, lines);
                if self.begun.remove(&merge.index) {
                    words::begin(&self.words, merge.index, self.clock.now_ns());
                }
            }
            _ => self.end(rule),
        }
    }

    /// Frees the positions of legs that are no longer among `lines`.
    fn release(&self, rule: u32, merge: ActiveMerge, lines: &[u32]) {
        let leaves = |leg: Option<u32>| leg.is_some_and(|leg| !lines.contains(&leg));
        let leaves = self.positions(merge).map(leaves);
        if leaves.contains(&true) {
            let mut readings = self.readings.lock();
            let counted = self.counts_of_entries(merge.index, readings.entry(rule).or_default());
            words::release(&self.words, merge.index, &counted, leaves);
        }
    }

    /// Ends the merge of a rule; its memory waits for packets in flight.
    pub(crate) fn end(&mut self, rule: u32) {
        if let Some(merge) = self.active.remove(&rule) {
            words::tear_down(&self.words, merge.index);
            self.begun.remove(&merge.index);
            let reading = self.readings.get_mut().remove(&rule).unwrap_or_default();
            self.retired
                .extend(reading.retired.into_iter().map(|(cell, _)| cell));
            self.waiting.push(merge);
        }
    }

    /// Gives back what waited.
    ///
    /// # Errors
    /// The blocks'; those that remain stay in use.
    pub(crate) fn free(&mut self) -> Result<(), B::Error> {
        let mut freed = Ok(());
        for cell in std::mem::take(&mut self.retired) {
            self.free_cell(cell);
        }
        for merge in std::mem::take(&mut self.waiting) {
            freed = self.give_back(merge).and(freed);
        }
        freed
    }

    /// Notes for readings that all packets which had arrived by then have been judged.
    pub(crate) fn note_judged(&self, until_ns: u64) {
        self.judged_ns.store(until_ns, Ordering::Relaxed);
    }

    /// What the legs of a rule delivered, of those among `inputs`; of one that is off, what they did until then.
    pub(crate) fn read<'a>(
        &self,
        rule: u32,
        inputs: impl Iterator<Item = (&'a String, u32)>,
    ) -> Option<MergeCounters> {
        let merge = self
            .of(rule)
            .filter(|merge| merge.params.format.has_lines())?;
        let mut readings = self.readings.lock();
        let counts = self.counts(merge.index, readings.entry(rule).or_default());
        let legs = if self.is_running(rule) {
            self.positions(merge)
        } else {
            words::former_lines(&self.words.read(merge.index))
        };
        let positions = inputs.filter_map(|(at, line)| {
            let position = legs.iter().position(|leg| *leg == Some(line))?;
            Some((at, position))
        });
        Some(MergeCounters::of(&counts, positions))
    }

    /// What a rule counted in its entry and in its cells.
    fn counts(&self, rule: u32, reading: &mut RuleReading) -> Counts {
        let of_entries = self.counts_of_entries(rule, reading);
        let mut counts = of_entries.into_iter().map(|(_, counts)| counts);
        let mut sum = counts.next().unwrap_or_default();
        sum.streams += reading.streams;
        counts.for_each(|of_cell| sum.add(&of_cell));
        sum
    }

    /// What each entry of a rule counted, its own first; cells that receive nothing any more are given back.
    fn counts_of_entries(&self, rule: u32, reading: &mut RuleReading) -> Vec<(u32, Counts)> {
        let now_ns = self.clock.now_ns();
        let judged_ns = self.judged_ns.load(Ordering::Relaxed).min(now_ns);
        let when = When { now_ns, judged_ns };
        let block = |number| self.blocks.read(number);
        let cells = words::cells(&self.words, rule);
        for cell in &cells {
            let words = words::read_cell(&self.words, rule, *cell);
            if words::is_over(&words, now_ns) {
                let mut last = reading.cells.remove(cell).unwrap_or_default();
                reading.streams += last.streams(&words);
                words::retire(&self.words, rule, *cell, now_ns);
                reading.retired.push((*cell, now_ns));
            }
        }
        let own = || self.words.read(rule);
        let has_other_keys = !cells.is_empty() || own().streams == 1;
        if has_other_keys && words::is_over(&own(), now_ns) {
            words::free_key(&self.words, rule);
        }
        let mut sums = vec![(rule, counts(own, &mut reading.own, block, when))];
        for cell in words::cells(&self.words, rule) {
            let words = || words::read_cell(&self.words, rule, cell);
            let of_cell = reading.cells.entry(cell).or_default();
            sums.push((cell, counts(words, of_cell, block, when)));
        }
        reading.retired.retain(|(cell, since_ns)| {
            let is_in_use = now_ns.saturating_sub(*since_ns) < GRACE_NS;
            if !is_in_use {
                self.free_cell(*cell);
            }
            is_in_use
        });
        sums
    }

    /// Gives back a cell that no packet uses.
    fn free_cell(&self, cell: u32) {
        if self.blocks.give_back(self.blocks_of_cell(cell)).is_err() {
            tracing::debug!("memory of a stream that is over stays in use");
        }
        words::clear_cell(&self.words, cell);
    }

    /// Gives back a merge that no packet uses, with its blocks.
    fn give_back(&mut self, merge: ActiveMerge) -> Result<(), B::Error> {
        self.blocks.give_back(merge.blocks())?;
        self.blocks.give_back(merge.table())?;
        for cell in words::cells(&self.words, merge.index) {
            self.free_cell(cell);
        }
        words::tear_down(&self.words, merge.index);
        let blocks = merge.params.blocks();
        self.space.put_back(merge.first_block, blocks);
        self.indices.release(merge.index);
        self.indices.grace_period_passed();
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
