//! Programs on their way into the kernel: whether it takes them, loading, attaching, pinning.

pub mod attached;
mod clsact;
#[cfg(feature = "test-support")]
pub mod corrupt;
pub mod device;
pub mod link;
pub mod live;
pub mod orphans;
pub mod other_instances;
pub mod pin;
mod pin_lock;
pub mod probe;
pub mod program;
mod program_cache;
mod sign;
pub mod socket_filter;
#[cfg(feature = "test-support")]
pub mod testrun;
pub mod xdp;
