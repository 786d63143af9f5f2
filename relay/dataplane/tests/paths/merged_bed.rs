//! Merging rules for these tests, and packets forwarded to them: each by itself, with the reason if it does not
//! pass.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use compile::table::{MergeLegs, Route, RouteKey, Table};
use lab::wait;
use packet::craft::Craft;
use packet::verdict::{DropReason, Verdict};
use rules::merge::{By, Merge};
use rules::net::Prefix;

use crate::bed::host_drops;
use crate::case::{A, B, INGRESS, PORT, Packet, address, input, key, output, route, socket, with};
use crate::reference::Reference;
use crate::relayed::{Relay, Sum};

/// The merge's window: under emulation the packets of a test are far apart.
pub(crate) fn window() -> Duration {
    wait::scaled(Duration::from_millis(400)).min(Duration::from_secs(3))
}

/// The longest window: a machine that does not send a sequence within it cannot test merging.
const LONGEST: Duration = Duration::from_secs(30);

/// The longest window of a table of payloads.
pub(crate) const LONGEST_BY_PAYLOAD: Duration = Duration::from_secs(16);

/// Few enough that all of them arrive before one ends.
pub(crate) const STREAMS: u32 = 24;

/// A packet of a line, and why it does not pass.
pub(crate) type Step = (usize, Vec<u8>, Option<DropReason>);

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
    if ipv6 {
        format!("ff3e::{}", line + 1)
    } else {
        format!("239.1.1.{}", line + 1)
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
    let merge = MergeLegs {
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

/// Forwards the steps' packets to `table`, and checks their outcomes.
pub(crate) fn forward(relay: &mut Relay<'_>, name: &str, table: &Table, steps: &[Step]) {
    if let Some(surprise) = surprise(relay, name, table, steps) {
        panic!("{surprise}");
    }
}

/// The first outcome that differs from the steps.
pub(crate) fn surprise(
    relay: &mut Relay<'_>,
    name: &str,
    table: &Table,
    steps: &[Step],
) -> Option<String> {
    relay.apply(table);
    let before = unaccounted(relay, name);
    let surprise = steps
        .iter()
        .enumerate()
        .find_map(|(number, (line, payload, reason))| {
            let packet = Packet::from(craft(table, *line, payload));
            let expected = expect(table, &packet, *reason);
            let seen = relay.forward([&packet], &expected);
            (seen != expected)
                .then(|| format!("{name:?}, step {number}: seen {seen:?}, expected {expected:?}"))
        });
    surprise.or_else(|| {
        let after = unaccounted(relay, name);
        (after != before).then(|| format!("{name:?}: {after} not counted, before {before}"))
    })
}

/// Packets that the merge did not count. It counts the first fragment of a datagram.
fn unaccounted(relay: &Relay<'_>, name: &str) -> i64 {
    let counters = relay.counters();
    let Some(rule) = counters.rules.get(name) else {
        return 0;
    };
    rule.merge.as_ref().map_or(0, |merge| {
        let delivered: u64 = merge.lines.values().map(|leg| leg.brought()).sum();
        rule.received.packets.cast_signed() - delivered.cast_signed()
    })
}

/// Forwards steps that must all arrive within the window, as [`in_time`] does.
pub(crate) fn forward_within(relay: &mut Relay<'_>, name: &str, table: Table, steps: &[Step]) {
    in_time(relay, name, table, |relay, table| {
        surprise(relay, name, table, steps)
    });
}

/// Forwards packets that must all arrive within the window, as [`in_time`] does.
pub(crate) fn forward_all_within(
    relay: &mut Relay<'_>,
    name: &str,
    table: Table,
    steps: &[(Packet, Option<DropReason>)],
) {
    in_time(relay, name, table, |relay, table| {
        surprise_of_all(relay, name, table, steps)
    });
}

/// Attempts what must not last longer than the window: where the machine takes longer, or the host drops packets, the
/// result is ignored, and it is repeated with a window twice as long.
fn in_time(
    relay: &mut Relay<'_>,
    name: &str,
    mut table: Table,
    mut attempt: impl FnMut(&mut Relay<'_>, &Table) -> Option<String>,
) {
    let mut window = window();
    loop {
        let (begun, drops) = (Instant::now(), host_drops());
        let Some(surprise) = attempt(relay, &table) else {
            return;
        };
        let is_disturbed = begun.elapsed() > window || host_drops() > drops;
        assert!(is_disturbed && window < LONGEST, "{surprise}");
        eprintln!("{name:?}: took {:?}, anew", begun.elapsed());
        window *= 2;
        // The counts of the steps before are dropped, too.
        relay.end(&[name]);
        table = within(table, window);
    }
}

/// The same with another window.
pub(crate) fn within(mut table: Table, window: Duration) -> Table {
    for route in table.routes.values_mut() {
        if let Some(merge) = &mut route.merge {
            merge.how.window = window;
        }
    }
    table
}

/// Forwards packets, and checks that those without a drop reason pass.
pub(crate) fn forward_all(
    relay: &mut Relay<'_>,
    name: &str,
    table: &Table,
    steps: &[(Packet, Option<DropReason>)],
) {
    if let Some(surprise) = surprise_of_all(relay, name, table, steps) {
        panic!("{surprise}");
    }
}

/// The first outcome that differs from those of the packets.
fn surprise_of_all(
    relay: &mut Relay<'_>,
    name: &str,
    table: &Table,
    steps: &[(Packet, Option<DropReason>)],
) -> Option<String> {
    relay.apply(table);
    let mut reference = Reference::of(table);
    let mut steps = steps.iter().enumerate();
    steps.find_map(|(number, (packet, reason))| {
        let mut expected = Sum::default();
        expect_one(&mut expected, &mut reference, packet, *reason);
        let seen = relay.forward([packet], &expected);
        (seen != expected)
            .then(|| format!("{name:?}, step {number}: seen {seen:?}, expected {expected:?}"))
    })
}

pub(crate) fn expect_one(
    sum: &mut Sum,
    reference: &mut Reference,
    packet: &Packet,
    reason: Option<DropReason>,
) {
    let mut expected = reference.execute(INGRESS, packet, |_| false);
    if let Some(reason) = reason {
        expected.verdict = Verdict::Dropped(reason);
        expected.outputs = BTreeMap::new();
        // One whose port is unknown goes to the host as well.
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
