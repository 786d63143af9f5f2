//! Rules that reflect: a packet leaves by every output but that of its own input, and what others reflect back does
//! not pass again, whichever input receives it.

use compile::table::{Route, RouteKey, Table};
use packet::craft::Craft;
use packet::verdict::DropReason;
use rules::merge::By;
use rules::net::Prefix;

use crate::case::{A, B, C, Packet, address, output, socket, with};
use crate::fragments::{cut_ipv4, cut_ipv6};
use crate::merged_bed::{craft, forward_all, table as merged, window};
use crate::merged_parts::large;
use crate::relayed::Relay;
use crate::segments::NO_SUPER_PACKETS;

const DUPLICATE: Option<DropReason> = Some(DropReason::Duplicate);

/// More than there are lines of a merge.
const INPUTS: usize = 6;

/// Reflects packets of both families, with and without regard to their senders.
pub(crate) fn demand(relay: &mut Relay<'_>) {
    for ipv6 in [false, true] {
        payloads_pass_once(relay, ipv6);
        senders_pass_once_each(relay, ipv6);
        datagrams_in_fragments(relay, ipv6);
        super_packets(relay, ipv6);
    }
}

/// A rule whose first three inputs are on the interfaces that it sends by.
fn table(rule: &str, by: By, ipv6: bool) -> Table {
    let merged = merged(rule, by, INPUTS, ipv6);
    let outputs = (0..).zip([A, B, C]).map(|(index, interface)| {
        let mut output = with(output(interface), |egress| {
            if ipv6 {
                egress.destination = Prefix::host(address("ff02::fb"));
                egress.source = Some(address("fe80::77"));
            }
        });
        output.index = index;
        output
    });
    let outputs: Vec<_> = outputs.collect();
    let routes = (0..).zip(merged.routes);
    let routes = routes.map(|(number, (key, route)): (u32, (RouteKey, Route))| {
        let others = outputs
            .iter()
            .filter(|output| output.index != u64::from(number));
        let outputs = others.cloned().collect();
        (key, Route { outputs, ..route })
    });
    Table {
        routes: routes.collect(),
        ..Table::default()
    }
}

fn packet(table: &Table, line: usize, payload: &[u8]) -> Packet {
    craft(table, line, payload).into()
}

/// The same packet as another host sends it, or the same from another port.
fn from_another(table: &Table, line: usize, payload: &[u8], port: u16) -> Packet {
    let packet = craft(table, line, payload);
    let source = if packet.source.is_ipv6() {
        socket("fd00::6", port)
    } else {
        socket("10.0.0.6", port)
    };
    Craft { source, ..packet }.into()
}

fn payloads_pass_once(relay: &mut Relay<'_>, ipv6: bool) {
    let name = "reflected";
    let table = table(name, By::Once, ipv6);
    let of = |line: usize, payload: &[u8]| packet(&table, line, payload);
    let steps = [
        (of(0, b"query"), None),
        (of(1, b"query"), DUPLICATE),
        (of(0, b"query"), DUPLICATE),
        (from_another(&table, 2, b"query", 4_000), DUPLICATE),
        (of(5, b"query"), DUPLICATE),
        (of(5, b"answer"), None),
        (of(1, b"answer"), DUPLICATE),
        (of(1, b""), None),
        (of(2, b""), DUPLICATE),
        (of(2, &[7; 1_300]), None),
        (of(4, &[7; 1_300]), DUPLICATE),
    ];
    forward_all(relay, name, &table, &steps);
    // What is sent again later is intended.
    std::thread::sleep(window() * 2);
    let steps = [(of(1, b"query"), None), (of(0, b"query"), DUPLICATE)];
    forward_all(relay, name, &table, &steps);
    relay.end(&[name]);
}

fn senders_pass_once_each(relay: &mut Relay<'_>, ipv6: bool) {
    let name = "of each";
    let table = table(name, By::OnceFromEach, ipv6);
    let search = b"M-SEARCH * HTTP/1.1";
    let steps = [
        (packet(&table, 0, search), None),
        (packet(&table, 1, search), DUPLICATE),
        (from_another(&table, 0, search, 4_000), None),
        (from_another(&table, 0, search, 4_001), None),
        (from_another(&table, 2, search, 4_000), DUPLICATE),
        (from_another(&table, 4, search, 4_001), DUPLICATE),
    ];
    forward_all(relay, name, &table, &steps);
    relay.end(&[name]);
}

fn datagrams_in_fragments(relay: &mut Relay<'_>, ipv6: bool) {
    let name = "pieces";
    let table = table(name, By::Once, ipv6);
    let pieces = |line: usize, id: u32| {
        let craft = craft(&table, line, &[5; 4_000]);
        if ipv6 {
            cut_ipv6(&craft, id, 1_496)
        } else {
            cut_ipv4(&craft, id as u16, 1_468)
        }
    };
    let all = |pieces: Vec<Packet>, reason| pieces.into_iter().map(move |piece| (piece, reason));
    let mut steps: Vec<_> = all(pieces(0, 9_101), None).collect();
    steps.extend(all(pieces(1, 9_102), DUPLICATE));
    forward_all(relay, name, &table, &steps);
    relay.end(&[name]);
}

fn super_packets(relay: &mut Relay<'_>, ipv6: bool) {
    if !relay.gets_super_packets() {
        eprintln!("skipped: reflected super-packets: {NO_SUPER_PACKETS}");
        return;
    }
    let name = "large";
    let table = table(name, By::Once, ipv6);
    let steps = [
        (large(&table, 0, 1..9), None),
        (large(&table, 1, 1..9), DUPLICATE),
    ];
    forward_all(relay, name, &table, &steps);
    relay.end(&[name]);
}
