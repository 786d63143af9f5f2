//! The words that a rule's legs are merged by: set up, changed and taken back. Nothing here waits: if a
//! position changes hands while packets of the former leg are in flight, they count for the new one,
//! and nothing else happens to them.

use std::iter::successors;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use bpf::merge::fold;
use bpf::merge_layout::{BY_PAYLOAD, CELL, CELLS, Merge, MergeLine, MergeStream, RINGS};
use rules::merge::LINES_MAX;
use sys::field;
use sys::memory::{Array, Field};
use zerocopy::IntoBytes;

use super::{ActiveMerge, MergeParams};

/// Owner of an entry that a rule is about to get.
const RESERVED: u64 = 1 << 61;
/// Owner of a cell that packets do not find any more.
const RETIRED: u64 = u64::MAX;
/// A cell for which nothing came for so long, and for so many windows, is given back.
const OVER_NS: u64 = 10_000_000_000;
const OVER_WINDOWS: u64 = 3;
/// A stream that begins so soon after its merge, or within a window, went on before: what a leg is ahead of
/// others it brought by then, and does not miss.
const BEGINS_NS: u64 = 100_000_000;

/// Prepares a merge that no packet sees yet, without legs; its blocks are zero.
pub(super) fn set_up(words: &Array<Merge>, rule: u32, merge: &ActiveMerge) {
    let (index, params) = (merge.index, merge.params);
    // The owner goes first and comes last: whoever adopts a half of it finds it free.
    words.store(index, field!(Merge, owner), RESERVED);
    let (first_place, places) = places(words);
    let new = Merge {
        owner: RESERVED,
        first_place,
        places,
        format: params.format,
        first_block: merge.first_block,
        blocks_log: params.blocks_log,
        window_ns: params.window_ns,
        streams: params.streams,
        ..Merge::default()
    };
    words.write(index, &new);
    words.store(index, field!(Merge, owner), u64::from(rule) + 1);
}

/// Takes an entry that neither a rule nor packets have; says whether it was free.
pub(super) fn reserve(words: &Array<Merge>, index: u32) -> bool {
    let owner = words.word(index, field!(Merge, owner));
    let order = Ordering::Relaxed;
    owner.is_some_and(|owner| owner.compare_exchange(0, RESERVED, order, order).is_ok())
}

/// Says whether a rule has a merge, or had one that it did not give back.
pub(super) fn is_owned(words: &Array<Merge>, merge: u32) -> bool {
    let owner = words.load(merge, field!(Merge, owner));
    owner != 0 && owner < 1 << 63
}

/// The rule's entry whose cell an entry is, if packets took it.
pub(super) fn rule_of_cell(words: &Array<Merge>, index: u32) -> Option<u32> {
    let owner = words.load(index, field!(Merge, owner));
    (owner >= 1 << 63).then_some((owner >> 32) as u32 & 0x3fff_ffff)
}

/// The cells of a rule.
pub(super) fn cells(words: &Array<Merge>, rule: u32) -> Vec<u32> {
    let is_cell = |cell: &u32| {
        let owner = words.load(*cell, field!(Merge, owner));
        owner & CELL == CELL && rule_of_cell(words, *cell) == Some(rule)
    };
    chain(words, rule).take_while(is_cell).collect()
}

/// What follows an entry, one after the other, as it stands there.
fn chain(words: &Array<Merge>, from: u32) -> impl Iterator<Item = u32> {
    let next = |index: &u32| (words.load(*index, field!(Merge, cells)) as u32).checked_sub(1);
    successors(next(&from), next).take(CELLS as usize)
}

/// A cell, as if it were a rule's entry of its own.
pub(super) fn read_cell(words: &Array<Merge>, rule: u32, cell: u32) -> Merge {
    let mut found = words.read(cell);
    for (line, of_rule) in found.line.iter_mut().zip(words.read(rule).line) {
        let MergeLine {
            since_ns,
            owner,
            seen_ns,
            ..
        } = of_rule;
        (line.since_ns, line.owner, line.seen_ns) = (since_ns, owner, seen_ns);
    }
    found
}

/// Says whether nothing has come for an entry's key for long.
pub(super) fn is_over(entry: &Merge, now_ns: u64) -> bool {
    let seen = entry.stream.iter().map(|stream| stream.seen_ns).max();
    let seen = seen.filter(|seen_ns| *seen_ns != 0);
    let over_ns = entry.window_ns.saturating_mul(OVER_WINDOWS).max(OVER_NS);
    seen.is_some_and(|seen_ns| now_ns.saturating_sub(seen_ns) > over_ns)
}

/// Takes a cell out of its rule's, which has what was counted there from then on. Packets do not find it
/// any more, but some may still look at it.
pub(super) fn retire(words: &Array<Merge>, rule: u32, cell: u32, now_ns: u64) {
    const ONE: u64 = 1 << 32;
    words.store(cell, field!(Merge, owner), RETIRED);
    let next = words.load(cell, field!(Merge, cells)) % ONE;
    let is_first = |head: u64| head % ONE == u64::from(cell) + 1;
    if let Some(first) = words.word(rule, field!(Merge, cells)) {
        let without = |head: u64| {
            let others = if is_first(head) { next } else { head % ONE };
            Some((head - head % ONE).saturating_sub(ONE) + others)
        };
        let order = Ordering::Relaxed;
        let was_first = first
            .fetch_update(order, order, without)
            .is_ok_and(is_first);
        let leads_there = |other: &u32| chain(words, *other).next() == Some(cell);
        if let Some(before) = chain(words, rule).find(leads_there).filter(|_| !was_first) {
            words.store(before, field!(Merge, cells), next);
        }
    }
    let before = words.read(rule);
    let mut after = before;
    fold(&mut after, &read_cell(words, rule, cell), now_ns);
    let (before, after) = (before.as_bytes(), after.as_bytes());
    let pairs = before.chunks_exact(8).zip(after.chunks_exact(8));
    for (word, (before, after)) in pairs.enumerate() {
        let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        let more = number(after).wrapping_sub(number(before));
        if more != 0 {
            words.add(rule, Field::at(word * 8), more);
        }
    }
}

/// Makes a cell that no packet sees any more free.
pub(super) fn clear_cell(words: &Array<Merge>, cell: u32) {
    let empty = Merge {
        owner: RETIRED,
        ..Merge::default()
    };
    words.write(cell, &empty);
    tear_down(words, cell);
}

/// Lets the rule's own entry be taken by another key.
pub(super) fn free_key(words: &Array<Merge>, rule: u32) {
    words.store(rule, field!(Merge, key), 0);
}

/// Changes how long a leg may lie behind another and how many streams there may be, of a merge that is
/// running.
pub(super) fn change(words: &Array<Merge>, merge: u32, params: MergeParams) {
    // Behind it stands zero.
    words.store(merge, field!(Merge, streams), params.streams.into());
    for entry in [merge].into_iter().chain(cells(words, merge)) {
        words.store(entry, field!(Merge, window_ns), params.window_ns);
    }
}

/// Which entries packets may take as cells: the last of them.
fn places(words: &Array<Merge>) -> (u32, u32) {
    let places = words.len().min(CELLS);
    (words.len() - places, places)
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
    let is_own = |place: &usize| !is_alike(&before, *place) || has_gone(&places[*place ^ 2]);
    let with = |what: &dyn Fn(&Option<u32>) -> bool| {
        let mut own = (0..LINES_MAX).filter(is_own);
        own.find(|place| what(&places[*place]))
    };
    let place = with(&is_free).or_else(|| with(&has_gone))?;
    clear_place(words, merge, (&before, place));
    for cell in cells(words, merge) {
        clear_place(words, cell, (&words.read(cell), place));
    }
    let owner = u64::from(line) + 1;
    words.store(merge, of_line(place, field!(MergeLine, owner)), owner);
    words.store(merge, of_line(place, field!(MergeLine, joins)), 1);
    let since = of_line(place, field!(MergeLine, since_ns));
    words.store(merge, since, after_grace(now_ns, before.window_ns));
    Some(place as u32)
}

/// Says whether another leg's place is taken for the same: of a payload's two legs, which it is stands in the
/// lowest bit.
fn is_alike(merge: &Merge, place: usize) -> bool {
    merge.format.by == BY_PAYLOAD && lines(merge)[place ^ 2].is_some()
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

/// Has each leg of a merge that packets see from now on account for streams that go on from its own first
/// number.
pub(super) fn begin(words: &Array<Merge>, merge: u32, now_ns: u64) {
    let read = words.read(merge);
    let since_ns = after_grace(now_ns, read.window_ns);
    let places = (0..).zip(lines(&read));
    for (place, _) in places.filter(|(_, line)| line.is_some()) {
        let since = of_line(place, field!(MergeLine, since_ns));
        words.store(merge, since, since_ns);
        words.store(merge, of_line(place, field!(MergeLine, joins)), 0);
    }
}

/// When what goes on with a leg that comes now did not go on before.
fn after_grace(now_ns: u64, window_ns: u64) -> u64 {
    now_ns.saturating_add(window_ns.max(BEGINS_NS))
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
            streams: left.streams,
        },
    };
    let is_sound = merge.params.is_sound();
    if !is_sound || merge.first_block.checked_add(merge.params.blocks())? > RINGS {
        return None;
    }
    words.store(index, field!(Merge, watch), 0);
    mend_lines(words, index, &left);
    mend_times(words, index, (&left, now_ns));
    let (first, places) = places(words);
    let places = u64::from(first) | u64::from(places) << 32;
    words.store(index, field!(Merge, first_place), places);
    for cell in cells(words, index) {
        mend_times(words, cell, (&words.read(cell), now_ns));
    }
    Some((rule, merge))
}

/// Frees places that name no leg, or one that another names or is taken for.
fn mend_lines(words: &Array<Merge>, merge: u32, left: &Merge) {
    let found = lines(left);
    for (place, line) in found.iter().enumerate() {
        if line.is_none() || found[..place].contains(line) || (place > 1 && is_alike(left, place)) {
            free_place(words, merge, place);
        }
    }
}

fn mend_times(words: &Array<Merge>, merge: u32, (left, now_ns): (&Merge, u64)) {
    let mend_after = |latest_ns: u64, at: Field<Merge>, time_ns: u64| {
        if time_ns > latest_ns {
            words.store(merge, at, 0);
        }
    };
    let mend = |at, time_ns| mend_after(now_ns, at, time_ns);
    for (place, stream) in left.stream.iter().enumerate() {
        let of = |time| field!(Merge, stream).of_entry(place, time);
        mend(of(field!(MergeStream, opened_ns)), stream.opened_ns);
        mend(of(field!(MergeStream, seen_ns)), stream.seen_ns);
        mend(of(field!(MergeStream, began_ns)), stream.began_ns);
    }
    for (place, line) in left.line.iter().enumerate() {
        mend(of_line(place, field!(MergeLine, seen_ns)), line.seen_ns);
        let since = of_line(place, field!(MergeLine, since_ns));
        mend_after(after_grace(now_ns, left.window_ns), since, line.since_ns);
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
