//! Clients of other hosts, and how they are served.

use counters::counters;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::State;

/// How clients of other hosts are served.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiStatus {
    /// Address and port.
    pub listen: String,
    /// `degraded` while they are not served, or not as the configuration says.
    pub state: State,
    /// Why.
    pub reason: Option<String>,
    /// How many clients the configuration names.
    pub clients: usize,
    /// When the listener's certificate ends, in seconds since the epoch.
    pub certificate_expires: Option<u64>,
    /// What ends within 14 days, or has: the certificate, clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expiring: Vec<String>,
    /// Handshakes and requests that were refused.
    pub refused: u64,
}

/// How it goes with somebody who is told of events.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotifyStatus {
    /// `webhook`, or which target of the configuration it is: `target 1`.
    pub name: String,
    /// Where it is, without the path, which may be a secret.
    pub to: String,
    /// `mcr`, `cloudevents` or `alertmanager`.
    pub format: String,
    /// `degraded` while it takes no events.
    pub state: State,
    /// Why.
    pub reason: Option<String>,
    /// Posts that it took.
    pub sent: u64,
    /// Events that it refused, or that it did not take in time.
    pub dropped: u64,
}

counters! { NotifyStatus {
    sent: "mcr_notify_sent_total", "Posts that were taken.";
    dropped: "mcr_notify_dropped_events_total", "Events that were not taken in time, or refused.";
} }

/// What became of telling somebody for a test.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotifyTested {
    /// As in `NotifyStatus`.
    pub name: String,
    /// Where it is, without the path, which may be a secret.
    pub to: String,
    /// Why it did not take it.
    pub error: Option<String>,
}

/// A client of other hosts, without what it shows.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiClientStatus {
    /// Its name.
    pub name: String,
    /// `view`, `operate` or `change`.
    pub role: String,
    /// `token` or `certificate`.
    pub by: String,
    /// Networks that it comes from; none: anywhere.
    pub from: Vec<String>,
    /// When it ends, in seconds since the epoch.
    pub expires: Option<u64>,
    /// When it was last served since the daemon started, in seconds since the epoch.
    pub last_used: Option<u64>,
    /// The address that it came from then.
    pub last_from: Option<String>,
}

/// Who is signed in by a browser.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignedIn {
    /// Name of the client; absent where nobody is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// What it may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// What each change has to say in `X-MCR-CSRF`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csrf: Option<String>,
    /// Where nobody is signed in: the client that the browser's certificate is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}
