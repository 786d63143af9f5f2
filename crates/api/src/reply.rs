//! What the daemon answers. The shapes are a contract with scripts: fields are added, never renamed.

mod health;
mod residence;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use health::{HealthStats, Rates, RtpStats, TsStats};
pub use residence::{ResidenceBucket, ResidenceStats};

/// Everything counted, as `mcr stats --json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Instance name.
    pub instance: String,
    /// Version of the daemon.
    pub version: String,
    /// Seconds since the daemon started.
    pub uptime_seconds: f64,
    /// Every rule, in the order of the configuration.
    pub rules: Vec<RuleStats>,
    /// Workers of the userspace path; empty while no rule needs one.
    pub workers: Vec<WorkerStats>,
}

/// One rule's state and counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RuleStats {
    /// Name of the rule.
    pub name: String,
    /// Worst state of its inputs and outputs.
    pub state: State,
    /// Why the state is not `up`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// `kernel` or `userspace`.
    pub path: String,
    /// Why it runs there.
    pub path_reason: String,
    /// Inputs and their memberships.
    pub inputs: Vec<InputStats>,
    /// Packets that matched an input.
    pub received: Traffic,
    /// Packets dropped before the outputs, by reason; only reasons that occurred.
    pub dropped: BTreeMap<String, u64>,
    /// Outputs in the order of the rule.
    pub outputs: Vec<OutputStats>,
    /// What the rule receives per second.
    #[serde(default)]
    pub rates: Rates,
    /// How its stream does; none unless the rule has `health`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthStats>,
    /// How long its packets stay, by the path that relayed them; none until one was looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub residence: Vec<ResidenceStats>,
}

impl RuleStats {
    /// The worse of the rule's state and its stream's, and why it is not `up`.
    #[must_use]
    pub fn worst(&self) -> (State, Option<&str>) {
        let own = (self.state, self.state_reason.as_deref());
        match &self.health {
            Some(stream) if stream.state > self.state => (stream.state, stream.reason.as_deref()),
            _ => own,
        }
    }
}

/// What was seen of one group and port of a rule with ranges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowStats {
    /// The group.
    pub group: String,
    /// The destination port.
    pub port: u16,
    /// Packets that matched the input there.
    pub received: Traffic,
}

/// State of a rule or an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Works.
    Up,
    /// A rule some of whose inputs or outputs are down.
    Degraded,
    /// Does not work; the reason stands beside it.
    Down,
}

/// One input of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputStats {
    /// The endpoint as the rule writes it.
    pub at: String,
    /// Whether its group is joined on its interface.
    pub joined: bool,
    /// Why it is not joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Packets that matched it: what the rule received, if it is the rule's only input; else what
    /// came by it since the rule has several.
    #[serde(default)]
    pub received: Traffic,
    /// Whether its interface merges packets before they are relayed, and why; only where the
    /// configuration asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merging: Option<String>,
}

/// Packets and bytes; bytes are UDP payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Traffic {
    /// Datagrams; a GSO super-packet counts as its segments.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
}

/// One output of a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputStats {
    /// Destination as the rule writes it, without options.
    pub to: String,
    /// Whether it sends.
    pub state: State,
    /// Why it is down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Copies handed to the egress device.
    pub sent: Traffic,
    /// Copies dropped, by reason: `too_big` always, the others once they occurred.
    pub dropped: BTreeMap<String, u64>,
}

/// One worker of the userspace path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerStats {
    /// Number, from 0.
    pub id: u32,
    /// Core it is pinned to.
    pub cpu: u32,
    /// Process id, 0 while it is not running.
    pub pid: u32,
    /// `starting`, `running` or `backoff`.
    pub state: String,
    /// Times it was started again.
    pub restarts: u64,
    /// Packets read from its tap.
    pub received: u64,
    /// Packets that took a route.
    pub matched: u64,
    /// Packets that took none.
    pub not_matched: u64,
    /// Copies handed to egress devices.
    pub forwarded: u64,
    /// Packets lost for want of a buffer, including those the kernel dropped at a full ring.
    pub buffer_exhausted: u64,
    /// Failed receives.
    pub receive_errors: u64,
    /// Failed sends.
    pub transmit_errors: u64,
}

/// What a change of the rules changed, or would change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// Generation of the rule set after the change; of the running one for a dry run.
    pub generation: u64,
    /// Names of rules that came.
    pub added: Vec<String>,
    /// Names of rules that went.
    pub removed: Vec<String>,
    /// Names of rules that are there before and after, but not the same.
    pub changed: Vec<String>,
    /// How many rules stayed the same.
    pub unchanged: usize,
    /// What of the settings beyond rules changed, and what it was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<String>,
    /// What keeps rules that came or changed from relaying all they should, though they were
    /// accepted: an interface they wait for, a destination nobody answers for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The daemon in a few words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Instance name.
    pub instance: String,
    /// Version of the daemon.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since the daemon started.
    pub uptime_seconds: f64,
    /// Generation of the running rule set; every change of it adds one.
    pub generation: u64,
    /// Number of rules.
    pub rules: usize,
    /// Whether the kernel path is available.
    pub kernel: PathStatus,
    /// Whether the userspace path is available.
    pub userspace: PathStatus,
    /// What not every kernel has, and whether this one does.
    #[serde(default)]
    pub features: Vec<FeatureStatus>,
    /// The last time the configuration was read again; none since the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reload: Option<Reload>,
}

/// Something that not every kernel has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeatureStatus {
    /// Its name in the kernel's words.
    pub name: String,
    /// Whether it was found; absent if the daemon may not find out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
    /// What it means that it is missing; absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meaning: Option<String>,
}

/// What became of reading the configuration again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reload {
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    /// Whether its rules are the running ones.
    pub succeeded: bool,
}

/// Whether a path is available on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PathStatus {
    /// Whether rules can run there.
    pub available: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One network interface as the daemon sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InterfaceStatus {
    /// Name.
    pub name: String,
    /// Kernel index.
    pub index: u32,
    /// Administratively up and with carrier.
    pub up: bool,
    /// MTU in bytes.
    pub mtu: u32,
    /// Ethernet address; none for devices that carry bare IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Addresses, primary ones first.
    pub addresses: Vec<String>,
}

/// How much the daemon logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// From here on up lines are written.
    pub level: LogLevel,
}

/// How much something matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What failed.
    Error,
    /// What goes wrong.
    Warn,
    /// Each change of state.
    #[default]
    Info,
    /// What leads to it.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    /// What kind: `rule_up`, `rule_down`, `rule_degraded`, `rule_added`, `rule_changed`,
    /// `rule_removed`, `settings_changed`, `output_up`, `output_down`, `stream_up`,
    /// `stream_degraded`, `stream_down`, `joined`, `join_failed`, `worker_restarted`,
    /// `link_changed`, `next_hop_changed`, `reloaded`, `reload_failed`.
    pub kind: String,
    /// Rule, interface or worker it happened to, or `configuration`; empty where it stands for many
    /// of its kind.
    pub subject: String,
    /// What happened, for people.
    pub message: String,
}

/// Any refused request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorReply {
    /// Stable code: `usage`, `bad_request`, `not_found`, `exists`, `conflict`, `invalid`, `unavailable`,
    /// `privilege`, `too_large`, `timeout`, `internal`.
    pub code: String,
    /// What is wrong and what to do, for people; several errors stand on lines of their own.
    pub message: String,
}
