//! The kernel path on real interfaces: what `apply` promises while traffic flows, and what survives
//! the process. Needs root.
#![expect(clippy::unwrap_used, reason = "tests")]

mod adopt;
mod apply;
mod bed;
mod checksums;
mod clsact;
mod devices;
mod fragments;
mod gates;
mod merge;
mod relay;
mod tun;
