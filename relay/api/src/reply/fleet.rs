//! The state of a fleet.

use std::collections::BTreeMap;

use counters::counters;
use rules::document::RuleDocument;
use rules::named::named;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A fleet as one of its relays sees it, as `mcr fleet status --json` prints it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FleetStatus {
    /// Name of the fleet.
    pub fleet: String,
    /// The relay that tells.
    pub relay: String,
    /// Where it stands: `starting`, `waiting`, `joining`, `joined`, `leaving`, `left` or `resting`.
    pub phase: String,
    /// What it does while etcd does not answer: `stop`, `peers` or `hold`.
    pub on_isolation: String,
    /// How long its beats count, in milliseconds.
    pub hold_ms: u64,
    /// How long it may still forward if nothing comes, in milliseconds; none where nothing ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
    /// Generation of the fleet's rules that it has applied; 0 where there never were any.
    pub generation: u64,
    /// Number of the fleet's rules.
    pub rules: usize,
    /// Shares that it took over from a relay that was silent or fenced.
    pub takeovers: u64,
    /// etcd as it sees it.
    pub etcd: FleetEtcd,
    /// What is wrong, the worst first.
    pub problems: Vec<String>,
    /// All relays; those with something wrong first.
    pub relays: Vec<FleetRelay>,
    /// All shares; those with something wrong first.
    pub shares: Vec<FleetShare>,
}

counters! { FleetStatus {
    takeovers: "mcr_fleet_takeovers_total", "Shares that this relay began to forward.";
    etcd.reachable: "mcr_fleet_etcd_reachable", "1 if etcd answers this relay.";
    generation: "mcr_fleet_generation", "Generation of the fleet's rules that this relay has.";
} }

/// etcd as one relay sees it.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FleetEtcd {
    /// Whether it answers.
    pub reachable: bool,
    /// Why it does not.
    pub reason: Option<String>,
    /// Where it last answered.
    pub endpoint: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// Size of its database in bytes.
    pub db_bytes: Option<u64>,
    /// How long the relay's last beat took, in milliseconds.
    pub beat_ms: Option<f64>,
    /// Time since it acknowledged a beat, in milliseconds.
    pub last_ack_ms: Option<u64>,
    /// Time since it last answered anything, in milliseconds: while it does not answer, what is shown of others
    /// is as old.
    pub last_answer_ms: Option<u64>,
}

/// A relay of a fleet.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FleetRelay {
    /// Its name.
    pub name: String,
    /// `up`, `drained`, `unfit` (for some share), `unknown`, `silent` or `fenced`.
    pub state: FleetRelayState,
    /// Since when it has a session, or has none, in milliseconds since 1970.
    pub since_ms: u64,
    /// Time since its last beat, in milliseconds, where the relay that tells watches it.
    pub last_beat_ms: Option<u64>,
    /// Shares that it holds.
    pub shares: usize,
    /// Rules in them.
    pub rules: usize,
    /// What it takes of the rules, against the others' weights.
    pub weight: u32,
    /// Roles that it has interfaces for.
    pub roles: Vec<String>,
    /// Version of its program.
    pub version: String,
    /// Generation of the rules that it has applied.
    pub generation: u64,
    /// Shares that it could not serve, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unfit: BTreeMap<String, String>,
    /// Where the other relays ask it by UDP.
    #[serde(default)]
    pub peer: String,
    /// For how long it has not answered the relay that tells, in milliseconds; none where it does, or is
    /// not asked.
    pub unanswered_ms: Option<u64>,
    /// What its shares counted together; none where it has not told.
    pub counters: Option<FleetCounters>,
}

impl FleetRelay {
    /// That it does not answer, where it does not, and what to do.
    pub fn unanswered(&self) -> Option<String> {
        let (name, peer, seconds) = (&self.name, &self.peer, self.unanswered_ms? / 1000);
        Some(format!(
            "relay {name}: has not answered at {peer} for {seconds} s, so this relay stops when etcd is \
             away; let UDP through both ways, and look at peer in [fleet] of both"
        ))
    }
}

named! {
    /// How a relay of a fleet does.
    #[derive(
        Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
    )]
    #[serde(rename_all = "lowercase")]
    pub enum FleetRelayState {
        /// Another relay ended its session, because it was silent.
        Fenced = "fenced",
        /// It has no session.
        Silent = "silent",
        /// Neither etcd answers nor this relay.
        Unknown = "unknown",
        /// It could not serve some share.
        Unfit = "unfit",
        /// An operator has it hold nothing.
        Drained = "drained",
        /// It beats.
        #[default]
        Up = "up",
    }
}

/// A share of a fleet: rules that change hands together.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FleetShare {
    /// Its name.
    pub name: String,
    /// Its rules, by name.
    pub rules: Vec<String>,
    /// How it stands.
    pub state: FleetShareState,
    /// Who forwards it.
    pub relay: Option<String>,
    /// Since when, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Why it changed hands last.
    pub why: String,
    /// Who takes over next.
    pub standby: Option<String>,
    /// What is wrong with it: nobody holds it, only one relay can serve it, and the like.
    pub problem: Option<String>,
    /// What it counted on all relays together; none where none has told.
    pub counters: Option<FleetCounters>,
}

/// How a share stands.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum FleetShareState {
    /// Nobody holds it.
    #[default]
    Vacant,
    /// The relay that tells holds it and does not forward it now.
    Shut,
    /// The relay that tells gives it away.
    Handing,
    /// The relay that tells forwards it.
    Open,
    /// Another relay holds it.
    Elsewhere,
    /// Another relay held it when etcd last answered, and does not answer either.
    Unknown,
}

/// What rules of a fleet counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetCounters {
    /// Packets that came in.
    pub received: u64,
    /// Copies that left.
    pub relayed: u64,
    /// Packets and copies dropped, for another reason than that the relay stands by.
    pub dropped: u64,
    /// Packets that came in while another relay forwarded.
    pub standby: u64,
    /// Packets that come in, a second.
    pub pps: u64,
}

/// The rules of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetRules {
    /// Their generation; 0 where there never were any.
    pub generation: u64,
    /// The rules as they were applied, with roles for interfaces.
    pub rules: Vec<RuleDocument>,
    /// Why these may not be the fleet's any more: etcd does not answer, and they are what the relay last had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What a relay was given of late, as `mcr fleet record` writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetRecord {
    /// The relay.
    pub relay: String,
    /// The record, in hexadecimal digits.
    pub data: String,
}

/// What applying rules to a fleet changed, or would change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetChange {
    /// Generation of the rules after the change; of those there are for a dry run.
    pub generation: u64,
    /// Names of rules that came.
    pub added: Vec<String>,
    /// Names of rules that went.
    pub removed: Vec<String>,
    /// Names of rules that are there before and after, but not the same.
    pub changed: Vec<String>,
    /// How many rules stayed the same.
    pub unchanged: usize,
    /// What somebody should know of them: a role that no relay has, rules that one relay alone can
    /// serve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl FleetChange {
    /// Whether any rule is not what it was.
    pub const fn differs(&self) -> bool {
        !(self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty())
    }
}

/// What an operator had a fleet do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FleetDone {
    /// The shares that change hands, where it is known which do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<String>,
}
