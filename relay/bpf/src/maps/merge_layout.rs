//! The Rust mirror of `merge_layout.h`; tests hold it against the compiled code.

use rules::merge::{By, LINES_MAX, Merge as Model, Sequence};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Streams of a merge that are remembered at a time.
pub const STREAMS: usize = 4;
/// Words of a block, each of [`WORD_NUMBERS`].
pub const WORDS: usize = 256;
/// Names of blocks that rules get; behind them come those of what has no number.
pub const RINGS: u32 = 262_144;
/// Blocks of what has no number, of each merge; behind them come those of cells.
pub const TABLE: u32 = 4;
/// Blocks of a cell.
pub const CELL_BLOCKS: u32 = 128;
/// The most entries that packets may take as cells.
pub const CELLS: u32 = 8_192;
/// In [`Merge::owner`]: packets took it, and it is ready; the rule's entry and the key follow.
pub const CELL: u64 = 0xc000_0000 << 32;
/// Numbers of a word.
pub const WORD_NUMBERS: usize = 8;
/// Numbers that a packet may take up for as many packets to be remembered as is said, their logarithm.
pub const NUMBERS_LOG: u32 = 5;
/// The most blocks of a stream whose packets take up several numbers, their logarithm.
const COUNTED_LOG_MAX: u32 = 5;
/// Bits of a number; above them stands the generation.
pub const NUMBER_BITS: u32 = 48;

/// Nothing is merged: each packet passes.
pub const BY_NOTHING: u32 = 0;
/// By RTP's sequence number and source.
pub const BY_RTP: u32 = 1;
/// By a number at a fixed place.
pub const BY_SEQUENCE: u32 = 2;
/// By all of the payload.
pub const BY_PAYLOAD: u32 = 3;
/// By all of the payload, which passes once in a window.
pub const BY_ONCE: u32 = 4;
/// The same, of each sender by itself.
pub const BY_ONCE_FROM_EACH: u32 = 5;

/// What a packet of a stream is called by, in the payload.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct MergeFormat {
    /// `BY_*`.
    pub by: u32,
    /// Where the number stands.
    pub number_offset: u16,
    /// Its length.
    pub number_bytes: u8,
    /// 1: its least significant byte comes first, and that of `count`.
    pub little_endian: u8,
    /// Where the session stands.
    pub session_offset: u16,
    /// Its length; 0: there is none.
    pub session_bytes: u8,
    /// Length of the count; 0: each packet takes up one number.
    pub count_bytes: u8,
    /// Where the count stands.
    pub count_offset: u16,
    /// Zero.
    pub pad: u16,
}

impl MergeFormat {
    /// What a rule says, as the program reads it.
    pub fn of(merge: &Model) -> Self {
        match merge.by {
            By::Rtp => Self {
                by: BY_RTP,
                ..Self::default()
            },
            By::Payload => Self {
                by: BY_PAYLOAD,
                ..Self::default()
            },
            By::Once => Self {
                by: BY_ONCE,
                ..Self::default()
            },
            By::OnceFromEach => Self {
                by: BY_ONCE_FROM_EACH,
                ..Self::default()
            },
            By::MoldUdp64 => Self::of_sequence(&rules::merge::MOLDUDP64),
            By::Mdp3 => Self::of_sequence(&rules::merge::MDP3),
            By::Sequence(sequence) => Self::of_sequence(&sequence),
        }
    }

    /// Says whether it matters which leg brings a packet.
    pub const fn has_lines(&self) -> bool {
        !matches!(self.by, BY_ONCE | BY_ONCE_FROM_EACH)
    }

    /// Says whether something in packets tells streams apart.
    pub const fn has_keys(&self) -> bool {
        self.by == BY_RTP || self.session_bytes != 0
    }

    fn of_sequence(sequence: &Sequence) -> Self {
        let session = sequence.session.map(|field| (field.offset, field.bytes));
        let count = sequence.count.map(|field| (field.offset, field.bytes));
        Self {
            by: BY_SEQUENCE,
            number_offset: sequence.number.offset,
            number_bytes: sequence.number.bytes,
            little_endian: u8::from(sequence.order == rules::merge::ByteOrder::Little),
            session_offset: session.unwrap_or_default().0,
            session_bytes: session.unwrap_or_default().1,
            count_bytes: count.unwrap_or_default().1,
            count_offset: count.unwrap_or_default().0,
            pad: 0,
        }
    }
}

/// The numbers of one stream that one leg brought; generation in the upper 16 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct MergePart {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// The program's: the last that it brought at all, be it too far behind.
    pub mark: u64,
}

/// Numbers of one SSRC or session that go on from each other.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct MergeStream {
    /// Key 32, generation 16, lower bits of its first number 16; generation 0: none. A generation has
    /// in its two lower bits the leg that opened the stream.
    pub id: u64,
    /// Newest number: generation 16, number 48.
    pub top: u64,
    /// Oldest: the same.
    pub base: u64,
    /// When it was opened.
    pub opened_ns: u64,
    /// When a packet of it came.
    pub seen_ns: u64,
    /// When it got its first number; 0: each leg accounts for it from its own first.
    pub began_ns: u64,
    /// The program's: how often in a row each leg repeated itself, and where.
    pub again: u64,
    /// The program's: the newest before packets that came alone far ahead, or one of those; 0: none came.
    pub pad: u64,
}

/// What the packets of one leg write.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct MergeLine {
    /// Packets by verdict: first, duplicate, repeated, late, stray.
    pub counts: [u64; 5],
    /// Numbers that it brought, where packets take up several.
    pub numbers: u64,
    /// When a packet of it belonged to a stream.
    pub seen_ns: u64,
    /// The program's: a number that may begin a stream anew.
    pub candidate: u64,
    /// Numbers of streams that are over.
    pub span: u64,
    /// How much later than the first its copies come: mean, times 8.
    pub skew_ns_8: u64,
    /// The most that was.
    pub skew_max_ns: u64,
    /// User space's: since when it is a leg of this rule; 0: it is none.
    pub since_ns: u64,
    /// User space's: its input's counter plus one.
    pub owner: u64,
    /// First and duplicate packets that have no number.
    pub unnumbered: u64,
    /// First packets under a number that stood still.
    pub still: u64,
    /// Packets of streams for which there was no room.
    pub exceeded: u64,
    /// Packets of what another leg cut differently.
    pub cut: u64,
    /// The program's: a number that nobody had begun when it came.
    pub stray: u64,
    /// User space's: not 0 where it came to others, or in the place of some.
    pub joins: u64,
    /// The program's: when it brought its first of the stream that it came to last.
    pub began_ns: u64,
    /// What it brought of each stream.
    pub part: [MergePart; STREAMS],
}

/// Entry of `merges`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct Merge {
    /// What packets are called by.
    pub format: MergeFormat,
    /// First of its [`Self::blocks`].
    pub first_block: u32,
    /// Blocks of a stream, their logarithm.
    pub blocks_log: u32,
    /// After so long without a packet nothing of a stream is in flight.
    pub window_ns: u64,
    /// The program's: generation of the stream opened last, without a leg, and its place.
    pub newest: u64,
    /// User space's: the rule's counter plus one; 0: free. Of a cell: [`CELL`], rule and key.
    pub owner: u64,
    /// The first of the entries that packets may take as cells.
    pub first_place: u32,
    /// How many there are.
    pub places: u32,
    /// The first of the rule's cells, plus one; above it, how many. Of a cell: the next.
    pub cells: u64,
    /// Numbers of streams that are over.
    pub span: u64,
    /// Numbers that left and stand in no leg's counts.
    pub firsts: u64,
    /// Packets that left and have no number.
    pub unnumbered: u64,
    /// Packets, or payloads that are remembered, for which there was no room.
    pub unsettled: u64,
    /// The route whose `health` all legs' packets are inspected for, plus one.
    pub watch: u32,
    /// The program's: a CPU is at it.
    pub watcher: u32,
    /// Whose streams are here, with bit 32 set; 0: nobody's.
    pub key: u64,
    /// The program's: when a leg began to bring something while none did.
    pub opener: u64,
    /// The most keys at a time.
    pub streams: u32,
    /// Zero.
    pub pad: u32,
    /// Its streams.
    pub stream: [MergeStream; STREAMS],
    /// Its legs.
    pub line: [MergeLine; LINES_MAX],
}

impl Merge {
    /// A merge in which nothing came yet and that has no legs; its blocks are to follow
    /// `first_block`.
    pub fn of(merge: &Model, first_block: u32) -> Self {
        Self {
            format: MergeFormat::of(merge),
            first_block,
            blocks_log: Self::blocks_log(merge),
            window_ns: u64::try_from(merge.window.as_nanos()).unwrap_or(u64::MAX),
            streams: merge.streams,
            ..Self::default()
        }
    }

    /// Bytes of a merge that has all the streams it may have, none of which begins anew.
    pub fn memory(merge: &Model) -> u64 {
        let format = MergeFormat::of(merge);
        let log = Self::blocks_log(merge);
        let streams = if format.has_keys() { merge.streams } else { 1 };
        let blocks = match format.by {
            BY_RTP | BY_SEQUENCE => 1 << log,
            _ => Self::blocks(log),
        };
        let bytes = size_of::<Self>() + size_of::<MergeBlock>() * blocks as usize;
        u64::from(streams) * bytes as u64
    }

    /// Blocks of all its streams.
    pub const fn blocks(blocks_log: u32) -> u32 {
        (STREAMS as u32) << blocks_log
    }

    /// `blocks_log` of a merge that remembers as many packets as it says. A payload takes up a word, and
    /// has a place in one bucket of eight alone: with one word taken of eight none overflows. Where
    /// packets take up several numbers, each may take up so many.
    pub fn blocks_log(merge: &Model) -> u32 {
        let block = (WORDS * WORD_NUMBERS) as u32;
        let log = merge
            .packets
            .div_ceil(block)
            .max(1)
            .next_power_of_two()
            .ilog2();
        match merge.by {
            By::Payload | By::Once | By::OnceFromEach => log + 4,
            By::MoldUdp64 | By::Sequence(Sequence { count: Some(_), .. }) => {
                (log + NUMBERS_LOG).min(COUNTED_LOG_MAX)
            }
            _ => log,
        }
    }
}

/// Value of `merge_blocks`: a ring of words, or part of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct MergeBlock {
    /// Generation 16, turn of the ring 16, a bit for each leg and 8 numbers.
    pub word: [u64; WORDS],
    /// When the first packet of every fourth word came.
    pub stamp: [u64; WORDS / 4],
}

impl Default for MergeBlock {
    fn default() -> Self {
        Self {
            word: [0; WORDS],
            stamp: [0; WORDS / 4],
        }
    }
}
