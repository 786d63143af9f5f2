//! Makes rules from existing files: session descriptions, playlists, smcroute.conf, IS-05 files.
//!
//! ```text
//! bytes ── read ──> streams ── make, with what the file does not say ──> rules
//!            └────────────────────┴──> remarks: what was not taken over, line by line
//! ```
//!
//! To support a further kind of file, add a reader here and its variant in `read`.
//!
//! Pure: no I/O, no clock. No input panics, and the result is always a valid set of rules.

mod address;
mod error;
mod is05;
mod m3u;
mod make;
mod name;
mod parsed;
mod read;
mod remark;
mod sdp;
mod smcroute;
mod to;
mod url;
mod xspf;

pub use error::{BYTES_MAX, ReadError};
pub use make::{Imported, Missing, Options, make};
pub use parsed::{Leg, Parsed, Stream};
pub use read::{Format, read};
pub use remark::{Position, Remark, Why};
pub use to::{To, ToError};
