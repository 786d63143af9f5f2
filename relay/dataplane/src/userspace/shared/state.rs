//! What the workers decide by, one word at a time: the state of the rate limits and of failover rules,
//! and who asked what rules that reflect have sent. All workers share it, those of an earlier
//! supervisor too, because the packets of a rule may be spread over several of them.

use bpf::layout::{ASKERS, Choice, Failover, Line};
use packet::failover::Pair;

use super::layout::{InputSlot, MAX_INPUTS, MAX_OUTPUTS, MAX_RULES, RuleSlot};
use crate::clock::Clock;
use crate::failover::{self, Failovers};

/// An entry of the table. Words are taken by their order: its sequence, the place (three), when it was
/// asked, ports and interface, the link-layer address, the asker's address (two), the group (two).
pub(super) type AskerSlot = [u64; 11];

sys::region! {
    /// The words, mapped.
    pub(crate) struct SharedState as c"mcr-state" {
        /// When the buckets of limits will be full again: rules, outputs, the budget.
        pub(super) rule_limits: [u64; MAX_RULES],
        pub(super) output_limits: [u64; MAX_OUTPUTS],
        /// The first of them, the others for the sake of the cache's lines.
        pub(super) budget: [u64; 8],
        /// Which line of each rule passes.
        choices: [Choice; MAX_RULES],
        /// When packets of each input came.
        lines: [Line; MAX_INPUTS],
        pub(super) askers: [AskerSlot; ASKERS],
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
