//! Merged datagrams that arrive in fragments or as super-packets: each is judged as a whole datagram.

use std::time::Instant;

use compile::table::Table;
use packet::craft::{Craft, CraftChecksum};
use packet::parse::Gso;
use packet::verdict::DropReason::{self, Duplicate};
use rules::merge::By;

use crate::case::Packet;
use crate::fragments::{cut_ipv4, cut_ipv6};
use crate::merged::rtp;
use crate::merged_bed::{craft, expect_one, forward_all, table, window};
use crate::reference::Reference;
use crate::relayed::{Relay, Sum};
use crate::segments::{NO_SUPER_PACKETS, datagrams};
use crate::unusual;

pub(crate) fn demand(relay: &mut Relay<'_>) {
    datagrams_in_fragments(relay);
    datagrams_in_fragments_far_apart(relay);
    the_number_0_in_fragments(relay);
    super_packets(relay);
}

/// A datagram leaves whole if any line delivered it whole, in any order, and then no more.
fn datagrams_in_fragments(relay: &mut Relay<'_>) {
    for (name, ipv6) in [("pieces", false), ("pieces-6", true)] {
        let table = table(name, By::Rtp, 2, ipv6);
        let pieces = |line: usize, number: u16, id: u32| {
            let large = if number < 10 { 4_000 } else { 5_500 };
            let payload = [rtp(number), vec![5; large]].concat();
            cut(&craft(&table, line, &payload), id, ipv6)
        };
        let mut steps = Vec::new();
        let mut arrive = |(line, number, id), order: &[usize], reason: Option<DropReason>| {
            let all = pieces(line, number, id);
            assert_eq!(all.len(), if number < 10 { 3 } else { 4 });
            steps.extend(order.iter().map(|piece| (all[*piece].clone(), reason)));
        };
        let again = Some(Duplicate);
        arrive((0, 1, 9_001), &[0, 1, 2], None);
        arrive((1, 1, 9_001), &[0, 1, 2], again);
        arrive((1, 2, 9_002), &[0, 1, 2], None);
        arrive((0, 2, 9_012), &[0, 1, 2], again);
        // In any order, and by both lines.
        arrive((1, 3, 9_003), &[2, 1, 0], None);
        arrive((0, 3, 9_003), &[2, 1, 0], again);
        arrive((0, 4, 9_004), &[1, 0, 2], None);
        arrive((1, 4, 9_004), &[0, 2], again);
        // One line loses the middle, or the last, or has an identification of its own.
        arrive((0, 5, 9_005), &[0, 2], None);
        arrive((1, 5, 9_005), &[0, 1, 2], None);
        arrive((0, 5, 9_025), &[0, 1, 2], again);
        arrive((1, 6, 9_006), &[0, 1], None);
        arrive((0, 6, 9_016), &[0, 1, 2], None);
        // One line's arrive between the other's: the first that is whole ends it.
        arrive((0, 7, 9_007), &[0, 1], None);
        arrive((1, 7, 9_017), &[0, 1], None);
        arrive((1, 7, 9_017), &[2], None);
        arrive((0, 7, 9_007), &[2], again);
        // A line that loses the first has delivered nothing.
        arrive((0, 8, 9_008), &[1, 2], None);
        arrive((1, 8, 9_018), &[0, 1, 2], None);
        // The repeated first fragment belongs to the same datagram.
        arrive((0, 9, 9_009), &[0], None);
        arrive((0, 9, 9_009), &[0], again);
        arrive((0, 9, 9_009), &[1, 2], None);
        // A fragment that arrives twice does not replace a lost one.
        arrive((0, 10, 9_010), &[0, 1, 1, 3], None);
        arrive((1, 10, 9_010), &[0, 1, 2, 3], None);
        forward_all(relay, name, &table, &steps);
        relay.end(&[name]);
    }
}

/// Whole datagrams are recorded by their numbers, after their window too.
fn datagrams_in_fragments_far_apart(relay: &mut Relay<'_>) {
    for (name, ipv6) in [("apart", false), ("apart-6", true)] {
        let table = table(name, By::Rtp, 2, ipv6);
        let arrive = |relay: &mut Relay<'_>, line, number: u16, reason| {
            let payload = [rtp(number), vec![5; 2_000]].concat();
            // No other case's identification: the record of a datagram lasts for seconds.
            let id = 20_000 + u32::from(number);
            let pieces = cut(&craft(&table, line, &payload), id, ipv6);
            let steps: Vec<_> = pieces.into_iter().map(|piece| (piece, reason)).collect();
            forward_all(relay, name, &table, &steps);
        };
        let begun = Instant::now();
        let mut numbers = 1..1_000;
        for number in numbers
            .by_ref()
            .take_while(|_| begun.elapsed() < 2 * window())
        {
            arrive(relay, 0, number, None);
            std::thread::sleep(window() / 20);
        }
        let last = numbers.next().unwrap_or(1_000) - 1;
        (1..last).for_each(|number| arrive(relay, 1, number, Some(Duplicate)));
        relay.end(&[name]);
    }
}

fn cut(craft: &Craft, id: u32, ipv6: bool) -> Vec<Packet> {
    if ipv6 {
        cut_ipv6(craft, id, 1496)
    } else {
        cut_ipv4(craft, id as u16, 1468)
    }
}

/// One line delivers 0 before anything of its sequence has arrived, the others within the sequence.
fn the_number_0_in_fragments(relay: &mut Relay<'_>) {
    let name = "zeros";
    let table = table(name, unusual::exchange(), 3, false);
    let pieces = |line, number: u32| {
        let payload = [&[4; 4][..], &number.to_le_bytes(), &[5; 4_000]].concat();
        cut(&craft(&table, line, &payload), number, false)
    };
    let mut steps = Vec::new();
    let mut arrive = |line, number, reason| {
        let all = pieces(line, number).into_iter();
        steps.extend(all.map(|piece| (piece, reason)));
    };
    arrive(0, 0, None);
    arrive(1, u32::MAX, None);
    arrive(1, 0, Some(Duplicate));
    arrive(2, 0, Some(Duplicate));
    arrive(1, 1, None);
    arrive(0, 1, Some(Duplicate));
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

/// Each segment is judged by itself: all leave together, or none, or those that no line has delivered.
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
