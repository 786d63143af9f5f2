//! Reads arbitrary bytes as what a worker sends and what an earlier supervisor left. For fuzzers and tests.

use crate::userspace;

/// Reads bytes as messages on a worker's control socket, in either direction.
pub fn messages(bytes: &[u8]) {
    userspace::shared::messages::read_all(bytes);
}

/// Reads words as the file of the counters' owners.
pub fn owners(words: &[u64]) {
    userspace::supervisor::read_owners(words);
}

/// Reads the label of a descriptor that was held.
pub fn label(text: &str) {
    userspace::supervisor::read_label(text);
}
