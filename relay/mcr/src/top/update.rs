//! What the threads that query daemons pass to the screen.

use std::time::Duration;

use api::query::StatsQuery;
use api::reply::{Event, History, Stats, Status};

/// A host, and why it does not answer, if it does not.
pub(crate) type HostState = (String, Option<String>);

/// Something new to show.
#[derive(Debug)]
pub(crate) enum Update {
    /// The rules that a query selects; if of several hosts, which of them answer.
    Stats(Box<StatsQuery>, Box<Stats>, Box<Status>, Vec<HostState>),
    /// The past before the newest statistics, which are queried at this interval.
    Past(Box<History>, Duration),
    Event(Event),
    Missed(u64),
    /// The daemon does not answer, and why.
    Unreachable(String),
}
