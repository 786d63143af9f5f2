//! State on disk that survives a crash.

pub(crate) mod acknowledged;
pub(crate) mod changes;
pub(crate) mod generations;
pub(crate) mod journal;
mod lines;
pub(crate) mod pending;
pub(crate) mod running;
