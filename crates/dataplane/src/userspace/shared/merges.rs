//! The windows of rules whose lines are merged: which packets of a stream have passed. All workers
//! share them, those of an earlier supervisor too, for each line may come to another of them, and no
//! packet is to pass again because a process was replaced.
//!
//! A rule's words stand at the place that it counts in.

use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use bpf::merge::{BLOCKS, RULES, Windows};
use bpf::merge_layout::{Merge, MergeBlock};
use sys::shared_memory::{self, Words};

use super::layout::{MAX_RULES, RuleSlot};
use crate::merge;

/// Words of the whole.
pub(crate) const WORDS: usize = Windows::WORDS;
const WORD: usize = size_of::<u64>();

const _: () = assert!(MAX_RULES <= RULES, "each rule has a place");

/// The words, mapped.
#[derive(Debug)]
pub(crate) struct SharedMerges {
    words: Words,
}

impl SharedMerges {
    /// Makes the region. It is sparse: only rules that merge take memory.
    ///
    /// # Errors
    /// The system call's.
    pub(crate) fn create() -> io::Result<OwnedFd> {
        shared_memory::create(c"mcr-merges", WORDS * WORD)
    }

    /// Maps the region another process made.
    ///
    /// # Errors
    /// The system call's.
    pub(crate) fn map(region: BorrowedFd<'_>) -> io::Result<Self> {
        let words = Words::map(region.as_fd(), WORDS * WORD)?;
        Ok(Self { words })
    }

    /// All rules' windows.
    #[inline]
    pub(crate) fn windows(&self) -> Windows<'_> {
        let words = self.words.as_slice();
        Windows::new(words).expect("the mapping has as many words")
    }

    /// Zeroes the words of some bytes that no packet is judged by.
    pub(crate) fn zero(&self, bytes: Range<usize>) {
        let words = { self.words.as_slice() }.get(bytes.start / WORD..bytes.end / WORD);
        for word in words.unwrap_or_default() {
            word.store(0, Ordering::Relaxed);
        }
    }
}

impl merge::Words for &SharedMerges {
    fn merge(&self, merge: u32) -> Merge {
        self.windows().rule(merge)
    }

    fn set_merge(&mut self, merge: u32, words: &Merge) {
        self.windows().set_rule(merge, words);
    }

    fn store(&mut self, merge: u32, at: usize, value: u64) {
        self.windows().store(merge, at, value);
    }

    fn add(&mut self, merge: u32, at: usize, value: u64) {
        self.windows().add(merge, at, value);
    }
}

/// Where a rule's words lie in the region.
pub(crate) const fn rule_bytes(rule: RuleSlot) -> Range<usize> {
    let start = rule.0 as usize * size_of::<Merge>();
    start..start + size_of::<Merge>()
}

/// Where the word lies that says whether a rule has a window.
pub(crate) const fn owner_at(rule: RuleSlot) -> usize {
    rule_bytes(rule).start + offset_of!(Merge, owner)
}

/// Where so many blocks lie in the region.
pub(crate) const fn block_bytes(first: u32, count: u32) -> Range<usize> {
    let blocks_at = WORDS * WORD - BLOCKS as usize * size_of::<MergeBlock>();
    let start = blocks_at + first as usize * size_of::<MergeBlock>();
    start..start + count as usize * size_of::<MergeBlock>()
}
