//! Generator, verifier and latency measurement: what `mcr send` and `mcr receive` do.
//!
//! Knows nothing of rules or of the relay; useful to any multicast engineer without it.

pub mod clock;
pub mod endpoint;
pub mod generator;
pub mod latency;
pub mod payload;
pub mod receiver;
pub mod report;
pub mod schedule;
pub mod sequence;
