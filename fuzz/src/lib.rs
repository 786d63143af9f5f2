//! The fuzz targets, which the ordinary tests replay: a function for each kind of text or bytes from
//! outside. Each accepts any input, and panics only if a promise is broken.

mod api;
mod bytes;
mod capture;
mod certificate;
mod config;
mod endpoint;
mod fleet;
mod hosts;
mod import;
mod membership;
pub mod mutate;
mod packet;
mod pinned;
mod recovery;

pub use api::{api, elsewhere, http};
pub use capture::capture;
pub use certificate::certificate;
pub use config::config;
pub use endpoint::endpoint;
pub use fleet::{fleet_keys, fleet_peers};
pub use hosts::hosts;
pub use import::import;
pub use membership::membership;
pub use packet::packet;
pub use pinned::pinned;
pub use recovery::{handover, journal};

/// A target: its name, which is that of its corpus, and what it runs.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 16] = [
    ("endpoint", endpoint),
    ("config", config),
    ("hosts", hosts),
    ("api", api),
    ("http", http),
    ("elsewhere", elsewhere),
    ("certificate", certificate),
    ("packet", packet),
    ("capture", capture),
    ("journal", journal),
    ("handover", handover),
    ("pinned", pinned),
    ("fleet_keys", fleet_keys),
    ("fleet_peers", fleet_peers),
    ("import", import),
    ("membership", membership),
];
