//! The client against real members of etcd on the loopback interface.

#![expect(clippy::unwrap_used, reason = "tests")]

mod access;
mod cluster;
mod faults;
mod secured;
mod transactions;
mod watches;
