//! Which of a rule's inputs passes, where they stand by for each other.

use std::sync::atomic::Ordering;

use packet::failover::{self, Pair};

use super::layout::{InputSlot, RuleSlot};
use super::messages::CountedRoute;
use super::state::{CHOICES_AT, LINES_AT, SharedState};
use crate::failover::Lines;

/// A rule's failover, ready to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompiledFailover {
    silence_ns: u64,
    revert_ns: u64,
    /// Slots of the inputs, the preferred first.
    lines: Box<[u32]>,
}

impl CompiledFailover {
    /// Works out the times.
    pub(crate) fn compile(counted: &CountedRoute) -> Option<Self> {
        let failover = counted.route.failover.as_ref()?;
        Some(Self {
            silence_ns: failover.silence_ns(),
            revert_ns: failover.revert_ns(),
            lines: counted.lines.iter().map(|line| line.0).collect(),
        })
    }

    /// When another line takes over.
    pub(crate) fn when(&self) -> failover::Failover<'_> {
        failover::Failover {
            silence_ns: self.silence_ns,
            revert_ns: self.revert_ns,
            lines: &self.lines,
        }
    }
}

impl SharedState {
    /// Says whether a packet that came by `input` at `now_ns` passes.
    #[inline]
    pub(crate) fn passes(
        &self,
        (rule, input): (RuleSlot, InputSlot),
        failover: &CompiledFailover,
        now_ns: u64,
    ) -> bool {
        let Some(choice) = self.pair(choice_at(rule.0)) else {
            return true;
        };
        let line = |line: u32| self.pair(line_at(line));
        failover.when().passes(input.0, now_ns, choice, line)
    }

    #[inline]
    fn pair(&self, at: usize) -> Option<&Pair> {
        self.words.as_slice().get(at..)?.first_chunk()
    }

    fn load(&self, at: usize) -> [u64; 2] {
        let pair = self.pair(at);
        pair.map_or([0; 2], |[a, b]| {
            [a, b].map(|word| word.load(Ordering::Relaxed))
        })
    }

    fn store(&self, at: usize, values: [u64; 2]) {
        let words = self.pair(at).into_iter().flatten();
        for (word, value) in words.zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl Lines for &SharedState {
    fn line(&self, name: u32) -> [u64; 2] {
        self.load(line_at(name))
    }

    fn set_line(&mut self, name: u32, line: [u64; 2]) {
        self.store(line_at(name), line);
    }

    fn choice(&self, rule: u32) -> [u64; 2] {
        self.load(choice_at(rule))
    }

    fn set_choice(&mut self, rule: u32, choice: [u64; 2]) {
        self.store(choice_at(rule), choice);
    }
}

const fn choice_at(rule: u32) -> usize {
    CHOICES_AT + 2 * rule as usize
}

const fn line_at(line: u32) -> usize {
    LINES_AT + 2 * line as usize
}
