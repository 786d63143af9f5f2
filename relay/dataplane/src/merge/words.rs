//! The words that a rule's legs are merged by: set up, changed and taken back. Nothing here waits: if a
//! position changes hands while packets of the former leg are in flight, they count for the new one,
//! and nothing else happens to them.

use std::mem::offset_of;

use bpf::merge_layout::{Merge, MergeLine, MergeStream, RINGS};
use rules::merge::LINES_MAX;
use sys::field;
use sys::memory::{Array, Field};

use super::{ActiveMerge, MergeParams};

/// Prepares a merge that no packet sees yet, without legs; its blocks are zero.
pub(super) fn set_up(words: &Array<Merge>, rule: u32, merge: &ActiveMerge) {
    let (index, params) = (merge.index, merge.params);
    // The owner goes first and comes last: whoever adopts a half of it finds it free.
    tear_down(words, index);
    let new = Merge {
        format: params.format,
        first_block: merge.first_block,
        blocks_log: params.blocks_log,
        window_ns: params.window_ns,
        ..Merge::default()
    };
    words.write(index, &new);
    words.store(index, field!(Merge, owner), u64::from(rule) + 1);
}

/// Says whether a rule has a merge, or had one that it did not give back.
pub(super) fn is_owned(words: &Array<Merge>, merge: u32) -> bool {
    words.load(merge, field!(Merge, owner)) != 0
}

/// Changes how long a leg may lie behind another, of a merge that is running.
pub(super) fn set_window(words: &Array<Merge>, merge: u32, window_ns: u64) {
    words.store(merge, field!(Merge, window_ns), window_ns);
}

/// Gives a merge back, which nothing leads to any more.
pub(super) fn tear_down(words: &Array<Merge>, merge: u32) {
    words.store(merge, field!(Merge, owner), 0);
}

/// Gives a leg the place that it has or may have: a free one, or else that of a leg which is none of
/// the `wanted` ones any more. `None` where more than four are wanted.
pub(super) fn join(
    words: &Array<Merge>,
    merge: u32,
    (line, wanted): (u32, &[u32]),
    now_ns: u64,
) -> Option<u32> {
    let before = words.read(merge);
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
    words.store(merge, of_line(place, field!(MergeLine, owner)), owner);
    let since = of_line(place, field!(MergeLine, since_ns));
    words.store(merge, since, now_ns.max(1));
    Some(place as u32)
}

/// Takes their places from legs that are none of the `wanted` ones any more. What they brought stays
/// until others take their places.
pub(super) fn part_with_others(words: &Array<Merge>, merge: u32, wanted: &[u32]) {
    let places = lines(&words.read(merge));
    for (place, line) in places.into_iter().enumerate() {
        if line.is_some_and(|line| !wanted.contains(&line)) {
            free_place(words, merge, place);
        }
    }
}

/// Which leg has which place.
pub(crate) fn lines(merge: &Merge) -> [Option<u32>; LINES_MAX] {
    merge.line.map(|line| {
        let owner = u32::try_from(line.owner.checked_sub(1)?).ok()?;
        (line.since_ns != 0).then_some(owner)
    })
}

/// What a former process left and for which rule, if it makes sense; times that are yet to come are mended,
/// for a silent leg would seem to deliver until then.
pub(super) fn find(words: &Array<Merge>, index: u32, now_ns: u64) -> Option<(u32, ActiveMerge)> {
    let left = words.read(index);
    let rule = u32::try_from(left.owner.checked_sub(1)?).ok()?;
    let merge = ActiveMerge {
        index,
        first_block: left.first_block,
        params: MergeParams {
            format: left.format,
            blocks_log: left.blocks_log,
            window_ns: left.window_ns,
        },
    };
    let is_sound = merge.params.is_sound();
    if !is_sound || merge.first_block.checked_add(merge.params.blocks())? > RINGS {
        return None;
    }
    words.store(index, field!(Merge, watch), 0);
    mend_lines(words, index, &left);
    mend_times(words, index, (&left, now_ns));
    Some((rule, merge))
}

/// Frees places that name no leg, or one that another names.
fn mend_lines(words: &Array<Merge>, merge: u32, left: &Merge) {
    let found = lines(left);
    for (place, line) in found.iter().enumerate() {
        if line.is_none() || found[..place].contains(line) {
            free_place(words, merge, place);
        }
    }
}

fn mend_times(words: &Array<Merge>, merge: u32, (left, now_ns): (&Merge, u64)) {
    let mend = |at: Field<Merge>, time_ns: u64| {
        if time_ns > now_ns {
            words.store(merge, at, 0);
        }
    };
    for (place, stream) in left.stream.iter().enumerate() {
        let of = |time| field!(Merge, stream).of_entry(place, time);
        mend(of(field!(MergeStream, opened_ns)), stream.opened_ns);
        mend(of(field!(MergeStream, seen_ns)), stream.seen_ns);
        mend(of(field!(MergeStream, began_ns)), stream.began_ns);
    }
    for (place, line) in left.line.iter().enumerate() {
        mend(of_line(place, field!(MergeLine, seen_ns)), line.seen_ns);
        mend(of_line(place, field!(MergeLine, since_ns)), line.since_ns);
    }
}

fn free_place(words: &Array<Merge>, merge: u32, place: usize) {
    words.store(merge, of_line(place, field!(MergeLine, since_ns)), 0);
    words.store(merge, of_line(place, field!(MergeLine, owner)), 0);
}

/// Empties a place. What its former leg was first with stays with the rule.
fn clear_place(words: &Array<Merge>, merge: u32, (before, place): (&Merge, usize)) {
    let [firsts, ..] = before.line[place].counts;
    if before.format.count_bytes == 0 {
        words.add(merge, field!(Merge, firsts), firsts);
    }
    // A packet of the former leg that is in flight may count here meanwhile.
    let counted = of_line(place, field!(MergeLine, counts));
    words.add(merge, counted, firsts.wrapping_neg());
    for word in (0..size_of::<MergeLine>()).step_by(size_of::<u64>()) {
        if word != offset_of!(MergeLine, counts) {
            words.store(merge, of_line(place, Field::at(word)), 0);
        }
    }
}

const fn of_line(place: usize, word: Field<MergeLine>) -> Field<Merge> {
    field!(Merge, line).of_entry(place, word)
}
