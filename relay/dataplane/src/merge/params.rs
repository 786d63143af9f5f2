//! How a rule's legs are merged, in the units of the words.

use bpf::merge_layout::{
    BY_ONCE, BY_ONCE_FROM_EACH, BY_PAYLOAD, BY_RTP, BY_SEQUENCE, Merge, MergeFormat, WORD_NUMBERS,
    WORDS,
};
use rules::merge::PACKETS_MAX;

/// Blocks of a stream that remembers the most packets, by payload.
const BLOCKS_LOG_MAX: u32 = (PACKETS_MAX / BLOCK_NUMBERS).ilog2() + 4;
const BLOCK_NUMBERS: u32 = (WORDS * WORD_NUMBERS) as u32;

/// How a rule's legs are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MergeParams {
    /// How a packet is identified.
    pub(crate) format: MergeFormat,
    /// Blocks of a stream, as a power of two.
    pub(crate) blocks_log: u32,
    /// How long a leg may lag behind another.
    pub(crate) window_ns: u64,
    /// The most SSRCs or sessions at a time.
    pub(crate) streams: u32,
}

impl MergeParams {
    /// In the units of the words.
    pub(crate) fn of(merge: &rules::merge::Merge) -> Self {
        Self {
            format: MergeFormat::of(merge),
            blocks_log: Merge::blocks_log(merge),
            window_ns: u64::try_from(merge.window.as_nanos()).unwrap_or(u64::MAX),
            streams: merge.streams,
        }
    }

    /// Blocks of all streams.
    pub(crate) const fn blocks(self) -> u32 {
        Merge::blocks(self.blocks_log)
    }

    /// Returns whether both interpret the stored state alike, so that a running merge can change.
    pub(crate) fn keeps_memory_of(self, other: Self) -> bool {
        let (window_ns, streams) = (self.window_ns, self.streams);
        self == Self {
            window_ns,
            streams,
            ..other
        }
    }

    /// Whether the words of another process may say so.
    pub(super) const fn is_sound(&self) -> bool {
        let format = &self.format;
        let has_number = match format.by {
            BY_RTP | BY_PAYLOAD | BY_ONCE | BY_ONCE_FROM_EACH => true,
            BY_SEQUENCE => matches!(format.number_bytes, 2 | 4 | 8),
            _ => false,
        };
        has_number
            && format.session_bytes <= 16
            && matches!(format.count_bytes, 0 | 1 | 2 | 4)
            && self.blocks_log <= BLOCKS_LOG_MAX
    }
}
