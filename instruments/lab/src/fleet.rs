//! A fleet on one machine: three members of etcd, relays and a stream through them, all in network
//! namespaces; faults of every kind, and their effect at the receiver.
//!
//! Who forwarded when is derived from packets that arrived, never from what a relay reports of itself.

pub mod bed;
pub mod demo;
pub mod etcd;
pub mod history;
pub mod relay;
#[cfg(feature = "test-support")]
pub mod scenario;
pub mod simulation;
#[cfg(feature = "test-support")]
pub mod table;
pub mod traffic;
