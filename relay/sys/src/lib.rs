//! The unsafe fence: the system calls MCR needs beyond the standard library, as safe functions.

pub mod abort_on_panic;
pub mod capability;
pub mod capture_sign;
pub mod clock;
pub mod descriptor;
pub mod ethtool;
#[cfg(feature = "test-support")]
pub mod frame_socket;
pub mod group_socket;
pub mod heap;
pub mod host_socket;
pub mod membership;
pub mod memory;
pub mod netdev;
pub mod netns;
pub mod packet_socket;
pub mod routed_socket;
pub mod sandbox;
pub mod shared_memory;
pub mod sniffer;
pub mod socket_lookup;
pub mod sysfs;
pub mod udp;
pub mod uring;
pub mod user;
pub mod wait;
