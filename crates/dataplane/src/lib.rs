//! Executes the forwarding table on the kernel path and the userspace path.

pub mod counters;
