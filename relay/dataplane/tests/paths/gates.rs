//! Gates that open and shut while packets arrive, and routes that change their shares.

use compile::table::{RateLimit, RateUnit, Table};
use packet::verdict::{DropReason, Verdict};
use rules::health::Inspect;
use rules::merge::By;

use crate::case::{A, B, INGRESS, OPEN, Packet, SHUT, input, key, output, route};
use crate::fragments::cut_ipv4;
use crate::merged::rtp;
use crate::merged_bed::{self, craft};
use crate::merged_parts;
use crate::reference::Reference;
use crate::relayed::{Relay, Sum};

use DropReason::{Duplicate, RateLimited, Standby};

/// Opens, shuts and moves.
pub(crate) fn demand(relay: &mut Relay<'_>) {
    opens_and_shuts_at_once(relay);
    shuts_by_itself(relay);
    routes_change_their_share(relay);
    a_new_share_starts_as_was_said(relay);
    a_freed_gate_is_shut(relay);
    windows_stay_warm(relay);
    limits_count_what_a_gate_passed(relay);
    streams_are_looked_at(relay);
    fragments_obey_the_gate_each(relay);
    super_packets_are_cut_behind_it(relay);
}

fn table(share: Option<&str>) -> Table {
    let mut route = route("gated", vec![output(A), output(B)]);
    route.share = share.map(str::to_owned);
    Table {
        routes: [(key(), route)].into(),
        ..Table::default()
    }
}

/// The table with all its routes of a share.
fn of(share: &str, mut table: Table) -> Table {
    for route in table.routes.values_mut() {
        route.share = Some(share.to_owned());
    }
    table
}

/// Sends three packets that pass, or do not for `reason`.
fn forward(relay: &mut Relay<'_>, what: &str, table: &Table, reason: Option<DropReason>) {
    let packet = Packet::from(input());
    send(relay, what, table, &vec![(packet, reason); 3]);
}

/// Sends packets that pass, or do not for a reason.
fn send(
    relay: &mut Relay<'_>,
    what: &str,
    table: &Table,
    packets: &[(Packet, Option<DropReason>)],
) {
    let mut expected = Sum::default();
    let mut reference = Reference::of(&of(OPEN, table.clone()));
    for (packet, reason) in packets {
        let mut one = reference.execute(INGRESS, packet, |_| false);
        if let Some(reason) = reason {
            one.verdict = Verdict::Dropped(*reason);
            one.outputs.clear();
        }
        expected.expect(packet, &one);
    }
    let seen = relay.forward(packets.iter().map(|(packet, _)| packet), &expected);
    assert_eq!(seen, expected, "{what}");
}

fn opens_and_shuts_at_once(relay: &mut Relay<'_>) {
    let (gates, table) = (relay.gates(), table(Some("turns")));
    relay.apply(&table);
    forward(relay, "nobody opened it", &table, Some(Standby));
    for _ in 0..3 {
        gates.set("turns", u64::MAX);
        forward(relay, "opened", &table, None);
        gates.set("turns", 0);
        forward(relay, "shut", &table, Some(Standby));
    }
    gates.set("turns", sys::clock::boottime_ns() + 3_600_000_000_000);
    forward(relay, "for an hour", &table, None);
    gates.set("turns", sys::clock::boottime_ns());
    forward(relay, "no longer", &table, Some(Standby));
    relay.end(&["gated"]);
}

/// A gate shuts by itself.
fn shuts_by_itself(relay: &mut Relay<'_>) {
    let (gates, table) = (relay.gates(), table(Some("timed")));
    relay.apply(&table);
    let until = sys::clock::boottime_ns() + 50_000_000;
    gates.set("timed", until);
    assert!(gates.until("timed").abs_diff(until) < 1_000_000);
    while sys::clock::boottime_ns() <= until {
        std::thread::sleep(crate::relayed::POLL_PAUSE);
    }
    forward(relay, "its time has come", &table, Some(Standby));
    gates.set("timed", u64::MAX);
    forward(relay, "opened again", &table, None);
    relay.end(&["gated"]);
}

fn routes_change_their_share(relay: &mut Relay<'_>) {
    relay.gates().set("another", u64::MAX);
    let shares = [
        (None, None),
        (Some(SHUT), Some(Standby)),
        (Some(OPEN), None),
        (Some("another"), None),
        (Some("third"), Some(Standby)),
        (None, None),
        (Some(OPEN), None),
        (None, None),
    ];
    for (share, reason) in shares {
        let table = table(share);
        relay.apply(&table);
        forward(relay, &format!("{share:?}"), &table, reason);
    }
    relay.end(&["gated"]);
}

fn a_new_share_starts_as_was_said(relay: &mut Relay<'_>) {
    let (gates, table) = (relay.gates(), table(Some("early")));
    gates.set("early", u64::MAX);
    relay.apply(&table);
    forward(relay, "opened before", &table, None);
    relay.apply(&Table::default());
    gates.set("early", 0);
    relay.apply(&table);
    forward(relay, "shut between", &table, Some(Standby));
    relay.end(&["gated"]);
}

/// A share that gets another's gate does not get it open.
fn a_freed_gate_is_shut(relay: &mut Relay<'_>) {
    for number in 0..4 {
        let before = format!("before{number}");
        relay.gates().set(&before, u64::MAX);
        let open = table(Some(&before));
        relay.apply(&open);
        forward(relay, "open", &open, None);
        relay.apply(&Table::default());
        let next = table(Some(&format!("next{number}")));
        relay.apply(&next);
        forward(relay, "next", &next, Some(Standby));
        relay.apply(&Table::default());
    }
    relay.end(&["gated"]);
}

/// A standby relay records what has passed elsewhere.
fn windows_stay_warm(relay: &mut Relay<'_>) {
    let (gates, name) = (relay.gates(), "warm");
    let table = of("warm", merged_bed::table(name, By::Rtp, 2, false));
    relay.apply(&table);
    let steps = |steps: &[(usize, u16, Option<DropReason>)]| {
        let packet = |(line, number, reason): &(usize, u16, Option<DropReason>)| {
            let packet = Packet::from(craft(&table, *line, &rtp(*number)));
            (packet, *reason)
        };
        steps.iter().map(packet).collect::<Vec<_>>()
    };
    let shut = steps(&[
        (0, 1, Some(Standby)),
        (1, 1, Some(Duplicate)),
        (1, 2, Some(Standby)),
        (0, 3, Some(Standby)),
    ]);
    send(relay, "merged, shut", &table, &shut);
    gates.set("warm", u64::MAX);
    let open = steps(&[
        (0, 2, Some(Duplicate)),
        (1, 3, Some(Duplicate)),
        (1, 4, None),
        (0, 4, Some(Duplicate)),
        (0, 5, None),
    ]);
    send(relay, "merged, open", &table, &open);
    relay.end(&[name]);
}

fn limits_count_what_a_gate_passed(relay: &mut Relay<'_>) {
    let gates = relay.gates();
    let mut table = table(Some("limited"));
    for route in table.routes.values_mut() {
        route.limit = Some(RateLimit {
            unit: RateUnit::Bits,
            rate: 1,
            burst: input().payload.len() as u64 * 8 * 3,
        });
    }
    relay.apply(&table);
    let mut unlimited = table.clone();
    unlimited
        .routes
        .values_mut()
        .for_each(|route| route.limit = None);
    for _ in 0..3 {
        forward(relay, "behind a shut gate", &unlimited, Some(Standby));
    }
    gates.set("limited", u64::MAX);
    forward(relay, "the whole burst", &unlimited, None);
    forward(relay, "above it", &unlimited, Some(RateLimited));
    relay.end(&["gated"]);
}

fn streams_are_looked_at(relay: &mut Relay<'_>) {
    let mut table = table(Some(SHUT));
    for route in table.routes.values_mut() {
        route.inspect = Some(Inspect::default());
        route.rule = "watched".to_owned();
    }
    relay.apply(&table);
    let packets: Vec<_> = [1, 2, 4]
        .into_iter()
        .map(|number| {
            let craft = packet::craft::Craft {
                payload: rtp(number),
                ..input()
            };
            (Packet::from(craft), Some(Standby))
        })
        .collect();
    send(relay, "watched", &table, &packets);
    let three = || {
        let packets = relay.health("watched").rtp_packets;
        if packets == 3 { Ok(()) } else { Err(packets) }
    };
    lab::wait::seen_within(lab::wait::PATIENCE, "three are inspected", three)
        .expect("all that came was inspected");
    relay.end(&["watched"]);
}

fn fragments_obey_the_gate_each(relay: &mut Relay<'_>) {
    let (gates, table) = (relay.gates(), table(Some("pieces")));
    relay.apply(&table);
    let pieces = |id: u16| {
        let craft = packet::craft::Craft {
            payload: vec![5; 4_000],
            ..input()
        };
        cut_ipv4(&craft, id, 1468).into_iter()
    };
    let of = |pieces: &mut dyn Iterator<Item = Packet>, reason| {
        pieces.map(|piece| (piece, reason)).collect::<Vec<_>>()
    };
    send(
        relay,
        "shut",
        &table,
        &of(&mut pieces(7_001), Some(Standby)),
    );
    gates.set("pieces", u64::MAX);
    send(relay, "open", &table, &of(&mut pieces(7_002), None));
    // Shut in the middle of a datagram.
    let mut datagram = pieces(7_003);
    let first = of(&mut datagram.by_ref().take(1), None);
    let rest = of(&mut datagram, Some(Standby));
    send(relay, "its first", &table, &first);
    gates.set("pieces", 0);
    let mut expected = Sum::default();
    let mut knows = Reference::of(&crate::gates::of(OPEN, table.clone()));
    let _ = knows.execute(INGRESS, &first[0].0, |_| false);
    for (piece, _) in &rest {
        let mut one = knows.execute(INGRESS, piece, |_| false);
        one.verdict = Verdict::Dropped(Standby);
        one.outputs.clear();
        expected.expect(piece, &one);
    }
    let seen = relay.forward(rest.iter().map(|(piece, _)| piece), &expected);
    assert_eq!(seen, expected, "the rest");
    relay.end(&["gated"]);
}

/// The part of a super-packet that the other line delivered is a duplicate, and the rest stands by.
fn super_packets_are_cut_behind_it(relay: &mut Relay<'_>) {
    if !relay.gets_super_packets() {
        eprintln!("skipped: {}", crate::segments::NO_SUPER_PACKETS);
        return;
    }
    let (gates, name) = (relay.gates(), "cut");
    let table = of("cut", merged_bed::table(name, By::Rtp, 2, false));
    relay.apply(&table);
    let mut large = |line: usize, numbers: std::ops::Range<u16>, new: u16, reason| {
        let packet = merged_parts::large(&table, line, numbers.clone());
        let datagrams = crate::segments::datagrams(&packet);
        let mut expected = Sum::default();
        let mut reference = Reference::of(&of(OPEN, table.clone()));
        for (number, datagram) in numbers.zip(datagrams) {
            let mut one = reference.execute(INGRESS, &datagram, |_| false);
            let reason = if number < new {
                Some(Duplicate)
            } else {
                reason
            };
            if let Some(reason) = reason {
                one.verdict = Verdict::Dropped(reason);
                one.outputs.clear();
            }
            expected.expect(&datagram, &one);
        }
        let mut seen = relay.forward([&packet], &expected);
        for copies in seen.copies.values_mut() {
            *copies = copies.iter().flat_map(crate::segments::datagrams).collect();
        }
        assert_eq!(seen, expected, "cut from {new}");
    };
    large(0, 1..9, 0, Some(Standby));
    large(1, 5..13, 9, Some(Standby));
    large(0, 10..13, 20, Some(Standby));
    gates.set("cut", u64::MAX);
    large(0, 11..16, 13, None);
    relay.end(&[name]);
}
