//! Rules, the forwarding table compiled from them, and where each route runs.
//!
//! Everything here is a pure function of its arguments: no I/O, no clock, no unsafe. The daemon
//! feeds it rules and a [`host::Host`] snapshot and hands the resulting [`diff::TableDiff`] down to
//! the paths.

pub mod compile;
pub mod config;
pub mod diff;
pub mod document;
pub mod endpoint;
pub mod host;
pub mod limit;
mod loops;
pub mod net;
pub mod placement;
pub mod problem;
pub mod rule;
pub mod ruleset;
pub mod table;
pub mod wildcard;

#[cfg(test)]
mod samples;
