//! Merging in memory that workers share: the kernel path's own code, compiled for this machine.
//!
//! All of a rule's state is in the words; a worker that dies leaves nothing half done.

mod counts;

pub use counts::{Counts, Line, Reading, When, close, counts, fold, open, open_line};

use crate::merge_layout::{CELL_BLOCKS, CELLS, Merge, MergeBlock, RINGS, TABLE};

/// Rules whose words there is room for.
pub const RULES: u32 = 131_072;
/// Names of blocks of all rules together.
pub const BLOCKS: u32 = RINGS + RULES * TABLE + CELLS * CELL_BLOCKS;
/// How many of them may be there at a time on the kernel path.
pub const BLOCKS_MAX: u32 = 65_536;

/// Flag of a fragment's position, which has the fragment's length and, from bit 16 on, its offset: it is the
/// last.
pub const PIECE_LAST: u64 = 1 << 32;
/// Flag of a fragment's position: it is not the first.
pub const PIECE_LATER: u64 = 1 << 33;

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the first copy: it passes.
    First,
    /// Another leg was first.
    Duplicate,
    /// The leg itself delivered it before.
    Repeated,
    /// It is older than what is recorded.
    Late,
    /// It does not belong to the stream, or is not yet recognised as its restart.
    Stray,
    /// It belongs to a stream that there is no room for.
    Exceeded,
}

impl Verdict {
    /// Decodes the C code's verdict.
    const fn of(verdict: u32) -> Self {
        match verdict {
            1 => Self::Duplicate,
            2 => Self::Repeated,
            3 => Self::Late,
            4 => Self::Stray,
            5 => Self::Exceeded,
            _ => Self::First,
        }
    }

    /// Its index in [`MergeLine::counts`](crate::merge_layout::MergeLine::counts).
    pub const fn index(self) -> usize {
        self as usize
    }
}

unsafe extern "C" {
    fn mcr_merge_judge(
        merges: *mut u64,
        index: u32,
        blocks: *mut u64,
        block_count: u32,
        line: u32,
        payload: *const u8,
        length: u32,
        sender: u32,
        now_ns: u64,
        pieces: *mut [u32; 2],
        piece: u64,
    ) -> u32;
}

sys::region! {
    /// The words of all merged rules, zero at first.
    pub struct Windows as c"mcr-merges" {
        /// Each rule's own.
        pub rules: [Merge; RULES],
        /// The numbers that their legs delivered.
        pub blocks: [MergeBlock; BLOCKS],
    }
}

impl Windows {
    /// Judges and counts a packet that arrived on leg `line` of rule `index`, given by its UDP payload and a
    /// value that represents its sender, which matters where a rule reflects and keeps the senders; `now_ns` is
    /// `CLOCK_MONOTONIC`, which may be that of the batch.
    ///
    /// Safe from any thread and process at once. What is not merged is always [`Verdict::First`].
    #[inline]
    pub fn judge(&self, (index, line): (u32, u32), packet: (&[u8], u32), now_ns: u64) -> Verdict {
        self.judge_piece((index, line), packet, now_ns, None)
    }

    /// The same for a fragment with this payload. `piece` holds what its leg has delivered of the datagram,
    /// zeros at first and then what this writes there, and the fragment's position with its flags.
    #[must_use]
    #[inline]
    pub fn judge_piece(
        &self,
        (index, line): (u32, u32),
        (payload, sender): (&[u8], u32),
        now_ns: u64,
        piece: Option<(&mut [u32; 2], u64)>,
    ) -> Verdict {
        let (pieces, position) = piece.map_or((std::ptr::null_mut(), 0), |(pieces, position)| {
            (std::ptr::from_mut(pieces), position)
        });
        if index >= self.rules.len() {
            return Verdict::First;
        }
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        // SAFETY: `index` is one of the struct merge that there are, and there are as many struct
        // merge_block as is said, both of words that are only ever accessed atomically and may
        // change through a shared
        // reference; the C code checks each block's number against that, masks `line`, and reads
        // `length` bytes of the payload at most; `pieces` is nobody else's, or null.
        let verdict = unsafe {
            mcr_merge_judge(
                self.rules.all().as_ptr().cast_mut().cast(),
                index,
                self.blocks.all().as_ptr().cast_mut().cast(),
                self.blocks.len(),
                line,
                payload.as_ptr(),
                length,
                sender,
                now_ns,
                pieces,
                position,
            )
        };
        Verdict::of(verdict)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::time::Duration;

    use sys::shared_memory::Region;

    use super::*;
    use crate::merge_layout::{MergeFormat, MergeLine, MergePart, MergeStream};

    pub(super) const MS: u64 = 1_000_000;

    pub(super) fn windows() -> Windows {
        Windows::create().expect("a region").1
    }

    pub(super) fn merge(by: rules::merge::By) -> Merge {
        let model = rules::merge::Merge {
            by,
            window: Duration::from_millis(50),
            ..rules::merge::Merge::default()
        };
        let mut merge = Merge {
            format: MergeFormat::of(&model),
            window_ns: 50 * MS,
            streams: model.streams,
            ..Merge::default()
        };
        (merge.first_place, merge.places) = (RULES - CELLS, CELLS);
        merge.line[0].since_ns = 1;
        merge.line[1].since_ns = 1;
        merge
    }

    pub(super) fn rtp(sequence: u16, ssrc: u32) -> Vec<u8> {
        let mut packet = vec![0x80, 33];
        packet.extend(sequence.to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(ssrc.to_be_bytes());
        packet
    }

    #[test]
    fn mirror_is_as_the_compiled_code_has_it() {
        unsafe extern "C" {
            static mcr_merge_layout: u32;
            static mcr_merge_layout_length: u32;
        }
        // SAFETY: native.c defines the array, and its length beside it.
        let native = unsafe {
            std::slice::from_raw_parts(
                &raw const mcr_merge_layout,
                mcr_merge_layout_length as usize,
            )
        };
        macro_rules! mirror {
            ($($type:ident { $($field:ident),* })*) => {
                vec![$(size_of::<$type>(), $(offset_of!($type, $field)),*),*]
            };
        }
        let mirror: Vec<usize> = mirror! {
            MergeFormat { by, number_offset, number_bytes, little_endian, session_offset,
                session_bytes, count_bytes, count_offset }
            MergePart { first, last, mark }
            MergeStream { id, top, base, opened_ns, seen_ns, began_ns, again }
            MergeLine { counts, numbers, seen_ns, candidate, span, skew_ns_8, skew_max_ns,
                since_ns, owner, unnumbered, still, exceeded, cut,
                stray, joins, began_ns, part }
            Merge { format, first_block, blocks_log, window_ns, newest, owner, first_place, places,
                cells, span, firsts,
                unnumbered, unsettled, watch, watcher, key,
                opener, streams, stream, line }
            MergeBlock { word, stamp }
        };
        let native: Vec<usize> = native.iter().map(|&at| at as usize).collect();
        assert_eq!(native, mirror);
    }

    #[test]
    fn first_copy_passes_and_the_others_do_not() {
        let windows = windows();
        windows.rules.write(3, &merge(rules::merge::By::Rtp));
        for sequence in [65_534, 65_535, 0, 1] {
            let packet = rtp(sequence, 7);
            assert_eq!(windows.judge((3, 0), (&packet, 0), 5 * MS), Verdict::First);
            assert_eq!(
                windows.judge((3, 1), (&packet, 0), 6 * MS),
                Verdict::Duplicate
            );
            assert_eq!(
                windows.judge((3, 1), (&packet, 0), 6 * MS),
                Verdict::Repeated
            );
        }
        assert_eq!(
            windows.judge((3, 0), (&[0x80; 11], 0), 7 * MS),
            Verdict::Stray
        );
        let rule = windows.rules.read(3);
        assert_eq!(rule.line[0].counts, [4, 0, 0, 0, 1]);
        assert_eq!(rule.line[1].counts, [0, 4, 4, 0, 0]);
    }

    #[test]
    fn numbers_are_read_at_their_offsets() {
        let windows = windows();
        windows.rules.write(0, &merge(rules::merge::By::MoldUdp64));
        let mold = |session: &[u8; 10], number: u64, count: u16| {
            let mut packet = session.to_vec();
            packet.extend(number.to_be_bytes());
            packet.extend(count.to_be_bytes());
            packet
        };
        let judge = |line, packet: &[u8]| windows.judge((0, line), (packet, 0), MS);
        assert_eq!(judge(0, &mold(b"session  1", 1, 3)), Verdict::First);
        assert_eq!(judge(1, &mold(b"session  1", 1, 3)), Verdict::Duplicate);
        // What differs in the last two bytes is another session; 4 is the next, as three were sent.
        assert_eq!(judge(0, &mold(b"session  2", 1, 1)), Verdict::First);
        assert_eq!(judge(1, &mold(b"session  1", 4, 1)), Verdict::First);
        assert_eq!(judge(0, &mold(b"session  1", 4, 1)), Verdict::Duplicate);
        // A heartbeat, then the end of the session: no numbers.
        for count in [0, 0xffff] {
            assert_eq!(judge(1, &mold(b"session  1", 5, count)), Verdict::First);
            assert_eq!(judge(0, &mold(b"session  1", 5, count)), Verdict::Duplicate);
        }
        assert_eq!(judge(0, &mold(b"session  1", 5, 1)), Verdict::First);
        assert_eq!(judge(0, &mold(b"session  1", 5, 1)[..19]), Verdict::Stray);
        let rule = windows.rules.read(0);
        let other = windows.rules.read(rule.cells as u32 - 1);
        assert_eq!((rule.firsts, other.firsts), (5, 1));

        for (rule, numbers) in [(1, [u32::MAX, 0]), (2, [0x00ff_ffff, 0x0100_0000])] {
            windows.rules.write(rule, &merge(rules::merge::By::Mdp3));
            for number in numbers {
                let packet = [number.to_le_bytes(), [9; 4]].concat();
                let judged = [0, 1].map(|line| windows.judge((rule, line), (&packet, 0), MS));
                assert_eq!(judged, [Verdict::First, Verdict::Duplicate], "{number}");
            }
        }
    }

    #[test]
    fn a_payload_passes_as_often_as_one_line_delivers_it() {
        let windows = windows();
        windows.rules.write(0, &merge(rules::merge::By::Payload));
        let judge = |line, packet: &[u8], ms| windows.judge((0, line), (packet, 0), ms * MS);
        for length in [0, 1, 63, 64, 65, 1316] {
            let packet = vec![7; length];
            assert_eq!(judge(0, &packet, 1), Verdict::First, "{length}");
            assert_eq!(judge(0, &packet, 2), Verdict::First);
            assert_eq!(judge(1, &packet, 3), Verdict::Duplicate);
            assert_eq!(judge(1, &packet, 4), Verdict::Duplicate);
            assert_eq!(judge(1, &packet, 5), Verdict::First);
            assert_eq!(judge(0, &packet, 6), Verdict::Duplicate);
        }
        // What the other leg never delivers is dropped after the window.
        assert_eq!(judge(0, b"alone", 10), Verdict::First);
        assert_eq!(judge(1, b"alone", 70), Verdict::First);
        assert_eq!(windows.rules.read(0).unsettled, 0);
    }

    /// One line's worker is a second behind the other's.
    #[test]
    fn payloads_are_judged_by_their_arrival() {
        let windows = windows();
        windows.rules.write(0, &merge(rules::merge::By::Payload));
        let judge = |line, packet: &[u8], ms| windows.judge((0, line), (packet, 0), ms * MS);
        for ms in (100..3_000_u64).step_by(10) {
            let of = |ms: u64| [7_u64.to_ne_bytes(), ms.to_ne_bytes()];
            for packet in of(ms) {
                assert_eq!(judge(0, &packet, ms), Verdict::First, "{ms}");
            }
            if let Some(late) = ms.checked_sub(1_000).filter(|late| *late >= 100) {
                for packet in of(late) {
                    assert_eq!(judge(1, &packet, late + 3), Verdict::Duplicate, "{ms}");
                }
            }
        }
        assert_eq!(windows.rules.read(0).unsettled, 0);
    }

    #[test]
    fn a_payload_that_is_reflected_passes_once_in_a_window() {
        let windows = windows();
        windows.rules.write(0, &merge(rules::merge::By::Once));
        windows
            .rules
            .write(1, &merge(rules::merge::By::OnceFromEach));
        let judge =
            |rule, packet: &[u8], sender, ms| windows.judge((rule, 0), (packet, sender), ms * MS);
        for length in [0, 1, 64, 1316] {
            let packet = vec![7; length];
            assert_eq!(judge(0, &packet, 1, 1), Verdict::First, "{length}");
            for (sender, ms) in [(1, 1), (2, 30), (3, 50)] {
                assert_eq!(judge(0, &packet, sender, ms), Verdict::Duplicate);
            }
            // Copies do not prolong it: what never stops passes again.
            assert_eq!(judge(0, &packet, 2, 60), Verdict::First);
            assert_eq!(judge(1, &packet, 1, 1), Verdict::First, "{length}");
            assert_eq!(judge(1, &packet, 2, 1), Verdict::First, "{length}");
            assert_eq!(judge(1, &packet, 1, 2), Verdict::Duplicate);
        }
        assert_eq!(windows.rules.read(0).unsettled, 0);
        // Of more than there is room for, the latest are recorded.
        for number in 0..100_000_u32 {
            let packet = number.to_be_bytes();
            assert_eq!(judge(0, &packet, 0, 500), Verdict::First, "{number}");
            assert_eq!(judge(0, &packet, 0, 500), Verdict::Duplicate, "{number}");
        }
        assert!(
            windows.rules.read(0).unsettled > 0,
            "the others are forgotten"
        );
    }

    #[test]
    fn by_payload_as_many_are_recorded_as_configured() {
        for (by, packets) in [
            (rules::merge::By::Payload, 2_048),
            (rules::merge::By::Payload, 65_536),
            (rules::merge::By::Once, 2_048),
        ] {
            let windows = windows();
            let model = rules::merge::Merge {
                by,
                window: Duration::from_millis(50),
                packets,
                ..rules::merge::Merge::default()
            };
            let mut rule = Merge::of(&model, 0);
            rule.line[0].since_ns = 1;
            rule.line[1].since_ns = 1;
            windows.rules.write(0, &rule);
            for (line, expected) in [(0, Verdict::First), (1, Verdict::Duplicate)] {
                for number in 0..packets {
                    let packet = number.to_be_bytes();
                    let judged = windows.judge((0, line), (&packet, 0), MS);
                    assert_eq!(judged, expected, "{by:?} {number} of {packets}");
                }
            }
            assert_eq!(windows.rules.read(0).unsettled, 0);
        }
    }

    /// One leg delivers them 750 later than the other, long after the window.
    #[test]
    fn as_many_datagrams_in_fragments_are_recorded_as_configured() {
        const APART: u32 = 750;
        for sources in [1, 3] {
            let windows = windows();
            windows.rules.write(3, &merge(rules::merge::By::Rtp));
            let judge = |line, number: u32, ms: u64| {
                let first = rtp((number / sources) as u16, number % sources);
                let mut pieces = [0; 2];
                let mut judge_piece = |payload: &[u8], position| {
                    let piece = Some((&mut pieces, position));
                    windows.judge_piece((3, line), (payload, 0), ms * MS, piece)
                };
                let length = first.len() as u64 + 8;
                let last = PIECE_LAST | PIECE_LATER | length << 16 | 500;
                [judge_piece(&first, length), judge_piece(&[3; 500], last)]
            };
            for number in 0..4 * APART {
                let ms = u64::from(number) * 5 + 100;
                assert_eq!(judge(0, number, ms), [Verdict::First; 2], "{number}");
                if let Some(number) = number.checked_sub(APART) {
                    assert_eq!(judge(1, number, ms), [Verdict::Duplicate; 2], "{number}");
                }
            }
            assert_eq!(windows.rules.read(3).unsettled, 0);
        }
    }

    #[test]
    fn ten_rules_of_256_streams_and_a_thousand_of_one_fit() {
        let windows = windows();
        let mut rule = merge(rules::merge::By::Rtp);
        for index in 0..1_010 {
            rule.first_block = index * 4;
            windows.rules.write(index, &rule);
            let streams = if index < 10 { 256 } else { 1 };
            for key in 0..streams {
                for number in 1..3 {
                    let packet = rtp(number, key);
                    let judged = [0, 1].map(|l| windows.judge((index, l), (&packet, 0), 5 * MS));
                    assert_eq!(
                        judged,
                        [Verdict::First, Verdict::Duplicate],
                        "{index} {key}"
                    );
                }
            }
        }
        let more = windows.judge((0, 0), (&rtp(1, 999), 0), 6 * MS);
        assert_eq!(more, Verdict::Exceeded);
        assert_eq!(windows.rules.read(0).line[0].exceeded, 1);
        assert_eq!(windows.rules.read(0).cells >> 32, 255);
    }

    #[test]
    fn a_leg_alone_begins_a_stream_however_long_the_host_runs() {
        const HOUR: u64 = 3_600_000 * MS;
        for hours in [1, 30, 40, 60, 77, 79, 120, 200] {
            let windows = windows();
            for (rule, opened) in [(0, None), (1, Some(0)), (2, Some(3))] {
                let mut words = merge(rules::merge::By::Rtp);
                words.first_block = rule * 4;
                windows.rules.write(rule, &words);
                let judge = |line, ns| windows.judge((rule, line), (&rtp(9, 7), 0), ns);
                if let Some(opened) = opened {
                    assert_eq!(judge(opened, MS), Verdict::First);
                }
                assert_eq!(judge(1, hours * HOUR), Verdict::First, "{hours} {opened:?}");
            }
        }
    }

    #[test]
    fn a_long_stream_after_very_many_short_ones_is_whole() {
        let windows = windows();
        windows.rules.write(0, &merge(rules::merge::By::Rtp));
        let mut ms = 0;
        let mut stream = |numbers: u16| {
            ms += 200;
            for number in 0..numbers {
                let judged = [0, 1].map(|l| windows.judge((0, l), (&rtp(number, 7), 0), ms * MS));
                let expected = [Verdict::First, Verdict::Duplicate];
                assert_eq!(judged, expected, "{number} at {ms} ms");
            }
        };
        for short in [8_000, 300, 7_000, 1_000, 8_300] {
            (0..4).for_each(|_| stream(2_048));
            (0..short).for_each(|_| stream(2));
        }
        (0..4).for_each(|_| stream(2_048));
    }

    #[test]
    fn nonsense_in_the_memory_leads_nowhere() {
        let windows = windows();
        let mut rule = merge(rules::merge::By::Rtp);
        rule.first_block = BLOCKS - 1;
        rule.blocks_log = u32::MAX;
        windows.rules.write(RULES - 1, &rule);
        assert_eq!(
            windows.judge((RULES - 1, 9), (&rtp(1, 1), 0), MS),
            Verdict::First
        );
        assert_eq!(windows.rules.read(RULES - 1).unsettled, 1);
        assert_eq!(
            windows.judge((RULES, 0), (&rtp(1, 1), 0), MS),
            Verdict::First
        );
    }
}
