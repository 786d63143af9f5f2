//! The bench: scenarios run on beds of namespaces, relays in turn, trials interleaved.
//!
//! It measures and never judges: a result is a figure with its spread, what was offered, what was
//! lost and where. Reports compare afterwards. Words are those of RFC 2544 (offered load, trial,
//! zero-loss rate) and RFC 3918 (group, aggregated multicast throughput).

pub mod bed;
pub mod compare;
pub mod engine;
pub mod estimate;
pub mod hops;
pub mod machine;
pub mod needs;
pub mod plan;
pub mod plot;
pub mod promises;
pub mod published;
pub mod relay;
pub mod reliability;
pub mod report;
pub mod results;
pub mod scenario;
pub mod search;
pub mod sink;
pub mod trial;
pub mod usage;
