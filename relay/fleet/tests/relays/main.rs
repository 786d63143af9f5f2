//! Relays against real members of etcd on the loopback interface; their calls of the data plane are
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
