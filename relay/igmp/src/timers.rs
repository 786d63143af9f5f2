//! Timers between hosts and multicast routers (RFC 3376 section 8, RFC 3810 section 9).

use std::time::Duration;

/// The timers of a link, which its querier announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// The robustness variable: how often a message is repeated against loss.
    pub robustness: u8,
    /// The time between general queries.
    pub query_interval: Duration,
    /// The time within which hosts answer a general query.
    pub query_response: Duration,
    /// The time within which hosts answer a query that follows a leave.
    pub last_member_response: Duration,
}

/// The RFCs' values.
impl Default for Timers {
    fn default() -> Self {
        Self {
            robustness: 2,
            query_interval: Duration::from_secs(125),
            query_response: Duration::from_secs(10),
            last_member_response: Duration::from_secs(1),
        }
    }
}

impl Timers {
    /// How long a host's report is valid if no other follows.
    pub fn membership(&self) -> Duration {
        self.query_interval * u32::from(self.robustness) + self.query_response
    }

    /// How long another querier is taken to be present after its last query.
    pub fn other_querier(&self) -> Duration {
        self.query_interval * u32::from(self.robustness) + self.query_response / 2
    }

    /// How long a group stays after a leave if no host reports it.
    pub fn last_member(&self) -> Duration {
        self.last_member_response * u32::from(self.robustness)
    }

    /// The time between the general queries of a querier that has just started.
    pub fn startup_interval(&self) -> Duration {
        self.query_interval / 4
    }
}
