//! What is remembered on disk and survives a crash.

pub(crate) mod journal;
pub(crate) mod running;
