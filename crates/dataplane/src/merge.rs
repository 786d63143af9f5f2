//! Rules whose lines become one stream: what the control side does to the words that packets decide
//! with, alike on both paths. Lines and rules are named by the places that they count in.
//!
//! A line keeps its place among a rule's four while others come and go, for words say by places who
//! brought what. Nothing here waits: a place that changes hands while packets of the former line are in
//! flight costs them nothing but that they count for the new one.

use std::collections::BTreeMap;
use std::mem::offset_of;

use bpf::merge::BLOCKS;
use bpf::merge_layout::{
    BY_ONCE, BY_ONCE_FROM_EACH, BY_PAYLOAD, BY_RTP, BY_SEQUENCE, Merge, MergeFormat, MergeLine,
    MergeStream,
};
use bpf::merge_layout::{WORD_NUMBERS, WORDS};
use model::merge::{LINES_MAX, PACKETS_MAX};

/// Blocks of a stream that remembers the most packets, by payload.
const BLOCKS_LOG_MAX: u32 = (PACKETS_MAX / BLOCK_NUMBERS).ilog2() + 1;
const BLOCK_NUMBERS: u32 = (WORDS * WORD_NUMBERS) as u32;

const WORD: usize = size_of::<u64>();

/// Where the words lie, by the number of the merge.
pub(crate) trait Words {
    /// Copies those of a merge out.
    fn merge(&self, merge: u32) -> Merge;
    /// Overwrites those of a merge that no packet sees.
    fn set_merge(&mut self, merge: u32, words: &Merge);
    /// Replaces the word `at` bytes into a merge in one step.
    fn store(&mut self, merge: u32, at: usize, value: u64);
    /// Adds to it in one step, and wraps.
    fn add(&mut self, merge: u32, at: usize, value: u64);
}

/// How a rule's lines are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct How {
    /// What a packet is called by.
    pub(crate) format: MergeFormat,
    /// Blocks of a stream, as a power of two.
    pub(crate) blocks_log: u32,
    /// How long a line may lie behind another.
    pub(crate) window_ns: u64,
}

/// A merge that was found in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The rule.
    pub(crate) owner: u32,
    /// How its lines are merged.
    pub(crate) how: How,
    /// Where its blocks begin.
    pub(crate) first_block: u32,
}

/// Which blocks are taken: each merge's follow each other.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    taken: BTreeMap<u32, u32>,
    limit: u32,
}

impl How {
    /// As the words say it.
    pub(crate) fn of(merge: &model::merge::Merge) -> Self {
        Self {
            format: MergeFormat::of(merge),
            blocks_log: Merge::blocks_log(merge),
            window_ns: u64::try_from(merge.window.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Blocks of all streams.
    pub(crate) const fn blocks(self) -> u32 {
        Merge::blocks(self.blocks_log)
    }

    /// Says whether what one keeps means the same to the other, so that a running merge can change.
    pub(crate) fn keeps_memory_of(self, other: Self) -> bool {
        let window_ns = 0;
        Self { window_ns, ..self } == Self { window_ns, ..other }
    }

    fn is_sound(&self) -> bool {
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

/// Prepares a merge that no packet sees yet, without lines; its blocks are zero.
pub(crate) fn set_up(
    words: &mut impl Words,
    merge: u32,
    owner: u32,
    (how, first_block): (How, u32),
) {
    // The owner goes first and comes last: whoever adopts a half of it finds it free.
    tear_down(words, merge);
    let new = Merge {
        format: how.format,
        first_block,
        blocks_log: how.blocks_log,
        window_ns: how.window_ns,
        ..Merge::default()
    };
    words.set_merge(merge, &new);
    words.store(merge, offset_of!(Merge, owner), u64::from(owner) + 1);
}

/// Changes how long a line may lie behind another, of a merge that is running.
pub(crate) fn set_window(words: &mut impl Words, merge: u32, window_ns: u64) {
    words.store(merge, offset_of!(Merge, window_ns), window_ns);
}

/// Gives a merge back, which nothing leads to any more.
pub(crate) fn tear_down(words: &mut impl Words, merge: u32) {
    words.store(merge, offset_of!(Merge, owner), 0);
}

/// Gives a line the place that it has or may have: a free one, or else that of a line which is none of
/// the `wanted` ones any more. `None` where more than four are wanted.
pub(crate) fn join(
    words: &mut impl Words,
    merge: u32,
    (line, wanted): (u32, &[u32]),
    now_ns: u64,
) -> Option<u32> {
    let before = words.merge(merge);
    let places = lines(&before);
    let has = |place: &Option<u32>| *place == Some(line);
    let is_free = |place: &Option<u32>| place.is_none();
    let has_gone = |place: &Option<u32>| place.is_some_and(|other| !wanted.contains(&other));
    if let Some(place) = places.iter().position(has) {
        return Some(place as u32);
    }
    let free = places.iter().position(is_free);
    let place = free.or_else(|| places.iter().position(has_gone))?;
    clear_place(words, merge, (&before, place));
    let owner = u64::from(line) + 1;
    words.store(merge, line_at(place) + offset_of!(MergeLine, owner), owner);
    let since = line_at(place) + offset_of!(MergeLine, since_ns);
    words.store(merge, since, now_ns.max(1));
    Some(place as u32)
}

/// Takes their places from lines that are none of the `wanted` ones any more. What they brought stays
/// until others take their places.
pub(crate) fn part_with_others(words: &mut impl Words, merge: u32, wanted: &[u32]) {
    let places = lines(&words.merge(merge));
    for (place, line) in places.into_iter().enumerate() {
        if line.is_some_and(|line| !wanted.contains(&line)) {
            free_place(words, merge, place);
        }
    }
}

/// Which line has which place.
pub(crate) fn lines(merge: &Merge) -> [Option<u32>; LINES_MAX] {
    merge.line.map(|line| {
        let owner = u32::try_from(line.owner.checked_sub(1)?).ok()?;
        (line.since_ns != 0).then_some(owner)
    })
}

/// What a former process left, if it makes sense; times that are yet to come are mended, for a silent
/// line would seem to deliver until then.
pub(crate) fn find(words: &mut impl Words, merge: u32, now_ns: u64) -> Option<Found> {
    let left = words.merge(merge);
    let found = Found {
        owner: u32::try_from(left.owner.checked_sub(1)?).ok()?,
        how: How {
            format: left.format,
            blocks_log: left.blocks_log,
            window_ns: left.window_ns,
        },
        first_block: left.first_block,
    };
    if !found.how.is_sound() || found.first_block.checked_add(found.how.blocks())? > BLOCKS {
        return None;
    }
    mend_lines(words, merge, &left);
    mend_times(words, merge, (&left, now_ns));
    Some(found)
}

/// Frees places that name no line, or one that another names.
fn mend_lines(words: &mut impl Words, merge: u32, left: &Merge) {
    let found = lines(left);
    for (place, line) in found.iter().enumerate() {
        if line.is_none() || found[..place].contains(line) {
            free_place(words, merge, place);
        }
    }
}

fn mend_times(words: &mut impl Words, merge: u32, (left, now_ns): (&Merge, u64)) {
    let mut mend = |at: usize, time_ns: u64| {
        if time_ns > now_ns {
            words.store(merge, at, 0);
        }
    };
    mend(offset_of!(Merge, heartbeat_ns), left.heartbeat_ns);
    for (place, stream) in left.stream.iter().enumerate() {
        let at = offset_of!(Merge, stream) + place * size_of::<MergeStream>();
        mend(at + offset_of!(MergeStream, opened_ns), stream.opened_ns);
        mend(at + offset_of!(MergeStream, seen_ns), stream.seen_ns);
        mend(at + offset_of!(MergeStream, began_ns), stream.began_ns);
    }
    for (place, line) in left.line.iter().enumerate() {
        let at = line_at(place);
        mend(at + offset_of!(MergeLine, seen_ns), line.seen_ns);
        mend(at + offset_of!(MergeLine, since_ns), line.since_ns);
    }
}

fn free_place(words: &mut impl Words, merge: u32, place: usize) {
    let at = line_at(place);
    words.store(merge, at + offset_of!(MergeLine, since_ns), 0);
    words.store(merge, at + offset_of!(MergeLine, owner), 0);
}

/// Empties a place. What its former line was first with stays with the rule.
fn clear_place(words: &mut impl Words, merge: u32, (before, place): (&Merge, usize)) {
    let [firsts, ..] = before.line[place].counts;
    if before.format.count_bytes == 0 {
        words.add(merge, offset_of!(Merge, firsts), firsts);
    }
    // A packet of the former line that is in flight may count here meanwhile.
    let counted = line_at(place) + offset_of!(MergeLine, counts);
    words.add(merge, counted, firsts.wrapping_neg());
    for at in (0..size_of::<MergeLine>()).step_by(WORD) {
        if line_at(place) + at != counted {
            words.store(merge, line_at(place) + at, 0);
        }
    }
}

const fn line_at(place: usize) -> usize {
    offset_of!(Merge, line) + place * size_of::<MergeLine>()
}

impl Space {
    pub(crate) const fn new(limit: u32) -> Self {
        Self {
            taken: BTreeMap::new(),
            limit,
        }
    }

    /// Takes so many in a row, the lowest that are free.
    pub(crate) fn take(&mut self, count: u32) -> Option<u32> {
        let mut first = 0u32;
        for (start, length) in &self.taken {
            if start - first >= count {
                break;
            }
            first = start + length;
        }
        let is_room = self.limit - first >= count;
        is_room.then(|| {
            self.taken.insert(first, count);
            first
        })
    }

    /// Takes those; says whether they are there and were free.
    pub(crate) fn occupy(&mut self, first: u32, count: u32) -> bool {
        let Some(end) = first.checked_add(count).filter(|end| *end <= self.limit) else {
            return false;
        };
        let before = self.taken.range(..end).next_back();
        let is_free = before.is_none_or(|(start, length)| start + length <= first);
        if is_free {
            self.taken.insert(first, count);
        }
        is_free
    }

    /// Gives back what begins there.
    pub(crate) fn give_back(&mut self, first: u32) {
        self.taken.remove(&first);
    }
}

#[cfg(test)]
mod tests;
