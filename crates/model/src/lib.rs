//! Rules, the forwarding table compiled from them, and where each route runs.
//!
//! Everything here is a pure function of its arguments: no I/O, no clock, no unsafe. The daemon
//! feeds it rules and a [`host::Host`] snapshot and hands the resulting [`diff::TableDiff`] down to
//! the paths.

pub mod diff;
pub mod host;
pub mod net;
pub mod table;
