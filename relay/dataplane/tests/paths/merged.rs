//! Rules whose lines are merged: the first copy of each packet leaves, whichever line brings it, and what
//! does not is counted for the rule and for its input.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use compile::table::{MergeLines, RateLimit, RateUnit, Route, RouteKey, Table};
use lab::wait;
use packet::craft::{Craft, CraftChecksum};
use packet::parse::Gso;
use rules::merge::{By, ByteOrder, Field, Merge, Sequence};
use rules::net::Prefix;

use packet::verdict::{DropReason, Verdict};

use crate::case::{A, B, INGRESS, PORT, Packet, address, input, key, output, route, socket, with};

use crate::fragments::{cut_ipv4, cut_ipv6};
use crate::merged_changes;
use crate::reference::Reference;
use crate::relayed::{Relay, Sum};
use crate::segments::{NO_SUPER_PACKETS, datagrams};
use crate::unusual;

use DropReason::{Duplicate, Late, Stray};

/// The merge's window: under emulation the packets of a test come far apart.
pub(crate) fn window() -> Duration {
    wait::scaled(Duration::from_millis(400)).min(Duration::from_secs(3))
}

/// The longest window: a machine that does not send a row within it says nothing about merging.
const LONGEST: Duration = Duration::from_secs(30);

/// Few, that all of them come before one is over.
pub(crate) const STREAMS: u32 = 24;

/// A packet of a line, and why it does not pass.
pub(crate) type Step = (usize, Vec<u8>, Option<DropReason>);

/// Sends rows of packets, each to a rule of its own.
pub(crate) fn demand(relay: &mut Relay<'_>) {
    for (name, by, steps) in rows().into_iter().chain(unusual::rows()) {
        forward_within(relay, name, table(name, by, 2, false), &steps);
        relay.end(&[name]);
    }
    let ipv6 = table("ipv6", By::Rtp, 2, true);
    forward(relay, "ipv6", &ipv6, &two_lines(rtp));
    relay.end(&["ipv6"]);
    lines_come_and_go(relay);
    merged_changes::demand(relay);
    what_passes_is_watched(relay);
    a_damaged_copy_shuts_no_good_one_out(relay);
    begins_anew_after_silence(relay);
    limits_count_one_copy(relay);
    datagrams_in_fragments(relay);
    datagrams_in_fragments_far_apart(relay);
    the_number_0_in_fragments(relay);
    super_packets(relay);
}

/// What numbers look like in a payload.
pub(crate) fn rtp(number: u16) -> Vec<u8> {
    of_source(number, 7)
}

pub(crate) fn of_source(number: u16, ssrc: u32) -> Vec<u8> {
    let mut payload = vec![0x80, 33];
    payload.extend(number.to_be_bytes());
    payload.extend([0; 4]);
    payload.extend(ssrc.to_be_bytes());
    payload.extend([number as u8; 40]);
    payload
}

fn mdp3(number: u16) -> Vec<u8> {
    let mut payload = u32::from(number).wrapping_sub(3).to_le_bytes().to_vec();
    payload.extend([1; 30]);
    payload
}

pub(crate) fn mold(session: &str, number: u64, count: u16) -> Vec<u8> {
    let mut payload = format!("{session:<10}").into_bytes();
    payload.extend(number.to_be_bytes());
    payload.extend(count.to_be_bytes());
    payload.extend([3; 20]);
    payload
}

/// Each number on both lines, whichever is first; one on one alone; and again.
fn two_lines(payload: fn(u16) -> Vec<u8>) -> Vec<Step> {
    vec![
        (0, payload(1), None),
        (1, payload(1), Some(Duplicate)),
        (1, payload(2), None),
        (0, payload(2), Some(Duplicate)),
        (0, payload(3), None),
        (0, payload(3), Some(Duplicate)),
        (1, payload(5), None),
        (0, payload(4), None),
        (0, payload(5), Some(Duplicate)),
        (1, payload(4), Some(Duplicate)),
    ]
}

fn rows() -> Vec<(&'static str, By, Vec<Step>)> {
    let own_format = By::Sequence(Sequence {
        number: Field {
            offset: 6,
            bytes: 2,
        },
        order: ByteOrder::Big,
        session: Some(Field {
            offset: 1,
            bytes: 5,
        }),
        count: None,
    });
    let own = |session: u8, number: u16| {
        let mut payload = vec![9, session, 0, 0, 0, session];
        payload.extend(number.to_be_bytes());
        payload
    };
    vec![
        ("rtp", By::Rtp, two_lines(rtp)),
        (
            "rtp across the wrap of its numbers",
            By::Rtp,
            two_lines(|number| rtp(number.wrapping_add(65_533))),
        ),
        (
            "rtp, late and stray",
            By::Rtp,
            vec![
                (0, rtp(1), None),
                (0, rtp(2_000), None),
                (0, rtp(4_000), None),
                (1, rtp(1), Some(Late)),
                (1, of_source(4_001, 8), Some(Stray)),
                (1, vec![0x80; 11], Some(Stray)),
                (1, vec![], Some(Stray)),
                (1, vec![0x40; 40], Some(Stray)),
                (1, rtp(4_000), Some(Duplicate)),
                (1, rtp(4_001), None),
            ],
        ),
        (
            "rtp, a jump beyond what is remembered",
            By::Rtp,
            vec![
                (0, rtp(1), None),
                (1, rtp(1), Some(Duplicate)),
                // A second packet, be it the other line's, confirms it.
                (0, rtp(5_000), Some(Stray)),
                (1, rtp(2), None),
                (1, rtp(5_001), None),
                (1, rtp(5_000), None),
                (0, rtp(5_001), Some(Duplicate)),
            ],
        ),
        (
            "rtp, of a line that was not with the others",
            By::Rtp,
            vec![
                (0, rtp(1), None),
                (1, of_source(1, 8), Some(Stray)),
                (1, of_source(2, 8), Some(Stray)),
                (0, of_source(2, 8), None),
                (1, of_source(2, 8), Some(Duplicate)),
                (1, of_source(3, 8), None),
                (0, of_source(1, 8), None),
            ],
        ),
        ("mdp3", By::Mdp3, two_lines(mdp3)),
        (
            "numbers of sessions",
            own_format,
            vec![
                (0, own(1, 1), None),
                (1, own(1, 1), Some(Duplicate)),
                (0, own(2, 1), None),
                (1, own(2, 1), Some(Duplicate)),
                (1, own(1, 2), None),
            ],
        ),
        (
            "moldudp64",
            By::MoldUdp64,
            vec![
                (0, mold("A", 1, 3), None),
                (1, mold("A", 1, 3), Some(Duplicate)),
                (1, mold("A", 4, 1), None),
                (0, mold("A", 4, 1), Some(Duplicate)),
                // Heartbeats name the next message, and have no number: each passes once.
                (0, mold("A", 5, 0), None),
                (1, mold("A", 5, 0), Some(Duplicate)),
                (1, mold("A", 5, 2), None),
                (0, mold("A", 5, 2), Some(Duplicate)),
            ],
        ),
        (
            "payload",
            By::Payload,
            vec![
                (0, vec![1; 1_300], None),
                (1, vec![1; 1_300], Some(Duplicate)),
                // As often as a line brings it.
                (0, vec![1; 1_300], None),
                (0, vec![1; 1_300], None),
                (1, vec![1; 1_300], Some(Duplicate)),
                (1, vec![1; 1_300], Some(Duplicate)),
                (1, vec![1; 1_300], None),
                (1, vec![2; 63], None),
                (0, vec![2; 63], Some(Duplicate)),
                (0, vec![2; 64], None),
                (0, vec![], None),
                (1, vec![], Some(Duplicate)),
            ],
        ),
    ]
}

fn how(by: By) -> Merge {
    Merge {
        by,
        window: window(),
        streams: STREAMS,
        ..Merge::default()
    }
}

pub(crate) fn at(line: usize) -> String {
    format!("line-{line}")
}

fn group(line: usize, ipv6: bool) -> String {
    match ipv6 {
        true => format!("ff3e::{}", line + 1),
        false => format!("239.1.1.{}", line + 1),
    }
}

pub(crate) fn table(rule: &str, by: By, lines: usize, ipv6: bool) -> Table {
    of_lines(rule, by, &(0..lines).collect::<Vec<_>>(), ipv6)
}

pub(crate) fn of_lines(rule: &str, by: By, lines: &[usize], ipv6: bool) -> Table {
    let outputs = [A, B].map(|interface| {
        with(output(interface), |egress| {
            egress.source_port = Some(4_444);
            if ipv6 {
                egress.destination = Prefix::host(address("ff3e::77"));
                egress.source = Some(address("fd00::77"));
            }
        })
    });
    let merge = MergeLines {
        how: how(by),
        lines: lines.iter().copied().map(at).collect(),
    };
    let routes = lines.iter().map(|line| {
        let key = RouteKey {
            groups: Prefix::host(address(&group(*line, ipv6))),
            ..key()
        };
        let route = Route {
            input: Some(at(*line)),
            merge: Some(Box::new(merge.clone())),
            ..route(rule, outputs.to_vec())
        };
        (key, route)
    });
    Table {
        routes: routes.collect(),
        ..Table::default()
    }
}

pub(crate) fn craft(table: &Table, line: usize, payload: &[u8]) -> Craft {
    let ipv6 = table.routes.keys().any(|key| key.groups.address.is_ipv6());
    let destination = socket(&group(line, ipv6), PORT);
    let source = if ipv6 { "fd00::5" } else { "10.0.0.5" };
    Craft {
        source: socket(source, 4_000),
        macs: (packet::craft::group_mac(destination.ip()), input().macs.1),
        destination,
        payload: payload.to_vec(),
        ..input()
    }
}

/// Forwards the steps' packets to `table`, and demands what they say.
pub(crate) fn forward(relay: &mut Relay<'_>, name: &str, table: &Table, steps: &[Step]) {
    if let Some(surprise) = surprise(relay, name, table, steps) {
        panic!("{surprise}");
    }
}

/// What does not come as the steps say.
fn surprise(relay: &mut Relay<'_>, name: &str, table: &Table, steps: &[Step]) -> Option<String> {
    relay.apply(table);
    steps
        .iter()
        .enumerate()
        .find_map(|(number, (line, payload, reason))| {
            let packet = Packet::from(craft(table, *line, payload));
            let expected = expect(table, &packet, *reason);
            let seen = relay.forward([&packet], &expected);
            (seen != expected)
                .then(|| format!("{name:?}, step {number}: seen {seen:?}, expected {expected:?}"))
        })
}

/// Forwards steps that must all come within the window: where the machine takes longer, nothing is
/// said, and they come anew within one twice as long.
pub(crate) fn forward_within(relay: &mut Relay<'_>, name: &str, mut table: Table, steps: &[Step]) {
    let mut window = window();
    loop {
        let begun = Instant::now();
        let Some(surprise) = surprise(relay, name, &table, steps) else {
            return;
        };
        let is_late = begun.elapsed() > window;
        assert!(is_late && window < LONGEST, "{surprise}");
        eprintln!("{name:?}: took {:?}, anew", begun.elapsed());
        window *= 2;
        relay.apply(&Table::default());
        for route in table.routes.values_mut() {
            if let Some(merge) = &mut route.merge {
                merge.how.window = window;
            }
        }
    }
}

/// Forwards packets, and demands that those pass for which there is no reason not to.
pub(crate) fn forward_all(
    relay: &mut Relay<'_>,
    name: &str,
    table: &Table,
    steps: &[(Packet, Option<DropReason>)],
) {
    relay.apply(table);
    let mut reference = Reference::of(table);
    for (number, (packet, reason)) in steps.iter().enumerate() {
        let mut expected = Sum::default();
        expect_one(&mut expected, &mut reference, packet, *reason);
        let seen = relay.forward([packet], &expected);
        assert_eq!(seen, expected, "{name:?}, step {number}");
    }
}

fn expect_one(
    sum: &mut Sum,
    reference: &mut Reference,
    packet: &Packet,
    reason: Option<DropReason>,
) {
    let mut expected = reference.execute(INGRESS, packet, |_| false);
    if let Some(reason) = reason {
        expected.verdict = Verdict::Dropped(reason);
        expected.outputs = BTreeMap::new();
        // One whose port is not known goes to the host as well.
        expected.passed_up |= reason == DropReason::FragmentUnknown;
    }
    sum.expect(packet, &expected);
}

/// What is expected of a packet that is dropped for a reason, or passes.
fn expect(table: &Table, packet: &Packet, reason: Option<DropReason>) -> Sum {
    let mut sum = Sum::default();
    expect_one(&mut sum, &mut Reference::of(table), packet, reason);
    sum
}

/// Lines keep what they have while others come and go, and what comes joins in.
fn lines_come_and_go(relay: &mut Relay<'_>) {
    let name = "lines";
    let of = |lines: &[usize]| of_lines(name, By::Rtp, lines, false);
    forward(relay, name, &of(&[0, 1]), &two_lines(rtp));
    let more = [
        (2, rtp(5), Some(Duplicate)),
        (2, rtp(6), None),
        (1, rtp(6), Some(Duplicate)),
        (3, rtp(6), Some(Duplicate)),
    ];
    forward(relay, name, &of(&[0, 1, 2, 3]), &more);
    let others = [
        (4, rtp(6), Some(Duplicate)),
        (4, rtp(7), None),
        (1, rtp(7), Some(Duplicate)),
        (3, rtp(7), Some(Duplicate)),
    ];
    forward(relay, name, &of(&[4, 1, 2, 3]), &others);
    forward(relay, name, &of(&[1, 4]), &[(1, rtp(6), Some(Duplicate))]);
    let mut other = of(&[1, 4]);
    for route in other.routes.values_mut() {
        let merge = route.merge.as_mut().expect("it is merged");
        merge.how.window = window() + Duration::from_millis(100);
    }
    let steps = [(1, rtp(8), None), (4, rtp(8), Some(Duplicate))];
    forward(relay, name, &other, &steps);
    // Without a merge each line's packets pass; with another kind of it all begins anew.
    let mut plain = of(&[1, 4]);
    for route in plain.routes.values_mut() {
        route.merge = None;
    }
    forward(relay, name, &plain, &[(1, rtp(8), None), (4, rtp(8), None)]);
    let steps = [(1, rtp(8), None), (4, rtp(8), Some(Duplicate))];
    forward(relay, name, &of(&[1, 4]), &steps);
    relay.end(&[name]);
}

/// What a line damaged does not count as brought, by number and by payload; one without a checksum, or
/// whose checksum a device is to finish, does.
fn a_damaged_copy_shuts_no_good_one_out(relay: &mut Relay<'_>) {
    let name = "damaged";
    for (by, ipv6) in [(By::Rtp, false), (By::Rtp, true), (By::Payload, false)] {
        let table = table(name, by, 2, ipv6);
        let mut steps = Vec::new();
        for length in [12_u16, 13, 511, 512, 1_024, 1_399] {
            let mut payload = rtp(length);
            payload.resize(length.into(), 7);
            let copy = |line| Packet::from(craft(&table, line, &payload));
            let mut damaged = copy(0);
            *damaged.frame.last_mut().expect("it has a payload") ^= 1;
            let partial = Packet::from(Craft {
                checksum: CraftChecksum::Partial,
                ..craft(&table, 1, &payload)
            });
            let again = Some(Duplicate);
            let malformed = Some(DropReason::Malformed);
            steps.extend([(damaged, malformed), (copy(1), None), (copy(0), again)]);
            let last = if by == By::Payload { None } else { again };
            steps.push((partial, last));
        }
        forward_all(relay, name, &table, &steps);
        relay.end(&[name]);
    }
}

/// Health is that of the merged stream, whichever line brings its packets.
fn what_passes_is_watched(relay: &mut Relay<'_>) {
    let name = "watched";
    let mut table = table(name, By::Rtp, 2, false);
    for route in table.routes.values_mut() {
        route.inspect = Some(rules::health::Inspect::default());
    }
    // By turns, with one loss on each line, and one on both.
    let lines = |number: u16| match number {
        20 => &[][..],
        30 => &[0],
        40 => &[1],
        _ if number.is_multiple_of(3) => &[1, 0],
        _ => &[0, 1],
    };
    let steps = (1..100).flat_map(|number| {
        let on = lines(number).iter().enumerate();
        on.map(move |(copy, line)| (*line, rtp(number), (copy > 0).then_some(Duplicate)))
    });
    forward(relay, name, &table, &steps.collect::<Vec<_>>());
    let found = |relay: &mut Relay<'_>| {
        let found = relay.health(name);
        (found.rtp_packets, found.lost, found.restarts)
    };
    let deadline = std::time::Instant::now() + wait::scaled(Duration::from_secs(2));
    while found(relay) != (98, 1, 0) && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(found(relay), (98, 1, 0));
    relay.end(&[name]);
}

/// After a silence a step back is a restart.
fn begins_anew_after_silence(relay: &mut Relay<'_>) {
    let name = "restart";
    let table = table(name, By::Rtp, 2, false);
    let steps: Vec<Step> = (100..110).map(|number| (0, rtp(number), None)).collect();
    forward(relay, name, &table, &steps);
    std::thread::sleep(window() * 4);
    let steps = [
        (1, rtp(50), None),
        (0, rtp(50), Some(Duplicate)),
        (0, rtp(51), None),
    ];
    forward(relay, name, &table, &steps);
    relay.end(&[name]);
}

/// A cap on what the rule accepts does not count what another line brought.
fn limits_count_one_copy(relay: &mut Relay<'_>) {
    let name = "limited";
    let mut table = table(name, By::Rtp, 2, false);
    let bits = rtp(0).len() as u64 * 8;
    for route in table.routes.values_mut() {
        route.limit = Some(RateLimit {
            unit: RateUnit::Bits,
            rate: 1,
            burst: bits * 2,
        });
    }
    let steps = [
        (0, rtp(1), None),
        (1, rtp(1), Some(Duplicate)),
        (1, rtp(2), None),
        (0, rtp(2), Some(Duplicate)),
        (0, rtp(3), Some(DropReason::RateLimited)),
        (1, rtp(3), Some(Duplicate)),
    ];
    forward(relay, name, &table, &steps);
    relay.end(&[name]);
}

/// A datagram leaves whole if any line brought it whole, in whatever order, and then no more.
fn datagrams_in_fragments(relay: &mut Relay<'_>) {
    for (name, ipv6) in [("pieces", false), ("pieces-6", true)] {
        let table = table(name, By::Rtp, 2, ipv6);
        let pieces = |line: usize, number: u16, id: u32| {
            let large = if number < 10 { 4_000 } else { 5_500 };
            let payload = [rtp(number), vec![5; large]].concat();
            cut(&craft(&table, line, &payload), id, ipv6)
        };
        let mut steps = Vec::new();
        let mut come = |(line, number, id), order: &[usize], reason: Option<DropReason>| {
            let all = pieces(line, number, id);
            assert_eq!(all.len(), if number < 10 { 3 } else { 4 });
            steps.extend(order.iter().map(|piece| (all[*piece].clone(), reason)));
        };
        let again = Some(Duplicate);
        come((0, 1, 9_001), &[0, 1, 2], None);
        come((1, 1, 9_001), &[0, 1, 2], again);
        come((1, 2, 9_002), &[0, 1, 2], None);
        come((0, 2, 9_012), &[0, 1, 2], again);
        // In any order, and by both lines.
        come((1, 3, 9_003), &[2, 1, 0], None);
        come((0, 3, 9_003), &[2, 1, 0], again);
        come((0, 4, 9_004), &[1, 0, 2], None);
        come((1, 4, 9_004), &[0, 2], again);
        // One line loses the middle, or the last, or has an identification of its own.
        come((0, 5, 9_005), &[0, 2], None);
        come((1, 5, 9_005), &[0, 1, 2], None);
        come((0, 5, 9_025), &[0, 1, 2], again);
        come((1, 6, 9_006), &[0, 1], None);
        come((0, 6, 9_016), &[0, 1, 2], None);
        // One line's come between the other's: the first that is whole ends it.
        come((0, 7, 9_007), &[0, 1], None);
        come((1, 7, 9_017), &[0, 1], None);
        come((1, 7, 9_017), &[2], None);
        come((0, 7, 9_007), &[2], again);
        // A line that loses the first has brought nothing.
        come((0, 8, 9_008), &[1, 2], None);
        come((1, 8, 9_018), &[0, 1, 2], None);
        // The first again is no other's.
        come((0, 9, 9_009), &[0], None);
        come((0, 9, 9_009), &[0], again);
        come((0, 9, 9_009), &[1, 2], None);
        // A fragment that comes twice is none that was lost.
        come((0, 10, 9_010), &[0, 1, 1, 3], None);
        come((1, 10, 9_010), &[0, 1, 2, 3], None);
        forward_all(relay, name, &table, &steps);
        relay.end(&[name]);
    }
}

/// Whole datagrams are remembered by their numbers, after their window too.
fn datagrams_in_fragments_far_apart(relay: &mut Relay<'_>) {
    for (name, ipv6) in [("apart", false), ("apart-6", true)] {
        let table = table(name, By::Rtp, 2, ipv6);
        let come = |relay: &mut Relay<'_>, line, number: u16, reason| {
            let payload = [rtp(number), vec![5; 2_000]].concat();
            // No other case's identification: what is known of a datagram lasts for seconds.
            let id = 20_000 + u32::from(number);
            let pieces = cut(&craft(&table, line, &payload), id, ipv6);
            let steps: Vec<_> = pieces.into_iter().map(|piece| (piece, reason)).collect();
            forward_all(relay, name, &table, &steps);
        };
        let begun = Instant::now();
        let mut numbers = 1..1_000;
        for number in numbers
            .by_ref()
            .take_while(|_| begun.elapsed() < 3 * window())
        {
            come(relay, 0, number, None);
            std::thread::sleep(window() / 100);
        }
        let last = numbers.next().unwrap_or(1_000) - 1;
        (1..last).for_each(|number| come(relay, 1, number, Some(Duplicate)));
        relay.end(&[name]);
    }
}

fn cut(craft: &Craft, id: u32, ipv6: bool) -> Vec<Packet> {
    match ipv6 {
        true => cut_ipv6(craft, id, 1496),
        false => cut_ipv4(craft, id as u16, 1468),
    }
}

/// One line brings 0 before anything of its sequence has come, the others as one of it.
fn the_number_0_in_fragments(relay: &mut Relay<'_>) {
    let name = "zeros";
    let table = table(name, unusual::exchange(), 3, false);
    let pieces = |line, number: u32| {
        let payload = [&[4; 4][..], &number.to_le_bytes(), &[5; 4_000]].concat();
        cut(&craft(&table, line, &payload), number, false)
    };
    let mut steps = Vec::new();
    let mut come = |line, number, reason| {
        let all = pieces(line, number).into_iter();
        steps.extend(all.map(|piece| (piece, reason)));
    };
    come(0, 0, None);
    come(1, u32::MAX, None);
    come(1, 0, Some(Duplicate));
    come(2, 0, Some(Duplicate));
    come(1, 1, None);
    come(0, 1, Some(Duplicate));
    forward_all(relay, name, &table, &steps);
    relay.end(&[name]);
}

/// A super-packet of a line, of which each segment has a number.
pub(crate) fn large(table: &Table, line: usize, numbers: std::ops::Range<u16>) -> Packet {
    let mut payload: Vec<u8> = numbers.flat_map(rtp).collect();
    payload.truncate(payload.len() - 3);
    let mut packet = Packet::from(Craft {
        checksum: CraftChecksum::Partial,
        ..craft(table, line, &payload)
    });
    let size = rtp(0).len() as u16;
    packet.meta.gso = Some(Gso { size });
    packet
}

/// Each segment is judged by itself: all leave together, or none, or those that nobody has brought.
fn super_packets(relay: &mut Relay<'_>) {
    if !relay.gets_super_packets() {
        eprintln!("skipped: merged super-packets: {NO_SUPER_PACKETS}");
        return;
    }
    for (name, ipv6) in [("large", false), ("large-6", true)] {
        let table = table(name, By::Rtp, 2, ipv6);
        let large = |line, numbers| large(&table, line, numbers);
        forward_all(
            relay,
            name,
            &table,
            &[(large(0, 1..9), None), (large(1, 1..9), Some(Duplicate))],
        );
        let mut cut = |packet: Packet, passes: fn(u16) -> bool, first: u16| {
            let mut expected = Sum::default();
            let mut reference = Reference::of(&table);
            for (number, datagram) in (first..).zip(datagrams(&packet)) {
                let reason = (!passes(number)).then_some(Duplicate);
                expect_one(&mut expected, &mut reference, &datagram, reason);
            }
            let mut seen = relay.forward([&packet], &expected);
            for copies in seen.copies.values_mut() {
                *copies = copies.iter().flat_map(datagrams).collect();
            }
            assert_eq!(seen, expected, "{name:?} from {first}");
        };
        cut(large(1, 7..13), |number| number > 8, 7);
        cut(large(0, 9..18), |number| number > 12, 9);
        cut(large(0, 16..20), |number| number > 17, 16);
        relay.end(&[name]);
    }
}
