//! Rules whose lines are merged: the first copy of each packet leaves, whichever line delivers it, and the others
//! are counted for the rule and for their input.

use std::time::Duration;

use compile::table::{RateLimit, RateUnit};
use lab::wait;
use packet::craft::{Craft, CraftChecksum};
use packet::verdict::DropReason::{self, Duplicate, Late, Stray};
use rules::merge::{By, ByteOrder, Field, Sequence};

use crate::case::Packet;
use crate::merged_bed::{
    Step, craft, forward, forward_all_within, forward_within, of_lines, table, window, within,
};
use crate::relayed::Relay;
use crate::{merged_changes, merged_parts, unusual};

/// Sends sequences of packets, each to a rule of its own.
pub(crate) fn demand(relay: &mut Relay<'_>) {
    for (name, by, steps) in rows().into_iter().chain(unusual::rows()) {
        let lines = steps.iter().map(|(line, ..)| line + 1).max().unwrap_or(2);
        forward_within(relay, name, table(name, by, lines.max(2), false), &steps);
        relay.end(&[name]);
    }
    for payload in [rtp, extended] {
        let ipv6 = table("ipv6", By::Rtp, 2, true);
        forward_within(relay, "ipv6", ipv6, &two_lines(payload));
        relay.end(&["ipv6"]);
    }
    one_of_three_is_silent(relay);
    lines_are_added_and_removed(relay);
    merged_changes::demand(relay);
    fewer_streams_than_there_are(relay);
    what_passes_is_watched(relay);
    routers_may_change_a_copy(relay);
    a_damaged_copy_shuts_no_good_one_out(relay);
    begins_anew_after_silence(relay);
    limits_count_one_copy(relay);
    merged_parts::demand(relay);
}

/// The encoding of numbers in a payload.
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

/// With contributors, an extension and padding.
fn extended(number: u16) -> Vec<u8> {
    let mut payload = of_source(number, 0x8000_0000);
    payload[0] = 0xb3;
    payload.truncate(12);
    payload.extend([9; 12]);
    payload.extend([0xbe, 0xde, 0, 1, 1, 2, 3, 4]);
    payload.extend([number as u8, 0, 0, 3]);
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
                // A second packet, even the other line's, confirms it.
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
            "mdp3, from before the stream began",
            By::Mdp3,
            vec![
                (0, mdp3(50_000), None),
                (1, mdp3(100), Some(Stray)),
                (1, mdp3(101), Some(Stray)),
                (0, mdp3(60_000), Some(Stray)),
                (0, mdp3(60_001), None),
                (1, mdp3(60_001), Some(Duplicate)),
            ],
        ),
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
                // As often as a line delivers it.
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

/// The others begin anew without it; what it then delivers alone is foreign.
fn one_of_three_is_silent(relay: &mut Relay<'_>) {
    for (name, ipv6) in [("silent", false), ("silent-6", true)] {
        let mut steps = unusual::goes_back();
        steps.extend([
            (2, of_source(1, 99), Some(Stray)),
            (2, of_source(2, 99), Some(Stray)),
            (2, rtp(111), Some(Duplicate)),
            (0, of_source(2, 99), None),
            (2, of_source(2, 99), Some(Duplicate)),
            (2, of_source(3, 99), None),
            (1, of_source(3, 99), Some(Duplicate)),
        ]);
        forward_within(relay, name, table(name, By::Rtp, 3, ipv6), &steps);
        relay.end(&[name]);
    }
}

/// Lines keep their state while others are added and removed, and new ones join.
fn lines_are_added_and_removed(relay: &mut Relay<'_>) {
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
    let other = within(of(&[1, 4]), window() + Duration::from_millis(100));
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

/// A damaged packet does not count as delivered, by number and by payload; one without a checksum, or whose checksum a
/// device is to finish, does.
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
        forward_all_within(relay, name, table, &steps);
        relay.end(&[name]);
    }
}

/// Existing streams continue, and no other begins.
fn fewer_streams_than_there_are(relay: &mut Relay<'_>) {
    let name = "fewer";
    let mut table = within(table(name, By::Rtp, 2, false), Duration::from_secs(3));
    let both = |number, ssrcs: std::ops::Range<u32>| {
        let each = move |ssrc| {
            let packet = of_source(number, ssrc);
            [(0, packet.clone(), None), (1, packet, Some(Duplicate))]
        };
        ssrcs.flat_map(each).collect::<Vec<Step>>()
    };
    forward(relay, name, &table, &both(1, 1..5));
    for (streams, others, reason) in [
        (2, 5..6, Some(DropReason::StreamsExceeded)),
        (5, 5..6, None),
    ] {
        for route in table.routes.values_mut() {
            route.merge.as_mut().expect("it is merged").how.streams = streams;
        }
        let mut steps = both(streams as u16, 1..5);
        steps.extend(others.map(|ssrc| (0, of_source(1, ssrc), reason)));
        forward(relay, name, &table, &steps);
    }
    relay.end(&[name]);
}

/// Routers on the way change it.
fn routers_may_change_a_copy(relay: &mut Relay<'_>) {
    let name = "ways";
    for (by, ipv6) in [(By::Rtp, false), (By::Rtp, true), (By::Payload, false)] {
        let table = table(name, by, 2, ipv6);
        let copy = |line, number, (ttl, traffic_class)| {
            Packet::from(Craft {
                ttl,
                traffic_class,
                ..craft(&table, line, &rtp(number))
            })
        };
        let again = Some(Duplicate);
        let steps = [
            (copy(0, 1, (64, 0)), None),
            (copy(1, 1, (3, 0xb8)), again),
            (copy(1, 2, (3, 0xb8)), None),
            (copy(0, 2, (64, 0)), again),
        ];
        forward_all_within(relay, name, table, &steps);
        relay.end(&[name]);
    }
}

/// Health is that of the merged stream, whichever line delivers its packets.
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
    let all = || {
        let health = relay.health(name);
        let counts = (health.rtp_packets, health.lost, health.restarts);
        if counts == (98, 1, 0) {
            Ok(())
        } else {
            Err(counts)
        }
    };
    wait::seen_within(wait::PATIENCE, "all are inspected", all)
        .expect("98 were inspected, and one is missed");
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

/// A cap on what the rule accepts does not count what another line delivered.
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
