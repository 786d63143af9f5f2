//! Network namespaces, topologies, scenarios and the bench.
//!
//! Everything here is a guard: what a test makes goes when the test ends, however it ends. The lab
//! runs the `mcr` binary as a user would and never links the data plane. It needs root.

pub mod accounting;
pub mod binary;
pub mod daemon;
pub mod link;
pub mod namespace;
pub mod process;
pub mod socket;
pub mod topology;
pub mod wait;
