//! Datagrams that leave as one message, or as the segments of one.

use std::ops::Range;

/// Messages gathered before a flush.
pub(super) const BATCH: usize = 64;

/// Datagrams of one stream and one size, in slots back to back.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The stream they belong to.
    pub(super) stream: usize,
    /// Where the slots lie in the buffer.
    pub(super) bytes: Range<usize>,
    /// Size of a slot: the payload and the headroom in front of it.
    pub(super) slot: usize,
}

impl Group {
    pub(super) fn datagrams(&self) -> u64 {
        // A datagram without payload takes a slot of no bytes and is a group by itself.
        self.bytes.len().checked_div(self.slot).unwrap_or(1) as u64
    }
}
