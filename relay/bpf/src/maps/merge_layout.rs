//! The Rust mirror of `merge_layout.h`; tests hold it against the compiled code.

use rules::merge::{By, LINES_MAX, Merge as Model, Sequence};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Streams of a merge that are recorded at a time.
pub const STREAMS: usize = 4;
/// Words of a block, each of [`WORD_NUMBERS`].
pub const WORDS: usize = 256;
/// Blocks that rules get; those of packets without numbers follow.
pub const RINGS: u32 = 262_144;
/// Blocks of packets without numbers, for each merge; those of cells follow.
pub const TABLE: u32 = 4;
/// Blocks of a cell.
pub const CELL_BLOCKS: u32 = 128;
/// The most entries that packets may take as cells.
pub const CELLS: u32 = 8_192;
/// In [`Merge::owner`]: packets took it, and it is ready; the rule's entry and the key follow.
pub const CELL: u64 = 0xc000_0000 << 32;
/// Numbers of a word.
pub const WORD_NUMBERS: usize = 8;
/// Logarithm of the most numbers that a packet may take up for the configured number of packets to be recorded.
pub const NUMBERS_LOG: u32 = 5;
/// Logarithm of the most blocks of a stream whose packets take up several numbers.
const COUNTED_LOG_MAX: u32 = 5;
/// Bits of a number; the generation is above them.
pub const NUMBER_BITS: u32 = 48;

/// Nothing is merged: each packet passes.
pub const BY_NOTHING: u32 = 0;
/// By RTP's sequence number and source.
pub const BY_RTP: u32 = 1;
/// By a number at a fixed offset.
pub const BY_SEQUENCE: u32 = 2;
/// By all of the payload.
pub const BY_PAYLOAD: u32 = 3;
/// By all of the payload, which passes once in a window.
pub const BY_ONCE: u32 = 4;
/// The same, for each sender by itself.
pub const BY_ONCE_FROM_EACH: u32 = 5;

/// How a packet of a stream is identified, by its payload.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct MergeFormat {
    /// `BY_*`.
    pub by: u32,
    /// Offset of the number.
    pub number_offset: u16,
    /// Its length.
    pub number_bytes: u8,
    /// 1 if its least significant byte comes first, and that of `count`.
    pub little_endian: u8,
    /// Offset of the session.
    pub session_offset: u16,
    /// Its length; 0 if there is none.
    pub session_bytes: u8,
    /// Length of the count; 0 if each packet takes up one number.
    pub count_bytes: u8,
    /// Offset of the count.
    pub count_offset: u16,
    /// Zero.
    pub pad: u16,
}

impl MergeFormat {
    /// Encodes a rule's merge for the program.
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

    /// Returns whether it matters which leg delivers a packet.
    pub const fn has_lines(&self) -> bool {
        !matches!(self.by, BY_ONCE | BY_ONCE_FROM_EACH)
    }

    /// Returns whether something in packets distinguishes streams.
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

/// The numbers of one stream that one leg delivered; generation in the upper 16 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct MergePart {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// The program's: the last that it delivered at all, even if too far behind.
    pub mark: u64,
}

/// Consecutive numbers of one SSRC or session.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct MergeStream {
    /// Key 32, generation 16, lower bits of its first number 16; generation 0 for none. The two lower bits of a
    /// generation are the leg that opened the stream.
    pub id: u64,
    /// Newest number: generation 16, number 48.
    pub top: u64,
    /// Oldest: the same.
    pub base: u64,
    /// When it was opened.
    pub opened_ns: u64,
    /// When a packet of it last arrived.
    pub seen_ns: u64,
    /// When it got its first number; 0 if each leg accounts for it from its own first.
    pub began_ns: u64,
    /// The program's: how often in a row each leg repeated itself, and where.
    pub again: u64,
    /// The program's: the newest before packets that arrived alone far ahead, or one of those; 0 for none.
    pub pad: u64,
}

/// What the packets of one leg write.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct MergeLine {
    /// Packets by verdict: first, duplicate, repeated, late, stray.
    pub counts: [u64; 5],
    /// Numbers that it delivered, where packets take up several.
    pub numbers: u64,
    /// When a packet of it last belonged to a stream.
    pub seen_ns: u64,
    /// The program's: a number that may begin a stream anew.
    pub candidate: u64,
    /// Numbers of streams that are over.
    pub span: u64,
    /// How much later than the first its copies arrive: mean, times 8.
    pub skew_ns_8: u64,
    /// The most that was.
    pub skew_max_ns: u64,
    /// User space's: since when it is a leg of this rule; 0 if it is none.
    pub since_ns: u64,
    /// User space's: its input's counter plus one.
    pub owner: u64,
    /// First and duplicate packets that have no number.
    pub unnumbered: u64,
    /// First packets under a number that stood still.
    pub still: u64,
    /// Packets of streams for which there was no room.
    pub exceeded: u64,
    /// Packets of content that another leg cut differently.
    pub cut: u64,
    /// The program's: a number that no leg had begun when it arrived.
    pub stray: u64,
    /// User space's: not 0 where it joined others, or replaced one.
    pub joins: u64,
    /// The program's: when it delivered its first number of the stream that it joined last.
    pub began_ns: u64,
    /// What it delivered of each stream.
    pub part: [MergePart; STREAMS],
}

/// Entry of `merges`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct Merge {
    /// How packets are identified.
    pub format: MergeFormat,
    /// First of its [`Self::blocks`].
    pub first_block: u32,
    /// Blocks of a stream, their logarithm.
    pub blocks_log: u32,
    /// The time without a packet after which nothing of a stream is in flight.
    pub window_ns: u64,
    /// The program's: generation of the stream opened last, without a leg, and its index.
    pub newest: u64,
    /// User space's: the rule's counter plus one; 0 if free. Of a cell: [`CELL`], rule and key.
    pub owner: u64,
    /// The first of the entries that packets may take as cells.
    pub first_place: u32,
    /// How many there are.
    pub places: u32,
    /// The first of the rule's cells, plus one; above it, how many. Of a cell: the next.
    pub cells: u64,
    /// Numbers of streams that are over.
    pub span: u64,
    /// Numbers that passed and are in no leg's counts.
    pub firsts: u64,
    /// Packets that passed and have no number.
    pub unnumbered: u64,
    /// Packets, or recorded payloads, for which there was no room.
    pub unsettled: u64,
    /// The route whose `health` all legs' packets are inspected for, plus one.
    pub watch: u32,
    /// The program's: a CPU is using it.
    pub watcher: u32,
    /// The key of the streams here, with bit 32 set; 0 for none.
    pub key: u64,
    /// The program's: when a leg began to deliver while none did.
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
    /// A merge without packets and legs; its blocks begin at `first_block`.
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

    /// Bytes of a merge with the most streams, none of which begins anew.
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

    /// `blocks_log` of a merge that records the configured number of packets. A payload takes up a word, in a
    /// single bucket of eight: with one word of eight in use none overflows. Where packets take up several
    /// numbers, each may take up 2 to the power of [`NUMBERS_LOG`].
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
    /// When the first packet of every fourth word arrived.
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
