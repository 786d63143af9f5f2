//! Listeners of outputs on demand.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use counters::counters;

/// An interface that outputs on demand lead to, for one family.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DemandStats {
    /// Name of the interface.
    pub interface: String,
    /// `igmp` or `mld`.
    pub protocol: String,
    /// The address of the router that asks who listens; none while nobody was heard.
    pub querier: Option<String>,
    /// Whether this relay is it.
    pub is_querier: bool,
    /// Groups that are listened to.
    pub groups: u64,
    /// Reports that were heard, leaves included.
    pub reports: u64,
    /// Groups, sources and hosts that there was no room for.
    pub refused: u64,
    /// Groups that were refused to hosts that `listeners` of the outputs do not permit them.
    #[serde(default)]
    pub barred: u64,
    /// Why it cannot be known who listens.
    pub reason: Option<String>,
}

/// A host that listens to a group of an output on demand, as it said itself. One of IGMPv1, IGMPv2 or MLDv1
/// may be silent where another has spoken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ListenerStats {
    /// The output, as the rule writes it, without options.
    pub output: String,
    /// Its interface.
    pub interface: String,
    /// The group, as it leaves by the output.
    pub group: String,
    /// Address of the host; `0.0.0.0` of one that has none.
    pub host: String,
    /// `igmpv1`, `igmpv2`, `igmpv3`, `mldv1` or `mldv2`.
    pub protocol: String,
    /// `include` or `exclude`: to these sources, or to all but these.
    pub mode: String,
    /// The sources.
    pub sources: Vec<String>,
    /// Seconds since it said so first.
    pub seconds: f64,
    /// Seconds since it said so last.
    pub silent_seconds: f64,
}

counters! { DemandStats {
    is_querier: "mcr_querier", "1 if this relay asks who listens on the interface, 0 if another does, or nobody.";
    groups: "mcr_listened_groups", "Groups that hosts on the interface listen to.";
    reports: "mcr_listener_reports_total", "Reports of listeners that were heard on the interface, leaves included.";
    refused: "mcr_listener_refused_total",
        "Groups, sources and hosts that there was no room for on the interface.";
    barred: "mcr_listener_barred_total",
        "Groups refused to hosts that listeners of the outputs do not permit them.";
} }
