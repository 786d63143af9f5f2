//! The messages between generator and verifier: one JSON value per line, each request answered by
//! one reply. Unknown variants and fields are refused, so a new version is a new number.

use serde::{Deserialize, Serialize};

use super::host::{Counters, Host};
use crate::latency::Summary;

/// The version of the conversation.
pub const VERSION: u32 = 1;
/// The longest line that a verifier reads.
pub const REQUEST_BYTES: usize = 1024;
/// The longest line that a generator reads: a count for each of 65,536 groups and ports, and the
/// host.
pub const REPLY_BYTES: usize = 4 << 20;
/// The longest trial, in seconds.
pub const TRIAL_SECONDS: f64 = 3600.0;

/// A generator's request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The first line: the version of the protocol.
    Hello {
        /// Its [`VERSION`].
        version: u32,
    },
    /// Read the verifier's clock.
    Clock {},
    /// Count from now on.
    Begin {
        /// How long packets will be sent, in seconds.
        seconds: f64,
        /// By how much the verifier's clock is ahead of the generator's, in nanoseconds.
        ahead_ns: i64,
        /// How far that may be wrong, in nanoseconds; latencies down to that much below 0 are
        /// distinguished.
        bound_ns: u64,
    },
    /// Everything is sent; report what arrived.
    End {
        /// Copies that should arrive.
        copies: u64,
    },
}

/// A verifier's reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// To `hello`.
    Welcome {
        /// The verifier's [`VERSION`].
        version: u32,
        /// How many groups and ports it counts at, in the order of its endpoints.
        places: u32,
        /// What it runs on.
        host: Box<Host>,
    },
    /// To `clock`.
    Clock {
        /// CLOCK_REALTIME, in nanoseconds.
        realtime_ns: u64,
    },
    /// To `begin`: whatever arrives now is counted.
    Ready {
        /// The host's counters before the trial.
        counters: Counters,
    },
    /// To `end`.
    Counted(Box<Counted>),
    /// To anything that is not understood or not possible.
    Refused {
        /// Why, for people.
        reason: String,
    },
}

/// What arrived in a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// Different packets at each group and port, in the order of the endpoints.
    pub received: Vec<u64>,
    /// Packets that arrived again.
    pub duplicated: u64,
    /// Packets that arrived after one with a higher number.
    pub reordered: u64,
    /// From the intended send time to the verifier's ingress, with the clocks' difference subtracted.
    pub latency_us: Summary,
    /// The host's counters after the trial.
    pub counters: Counters,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_messages_are_refused() {
        for line in [
            r#"{"hello":{"version":1,"name":"x"}}"#,
            r#"{"hello":{}}"#,
            r#"{"clock":{"zone":"utc"}}"#,
            r#"{"listen":{"at":"eth0"}}"#,
            r#"{"end":{"copies":-1}}"#,
            r#""clock""#,
            "[]",
        ] {
            assert!(serde_json::from_str::<Request>(line).is_err(), "{line}");
        }
        let hello: Request = serde_json::from_str(r#"{"hello":{"version":1}}"#).unwrap();
        assert_eq!(hello, Request::Hello { version: 1 });
    }
}
