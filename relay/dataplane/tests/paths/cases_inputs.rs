//! A rule with several inputs counts what each of them receives, whatever becomes of it.

use std::time::Duration;

use compile::table::{DownReason, FailoverLegs, RateLimit, RateUnit, Route, RouteKey};
use packet::craft::Craft;
use packet::verdict::{DropReason, Verdict};
use rules::failover::Failover;
use rules::net::{Ports, Prefix};

use crate::case::{
    A, B, Case, Outlet, PORT, address, copy_of, craft_super_packet, down, input, key, output,
    plain, socket,
};

pub(crate) fn cases() -> Vec<Case> {
    [matching(), drops(), sizes(), fragments(), standing_by()].concat()
}

/// The case's one route under each of `keys`, an input each; the packet comes by the `taken`-th.
pub(crate) fn several(mut case: Case, keys: &[RouteKey], taken: usize) -> Case {
    let (_, route) = case.routes.remove(0);
    let own = (0..).zip(keys).map(|(number, key)| {
        let input = Some(at(number));
        let route = Route {
            input,
            ..route.clone()
        };
        (*key, route)
    });
    case.routes = own.collect();
    case.expected.input = Some(at(taken));
    case
}

/// The same where the inputs stand by for each other; the first is active from the start.
pub(crate) fn of_lines(case: Case, keys: &[RouteKey], taken: usize) -> Case {
    let mut case = several(case, keys, taken);
    let failover = FailoverLegs {
        when: Failover {
            silence: Duration::from_secs(60),
            revert: None,
            ..Failover::default()
        },
        lines: (0..keys.len()).map(at).collect(),
    };
    for (_, route) in &mut case.routes {
        route.failover = Some(Box::new(failover.clone()));
    }
    case
}

/// The text of an input; to the paths it is but a name.
fn at(number: usize) -> String {
    format!("input-{number}")
}

pub(crate) fn of_group(group: &str) -> RouteKey {
    RouteKey {
        groups: Prefix::host(address(group)),
        ..key()
    }
}

pub(crate) fn of_source(source: &str) -> RouteKey {
    RouteKey {
        source: Some(address(source).into()),
        ..key()
    }
}

/// The range of groups around the plain one, at any port.
pub(crate) fn range() -> RouteKey {
    RouteKey {
        groups: Prefix::new(address("239.1.0.0"), 16),
        ports: Ports {
            first: 1,
            last: 65_535,
        },
        ..key()
    }
}

fn relayed(name: &'static str, packet: Craft) -> Case {
    Case::relayed(name, packet.clone(), [plain(&packet, A), plain(&packet, B)])
}

fn matching() -> Vec<Case> {
    let two_groups = [key(), of_group("239.1.1.2")];
    let other_group = Craft {
        destination: socket("239.1.1.2", PORT),
        ..input()
    };
    let sources = [key(), of_source("10.0.0.5"), of_source("10.0.0.6")];
    let stranger = Craft {
        source: socket("10.0.0.7", 4000),
        ..input()
    };
    let exact_and_range = [range(), key()];
    let of_range = Craft {
        destination: socket("239.1.7.7", 7000),
        ..input()
    };
    // Sources of one input are one input.
    let mut one_input = several(
        relayed("two inputs: the second source of the second", input()),
        &[
            of_group("239.1.1.2"),
            of_source("10.0.0.6"),
            of_source("10.0.0.5"),
        ],
        1,
    );
    one_input.routes[2].1.input = Some(at(1));
    let ipv6 = Craft {
        source: socket("fd00::5", 4000),
        destination: socket("ff3e::1", PORT),
        macs: ([0x33, 0x33, 0, 0, 0, 1], input().macs.1),
        ..input()
    };
    let mut ipv6 = Case::relayed(
        "two inputs of IPv6: the second",
        ipv6,
        [down(DownReason::NoAddress, DropReason::NoAddress)],
    );
    ipv6 = several(ipv6, &[of_group("ff3e::2"), of_group("ff3e::1")], 1);
    vec![
        several(
            relayed("two inputs: the first group", input()),
            &two_groups,
            0,
        ),
        several(
            relayed("two inputs: the second group", other_group),
            &two_groups,
            1,
        ),
        several(
            relayed(
                "(S,G) and (*,G) inputs of one rule: the source's own",
                input(),
            ),
            &sources,
            1,
        ),
        several(
            relayed(
                "(S,G) and (*,G) inputs of one rule: any other source",
                stranger,
            ),
            &sources,
            0,
        ),
        several(
            relayed("an exact input beside a range: the exact one", input()),
            &exact_and_range,
            1,
        ),
        several(
            relayed("an exact input beside a range: the range", of_range),
            &exact_and_range,
            0,
        ),
        one_input,
        ipv6,
    ]
}

fn drops() -> Vec<Case> {
    let two = [of_group("239.1.1.2"), key()];
    let [malformed, own] = Case::never_relayed([
        "a malformed packet is one of its input",
        "a packet from an own address is one of its input",
    ]);
    let mut limited = several(
        relayed(
            "a packet above the rule's limit is one of its input",
            input(),
        ),
        &two,
        1,
    );
    let bytes = input().payload.len() as u64;
    // A fresh limit.
    let rule = "limited-inputs".to_owned();
    for (_, route) in &mut limited.routes {
        route.rule.clone_from(&rule);
        route.limit = Some(RateLimit {
            unit: RateUnit::Bits,
            rate: 1,
            burst: bytes * 8 - 1,
        });
    }
    limited.expected.rule = Some(rule);
    limited.expected.verdict = Verdict::Dropped(DropReason::RateLimited);
    limited.expected.outputs.clear();
    vec![several(malformed, &two, 1), several(own, &two, 1), limited]
}

/// Each of a rule of its own, whose first line is active.
fn standing_by() -> Vec<Case> {
    let (first, second) = (of_group("239.1.1.2"), key());
    let third = of_source("10.0.0.6");
    let (_, large) = craft_super_packet();
    let by_first = Craft {
        destination: socket("239.1.1.2", PORT),
        ..input()
    };
    let by_third = Craft {
        source: socket("10.0.0.6", 4000),
        ..input()
    };
    let active = relayed(
        "of inputs that stand by the active one is relayed",
        by_first,
    );
    let stands_by = [
        relayed("an input that stands by is not relayed", input()),
        Case::relayed(
            "a super-packet of an input that stands by is as many as its segments",
            large,
            [],
        ),
        relayed("nor is the third input relayed", by_third),
    ];
    let stands_by = stands_by
        .into_iter()
        .zip([1, 1, 2])
        .map(|(mut case, taken)| {
            case.expected.verdict = Verdict::Dropped(DropReason::Standby);
            case.expected.outputs.clear();
            (case, taken)
        });
    let all = [(active, 0)].into_iter().chain(stands_by).enumerate();
    let of_rules = all.map(|(number, (case, taken))| {
        let mut case = of_lines(case, &[first, second, third], taken);
        let rule = format!("lines-{number}");
        for (_, route) in &mut case.routes {
            route.rule.clone_from(&rule);
        }
        case.expected.rule = Some(rule);
        case
    });
    of_rules.collect()
}

fn sizes() -> Vec<Case> {
    let (craft, packet) = craft_super_packet();
    let case = Case::relayed(
        "a super-packet is as many as its segments of its input",
        packet,
        [plain(&craft, A)],
    );
    vec![several(case, &[of_group("239.1.1.2"), key()], 1)]
}

/// A fragment without its datagram's ports; each case has a datagram of its own.
fn orphan(name: &'static str, id: u16) -> Case {
    const DATA: usize = 34;
    let packet = Craft {
        id,
        fragment: 0x2005,
        ..input()
    };
    let mut frame = copy_of(&packet, A).frame();
    frame[DATA..].copy_from_slice(&packet.frame()[DATA..]);
    let piece = Outlet::Sent {
        interface: A,
        frame,
    };
    let bytes = packet.payload.len() as u64 + 8;
    let mut case = Case::relayed(name, packet, [(output(A), piece)]);
    case.expected.passed_up = true;
    case.expected.bytes = bytes;
    case
}

fn fragments() -> Vec<Case> {
    let port = |port| RouteKey {
        ports: Ports::single(port),
        ..key()
    };
    let first = Craft {
        fragment: 0x2000,
        ..input()
    };
    vec![
        several(
            Case::relayed(
                "a first fragment is one of its port's input",
                first.clone(),
                [plain(&first, A)],
            ),
            &[port(PORT - 1), key()],
            1,
        ),
        several(
            orphan(
                "an orphan of a rule with two inputs is the lower port's",
                400,
            ),
            &[port(PORT + 1), key()],
            1,
        ),
        several(
            orphan(
                "an orphan of an exact input and a range is the exact one's",
                401,
            ),
            &[range(), key()],
            1,
        ),
    ]
}
