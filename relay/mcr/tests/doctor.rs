//! `mcr doctor` in beds that are broken on purpose, each in one way, and in one that is not.

#![expect(clippy::unwrap_used, reason = "tests")]

mod arrival;
mod bed;
mod firewall;
mod hooks;
mod host;
mod links;
mod reflect;
mod takers;
mod ttl;
