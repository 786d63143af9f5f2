//! Headers, checksums, the rewrite and the verdict: the reference for both paths.
//!
//! Pure: no I/O, no allocation per packet, no unsafe.

pub mod verdict;
