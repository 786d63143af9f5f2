//! `mcr doctor` in beds that are broken on purpose, each in one way, and in one that is not.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "doctor/bed.rs"]
mod bed;
#[path = "doctor/firewall.rs"]
mod firewall;
#[path = "doctor/hooks.rs"]
mod hooks;
#[path = "doctor/host.rs"]
mod host;
#[path = "doctor/links.rs"]
mod links;
#[path = "doctor/ttl.rs"]
mod ttl;
