//! The accounts of a merge's legs and streams in its words: added up, closed when legs leave, and opened again.

use rules::merge::LINES_MAX;

use super::{Counts, delivered, firsts, span_of, spans};
use crate::merge_layout::{BY_PAYLOAD, Merge};

/// Adds to a rule's words the counts of a cell that is given back.
pub fn fold(rule: &mut Merge, cell: &Merge, now_ns: u64) {
    rule.span += spans(cell);
    rule.firsts += cell.firsts;
    rule.unnumbered += cell.unnumbered;
    for (index, (line, other)) in rule.line.iter_mut().zip(&cell.line).enumerate() {
        for (count, other) in line.counts.iter_mut().zip(other.counts) {
            *count += other;
        }
        line.numbers += other.numbers;
        line.unnumbered += other.unnumbered;
        line.still += other.still;
        line.exceeded += other.exceeded;
        line.cut += other.cut;
        line.span += span_of(cell, index, now_ns);
        line.skew_max_ns = line.skew_max_ns.max(other.skew_max_ns);
    }
}

/// Closes the accounts of the legs that leave an entry, and those of its streams if no leg `remains`: what was
/// counted stays, and what others bring from then on is neither lost nor missed. Streams go on being known, so that
/// nothing passes again, and their accounts begin anew with the first packet that passes.
pub fn close(words: &mut Merge, counted: &Counts, leaves: [bool; LINES_MAX], remains: bool) {
    let is_by_payload = words.format.by == BY_PAYLOAD;
    let mut lost = counted.lost;
    if !counted.is_settled && !is_by_payload {
        lost = lost.max(spans(words).saturating_sub(firsts(words)));
    }
    for index in (0..LINES_MAX).filter(|index| leaves[*index]) {
        let span = span_of(words, index, 0);
        let line = &mut words.line[index];
        let mut missed = counted.lines[index].missed;
        line.span = if is_by_payload {
            missed
        } else {
            let delivered = delivered(line, words.format.count_bytes != 0);
            if !counted.is_settled {
                missed = missed.max(span.saturating_sub(delivered + lost));
            }
            delivered + missed
        };
        for part in &mut line.part {
            (part.first, part.last) = (0, 0);
        }
    }
    if remains {
        return;
    }
    if !is_by_payload {
        words.span = firsts(words) + lost;
    }
    for stream in &mut words.stream {
        (stream.base, stream.began_ns, stream.pad) = (0, 0, 0);
    }
}

/// Opens the accounts of an entry that was [closed](close), before its legs join it.
pub fn open(words: &mut Merge) {
    if words.format.by == BY_PAYLOAD {
        words.span = firsts(words);
    }
}

/// Lets a leg account for all that comes from now on, whichever leg it was.
pub fn open_line(words: &mut Merge, index: usize) {
    let lost = words.span.saturating_sub(firsts(words));
    let unsettled = words.unsettled;
    let line = &mut words.line[index];
    if words.format.by == BY_PAYLOAD {
        line.numbers = delivered(line, false) + unsettled;
    } else {
        line.span += lost;
    }
}
