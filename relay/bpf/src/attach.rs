//! Programs on their way into the kernel: whether it takes them, loading, attaching, pinning.

pub mod attached;
mod claim;
mod clsact;
pub mod device;
pub mod link;
pub mod neighbour;
pub mod pin;
pub mod probe;
pub mod program;
mod rtnetlink;
#[cfg(feature = "test-support")]
pub mod scribble;
mod sign;
pub mod socket_filter;
pub mod stray;
#[cfg(feature = "test-support")]
pub mod testrun;
mod verified;
pub mod xdp;
