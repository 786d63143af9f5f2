//! Routes of shares: packets leave while the share's gate is open, and are `standby` otherwise.

use compile::table::{DownReason, LocalDelivery, RouteKey};
use packet::craft::Craft;
use packet::verdict::{DropReason, Verdict};
use rules::net::{Ports, Prefix};

use crate::case::{
    A, B, Case, OPEN, PAST, PORT, SHUT, address, craft_super_packet, down, input, key, plain,
    socket,
};
use crate::cases_inputs::{of_group, of_lines, of_source, range, several};

pub(crate) fn cases() -> Vec<Case> {
    [gates(), keys(), lines(), locals(), drops()].concat()
}

/// The case with all its routes of a share.
fn of(share: &str, mut case: Case) -> Case {
    for (_, route) in &mut case.routes {
        route.share = Some(share.to_owned());
    }
    if share != OPEN {
        case.expected.verdict = Verdict::Dropped(DropReason::Standby);
        case.expected.outputs.clear();
    }
    case
}

fn relayed(name: &'static str, packet: Craft) -> Case {
    Case::relayed(name, packet.clone(), [plain(&packet, A), plain(&packet, B)])
}

fn gates() -> Vec<Case> {
    let (large, packet) = craft_super_packet();
    let first = Craft {
        fragment: 0x2000,
        ..input()
    };
    vec![
        of(OPEN, relayed("an open gate", input())),
        of(SHUT, relayed("a shut gate", input())),
        of(PAST, relayed("a gate whose deadline has passed", input())),
        of(
            OPEN,
            Case::relayed(
                "a super-packet at an open gate",
                packet.clone(),
                [plain(&large, A)],
            ),
        ),
        of(
            SHUT,
            Case::relayed(
                "a super-packet at a shut gate is as many as its segments",
                packet,
                [plain(&large, A)],
            ),
        ),
        of(
            OPEN,
            relayed("a first fragment at an open gate", first.clone()),
        ),
        of(SHUT, relayed("a first fragment at a shut gate", first)),
        of(
            SHUT,
            Case::relayed(
                "a shut gate before an output that is down",
                input(),
                [down(DownReason::NoAddress, DropReason::NoAddress)],
            ),
        ),
    ]
}

fn keyed(mut case: Case, key: RouteKey) -> Case {
    case.routes[0].0 = key;
    case
}

fn keys() -> Vec<Case> {
    let ipv6 = Craft {
        source: socket("fd00::5", 4000),
        destination: socket("ff3e::1", PORT),
        macs: ([0x33, 0x33, 0, 0, 0, 1], input().macs.1),
        ..input()
    };
    let group6 = RouteKey {
        groups: Prefix::host(address("ff3e::1")),
        ..key()
    };
    let ipv6 = Case::relayed(
        "IPv6 at a shut gate",
        ipv6,
        [down(DownReason::NoAddress, DropReason::NoAddress)],
    );
    let ports = RouteKey {
        ports: Ports {
            first: PORT - 1,
            last: PORT + 1,
        },
        ..key()
    };
    let mut beside = of(
        SHUT,
        relayed("(S,G) at a shut gate beside (*,G) at an open one", input()),
    );
    let (_, route) = beside.routes[0].clone();
    beside.routes[0].0 = of_source("10.0.0.5");
    let mut other = route.clone();
    other.share = Some(OPEN.to_owned());
    other.rule = "other".to_owned();
    beside.routes.push((key(), other));
    let mut without = relayed("(*,G) without a share beside (S,G) at a shut gate", input());
    let mut other = route;
    other.rule = "other".to_owned();
    without.routes.push((of_source("10.0.0.6"), other));
    vec![
        of(
            OPEN,
            keyed(relayed("a range at an open gate", input()), range()),
        ),
        of(
            SHUT,
            keyed(relayed("a range at a shut gate", input()), range()),
        ),
        of(SHUT, keyed(relayed("ports at a shut gate", input()), ports)),
        of(
            OPEN,
            keyed(
                relayed("(S,G) at an open gate", input()),
                of_source("10.0.0.5"),
            ),
        ),
        of(
            SHUT,
            keyed(
                relayed("(S,G) at a shut gate", input()),
                of_source("10.0.0.5"),
            ),
        ),
        of(SHUT, keyed(ipv6, group6)),
        beside,
        without,
    ]
}

fn lines() -> Vec<Case> {
    let two = [of_group("239.1.1.2"), key()];
    let by_first = Craft {
        destination: socket("239.1.1.2", PORT),
        ..input()
    };
    let named = |rule: &str, mut case: Case| {
        for (_, route) in &mut case.routes {
            route.rule = rule.to_owned();
        }
        case.expected.rule = Some(rule.to_owned());
        case
    };
    let mut stands_by = of_lines(
        relayed("a line that stands by at an open gate", input()),
        &two,
        1,
    );
    stands_by = of(OPEN, stands_by);
    stands_by.expected.verdict = Verdict::Dropped(DropReason::Standby);
    stands_by.expected.outputs.clear();
    vec![
        of(
            OPEN,
            several(relayed("two inputs at an open gate", input()), &two, 1),
        ),
        of(
            SHUT,
            several(
                relayed("two inputs at a shut gate: standby in both", input()),
                &two,
                1,
            ),
        ),
        named(
            "gate-active-shut",
            of(
                SHUT,
                of_lines(
                    relayed("the active line at a shut gate", by_first.clone()),
                    &two,
                    0,
                ),
            ),
        ),
        named(
            "gate-standby-shut",
            of(
                SHUT,
                of_lines(
                    relayed("a line that stands by at a shut gate", input()),
                    &two,
                    1,
                ),
            ),
        ),
        named(
            "gate-active-open",
            of(
                OPEN,
                of_lines(
                    relayed("the active line at an open gate", by_first),
                    &two,
                    0,
                ),
            ),
        ),
        named("gate-standby-open", stands_by),
    ]
}

/// The host's own sockets are no share's.
fn locals() -> Vec<Case> {
    let local = |case: Case, local, passed_up| {
        let mut case = of(SHUT, case);
        case.routes[0].1.local = local;
        case.expected.passed_up = passed_up;
        case
    };
    let mut bound = local(
        relayed("a shut gate, and a socket of the host", input()),
        LocalDelivery::Auto,
        true,
    );
    bound.socket_bound = true;
    vec![
        bound,
        local(
            relayed("a shut gate, and local=yes", input()),
            LocalDelivery::Yes,
            true,
        ),
        local(
            relayed("a shut gate, and local=no", input()),
            LocalDelivery::No,
            false,
        ),
    ]
}

/// What is dropped for another reason is so whatever the gate.
fn drops() -> Vec<Case> {
    let cases = Case::never_relayed([
        "a malformed packet at a shut gate",
        "a packet from an own address at a shut gate",
    ]);
    let shut = |mut case: Case| {
        case.routes[0].1.share = Some(SHUT.to_owned());
        case
    };
    cases.map(shut).to_vec()
}
