//! The userspace path: AF_PACKET in, AF_PACKET out, in worker processes that the supervisor starts,
//! feeds and replaces.
//!
//! `supervisor` runs in the daemon, `worker` (the hot path) in processes of its own, `shared` is their
//! messages and memory.

pub(crate) mod shared;
pub(crate) mod supervisor;
pub mod worker;

pub use shared::messages::Means;
pub(crate) use supervisor::Userspace;
pub use supervisor::{Error, Options, support};
