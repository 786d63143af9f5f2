//! Reads what a worker sends and what an earlier supervisor left, whatever it holds. For fuzzers and
//! tests.

use crate::userspace;

/// Reads bytes as what is said on a worker's control socket, in either direction.
pub fn messages(bytes: &[u8]) {
    userspace::shared::messages::hear(bytes);
}

/// Reads words as the file that says who owns which counters.
pub fn owners(words: &[u64]) {
    userspace::supervisor::read_owners(words);
}

/// Reads the label of a descriptor that was held.
pub fn label(text: &str) {
    userspace::supervisor::read_label(text);
}
