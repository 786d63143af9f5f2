//! Timers between hosts and multicast routers (RFC 3376 section 8, RFC 3810 section 9).

use std::time::Duration;

/// The values of a link, which its querier tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// How many messages may be lost in a row, and one is not enough.
    pub robustness: u8,
    /// Between general queries.
    pub query_interval: Duration,
    /// Within what time hosts answer a general query.
    pub query_response: Duration,
    /// Within what time hosts answer when another has left.
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
    /// How long a host counts that says nothing more.
    pub fn membership(&self) -> Duration {
        self.query_interval * u32::from(self.robustness) + self.query_response
    }

    /// How long another querier counts that asks nothing more.
    pub fn other_querier(&self) -> Duration {
        self.query_interval * u32::from(self.robustness) + self.query_response / 2
    }

    /// How long a group stays after a leave, if nobody says that it is still there.
    pub fn last_member(&self) -> Duration {
        self.last_member_response * u32::from(self.robustness)
    }

    /// Between the general queries of a querier that has just begun.
    pub fn startup_interval(&self) -> Duration {
        self.query_interval / 4
    }
}
