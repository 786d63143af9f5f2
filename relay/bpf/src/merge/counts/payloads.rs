//! What a leg missed of payloads, which have no numbers: from what it may still deliver according to the words.

use super::{Reading, When, delivered, firsts};
use crate::merge_layout::{Merge, MergeBlock};

/// Of a payload's word (merge_payload.h).
const CONFIRMED: u64 = 1 << 24;
const LEVEL: i64 = 128;
const TICK_SHIFT: u32 = 20;

impl Reading {
    /// Counts as missed what passed and a leg did not deliver, unless it may still arrive.
    pub(super) fn read_payloads(
        &mut self,
        merge: impl Fn() -> Merge,
        words: &Merge,
        before: &Merge,
        block: impl FnMut(u32) -> Option<MergeBlock>,
        when: When,
    ) {
        let passed = firsts(before);
        let has_more_missing = self.lines.iter().enumerate().any(|(index, line)| {
            let missing = passed.saturating_sub(excused(words, words, index));
            words.line[index].since_ns != 0 && missing > line.before + line.missed
        });
        if !has_more_missing {
            return;
        }
        let young = young_payloads(words, block, when);
        let after = merge();
        for (index, line) in self.lines.iter_mut().enumerate() {
            let own = &words.line[index];
            if own.since_ns == 0 || own.since_ns != after.line[index].since_ns {
                continue;
            }
            let accounted = excused(words, &after, index) + young[index % 2];
            let missing = passed.saturating_sub(accounted);
            if line.is_new {
                // The most that it may be.
                let accounted = excused(&after, words, index) + young[index % 2];
                line.before = firsts(&after).saturating_sub(accounted);
                line.is_new = when.judged_ns <= own.since_ns + 2 * words.window_ns;
            }
            line.missed = line.missed.max(missing.saturating_sub(line.before));
        }
    }
}

/// Payloads that a leg delivered, those that passed while its merge began in a running stream and that it no
/// longer delivers, and those that there was no room for, whose legs are unknown.
fn excused(words: &Merge, after: &Merge, index: usize) -> u64 {
    let (own, early) = (&after.line[index], words.line[index].numbers);
    delivered(own, false) + after.unsettled + after.span.saturating_sub(early)
}

/// How many payloads each of two legs may still deliver.
fn young_payloads(
    words: &Merge,
    mut block: impl FnMut(u32) -> Option<MergeBlock>,
    when: When,
) -> [u64; 2] {
    let (tick, window) = (
        when.now_ns >> TICK_SHIFT,
        (words.window_ns >> TICK_SHIFT) + 1,
    );
    let waits = tick - (when.judged_ns.min(when.now_ns) >> TICK_SHIFT);
    let blocks = words.first_block..words.first_block + Merge::blocks(words.blocks_log & 15);
    let mut young = [0; 2];
    for block in blocks.filter_map(&mut block) {
        for word in block.word.into_iter().filter(|word| word & CONFIRMED != 0) {
            let age = tick.wrapping_sub(word >> 8).wrapping_add(window) & 0xffff;
            let ahead = (word & 0xff).cast_signed() - LEVEL;
            // Clocks may be some ticks apart, and a packet may be delayed.
            if age <= 3 * window + 16 + waits {
                young[usize::from(ahead > 0)] += ahead.unsigned_abs();
            }
        }
    }
    young
}
