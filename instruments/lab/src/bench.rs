//! The bench: scenarios run on beds of namespaces, relays in turn, trials interleaved.
//!
//! It measures and never judges: a result is a figure with its spread, what was offered, what was
//! lost and where. Reports compare afterwards. The terms are those of RFC 2544 (offered load, trial,
//! zero-loss rate) and RFC 3918 (group, aggregated multicast throughput).
//!
//! A run writes results, a report reads them: `run` and `report` import `results`, and `report` takes
//! only the list of scenarios from `run`.

pub mod report;
pub mod results;
pub mod run;
