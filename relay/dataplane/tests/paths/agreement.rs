//! Generated tables and packets, and changes of the tables between them: a path must do with each
//! what the reference does, in bytes, verdicts and counters.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use compile::table::{Output, Table};
use lab::wait;
use packet::fragment_cache::FragmentCache;
use proptest::array::uniform6;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use crate::bed;
use crate::case::{INGRESS, Packet};
use crate::generated::{BOUND_PORT, RULES, packets, tables};
use crate::reference::Reference;
use crate::relayed::{Relay, Sum};
use crate::segments::{NO_SUPER_PACKETS, is_single};
use crate::together::{numbered, settled};

/// Packets for one table.
const PACKETS_PER_TABLE: usize = 50;
/// The most tables that follow from one another by changes.
const STEPS: usize = 3;

/// The effect of a change on a rule: it stays, it becomes that of another table, or it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pick {
    Old,
    New,
    None,
}

/// Tries `count` packets, and panics with the smallest table and packets on which path and
/// reference disagree.
pub(crate) fn demand(relay: &mut Relay<'_>, count: usize) {
    let _socket = bed::Bound::new(BOUND_PORT);
    let every = relay.gets_super_packets();
    let possible = |packet: &Packet| every || is_single(packet);
    let at_xdp = relay.is_at_xdp();
    let tables = tables().prop_map(move |table| if at_xdp { narrowed(table) } else { table });
    let relay = RefCell::new(relay);
    // There each shrinking step would wait in vain for minutes.
    let is_emulated = wait::scaled(Duration::from_secs(1)) > Duration::from_secs(4);
    let config = Config {
        cases: u32::try_from(count.div_ceil(PACKETS_PER_TABLE * STEPS.div_ceil(2)))
            .expect("a sane count"),
        max_shrink_iters: if is_emulated { 0 } else { 3000 },
        max_shrink_time: 20_000,
        failure_persistence: None,
        ..Config::default()
    };
    let memory = RefCell::new(FragmentCache::default());
    let tried = Cell::new(0);
    let strategy = vec((tables, picks(), rows()), 1..=STEPS);
    let result = TestRunner::new(config).run(&strategy, |steps| {
        let mut before = Table::default();
        for (number, (table, picks, packets)) in steps.into_iter().enumerate() {
            tried.set(tried.get() + packets.len());
            let table = match number {
                0 => table,
                _ => changed(&before, &table, picks),
            };
            before.clone_from(&table);
            let packets: Vec<_> = packets
                .into_iter()
                .filter(|packet| possible(packet))
                .collect();
            let step = compare(
                &mut relay.borrow_mut(),
                &mut memory.borrow_mut(),
                &named_apart(table),
                &packets,
            );
            step.map_err(|error| TestCaseError::fail(format!("step {number}: {error}")))?;
        }
        Ok(())
    });
    eprintln!("{} generated packets", tried.get());
    if !every {
        eprintln!("skipped: super-packets: {NO_SUPER_PACKETS}");
    }
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, steps)) => panic!("{why}\n{steps:#?}"),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

/// A packet, or several in a row as one stream has them.
fn repeated() -> impl Strategy<Value = Vec<Packet>> {
    let times = prop_oneof![3 => Just(1u16), 1 => 2u16..6];
    (packets(), times).prop_map(|(packets, times)| match packets.as_slice() {
        [one] => (0..times).map(|n| numbered(one, n)).collect(),
        _ => packets,
    })
}

fn picks() -> impl Strategy<Value = [Pick; RULES]> {
    uniform6(prop_oneof![
        Just(Pick::Old),
        Just(Pick::New),
        Just(Pick::None)
    ])
}

/// Packets that are sent to one table.
fn rows() -> impl Strategy<Value = Vec<Packet>> {
    let rows = vec(repeated(), 1..=2 * PACKETS_PER_TABLE - 1);
    rows.prop_map(|rows| rows.concat())
}

/// Gives every other rule at most one output: otherwise the hook at XDP would seldom take packets.
fn narrowed(mut table: Table) -> Table {
    for (number, route) in table.routes.values_mut().enumerate() {
        route.outputs.truncate(if number % 2 == 0 { 1 } else { 4 });
    }
    table
}

/// A table that has some rules of `old` and some of `new`, and what else `new` has.
fn changed(old: &Table, new: &Table, picks: [Pick; RULES]) -> Table {
    let picked = |table: &Table, pick: Pick| {
        let rules = (0..RULES).filter(|number| picks[*number] == pick);
        let names: Vec<String> = rules.map(|number| format!("rule{number}")).collect();
        let routes = table.routes.clone().into_iter();
        routes.filter(move |(_, route)| names.contains(&route.rule))
    };
    let mut changed = new.clone();
    changed.routes = picked(old, Pick::Old).collect();
    for (key, route) in picked(new, Pick::New) {
        changed.routes.entry(key).or_insert(route);
    }
    changed
}

/// Gives rules with limits names that no rule had before: the state of a limit lasts as long as its rule.
fn named_apart(mut table: Table) -> Table {
    static RUN: AtomicU64 = AtomicU64::new(0);
    let run = RUN.fetch_add(1, Ordering::Relaxed);
    for route in table.routes.values_mut() {
        let limited = |output: &Output| output.limit.is_some();
        if route.limit.is_some() || route.outputs.iter().any(limited) {
            route.rule = format!("{}-{run}", route.rule);
        }
    }
    table
}

/// Path and reference record first fragments from one table to the next.
fn compare(
    relay: &mut Relay<'_>,
    memory: &mut FragmentCache,
    table: &Table,
    packets: &[Packet],
) -> Result<(), TestCaseError> {
    let reference = Reference::remembering(table, std::mem::take(memory));
    let mut reference = reference.whole_for_host(!relay.is_in_userspace());
    let mut expected = Sum::default();
    for packet in packets {
        let bound = |port| port == BOUND_PORT;
        expected.expect(packet, &reference.execute(INGRESS, packet, bound));
    }
    *memory = reference.into_memory();
    // The wires show IPv4 and IPv6 one after the other.
    expected
        .passed_up
        .sort_by_key(|frame| frame[12..14] == [0x86, 0xdd]);
    relay.apply(table);
    // What waits together may leave coalesced, and is cut again by the next device.
    let seen = relay.forward_together(packets, &expected);
    let in_order = |copies| {
        let mut copies = settled(copies);
        // Streams that leave as one flow are promised no order among each other.
        if !relay.keeps_order() {
            copies.values_mut().for_each(|frames| frames.sort());
        }
        copies
    };
    prop_assert_eq!(in_order(&seen.copies), in_order(&expected.copies));
    prop_assert_eq!(seen.passed_up, expected.passed_up);
    prop_assert_eq!(seen.counters, expected.counters);
    Ok(())
}
