//! Why a file cannot be read.

use thiserror::Error;

/// The most bytes of a file that are read; a playlist of 20,000 channels has about half as many.
pub const BYTES_MAX: usize = 4 << 20;

/// Why nothing of a file can be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Too many bytes.
    #[error("holds more than {} MiB; divide it", BYTES_MAX >> 20)]
    TooLarge,
    /// A byte that no text contains.
    #[error("is not text: byte {0} is 0")]
    NotText(usize),
    /// None of the supported formats.
    #[error(
        "is neither SDP, M3U, XSPF, smcroute.conf nor IS-05 by what it begins with; \
         --format says which it is"
    )]
    Unknown,
    /// Not XML, or XML that is not supported.
    #[error("cannot be read as XSPF: {0}")]
    Xml(roxmltree::Error),
    /// Not JSON.
    #[error("cannot be read as JSON: {0}")]
    Json(serde_json::Error),
}
