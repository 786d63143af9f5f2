//! What the workers decide with, one word at a time: the state of the rate limits, and of the rules
//! whose inputs stand by for each other; and who asked what rules that reflect have sent. All workers share
//! it, those of an earlier supervisor too, for the packets of a rule may be spread over several of them.

use std::ffi::CStr;
use std::mem::offset_of;

use bpf::layout::{ASKERS, Choice, Failover, Line};
use packet::failover::Pair;
use sys::memory::{Array, Memory};

use super::askers::AskerSlot;
use super::layout::{InputSlot, MAX_INPUTS, MAX_OUTPUTS, MAX_RULES, RuleSlot};
use super::region::Region;
use crate::clock::Clock;
use crate::failover::{self, Failovers};

/// The words, mapped.
#[derive(Debug)]
pub(crate) struct SharedState {
    /// When the buckets of limits will be full again: rules, outputs, the budget.
    pub(super) rule_limits: Array<u64>,
    pub(super) output_limits: Array<u64>,
    pub(super) budget: Array<u64>,
    /// Which line of each rule passes.
    choices: Array<Choice>,
    /// When packets of each input came.
    lines: Array<Line>,
    pub(super) askers: Array<AskerSlot>,
}

/// As they lie in the region.
#[repr(C)]
struct Layout {
    rule_limits: [u64; MAX_RULES as usize],
    output_limits: [u64; MAX_OUTPUTS as usize],
    /// The first of them, the others for the sake of the cache's lines.
    budget: [u64; 8],
    choices: [Choice; MAX_RULES as usize],
    lines: [Line; MAX_INPUTS as usize],
    askers: [AskerSlot; ASKERS as usize],
}

impl Region for SharedState {
    const NAME: &CStr = c"mcr-state";
    const BYTES: usize = size_of::<Layout>();

    fn of(memory: &Memory) -> Self {
        Self {
            rule_limits: memory.array(offset_of!(Layout, rule_limits), MAX_RULES),
            output_limits: memory.array(offset_of!(Layout, output_limits), MAX_OUTPUTS),
            budget: memory.array(offset_of!(Layout, budget), 1),
            choices: memory.array(offset_of!(Layout, choices), MAX_RULES),
            lines: memory.array(offset_of!(Layout, lines), MAX_INPUTS),
            askers: memory.array(offset_of!(Layout, askers), ASKERS),
        }
    }
}

impl SharedState {
    /// The rules whose inputs stand by for each other, none yet.
    pub(crate) fn failovers(&self) -> Failovers {
        let (lines, choices) = (self.lines.clone(), self.choices.clone());
        Failovers::new(lines, choices, Clock::Process)
    }

    /// Says whether a packet that came by `input` at `now_ns` passes, where the inputs of its rule stand by
    /// for each other.
    #[inline]
    pub(crate) fn passes(
        &self,
        (rule, input): (RuleSlot, InputSlot),
        failover: &Failover,
        now_ns: u64,
    ) -> bool {
        let Some(choice): Option<&Pair> = self.choices.words(rule.0).first_chunk() else {
            return true;
        };
        let line = |line: u32| self.lines.words(line).first_chunk();
        failover::when(failover).passes(input.0, now_ns, choice, line)
    }
}
