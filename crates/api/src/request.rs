//! What clients send.

use model::document::RuleDocument;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A whole rule set, to put in the place of the running one; also what the daemon answers when
/// asked for its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleList {
    /// Generation of the running set: what the daemon says it is, or what the client insists on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The rules in their order.
    pub rules: Vec<RuleDocument>,
}

/// A change of the running rule set, carried out whole or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Transaction {
    /// Generation the change was made for; refused as `conflict` when the set is another by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Rules to put behind the rest; one whose name is in `remove` replaces that rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<RuleDocument>,
    /// Names of rules to take out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}
