//! The daemon as its users meet it: the real binary in network namespaces, one topic per file.
//!
//! One program, so that tests of all topics run side by side and are linked once.

mod accounting;
mod adversary;
mod bench;
mod bridge;
mod change_cost;
mod checksums;
mod churn;
mod devices;
mod failover;
mod fanout;
mod faults;
mod filters;
mod fragments;
mod full;
mod hitless;
mod hostile;
mod hostile_clients;
mod inputs;
mod instances;
mod ipv6;
mod isolation;
mod limits;
mod local;
mod log;
mod loops;
mod merge;
mod operation;
mod own_sockets;
mod privileges;
mod ranges;
mod reflect;
mod reload;
mod restart;
mod rewrite;
mod rpf;
mod scale;
mod security;
mod soak;
mod sources;
mod topology;
mod unicast;
mod unicast_in;
mod vlan;
mod world;
