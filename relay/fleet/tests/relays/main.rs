//! Relays against real members of etcd on the loopback interface; what they do to the data plane is
//! recorded.

#![expect(clippy::unwrap_used, reason = "tests")]

mod access;
#[path = "../../../etcd/tests/etcd/cluster.rs"]
mod cluster;
mod engines;
mod faults;
mod node;
mod operators;
mod recorder;
mod restarts;
mod rules;
#[path = "../../../etcd/tests/etcd/secured.rs"]
mod secured;
