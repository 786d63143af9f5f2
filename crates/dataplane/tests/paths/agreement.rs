//! Generated tables and packets: a path must do with each what the reference does, in bytes,
//! verdicts and counters.

use std::cell::RefCell;

use model::table::Table;
use packet::parse::{Link, Parsed, parse};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use crate::bed;
use crate::case::{INGRESS, Packet};
use crate::generated::{BOUND_PORT, packets, tables};
use crate::reference::Reference;
use crate::relayed::{Relay, Sum};

/// Packets that one table is tried with.
const PACKETS_PER_TABLE: usize = 50;

/// Tries `count` packets, and panics with the smallest table and packets on which path and
/// reference disagree.
pub(crate) fn demand(relay: &mut Relay<'_>, count: usize) {
    let _socket = bed::bind(BOUND_PORT);
    let relay = RefCell::new(relay);
    let config = Config {
        cases: u32::try_from(count.div_ceil(PACKETS_PER_TABLE)).expect("a sane count"),
        max_shrink_iters: 3000,
        max_shrink_time: 20_000,
        failure_persistence: None,
        ..Config::default()
    };
    let strategy = (tables(), vec(packets(), 1..=2 * PACKETS_PER_TABLE - 1));
    let result = TestRunner::new(config).run(&strategy, |(table, packets)| {
        compare(&mut relay.borrow_mut(), &table, &packets)
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, (table, packets))) => {
            panic!("{why}\ntable: {table:#?}\npackets: {packets:#?}")
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

fn compare(relay: &mut Relay<'_>, table: &Table, packets: &[Packet]) -> Result<(), TestCaseError> {
    let mut reference = Reference::of(table);
    let mut expected = Sum::default();
    for packet in packets {
        let socket_bound = destination_port(packet) == Some(BOUND_PORT);
        expected.expect(packet, &reference.execute(INGRESS, packet, socket_bound));
    }
    // The wires show IPv4 and IPv6 one after the other.
    expected
        .passed_up
        .sort_by_key(|frame| frame[12..14] == [0x86, 0xdd]);
    relay.apply(table);
    let seen = relay.forward(packets, &expected);
    prop_assert_eq!(seen.copies, expected.copies);
    prop_assert_eq!(seen.passed_up, expected.passed_up);
    prop_assert_eq!(seen.counters, expected.counters);
    Ok(())
}

fn destination_port(packet: &Packet) -> Option<u16> {
    match parse(&packet.frame, Link::Ethernet, packet.meta) {
        Parsed::Udp(datagram) => Some(datagram.destination_port),
        _ => None,
    }
}
