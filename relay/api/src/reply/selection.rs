//! Which rules a reply contains, if not all.

use std::collections::BTreeMap;

use config::Settings;
use rules::document::RuleDocument;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Rates, Traffic};

/// Which of the rules that match are returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Part {
    /// How many that match stand before the first that is told.
    pub offset: u64,
    /// How many are told from there on; those behind them were asked for by name.
    pub count: u64,
    /// How many match.
    pub matching: u64,
    /// How many there are.
    pub total: u64,
}

/// What was selected, and what all rules together do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Selection {
    /// Which of the rules that match are returned.
    #[serde(flatten)]
    pub part: Part,
    /// How many of all rules do how, by the words of `state` in the query.
    pub states: BTreeMap<String, u64>,
    /// What all rules received.
    pub received: Traffic,
    /// What all rules and their outputs lost: not what was dropped because another copy passed or
    /// nobody is there for it.
    pub dropped: u64,
    /// What all rules receive per second.
    pub rates: Rates,
}

/// Rules as configured, or some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RulePart {
    /// Generation of the running set.
    pub generation: Option<u64>,
    /// The rules in their order.
    pub rules: Vec<RuleDocument>,
    /// What the configuration says beyond rules; none where `selection` is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
    /// Which of the rules these are, where parameters asked for some; such an answer is no rule set to
    /// put in the place of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Part>,
}
