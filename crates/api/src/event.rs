//! What the daemon tells while it happens: one event per change of state.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// What happened.
    pub event: EventKind,
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// The rule it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The input or output of the rule, as the rule writes it without options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The interface it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The worker it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// The whole story, for people.
    pub message: String,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A rule came.
    RuleAdded,
    /// A rule went.
    RuleRemoved,
    /// A rule is not the same any more.
    RuleChanged,
    /// A rule works, all of it.
    RuleUp,
    /// Some inputs or outputs of a rule are down.
    RuleDegraded,
    /// A rule does not work.
    RuleDown,
    /// An output sends.
    OutputUp,
    /// An output cannot send.
    OutputDown,
    /// An input's group is joined.
    Joined,
    /// An input's group cannot be joined.
    JoinFailed,
    /// A worker was started again.
    WorkerRestarted,
    /// An interface came, went or changed.
    LinkChanged,
    /// The configuration was read again.
    Reloaded,
    /// The configuration could not be read again; the running rules stay.
    ReloadFailed,
    /// The reader was too slow and missed events.
    Missed,
}

impl EventKind {
    /// The kind's stable name, also that of the server-sent event.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RuleAdded => "rule_added",
            Self::RuleRemoved => "rule_removed",
            Self::RuleChanged => "rule_changed",
            Self::RuleUp => "rule_up",
            Self::RuleDegraded => "rule_degraded",
            Self::RuleDown => "rule_down",
            Self::OutputUp => "output_up",
            Self::OutputDown => "output_down",
            Self::Joined => "joined",
            Self::JoinFailed => "join_failed",
            Self::WorkerRestarted => "worker_restarted",
            Self::LinkChanged => "link_changed",
            Self::Reloaded => "reloaded",
            Self::ReloadFailed => "reload_failed",
            Self::Missed => "missed",
        }
    }
}
