//! Generator, verifier and latency measurement: what `mcr send` and `mcr receive` do.
//!
//! Independent of rules and of the relay: useful to any multicast engineer without it.

pub mod capture;
pub mod clock;
pub mod driver;
pub mod endpoint;
pub mod framing;
pub mod generator;
mod host;
pub mod ingress;
pub mod latency;
pub mod payload;
mod random;
pub mod receiver;
pub mod report;
pub mod schedule;
pub mod search;
pub mod sequence;
pub mod trial;
pub mod wire;
