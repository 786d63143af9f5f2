//! What would happen to a packet.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What would become of a packet, were it to come now.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The packet in words.
    pub packet: String,
    /// `forwarded`, `dropped`, or `passed`: left to the host's own stack, as no rule takes it.
    pub verdict: String,
    /// Why it is dropped, as counters name it, or why it is not looked at.
    pub reason: Option<String>,
    /// What to do about that.
    pub remedy: Option<String>,
    /// The rule that takes it.
    pub rule: Option<String>,
    /// By which of its inputs.
    pub input: Option<String>,
    /// `kernel` or `userspace`.
    pub path: Option<String>,
    /// Where that path takes packets, and why the rule runs there.
    pub path_reason: Option<String>,
    /// What decides on the way, as it stands now: gate, failover, merge, limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// Whether this host gets the packet, too.
    pub passed_up: bool,
    /// What each output of the rule would do, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<ExplainedOutput>,
    /// Where no rule takes it: inputs that nearly would.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nearest: Vec<Nearest>,
}

/// Something that decides on a packet's way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stage {
    /// `gate`, `failover`, `merge` or `limit`.
    pub stage: String,
    /// Whether the packet passes it.
    pub passes: bool,
    /// How it stands, in words.
    pub text: String,
}

/// What an output would do.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainedOutput {
    /// Destination as the rule writes it, without options.
    pub to: String,
    /// `forwarded` or `dropped`.
    pub verdict: String,
    /// Why it drops it, as counters name it.
    pub reason: Option<String>,
    /// What to do about that.
    pub remedy: Option<String>,
    /// The copy, where one leaves.
    pub copy: Option<ExplainedCopy>,
}

/// A copy that would leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainedCopy {
    /// Interface it leaves by.
    pub interface: String,
    /// Its sender's address and port.
    pub source: String,
    /// Its destination's.
    pub destination: String,
    /// Link-layer address that it goes to; none where the device has none, or the host's stack finds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// TTL or hop limit.
    pub ttl: u8,
    /// DSCP.
    pub dscp: u8,
    /// Bytes of its IP packet.
    pub bytes: usize,
}

/// An input that nearly takes a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Nearest {
    /// Its rule.
    pub rule: String,
    /// The input as the rule writes it.
    pub input: String,
    /// What differs.
    pub differs: Vec<String>,
}
