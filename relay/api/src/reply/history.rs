//! What rules received and dropped in the last hour.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What rules received and dropped in the last hour, in steps of one length. All lists are equally
/// long and have the newest step last; they are shorter than an hour while the daemon is younger. What
/// a rule did before it was there is 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// Length of a step in seconds.
    pub step_seconds: u32,
    /// When the newest step ended, in milliseconds since the epoch. The one that goes on is not told.
    pub until_ms: u64,
    /// Seconds since then.
    pub age_seconds: f64,
    /// Of all rules together, also of those that are gone.
    pub all: Steps,
    /// Of the rules that were asked for, in that order.
    pub rules: Vec<RuleHistory>,
}

/// One rule's past.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleHistory {
    /// Name of the rule.
    pub name: String,
    /// What it received and dropped.
    #[serde(flatten)]
    pub steps: Steps,
}

/// What came and was dropped in each step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Steps {
    /// Packets received.
    pub packets: Vec<u64>,
    /// UDP payload bytes received, to seven digits.
    pub bytes: Vec<u64>,
    /// Packets dropped before the outputs, and copies dropped at them.
    pub dropped: Vec<u64>,
}
