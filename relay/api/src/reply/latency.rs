//! How long a rule's packets stay in MCR.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How long a sample of a rule's packets stayed on one path.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResidenceStats {
    /// `kernel` or `userspace`.
    pub path: String,
    /// Packets looked at.
    pub samples: u64,
    /// Those whose time began with the kernel's receive timestamp: on the userspace path all, on
    /// the kernel path those that came while the host takes such timestamps. The time of the others
    /// began when the program had found the rule.
    pub stamped: u64,
    /// All times together.
    pub sum_seconds: f64,
    /// Half of the samples stayed shorter than this; none while there are none, or where they lie
    /// above all bounds.
    pub p50_seconds: Option<f64>,
    /// The same for 99 of a hundred.
    pub p99_seconds: Option<f64>,
    /// The samples by how long they stayed; buckets in which none lie are left out.
    pub buckets: Vec<ResidenceBucket>,
}

/// One bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResidenceBucket {
    /// Its packets stayed shorter than this, and at least half as long; none for the last, which
    /// holds all that is longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below_seconds: Option<f64>,
    /// Packets in this bucket alone.
    pub packets: u64,
}
