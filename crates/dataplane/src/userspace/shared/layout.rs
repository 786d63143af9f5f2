//! The words of a worker's shared memory: what the worker, each rule, each output and each input
//! counts there, and where. This is the one list of it; `counted` holds the same as values.

use packet::latency;
use packet::verdict::DropReason;

use crate::counters::Traffic;
use crate::owners::name::Kind;

/// Rules whose counters fit.
pub(crate) const MAX_RULES: u32 = 131_072;
/// Inputs, of all rules with several together, whose counters fit.
pub(crate) const MAX_INPUTS: u32 = 262_144;
/// Outputs, of all rules together, whose counters fit.
pub(crate) const MAX_OUTPUTS: u32 = 262_144;

/// How many names of a kind find a slot.
pub(crate) const fn limit(kind: Kind) -> u32 {
    match kind {
        Kind::Rule => MAX_RULES,
        Kind::Output => MAX_OUTPUTS,
        Kind::Input => MAX_INPUTS,
    }
}

/// Words of what passed.
const TRAFFIC: usize = Traffic::WORDS;
/// Words of a rule: what it received, what it dropped; its health and its latency lie apart.
const RULE: usize = TRAFFIC + DropReason::SLOTS;
/// Words of an output: what it sent, what it dropped.
const OUTPUT: usize = TRAFFIC + DropReason::SLOTS;
/// Words of an input: what it received, what was dropped for coming by it.
const INPUT: usize = TRAFFIC + DropReason::SLOTS;
/// Words of a rule's health: its sums, then times, jitter and source.
pub(super) const HEALTH: usize = 18;

/// Flows of ranges that are kept, a power of two.
pub(super) const FLOWS: usize = 4096;
/// Words of a flow: key, group (two), packets, bytes, when it was seen.
pub(super) const FLOW_WORDS: usize = 6;

const RULES_AT: usize = 64;
const OUTPUTS_AT: usize = RULES_AT + MAX_RULES as usize * RULE;
const HEALTH_AT: usize = OUTPUTS_AT + MAX_OUTPUTS as usize * OUTPUT;
pub(super) const FLOWS_AT: usize = HEALTH_AT + MAX_RULES as usize * HEALTH;
const LATENCY_AT: usize = FLOWS_AT + FLOWS * FLOW_WORDS;
const INPUTS_AT: usize = LATENCY_AT + MAX_RULES as usize * latency::WORDS;
/// A word for each rule, one behind the other: whoever looks for those that packets came for has few
/// lines of the cache to read.
const ACTIVITY_AT: usize = INPUTS_AT + MAX_INPUTS as usize * INPUT;
/// Words of the whole; another number is another layout.
pub(crate) const WORDS: usize = ACTIVITY_AT + MAX_RULES as usize;

/// Words that count for the worker as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum WorkerWord {
    /// Grows as long as the worker's loop turns.
    Heartbeat = 0,
    /// Ring frames taken, super-packets as one; together with the kernel's statistics this shows
    /// what a dying worker left behind.
    Frames = 1,
    /// Datagrams read from the taps.
    Received = 2,
    /// Datagrams that took a route.
    Matched = 3,
    /// Datagrams that took none.
    NotMatched = 4,
    /// Copies sent.
    Forwarded = 5,
    /// Datagrams lost in the worker for want of a buffer.
    BufferExhausted = 6,
    /// Failed receives.
    ReceiveErrors = 7,
    /// Failed sends.
    TransmitErrors = 8,
    /// Grows when a worker that lost its supervisor has forwarded what it had and takes no more.
    StoodDown = 9,
    /// Datagrams in the frames taken beyond the first of each: those of super-packets.
    Hidden = 10,
    /// Written by the supervisor: datagrams lost at full rings and in the rings of dead workers.
    Lost = 16,
    /// Written by the supervisor: times the worker was started again.
    Restarts = 17,
}

/// Names one rule's counters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub(crate) struct RuleSlot(pub u32);

/// Names the counters of one of a rule's several inputs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub(crate) struct InputSlot(pub u32);

/// Names one output's counters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub(crate) struct OutputSlot(pub u32);

/// The traffic of a rule.
pub(super) const fn rule_at(rule: RuleSlot) -> usize {
    RULES_AT + rule.0 as usize * RULE
}

/// The traffic of an output.
pub(super) const fn output_at(output: OutputSlot) -> usize {
    OUTPUTS_AT + output.0 as usize * OUTPUT
}

/// The traffic of an input.
pub(super) const fn input_at(input: InputSlot) -> usize {
    INPUTS_AT + input.0 as usize * INPUT
}

/// The drops behind the traffic of a rule, an input or an output.
pub(super) const fn drops_at(traffic: usize) -> usize {
    traffic + TRAFFIC
}

/// The health of a rule.
pub(super) const fn health_at(rule: RuleSlot) -> usize {
    HEALTH_AT + rule.0 as usize * HEALTH
}

/// What is another number when packets of a rule have been counted.
pub(super) const fn activity_at(rule: RuleSlot) -> usize {
    ACTIVITY_AT + rule.0 as usize
}

/// The latency of a rule.
pub(super) const fn latency_at(rule: RuleSlot) -> usize {
    LATENCY_AT + rule.0 as usize * latency::WORDS
}
