//! Headers, checksums, the rewrite and the verdict: the reference for both paths.
//!
//! Pure: no I/O and no unsafe. Everything but the reference executor, [`fragment`]'s split,
//! [`classic_bpf`], [`content`] and [`craft`] is hot path: no allocation per packet, no panic,
//! every access bounds-checked.

pub mod answer;
mod bytes;
pub mod checksum;
pub mod classic_bpf;
pub mod content;
pub mod craft;
pub mod datagram;
pub mod ethernet;
pub mod failover;
pub mod fragment;
pub mod fragment_cache;
pub mod health;
pub mod ipv4;
pub mod ipv6;
pub mod latency;
pub mod limit;
mod meta;
pub mod mpeg_ts;
pub mod parse;
pub mod reference;
pub mod rewrite;
pub mod rtp;
pub mod udp;
pub mod verdict;
