//! Rate limits that were exceeded: a later limit or rule starts with its whole burst. The rates are so low that time
//! gives nothing back.

use compile::table::{LinkHeader, RateLimit, RateUnit, Table};
use packet::craft::{Craft, CraftChecksum};
use packet::parse::Gso;
use rules::net::{Mac, Ports, Prefix};

use crate::case::{
    A, B, INGRESS, Packet, RULE, address, egress_mac, input, key, output, route, with,
};
use crate::reference::Reference;
use crate::relayed::{Relay, Sum};

/// Exceeds limits of rules, of outputs and the budget, then changes them.
pub(crate) fn demand(relay: &mut Relay<'_>) {
    for limited in [limit_rule, limit_output, limit_budget] {
        exceed(relay, &limited(RULE, 50));
        let lower = limited(RULE, 5);
        let mut reference = exceed(relay, &lower);
        // Applied again unchanged: what was used up stays used up.
        forward(relay, &lower, &mut reference, &Packet::from(input()), 1);
        exceed(relay, &limited(RULE, 6));
        // A removed rule makes room for others.
        for next in ["next", RULE] {
            relay.end(&[RULE, "next"]);
            exceed(relay, &limited(next, 6));
        }
        relay.end(&[RULE, "next"]);
    }
}

/// Sends more than a fresh limit passes, and checks that its burst passes.
fn exceed(relay: &mut Relay<'_>, table: &Table) -> Reference {
    let mut reference = Reference::of(table);
    if relay.gets_super_packets() {
        forward(relay, table, &mut reference, &super_packet(), 1);
    }
    forward(relay, table, &mut reference, &Packet::from(input()), 60);
    reference
}

/// Seven datagrams in one: more than some bursts.
fn super_packet() -> Packet {
    let size = input().payload.len() as u16;
    let mut packet = Packet::from(Craft {
        payload: vec![3; usize::from(size) * 7],
        checksum: CraftChecksum::Partial,
        ..input()
    });
    packet.meta.gso = Some(Gso { size });
    packet
}

/// Forwards a number of packets, and checks against the reference.
fn forward(
    relay: &mut Relay<'_>,
    table: &Table,
    reference: &mut Reference,
    packet: &Packet,
    packets: usize,
) {
    let mut expected = Sum::default();
    for _ in 0..packets {
        expected.expect(packet, &reference.execute(INGRESS, packet, |_| false));
    }
    relay.apply(table);
    let seen = relay.forward(std::iter::repeat_n(packet, packets), &expected);
    assert_eq!(seen.counters, expected.counters, "{table:?}");
    assert!(seen == expected, "other copies than expected of {table:?}");
}

/// A bit a second, and a burst of packets.
fn limit(packets: u64) -> RateLimit {
    RateLimit {
        unit: RateUnit::Bits,
        rate: 1,
        burst: packets * input().payload.len() as u64 * 8,
    }
}

fn limit_rule(rule: &str, burst: u64) -> Table {
    let mut table = table(rule);
    for route in table.routes.values_mut() {
        route.limit = Some(limit(burst));
    }
    table
}

fn limit_output(rule: &str, burst: u64) -> Table {
    let mut table = table(rule);
    for route in table.routes.values_mut() {
        route.outputs[1].limit = Some(limit(burst));
    }
    table
}

fn limit_budget(rule: &str, burst: u64) -> Table {
    Table {
        budget: Some(limit(burst)),
        ..table(rule)
    }
}

/// A copy to a group and one to a host.
fn table(rule: &str) -> Table {
    let unicast = with(output(B), |egress| {
        egress.destination = Prefix::host(address("10.9.9.9"));
        egress.ports = Ports::single(7000);
        egress.link = LinkHeader::Neighbour {
            source: Mac(egress_mac(B)),
            destination: Mac([2, 0, 0, 0, 9, 9]),
        };
    });
    Table {
        routes: [(key(), route(rule, vec![output(A), unicast]))].into(),
        ..Table::default()
    }
}
