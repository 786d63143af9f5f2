//! The daemon's replies. Scripts rely on their shapes: fields are added, never renamed.

mod changes;
mod client;
mod demand;
mod discovery;
mod egress;
mod explanation;
mod fleet;
mod health;
mod history;
mod latency;
mod rule;
mod selection;
mod tunnel;

use std::collections::BTreeMap;

use rules::document::RuleDocument;
use rules::named::named;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use changes::{
    By, ChangeRecord, Outcome, PendingChange, RulePlacement, RulesRead, TextProblem, Via,
};
pub use client::{ApiClientStatus, ApiStatus, NotifyStatus, NotifyTested, SignedIn};
pub use counters::{FlowStats, LineStats, MergeStats, Seconds, Traffic, WorkerStats};
pub use demand::{DemandStats, ListenerStats};
pub use discovery::{DiscoveredInterface, DiscoveredStream, Discovery};
pub use egress::EgressStats;
pub use explanation::{ExplainedCopy, ExplainedOutput, Explanation, Nearest, Stage};
pub use fleet::{
    FleetChange, FleetCounters, FleetDone, FleetEtcd, FleetRecord, FleetRelay, FleetRelayState,
    FleetRules, FleetShare, FleetShareState, FleetStatus,
};
pub use health::{HealthStats, Rates, RtpStats, TsStats};
pub use history::{History, RuleHistory, Steps};
pub use latency::{ResidenceBucket, ResidenceStats};
pub use rule::{
    Acknowledgement, AddressStats, Condition, InputStats, OutputStats, RuleStats, State,
};
pub use selection::{Part, RulePart, Selection};
pub use tunnel::TunnelStatus;

/// Everything counted, as `mcr stats --json` prints it.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Instance name.
    pub instance: String,
    /// Name of the host.
    #[serde(default)]
    pub host: String,
    /// Version of the daemon.
    pub version: String,
    /// The fleet that the daemon is a relay of, by its name, if it is one.
    pub fleet: Option<String>,
    /// Seconds since the daemon started.
    pub uptime_seconds: f64,
    /// Every rule, in the order of the configuration; where there is a `selection`, those selected.
    pub rules: Vec<RuleStats>,
    /// Workers of the userspace path; empty while no rule needs one.
    pub workers: Vec<WorkerStats>,
    /// The devices that outputs leave by, and what they and their queues did not send.
    #[serde(default)]
    pub egress: Vec<EgressStats>,
    /// Packets that were taken at XDP and handed to devices there, by the interface they came by, since the
    /// daemon started; of those interfaces that may be.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub xdp: BTreeMap<String, u64>,
    /// The interfaces that outputs on demand lead to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub demand: Vec<DemandStats>,
    /// Which rules were selected and what all do, where parameters asked for some.
    pub selection: Option<Box<Selection>>,
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
    /// What changed in each of them, line by line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<RuleChange>,
    /// How many rules stayed the same.
    pub unchanged: usize,
    /// What of the settings beyond rules changed, and what it was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<String>,
    /// What keeps rules that came or changed from relaying all they should, though they were
    /// accepted: an interface they wait for, a destination nobody answers for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Of a dry run of a transaction: where rules that would come or change would run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placements: Vec<RulePlacement>,
    /// Whether what was confirmed was to be saved too and is not: who confirms does it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub to_save: bool,
}

/// What changed in a rule that is there before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleChange {
    /// Name of the rule.
    pub rule: String,
    /// Parts that went, as in `output 10.9.9.9:7000` or `limit 20Mbit`.
    pub removed: Vec<String>,
    /// Parts that came.
    pub added: Vec<String>,
}

/// A rule as it was before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EarlierRule {
    /// The rule.
    pub rule: RuleDocument,
    /// What has changed in it since.
    pub since: RuleChange,
}

/// The daemon in a few words.
#[serde_with::skip_serializing_none]
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
    /// Main file of the configuration, whether or not it is there; conf.d beside it belongs to it.
    pub config: Option<String>,
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
    pub last_reload: Option<Reload>,
    /// `degraded` while the running rules are not written down, so that a crash would bring back those
    /// of before, while clients of other hosts are not served as the configuration says, or while somebody
    /// who is to be told of events takes none.
    #[serde(default = "up")]
    pub state: State,
    /// Why the state is not `up`.
    pub state_reason: Option<String>,
    /// The change that undoes itself unless somebody confirms it.
    pub pending: Option<PendingChange>,
    /// How many rules and settings run that the configuration does not say, or the other way round; absent
    /// where it cannot be read.
    pub unsaved: Option<usize>,
    /// How clients of other hosts are served, where they are to be.
    pub api: Option<ApiStatus>,
    /// How it goes with those who are told of events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<NotifyStatus>,
    /// Addresses of this host, on links of rules, that others there have too: which, who, and what to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub address_conflicts: Vec<String>,
    /// What is joined whatever the rules say.
    #[serde(default)]
    pub joins: Vec<JoinStatus>,
    /// The tunnels that the settings ask for.
    #[serde(default)]
    pub tunnels: Vec<TunnelStatus>,
}

/// A group, or a range of them, that is joined whatever the rules say.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinStatus {
    /// As it was asked for, `GROUP%IFACE`, without the time at which it ends.
    pub at: String,
    /// Whether it is joined.
    pub joined: bool,
    /// Why it is not.
    pub reason: Option<String>,
    /// When it ends, in seconds since the epoch; absent if it stays.
    pub until: Option<u64>,
}

const fn up() -> State {
    State::Up
}

/// Something that not every kernel has.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FeatureStatus {
    /// Its name in the kernel's words.
    pub name: String,
    /// Whether it was found; absent if the daemon may not find out.
    pub present: Option<bool>,
    /// What it means that it is missing; absent if it is not.
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

named! {
    /// How much something matters.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum LogLevel {
        /// What failed.
        Error = "error",
        /// What goes wrong.
        Warn = "warn",
        /// Each change of state.
        #[default]
        Info = "info",
        /// What leads to it.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

/// Something that happened.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    /// What kind: `rule_up`, `rule_down`, `rule_degraded`, `rule_disabled`, `rule_added`, `rule_changed`,
    /// `rule_removed`, `settings_changed`, `output_up`, `output_degraded`, `output_down`,
    /// `drops_began`, `drops_ended`, `stream_up`, `stream_degraded`, `stream_down`, `line_down`, `line_up`,
    /// `line_degraded`, `lines_differ`, `skew_exceeds_window`, `stream_restarted`, `input_switched`, `joined`,
    /// `join_failed`, `worker_restarted`, `address_conflict`,
    /// `address_conflict_ended`, `output_unheard`, `output_heard`, `link_changed`, `name_resolved`, `name_failed`, `name_truncated`, `address_came`, `address_gone`,
    /// `output_wanted`, `output_idle`, `querier_changed`, `listeners_refused`, `backlog_raised`, `backlog_short`,
    /// `next_hop_changed`, `reloaded`, `reload_failed`, `change_confirmed`,
    /// `change_undone`, `not_saved`, `saved`, `api_up`, `api_degraded`, `api_refused`, `expires_soon`, `renewed`,
    /// `notify_failed`, `notify_works`, `notify_test`.
    pub kind: String,
    /// Rule, interface or worker it happened to, `configuration` or `daemon`; empty where it stands for many
    /// of its kind.
    pub subject: String,
    /// Which of its inputs, outputs or reasons, where it is about one.
    pub part: Option<String>,
    /// What happened, for people.
    pub message: String,
    /// Who did it, where somebody did.
    pub by: Option<Box<By>>,
    /// Why, as they said.
    pub why: Option<String>,
}

/// Any refused request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorReply {
    /// Stable code: `usage`, `bad_request`, `unauthorized`, `forbidden`, `not_found`, `exists`, `conflict`, `invalid`, `unavailable`,
    /// `privilege`, `too_large`, `timeout`, `internal`.
    pub code: String,
    /// What is wrong and what to do, for people; several errors stand on lines of their own.
    pub message: String,
}
