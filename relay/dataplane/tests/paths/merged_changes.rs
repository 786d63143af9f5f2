//! Merges of continuing streams, and of one that begins anew: no line has missed what is in flight then.

use std::thread;
use std::time::{Duration, Instant};

use compile::table::{Route, Table};
use lab::wait;
use packet::verdict::DropReason::Duplicate;
use rules::merge::By;

use crate::merged::{mold, rtp};
use crate::merged_bed::{
    LONGEST_BY_PAYLOAD, Step, at, forward, forward_within, of_lines, surprise, table, window,
    within,
};
use crate::relayed::Relay;

/// A stream of which nothing has arrived for this long had ended.
const GOES_ON: Duration = Duration::from_millis(100);

/// The longest step of the program's clock.
const TICK: Duration = Duration::from_millis(10);

pub(crate) fn demand(relay: &mut Relay<'_>) {
    for (name, by, ipv6, payload) in [
        ("goes-on", By::Rtp, false, rtp as fn(u16) -> Vec<u8>),
        ("goes-on-6", By::Rtp, true, rtp),
        ("goes-on-payload", By::Payload, false, rtp),
        ("goes-on-payload-6", By::Payload, true, rtp),
    ] {
        what_is_in_flight_is_not_missed(relay, name, &table(name, by, 2, ipv6), payload);
    }
    a_leg_of_a_payload_is_replaced(relay);
    both_legs_of_a_payload_are_replaced(relay);
    for (name, by, ipv6, payload) in [
        ("off", By::Rtp, false, rtp as fn(u16) -> Vec<u8>),
        ("off-6", By::Rtp, true, rtp),
        ("off-counts", By::MoldUdp64, false, counted),
        ("off-payload", By::Payload, false, rtp),
    ] {
        nothing_is_missed_while_a_rule_is_off(relay, name, (by, ipv6), payload);
    }
    a_leg_goes_on_when_it_is_back(relay);
    for (name, ipv6) in [("loops", false), ("loops-6", true)] {
        a_stream_that_loops_is_not_missed(relay, name, ipv6);
    }
}

/// The second line is three packets behind.
fn a_stream_that_loops_is_not_missed(relay: &mut Relay<'_>, name: &str, ipv6: bool) {
    const NUMBERS: usize = 30;
    const ALL: usize = 2 * NUMBERS;
    let step = |line, at: usize, passes: std::ops::Range<usize>| {
        let (round, number) = (at / NUMBERS, at % NUMBERS);
        let passes = match round {
            0 => line == 0,
            _ => passes.contains(&number),
        };
        let reason = (!passes).then_some(Duplicate);
        (line, rtp(100 + number as u16), reason)
    };
    let lost = ALL - 10;
    let steps = (0..ALL + 3).flat_map(|at| {
        let behind = at.checked_sub(3).filter(|at| *at != lost);
        let first = (at < ALL).then(|| step(0, at, 7..NUMBERS));
        [first, behind.map(|at| step(1, at, 4..7))]
    });
    let steps: Vec<Step> = steps.flatten().collect();
    forward_within(relay, name, table(name, By::Rtp, 2, ipv6), &steps);
    misses_one(relay, name);
    relay.end(&[name]);
}

fn counted(number: u16) -> Vec<u8> {
    mold("A", number.into(), 1)
}

/// Two numbers on both lines; then one that none delivers, but by payload, and one that only the first does.
fn with_losses(number: u16, payload: fn(u16) -> Vec<u8>) -> Vec<Step> {
    let both = |number| {
        let copy = (1, payload(number), Some(Duplicate));
        [(0, payload(number), None), copy]
    };
    let mut steps: Vec<Step> = [number, number + 1].into_iter().flat_map(both).collect();
    steps.push((0, payload(number + 3), None));
    steps.extend(both(number + 4));
    steps
}

/// What passes by while a rule has no routes is neither lost nor missed, and its counts go on.
fn nothing_is_missed_while_a_rule_is_off(
    relay: &mut Relay<'_>,
    name: &str,
    (by, ipv6): (By, bool),
    payload: fn(u16) -> Vec<u8>,
) {
    let table = table(name, by, 2, ipv6);
    for round in 1..4 {
        if by == By::Payload {
            // What passes as it begins is not missed.
            relay.apply(&table);
            thread::sleep(window() * 2);
        }
        // Not so far ahead that another stream begins.
        forward(relay, name, &table, &with_losses(round * 100, payload));
        let rounds = u64::from(round);
        let lost = if by == By::Payload { 0 } else { rounds };
        let counts = [(4 * rounds, 0, 0), (0, 3 * rounds, rounds)];
        counts_in_the_end(relay, name, (lost, &counts));
        relay.apply(&Table::default());
        thread::sleep(window() * 2);
        assert_eq!(
            counts_of(relay, name, 2),
            (lost, counts.to_vec()),
            "{name:?} is off"
        );
    }
    relay.end(&[name]);
}

/// A leg that is removed and added again has what it delivered, and misses nothing of what came meanwhile.
fn a_leg_goes_on_when_it_is_back(relay: &mut Relay<'_>) {
    let name = "back";
    let of = |lines: &[usize]| of_lines(name, By::Rtp, lines, false);
    let on = |lines: std::ops::Range<usize>, number| {
        let first = lines.start;
        lines.map(move |line| (line, rtp(number), (line != first).then_some(Duplicate)))
    };
    let loses = |number| -> Vec<Step> {
        on(0..3, number)
            .chain(on(0..2, number + 1))
            .chain(on(0..3, number + 2))
            .collect()
    };
    forward(relay, name, &of(&[0, 1, 2]), &loses(1));
    counts_in_the_end(relay, name, (0, &[(3, 0, 0), (0, 3, 0), (0, 2, 1)]));
    let without: Vec<Step> = on(0..2, 4).chain(on(0..2, 6)).collect();
    forward(relay, name, &of(&[0, 1]), &without);
    counts_in_the_end(relay, name, (1, &[(5, 0, 0), (0, 5, 0)]));
    forward(relay, name, &of(&[0, 2, 1]), &loses(7));
    counts_in_the_end(relay, name, (1, &[(8, 0, 0), (0, 8, 0), (0, 4, 2)]));
    relay.end(&[name]);
}

/// What was lost, and of each leg what it was first with, what another was, and what it missed.
type Counts = (u64, Vec<(u64, u64, u64)>);

fn counts_of(relay: &Relay<'_>, name: &str, lines: usize) -> Counts {
    let rule = &relay.counters().rules[name];
    let merge = rule.merge.as_ref().expect("it is merged");
    let line = |line| {
        let leg = merge.lines[&at(line)];
        (leg.first, leg.duplicate, leg.missed)
    };
    (merge.together.lost, (0..lines).map(line).collect())
}

fn counts_in_the_end(relay: &Relay<'_>, name: &str, (lost, lines): (u64, &[(u64, u64, u64)])) {
    let expected = (lost, lines.to_vec());
    let counted = || {
        let seen = counts_of(relay, name, lines.len());
        if seen == expected { Ok(()) } else { Err(seen) }
    };
    wait::seen_within(wait::PATIENCE, "what is missing is known", counted)
        .unwrap_or_else(|error| panic!("{name:?}, not {expected:?}: {error:#}"));
}

/// What one line has delivered is a duplicate on the other, whichever is removed.
fn a_leg_of_a_payload_is_replaced(relay: &mut Relay<'_>) {
    let name = "replaced";
    let of = |lines: &[usize]| {
        within(
            of_lines(name, By::Payload, lines, false),
            LONGEST_BY_PAYLOAD,
        )
    };
    forward(
        relay,
        name,
        &of(&[0, 1]),
        &[
            (0, rtp(1), None),
            (1, rtp(2), None),
            (0, rtp(4), None),
            (1, rtp(4), Some(Duplicate)),
            (0, rtp(5), None),
        ],
    );
    // What the removed line has delivered is a duplicate on the one that replaces it, too.
    forward(
        relay,
        name,
        &of(&[1, 2]),
        &[
            (1, rtp(1), Some(Duplicate)),
            (2, rtp(4), Some(Duplicate)),
            (2, rtp(5), Some(Duplicate)),
            (1, rtp(5), Some(Duplicate)),
            (2, rtp(3), None),
        ],
    );
    forward(
        relay,
        name,
        &of(&[2, 3]),
        &[(2, rtp(2), Some(Duplicate)), (3, rtp(3), Some(Duplicate))],
    );
    relay.end(&[name]);
}

/// What either of the removed lines has delivered is a duplicate on those that replace them.
fn both_legs_of_a_payload_are_replaced(relay: &mut Relay<'_>) {
    for (name, ipv6) in [("replaced-both", false), ("replaced-both-6", true)] {
        let of = |lines: &[usize]| of_lines(name, By::Payload, lines, ipv6);
        let copy = |line, number| (line, rtp(number), Some(Duplicate));
        let first = |line, number| (line, rtp(number), None);
        let before = [first(0, 1), copy(1, 1), first(0, 2), first(1, 3)];
        forward(relay, name, &of(&[0, 1]), &before);
        let again = (1..=3).flat_map(|number| [copy(2, number), copy(3, number)]);
        let steps: Vec<Step> = again.chain([first(2, 4), copy(3, 4)]).collect();
        forward(relay, name, &of(&[2, 3]), &steps);
        relay.end(&[name]);
    }
}

/// The second line is ten packets behind. By payload it waits until a window is over, which is as short as the machine
/// allows.
fn what_is_in_flight_is_not_missed(
    relay: &mut Relay<'_>,
    name: &str,
    merged: &Table,
    payload: fn(u16) -> Vec<u8>,
) {
    let is_by_payload = merged.routes.values().any(by_payload);
    let mut window = window();
    loop {
        let (table, pause) = if is_by_payload {
            (within(merged.clone(), window), window)
        } else {
            (merged.clone(), TICK)
        };
        let begun = Instant::now();
        let seen = ten_behind(relay, name, &table, (pause, payload));
        if let Some(surprise) = seen {
            let is_late = is_by_payload && begun.elapsed() > window + pause;
            assert!(is_late && window < LONGEST_BY_PAYLOAD, "{surprise}");
            eprintln!("{name:?}: took {:?}, anew", begun.elapsed());
            window = LONGEST_BY_PAYLOAD.min(window * 4);
            relay.end(&[name]);
            continue;
        }
        misses_one(relay, name);
        relay.end(&[name]);
        return;
    }
}

fn by_payload(route: &Route) -> bool {
    route
        .merge
        .as_ref()
        .is_some_and(|merge| merge.how.by == By::Payload)
}

/// Returns what differed. The second line has missed what it loses after the pause, and nothing else.
fn ten_behind(
    relay: &mut Relay<'_>,
    name: &str,
    merged: &Table,
    (pause, payload): (Duration, fn(u16) -> Vec<u8>),
) -> Option<String> {
    let of = |packets| with_packets(merged.clone(), packets);
    let first = |number| (0, payload(number), None);
    let second = |number, reason| (1, payload(number), reason);
    let copy = |number| second(number, Some(Duplicate));
    let steps: Vec<Step> = (1..=20).map(first).chain((1..=10).map(copy)).collect();
    let mut seen = surprise(relay, name, &of(2_048), &steps);
    let (mut number, mut table) = (20, Table::default());
    for packets in [4_096, 8_192].into_iter().cycle().take(20) {
        table = of(packets);
        relay.apply(&table);
        let begun = Instant::now();
        thread::sleep(TICK);
        seen = seen.or_else(|| surprise(relay, name, &table, &[second(number - 9, None)]));
        let is_late = begun.elapsed() > GOES_ON;
        let ahead = (0..10).flat_map(|i| [first(number + 1 + i), second(number - 8 + i, None)]);
        let steps: Vec<Step> = ahead.take(19).collect();
        seen = seen.or_else(|| surprise(relay, name, &table, &steps));
        number += 10;
        if !is_late {
            break;
        }
    }
    let steps: Vec<Step> = (number - 9..=number).map(copy).collect();
    seen = seen.or_else(|| surprise(relay, name, &table, &steps));
    // By payload anything until then may have arrived before on the line ahead.
    thread::sleep(pause);
    let is_lost = |other: u16| other == number + 20;
    let ahead = (1..=40).map(|i| {
        (
            number + i,
            (number + i).checked_sub(10).filter(|n| *n > number),
        )
    });
    let steps =
        ahead.flat_map(|(new, old)| [Some(first(new)), old.filter(|n| !is_lost(*n)).map(copy)]);
    let steps = steps.flatten().chain((number + 31..=number + 40).map(copy));
    seen.or_else(|| surprise(relay, name, &table, &steps.collect::<Vec<_>>()))
}

/// Waits until the second line has missed one packet, and nothing else is counted.
fn misses_one(relay: &Relay<'_>, name: &str) {
    let missed = |relay: &Relay<'_>| {
        let rule = &relay.counters().rules[name];
        let merge = rule.merge.as_ref().expect("it is merged");
        let missed = [0, 1].map(|line| merge.lines[&at(line)].missed);
        (merge.together.lost, missed)
    };
    wait::until("what is missing is known", || {
        let missed = missed(relay);
        assert_eq!(missed.1[0], 0, "{name:?}: {missed:?}");
        missed.1[1] == 1
    })
    .expect("the second line lost one");
    assert_eq!(missed(relay), (0, [0, 1]), "{name:?}");
}

fn with_packets(mut table: Table, packets: u32) -> Table {
    for route in table.routes.values_mut() {
        let merge = route.merge.as_mut().expect("it is merged");
        merge.how.packets = packets;
    }
    table
}
