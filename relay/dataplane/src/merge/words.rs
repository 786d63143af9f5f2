//! The words that decide how a rule's legs are merged: set up, changed and taken back. Nothing here waits: if a
//! position changes hands while packets of the former leg are in flight, they count for the new one,
//! and nothing else happens to them.

use std::iter::successors;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use bpf::merge::{Counts, close, fold, open, open_line};
use bpf::merge_layout::{BY_PAYLOAD, CELL, CELLS, Merge, MergeLine, MergeStream, RINGS};
use rules::merge::LINES_MAX;
use sys::field;
use sys::memory::{Array, Field};
use zerocopy::IntoBytes;

use super::{ActiveMerge, MergeParams};

/// Owner of an entry that a rule is about to get.
const RESERVED: u64 = 1 << 61;
/// Owner of a cell that packets no longer find.
const RETIRED: u64 = u64::MAX;
/// A cell is given back once nothing has arrived for this long and for this many windows.
const OVER_NS: u64 = 10_000_000_000;
const OVER_WINDOWS: u64 = 3;
/// A stream that begins this soon after its merge, or within a window, was already running: what a leg is
/// ahead of others was delivered by then and is not missing.
const BEGINS_NS: u64 = 100_000_000;

/// Prepares a merge that no packet sees yet, without legs; its blocks are zero.
pub(super) fn set_up(words: &Array<Merge>, rule: u32, merge: &ActiveMerge) {
    let (index, params) = (merge.index, merge.params);
    // The owner is removed first and written last: whoever adopts a half-written entry finds it free.
    words.store(index, field!(Merge, owner), RESERVED);
    let (first_place, places) = cell_range(words);
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

/// Takes an entry that neither a rule nor packets have; returns whether it was free.
pub(super) fn reserve(words: &Array<Merge>, index: u32) -> bool {
    let owner = words.word(index, field!(Merge, owner));
    let order = Ordering::Relaxed;
    owner.is_some_and(|owner| owner.compare_exchange(0, RESERVED, order, order).is_ok())
}

/// Returns whether a rule has a merge, or had one that it did not give back.
pub(super) fn is_owned(words: &Array<Merge>, merge: u32) -> bool {
    let owner = words.load(merge, field!(Merge, owner));
    owner != 0 && owner < 1 << 63
}

/// The rule's entry that a cell belongs to, if packets took the cell.
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

/// The entries that follow an entry in its list, in order.
fn chain(words: &Array<Merge>, from: u32) -> impl Iterator<Item = u32> {
    let next = |index: &u32| (words.load(*index, field!(Merge, cells)) as u32).checked_sub(1);
    successors(next(&from), next).take(CELLS as usize)
}

/// Reads an entry of a rule, its own or a cell.
fn read_entry(words: &Array<Merge>, rule: u32, entry: u32) -> Merge {
    if entry == rule {
        words.read(rule)
    } else {
        read_cell(words, rule, entry)
    }
}

/// Reads a cell as if it were a rule's own entry.
pub(super) fn read_cell(words: &Array<Merge>, rule: u32, cell: u32) -> Merge {
    let mut entry = words.read(cell);
    for (line, of_rule) in entry.line.iter_mut().zip(words.read(rule).line) {
        let MergeLine {
            since_ns,
            owner,
            seen_ns,
            ..
        } = of_rule;
        (line.since_ns, line.owner, line.seen_ns) = (since_ns, owner, seen_ns);
    }
    entry
}

/// Returns whether no leg has delivered anything of a rule's for a window.
pub(super) fn is_quiet(rule: &Merge, now_ns: u64) -> bool {
    let seen = rule.line.iter().map(|line| line.seen_ns);
    seen.max()
        .is_some_and(|ns| now_ns.saturating_sub(ns) > rule.window_ns)
}

/// Returns whether nothing has arrived for an entry's key for long.
pub(super) fn is_over(entry: &Merge, now_ns: u64) -> bool {
    let last_seen_ns = entry.stream.iter().map(|stream| stream.seen_ns).max();
    let over_ns = entry.window_ns.saturating_mul(OVER_WINDOWS).max(OVER_NS);
    last_seen_ns.is_some_and(|ns| ns != 0 && now_ns.saturating_sub(ns) > over_ns)
}

/// Removes a cell from its rule's list and adds its counts to the rule's entry. Packets no longer find
/// it, but some may still be using it.
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
    let of_cell = read_cell(words, rule, cell);
    update(words, (rule, rule), |entry| fold(entry, &of_cell, now_ns));
}

/// Changes what an entry of a rule counts, while packets may be counted there.
fn update(words: &Array<Merge>, (rule, entry): (u32, u32), change: impl FnOnce(&mut Merge)) {
    let before = read_entry(words, rule, entry);
    let mut after = before;
    change(&mut after);
    let (before, after) = (before.as_bytes(), after.as_bytes());
    let pairs = before.chunks_exact(8).zip(after.chunks_exact(8));
    for (word, (before, after)) in pairs.enumerate() {
        let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        let field = Field::at(word * 8);
        match (number(before), number(after)) {
            (before, after) if before == after => {}
            (_, 0) => words.store(entry, field, 0),
            (before, after) => words.add(entry, field, after.wrapping_sub(before)),
        }
    }
}

/// Frees a cell that no packet uses any more.
pub(super) fn clear_cell(words: &Array<Merge>, cell: u32) {
    let empty = Merge {
        owner: RETIRED,
        ..Merge::default()
    };
    words.write(cell, &empty);
    tear_down(words, cell);
}

/// Allows another key to take the rule's own entry.
pub(super) fn free_key(words: &Array<Merge>, rule: u32) {
    words.store(rule, field!(Merge, key), 0);
}

/// Changes how far a leg of a running merge may lag behind another, and how many streams there may be.
pub(super) fn change(words: &Array<Merge>, merge: u32, params: MergeParams) {
    // The field behind it is zero.
    words.store(merge, field!(Merge, streams), params.streams.into());
    for entry in entries(words, merge) {
        words.store(entry, field!(Merge, window_ns), params.window_ns);
    }
}

/// First and number of the entries that packets may take as cells: the last ones.
fn cell_range(words: &Array<Merge>) -> (u32, u32) {
    let cells = words.len().min(CELLS);
    (words.len() - cells, cells)
}

/// Gives back a merge that nothing refers to any more.
pub(super) fn tear_down(words: &Array<Merge>, merge: u32) {
    words.store(merge, field!(Merge, owner), 0);
}

/// Gives a leg its position: that which it had when it left; or a new one: a free one, one that another leg has
/// left, or else that of a leg which is no longer among the `wanted` ones. `None` where more than four are wanted.
/// What `begins` has its accounts closed.
pub(super) fn join(
    words: &Array<Merge>,
    merge: u32,
    (line, wanted): (u32, &[u32]),
    (now_ns, begins): (u64, bool),
) -> Option<u32> {
    let before = words.read(merge);
    let legs = lines(&before);
    let is_unwanted = |leg: &Option<u32>| leg.is_some_and(|other| !wanted.contains(&other));
    if let Some(position) = legs.iter().position(|leg| *leg == Some(line)) {
        return Some(position as u32);
    }
    let is_distinct = |at: &usize| !is_paired(&before, *at) || is_unwanted(&legs[*at ^ 2]);
    let owner = u64::from(line) + 1;
    let order = |at: &usize| match legs[*at] {
        None if before.line[*at].owner == owner => Some(0),
        None => Some(1 + u8::from(before.line[*at].owner != 0)),
        leg => is_unwanted(&leg).then_some(3),
    };
    let usable = (0..LINES_MAX).filter(is_distinct);
    let ordered = usable.filter_map(|at| Some((order(&at)?, at)));
    let (found, position) = ordered.min()?;
    for entry in entries(words, merge) {
        if found != 0 {
            clear_position(words, entry, (&words.read(entry), position));
        }
        if begins {
            update(words, (merge, entry), |entry| open_line(entry, position));
        }
    }
    words.store(merge, of_line(position, field!(MergeLine, owner)), owner);
    words.store(merge, of_line(position, field!(MergeLine, joins)), 1);
    let since = of_line(position, field!(MergeLine, since_ns));
    words.store(merge, since, after_grace(now_ns, before.window_ns));
    Some(position as u32)
}

/// Returns whether another leg holds the position that counts as the same: the lowest bit of a position
/// tells a payload's two legs apart.
fn is_paired(merge: &Merge, position: usize) -> bool {
    merge.format.by == BY_PAYLOAD && lines(merge)[position ^ 2].is_some()
}

/// Frees the positions of legs that leave, given what each entry of the rule counts. What they delivered stays
/// until others take their positions.
pub(super) fn release(
    words: &Array<Merge>,
    merge: u32,
    counted: &[(u32, Counts)],
    leaves: [bool; LINES_MAX],
) {
    let legs = lines(&words.read(merge)).into_iter().zip(leaves);
    let remains = legs
        .into_iter()
        .any(|(leg, leaves)| leg.is_some() && !leaves);
    for (entry, counted) in counted {
        update(words, (merge, *entry), |entry| {
            close(entry, counted, leaves, remains)
        });
    }
    for position in (0..LINES_MAX).filter(|position| leaves[*position]) {
        free_position(words, merge, position);
    }
}

/// Prepares a merge that no leg has, for those that are about to join.
pub(super) fn reopen(words: &Array<Merge>, merge: u32) {
    for entry in entries(words, merge) {
        update(words, (merge, entry), open);
    }
}

/// A rule's own entry and its cells.
fn entries(words: &Array<Merge>, merge: u32) -> impl Iterator<Item = u32> {
    [merge].into_iter().chain(cells(words, merge))
}

/// Makes each leg of a merge that packets see from now on account for streams that continue from its own
/// first number.
pub(super) fn begin(words: &Array<Merge>, merge: u32, now_ns: u64) {
    let before = words.read(merge);
    let since_ns = after_grace(now_ns, before.window_ns);
    let legs = (0..).zip(lines(&before));
    for (position, _) in legs.filter(|(_, line)| line.is_some()) {
        let since = of_line(position, field!(MergeLine, since_ns));
        words.store(merge, since, since_ns);
        words.store(merge, of_line(position, field!(MergeLine, joins)), 0);
    }
}

/// From when on what arrives by a leg that joins now cannot have begun before it joined.
fn after_grace(now_ns: u64, window_ns: u64) -> u64 {
    now_ns.saturating_add(window_ns.max(BEGINS_NS))
}

/// The leg at each position, or that which left it last.
pub(super) fn former_lines(merge: &Merge) -> [Option<u32>; LINES_MAX] {
    let owner = |line: MergeLine| u32::try_from(line.owner.checked_sub(1)?).ok();
    merge.line.map(owner)
}

/// The leg at each position.
pub(crate) fn lines(merge: &Merge) -> [Option<u32>; LINES_MAX] {
    let mut legs = former_lines(merge);
    for (leg, line) in legs.iter_mut().zip(&merge.line) {
        *leg = leg.filter(|_| line.since_ns != 0);
    }
    legs
}

/// The merge that a former process left at an index, and its rule, if it is sound. Times in the future are
/// reset, because a silent leg would seem to deliver until then.
pub(super) fn recover(words: &Array<Merge>, index: u32, now_ns: u64) -> Option<(u32, ActiveMerge)> {
    let previous = words.read(index);
    let rule = u32::try_from(previous.owner.checked_sub(1)?).ok()?;
    let merge = ActiveMerge {
        index,
        first_block: previous.first_block,
        params: MergeParams {
            format: previous.format,
            blocks_log: previous.blocks_log,
            window_ns: previous.window_ns,
            streams: previous.streams,
        },
    };
    let is_sound = merge.params.is_sound();
    if !is_sound || merge.first_block.checked_add(merge.params.blocks())? > RINGS {
        return None;
    }
    words.store(index, field!(Merge, watch), 0);
    repair_lines(words, index, &previous);
    repair_times(words, index, (&previous, now_ns));
    let (first, count) = cell_range(words);
    let first_and_count = u64::from(first) | u64::from(count) << 32;
    words.store(index, field!(Merge, first_place), first_and_count);
    for cell in cells(words, index) {
        repair_times(words, cell, (&words.read(cell), now_ns));
    }
    Some((rule, merge))
}

/// Frees positions that name no leg, or one that another position names or counts as.
fn repair_lines(words: &Array<Merge>, merge: u32, previous: &Merge) {
    let legs = lines(previous);
    for (at, leg) in legs.iter().enumerate() {
        if leg.is_none() || legs[..at].contains(leg) || (at > 1 && is_paired(previous, at)) {
            free_position(words, merge, at);
        }
    }
}

fn repair_times(words: &Array<Merge>, merge: u32, (previous, now_ns): (&Merge, u64)) {
    let reset_after = |latest_ns: u64, at: Field<Merge>, time_ns: u64| {
        if time_ns > latest_ns {
            words.store(merge, at, 0);
        }
    };
    let reset = |at, time_ns| reset_after(now_ns, at, time_ns);
    for (index, stream) in previous.stream.iter().enumerate() {
        let of = |time| field!(Merge, stream).of_entry(index, time);
        reset(of(field!(MergeStream, opened_ns)), stream.opened_ns);
        reset(of(field!(MergeStream, seen_ns)), stream.seen_ns);
        reset(of(field!(MergeStream, began_ns)), stream.began_ns);
    }
    let latest_since_ns = after_grace(now_ns, previous.window_ns);
    for (position, line) in previous.line.iter().enumerate() {
        reset(of_line(position, field!(MergeLine, seen_ns)), line.seen_ns);
        let since = of_line(position, field!(MergeLine, since_ns));
        reset_after(latest_since_ns, since, line.since_ns);
    }
}

fn free_position(words: &Array<Merge>, merge: u32, position: usize) {
    words.store(merge, of_line(position, field!(MergeLine, since_ns)), 0);
}

/// Empties a position. The rule keeps what its former leg delivered first.
fn clear_position(words: &Array<Merge>, merge: u32, (before, position): (&Merge, usize)) {
    let [firsts, ..] = before.line[position].counts;
    if before.format.count_bytes == 0 {
        words.add(merge, field!(Merge, firsts), firsts);
    }
    // A packet of the former leg that is in flight may count here meanwhile.
    let counted = of_line(position, field!(MergeLine, counts));
    words.add(merge, counted, firsts.wrapping_neg());
    for word in (0..size_of::<MergeLine>()).step_by(size_of::<u64>()) {
        if word != offset_of!(MergeLine, counts) {
            words.store(merge, of_line(position, Field::at(word)), 0);
        }
    }
}

const fn of_line(position: usize, word: Field<MergeLine>) -> Field<Merge> {
    field!(Merge, line).of_entry(position, word)
}
