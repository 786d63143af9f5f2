//! What supervisor and workers share: messages on a socket pair, and memory with counters and with
//! what workers decide by.

pub(crate) mod counted;
pub(crate) mod counters;
pub(crate) mod flows;
pub(crate) mod gates;
pub(crate) mod layout;
pub(crate) mod limits;
pub(crate) mod merges;
pub(crate) mod messages;
pub(crate) mod requesters;
pub(crate) mod routed;
pub(crate) mod state;
