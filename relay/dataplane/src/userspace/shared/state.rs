//! The state by which workers decide, one word at a time: of the rate limits, of failover rules, and of the
//! requesters of what reflecting rules have sent. All workers share it, those of an earlier supervisor
//! too, because the packets of a rule may be spread over several of them.

use bpf::layout::{ASKERS, Choice, Failover, Line};
use packet::failover::Pair;

use super::layout::{InputSlot, MAX_INPUTS, MAX_OUTPUTS, MAX_RULES, RuleSlot};
use crate::clock::Clock;
use crate::failover::{self, Failovers};

/// An entry of the table of requesters. Its words in order: the sequence, the end (three), the time of the
/// question, ports and interface, the link-layer address, the requester's address (two), the group (two).
pub(super) type RequesterSlot = [u64; 11];

sys::region! {
    /// The words, mapped.
    pub(crate) struct SharedState as c"mcr-state" {
        /// When the buckets of limits will be full again: rules, outputs, the budget.
        pub(super) rule_limits: [u64; MAX_RULES],
        pub(super) output_limits: [u64; MAX_OUTPUTS],
        /// Only the first word is used; the others fill the cache line.
        pub(super) budget: [u64; 8],
        /// The line of each rule that passes.
        choices: [Choice; MAX_RULES],
        /// When packets of each input arrived.
        lines: [Line; MAX_INPUTS],
        pub(super) requesters: [RequesterSlot; ASKERS],
    }
}

impl SharedState {
    /// The rules that fail over between their inputs, none yet.
    pub(crate) fn failovers(&self) -> Failovers {
        let (lines, choices) = (self.lines.clone(), self.choices.clone());
        Failovers::new(lines, choices, Clock::Process)
    }

    /// Returns whether a packet that arrived by `input` at `now_ns` passes, where its rule fails over between
    /// its inputs.
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
