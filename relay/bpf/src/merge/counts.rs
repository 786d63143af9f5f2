//! What the legs of a merge delivered, computed from its words by arithmetic, without walking through numbers.
//!
//! A stream's numbers lie between its oldest and its newest; those that did not pass were lost, those that a
//! leg did not deliver it missed. Only numbers younger than a window may still arrive: those are determined
//! by the ring's bits, and only when something is missing. Where packets take up several numbers the bits do
//! not show it; there missing numbers count once they were missing in several readings.
//!
//! Packets keep arriving while words are read. Values read too early or too late make the counts lower, never
//! higher, and counts never decrease: so a count is right as soon as one reading coincides with quiet.

mod accounts;
mod payloads;

use rules::merge::LINES_MAX;

pub use accounts::{close, fold, open, open_line};

use super::Verdict;
use crate::merge_layout::{
    BY_PAYLOAD, Merge, MergeBlock, MergeLine, MergeStream, NUMBER_BITS, STREAMS, WORD_NUMBERS,
    WORDS,
};

const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// Readings in which numbers must be missing, where the ring does not show which are.
const READINGS: usize = 4;
const GENERATION_MAX: u16 = u16::MAX / LINES_MAX as u16;

/// What a merge's legs delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Numbers that no leg delivered, since the merge's first stream began; by payload always 0.
    pub lost: u64,
    /// Streams begun since this process reads them, and those that existed before.
    pub streams: u64,
    /// Packets that passed unjudged and payloads that were dropped too early, for want of room.
    pub unsettled: u64,
    /// Whether enough was read to tell what is lost from what may still arrive.
    pub is_settled: bool,
    /// By position.
    pub lines: [Line; LINES_MAX],
}

/// What one leg delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Packets by [`Verdict::index`].
    pub packets: [u64; 5],
    /// Packets of `First` under a number that stood still.
    pub still: u64,
    /// Packets of streams for which there was no room.
    pub exceeded: u64,
    /// Packets of content that another leg cut into packets differently, as far as that is visible.
    pub cut: u64,
    /// Numbers that only other legs delivered.
    pub missed: u64,
    /// How much later than the first its copies currently arrive; a mean.
    pub skew_ns: u64,
    /// The most that was.
    pub skew_max_ns: u64,
    /// When a packet of it last belonged to a stream; 0 if none did.
    pub seen_ns: u64,
}

impl Counts {
    /// Adds what another entry of the same rule counted.
    pub fn add(&mut self, other: &Self) {
        self.lost += other.lost;
        self.streams += other.streams;
        self.unsettled += other.unsettled;
        for (line, other) in self.lines.iter_mut().zip(&other.lines) {
            for (count, other) in line.packets.iter_mut().zip(other.packets) {
                *count += other;
            }
            line.still += other.still;
            line.exceeded += other.exceeded;
            line.cut += other.cut;
            line.missed += other.missed;
            line.skew_ns = line.skew_ns.max(other.skew_ns);
            line.skew_max_ns = line.skew_max_ns.max(other.skew_max_ns);
        }
    }
}

/// The state of earlier readings of one merge.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// When it began.
    since_ns: u64,
    lost: u64,
    streams: u64,
    generation: u16,
    lines: [LineReading; LINES_MAX],
    marks: [Mark; STREAMS],
    missing: Recent,
}

#[derive(Clone, Copy, Debug, Default)]
struct LineReading {
    owner: u64,
    since_ns: u64,
    missed: u64,
    /// What was lost or, by payload, had passed before it joined.
    before: u64,
    /// By payload: it joined others, and what had passed by then is not known yet.
    is_new: bool,
    missing: Recent,
}

/// The number up to which a stream with this oldest number is older than a window.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    base: u64,
    top: Delayed,
}

/// A value as of a window ago, or longer.
#[derive(Clone, Copy, Debug, Default)]
struct Delayed {
    settled: Option<u64>,
    next: u64,
    next_ns: u64,
}

impl Delayed {
    fn note(&mut self, value: u64, when: When, window_ns: u64) {
        if self.next_ns == 0 || when.judged_ns.saturating_sub(self.next_ns) > window_ns {
            if self.next_ns != 0 {
                self.settled = Some(self.next);
            }
            self.next = value;
            self.next_ns = when.now_ns.max(1);
        }
    }
}

/// The least of the last readings.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    values: [u64; READINGS],
    next_ns: u64,
}

impl Recent {
    fn least(&mut self, value: u64, when: When, window_ns: u64) -> u64 {
        if self.next_ns == 0 || when.judged_ns.saturating_sub(self.next_ns) > window_ns {
            self.values.rotate_right(1);
            self.next_ns = when.now_ns.max(1);
            self.values[0] = value;
        }
        self.values[0] = self.values[0].min(value);
        self.values.into_iter().min().unwrap_or_default()
    }
}

/// When words are read, by `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub struct When {
    /// When the reading began.
    pub now_ns: u64,
    /// All packets that had arrived by then have been judged; later ones may wait for their worker.
    pub judged_ns: u64,
}

/// Reads what the legs delivered.
///
/// `merge` copies the merge's words, `block` one of its blocks by number. `reading` belongs to this merge
/// only, and begins with its default.
pub fn counts(
    merge: impl Fn() -> Merge,
    reading: &mut Reading,
    block: impl FnMut(u32) -> Option<MergeBlock>,
    when: When,
) -> Counts {
    let before = merge();
    let words = merge();
    reading.note_streams(&words);
    reading.note_lines(&words);
    if reading.since_ns == 0 {
        reading.since_ns = when.now_ns.max(1);
    }
    let settles_ns = words.window_ns.saturating_mul(READINGS as u64 + 1);
    let is_by_payload = words.format.by == BY_PAYLOAD;
    if is_by_payload {
        reading.read_payloads(merge, &words, &before, block, when);
    } else if words.format.count_bytes != 0 {
        reading.read_sums(&words, &before, when);
    } else {
        reading.read_numbers(merge, &words, &before, block, when);
    }
    let takes_several = words.format.count_bytes != 0;
    let mut lines = [Line::default(); LINES_MAX];
    for ((line, words), reading) in lines.iter_mut().zip(&words.line).zip(&reading.lines) {
        *line = Line {
            packets: words.counts,
            still: words.still,
            exceeded: words.exceeded,
            cut: words.cut,
            missed: match words.since_ns {
                _ if is_by_payload => words.span + reading.missed,
                0 => words.span.saturating_sub(delivered(words, takes_several)),
                _ => reading.missed,
            },
            skew_ns: words.skew_ns_8 / 8,
            skew_max_ns: words.skew_max_ns,
            seen_ns: words.seen_ns,
        };
    }
    Counts {
        lost: reading.lost,
        streams: reading.streams,
        unsettled: words.unsettled,
        is_settled: when.judged_ns.saturating_sub(reading.since_ns) > settles_ns,
        lines,
    }
}

impl Reading {
    /// Streams begun so far.
    pub fn streams(&mut self, words: &Merge) -> u64 {
        self.note_streams(words);
        self.streams
    }

    /// Generations go from 1 to [`GENERATION_MAX`] and then from 1 again, above the bits of a leg.
    fn note_streams(&mut self, words: &Merge) {
        let generation = (words.newest >> 8) as u16 / LINES_MAX as u16;
        let wrapped = u64::from(generation < self.generation);
        let begun = generation.wrapping_sub(self.generation) & GENERATION_MAX;
        self.streams += u64::from(begun) - wrapped;
        self.generation = generation;
    }

    /// Begins anew with legs that joined.
    fn note_lines(&mut self, words: &Merge) {
        let since = words.line.iter().map(|line| line.since_ns);
        let oldest = since.filter(|&since_ns| since_ns != 0).min();
        for (line, words) in self.lines.iter_mut().zip(&words.line) {
            if (line.owner, line.since_ns) == (words.owner, words.since_ns) {
                continue;
            }
            let is_older = |oldest| words.since_ns > oldest;
            let is_later = words.joins != 0 || oldest.is_some_and(is_older);
            *line = LineReading {
                owner: words.owner,
                since_ns: words.since_ns,
                before: if is_later { self.lost } else { 0 },
                is_new: is_later,
                ..LineReading::default()
            };
        }
    }

    /// Reads merges whose packets take up several numbers.
    fn read_sums(&mut self, words: &Merge, before: &Merge, when: When) {
        let window_ns = words.window_ns;
        let missing = spans(words).saturating_sub(firsts(words));
        let most = spans(words).saturating_sub(firsts(before));
        let lost = self.missing.least(missing, when, window_ns);
        self.lost = self.lost.max(lost);
        for (index, line) in self.lines.iter_mut().enumerate() {
            let own = &words.line[index];
            if own.since_ns == 0 {
                continue;
            }
            let missing = span_of(words, index, when.judged_ns)
                .saturating_sub(delivered(own, true) + most.saturating_sub(line.before));
            let missed = line.missing.least(missing, when, window_ns);
            line.missed = line.missed.max(missed);
        }
    }

    fn read_numbers(
        &mut self,
        merge: impl Fn() -> Merge,
        words: &Merge,
        before: &Merge,
        mut block: impl FnMut(u32) -> Option<MergeBlock>,
        when: When,
    ) {
        let judged_ns = when.judged_ns;
        for (mark, stream) in self.marks.iter_mut().zip(&words.stream) {
            if mark.base != stream.base {
                *mark = Mark {
                    base: stream.base,
                    ..Mark::default()
                };
            }
            mark.top.note(stream.top, when, words.window_ns);
        }
        if !self.has_more_missing(words, judged_ns) {
            return;
        }
        let mut young = Holes::default();
        for (index, stream) in words.stream.iter().enumerate() {
            let settled = self.marks[index].top.settled;
            young.add(words, index, stream, settled, judged_ns, &mut block);
        }
        let after = merge();
        let lost = spans(words).saturating_sub(firsts(&after) + young.all);
        let most = spans(words).saturating_sub(firsts(before) + young.all);
        self.lost = self.lost.max(lost);
        for (index, line) in self.lines.iter_mut().enumerate() {
            let own = &after.line[index];
            if own.since_ns == 0 || own.since_ns != words.line[index].since_ns {
                continue;
            }
            let accounted =
                delivered(own, false) + young.lines[index] + most.saturating_sub(line.before);
            let missed = span_of(words, index, judged_ns).saturating_sub(accounted);
            line.missed = line.missed.max(missed);
        }
    }

    /// Returns whether more is missing than is accounted for.
    fn has_more_missing(&self, words: &Merge, now_ns: u64) -> bool {
        let is_lost = spans(words).saturating_sub(firsts(words)) > self.lost;
        is_lost
            || self.lines.iter().enumerate().any(|(index, line)| {
                let own = &words.line[index];
                let accounted = line.missed + self.lost.saturating_sub(line.before);
                let missing = span_of(words, index, now_ns).saturating_sub(delivered(own, false));
                own.since_ns != 0 && missing > accounted
            })
    }
}

/// Numbers that passed.
fn firsts(words: &Merge) -> u64 {
    if words.format.count_bytes != 0 {
        return words.firsts;
    }
    let lines = words.line.iter();
    let counted: u64 = lines.map(|line| line.counts[Verdict::First.index()]).sum();
    (words.firsts + counted).saturating_sub(words.unnumbered)
}

/// Numbers that a leg delivered, each once, in time or late.
fn delivered(line: &MergeLine, takes_several: bool) -> u64 {
    if takes_several {
        return line.numbers;
    }
    let verdicts = [Verdict::First, Verdict::Duplicate, Verdict::Late];
    let counted = verdicts.map(|verdict| line.counts[verdict.index()]);
    let sum: u64 = counted.iter().sum();
    sum.saturating_sub(line.unnumbered)
}

/// The oldest and the newest number of a stream that has any.
fn range(stream: &MergeStream) -> Option<(u64, u64)> {
    let generation = stream.top >> NUMBER_BITS;
    let is_whole = generation != 0
        && generation == stream.base >> NUMBER_BITS
        && generation == stream.id >> 16 & 0xffff;
    is_whole.then_some((stream.base & NUMBER_MASK, stream.top & NUMBER_MASK))
}

/// How far one number is ahead of another, in steps of a size that does not matter.
const fn ahead(a: u64, b: u64) -> i64 {
    (a.wrapping_sub(b) << (64 - NUMBER_BITS)).cast_signed()
}

fn length(first: u64, last: u64) -> u64 {
    (last.wrapping_sub(first) & NUMBER_MASK) + 1
}

/// Numbers of all streams.
fn spans(words: &Merge) -> u64 {
    let live = words.stream.iter().filter_map(range);
    words.span + live.map(|(base, top)| length(base, top)).sum::<u64>()
}

/// The numbers of a stream that a leg should have brought by now.
fn due(words: &Merge, stream: usize, line: usize, now_ns: u64) -> Option<(u64, u64)> {
    let (base, top) = range(&words.stream[stream])?;
    let own = &words.line[line];
    if own.since_ns == 0 {
        return None;
    }
    let part = own.part[stream];
    let is_part = (part.first ^ words.stream[stream].top) >> NUMBER_BITS == 0;
    let is_later = own.since_ns > words.stream[stream].began_ns;
    // It is live as long as it delivers anything, even of another stream.
    let is_live = own.seen_ns != 0 && now_ns.saturating_sub(own.seen_ns) <= words.window_ns;
    let first = match (is_later, is_part) {
        (false, _) => base,
        // What it repeats from before the stream's oldest number was accounted for.
        (true, true) if ahead(part.first, base) < 0 => base,
        (true, true) => part.first & NUMBER_MASK,
        (true, false) => return None,
    };
    match (is_live, is_part) {
        (false, _) => Some((first, top)),
        (true, true) => {
            let last = part.last & NUMBER_MASK;
            // The number of a foreign packet is further ahead than the stream.
            Some((first, if ahead(last, top) > 0 { top } else { last }))
        }
        (true, false) => None,
    }
}

/// Numbers that a leg should have brought by now.
fn span_of(words: &Merge, line: usize, now_ns: u64) -> u64 {
    let due = (0..STREAMS).filter_map(|stream| due(words, stream, line, now_ns));
    words.line[line].span + due.map(|(first, last)| length(first, last)).sum::<u64>()
}

/// Young numbers that have not arrived.
#[derive(Debug, Default)]
struct Holes {
    /// On any leg.
    all: u64,
    /// On each leg, among those that are due there.
    lines: [u64; LINES_MAX],
}

impl Holes {
    /// Adds those of one stream that are above `settled` and still in its ring.
    fn add(
        &mut self,
        words: &Merge,
        index: usize,
        stream: &MergeStream,
        settled: Option<u64>,
        now_ns: u64,
        block: &mut impl FnMut(u32) -> Option<MergeBlock>,
    ) {
        let Some((base, top)) = range(stream) else {
            return;
        };
        let log = words.blocks_log & 15;
        let ring = (WORDS as u64) << log;
        // Distance from the top to the oldest number that counts.
        let oldest_word = (ring - 1) * WORD_NUMBERS as u64 + top % WORD_NUMBERS as u64;
        let mut back = oldest_word.min(length(base, top) - 1);
        if let Some(settled) = settled {
            let distance = top.wrapping_sub(settled) & NUMBER_MASK;
            let Some(since) = distance.checked_sub(1) else {
                return;
            };
            back = back.min(since);
        }
        let due: [_; LINES_MAX] = std::array::from_fn(|line| due(words, index, line, now_ns));
        let mut current = None;
        for ahead in 0..=back {
            let number = top.wrapping_sub(ahead) & NUMBER_MASK;
            let word = number / WORD_NUMBERS as u64;
            let block_number = (word % ring / WORDS as u64) as u32;
            if current
                .as_ref()
                .is_none_or(|(number, _)| *number != block_number)
            {
                let wanted = words.first_block + ((index as u32) << log) + block_number;
                current = Some((block_number, block(wanted).unwrap_or_default()));
            }
            let Some((_, block)) = &current else {
                return;
            };
            let stored = block.word[word as usize % WORDS];
            let tag = (stream.top >> NUMBER_BITS) << 16 | (word >> (8 + log)) & 0xffff;
            let bits = if stored >> 32 == tag {
                stored as u32 >> (number % WORD_NUMBERS as u64)
            } else {
                0
            };
            self.all += u64::from(bits & 0x0101_0101 == 0);
            for (line, due) in due.iter().enumerate() {
                let is_due = due.is_some_and(|(first, last)| {
                    number.wrapping_sub(first) & NUMBER_MASK
                        <= last.wrapping_sub(first) & NUMBER_MASK
                });
                self.lines[line] += u64::from(is_due && bits >> (8 * line) & 1 == 0);
            }
        }
    }
}

#[cfg(test)]
mod tests;
