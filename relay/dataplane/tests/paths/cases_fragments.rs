//! Fragments alone, each without the others of its datagram: `fragments.rs` has whole datagrams.
//!
//! One that comes before its datagram's first takes the route of its group if there is but one rule
//! for it, and goes to the stack as well, where a socket of another port may wait for it.

use compile::table::{Output, RouteKey};
use packet::craft::Craft;
use packet::verdict::DropReason;
use rules::net::{Ports, Prefix};

use crate::case::{
    A, B, C, Case, Outlet, PORT, RULE, address, copy_of, input, key, output, plain, route, socket,
};

/// Where the data of a fragment without IP options start.
const DATA: usize = 34;

pub(crate) fn cases() -> Vec<Case> {
    [first(), one_rule(), several_rules()].concat()
}

fn first() -> Vec<Case> {
    let first = Craft {
        fragment: 0x2000,
        ..input()
    };
    let mut cut = first.frame();
    cut.truncate(DATA + 6);
    vec![
        Case::relayed("a first fragment", first.clone(), [plain(&first, A)]),
        Case::passed("a first fragment without a whole UDP header", cut),
    ]
}

/// A middle fragment; each case has a datagram of its own.
fn orphan(id: u16) -> Craft {
    Craft {
        id,
        fragment: 0x2005,
        ..input()
    }
}

/// The copy of a fragment by A: its data are as they came.
fn piece(packet: &Craft) -> Outlet {
    let mut frame = copy_of(packet, A).frame();
    frame[DATA..].copy_from_slice(&packet.frame()[DATA..]);
    Outlet::Sent {
        interface: A,
        frame,
    }
}

/// A case of an orphan that leaves by A.
fn relayed(name: &'static str, packet: Craft) -> Case {
    let mut case = Case::relayed(name, packet.clone(), [(output(A), piece(&packet))]);
    case.expected.passed_up = true;
    case.expected.bytes = packet.payload.len() as u64 + 8;
    case
}

/// A case of an orphan that no rule can claim, counted at `rule`.
fn unknown(name: &'static str, packet: Craft, rule: &str) -> Case {
    let bytes = packet.payload.len() as u64 + 8;
    let mut case = Case::dropped(name, packet, DropReason::FragmentUnknown, bytes);
    case.expected.rule = Some(rule.into());
    case.expected.passed_up = true;
    case
}

fn add(mut case: Case, key: RouteKey, rule: &str, outputs: Vec<Output>) -> Case {
    case.routes.push((key, route(rule, outputs)));
    case
}

fn port(port: u16) -> RouteKey {
    RouteKey {
        ports: Ports::single(port),
        ..key()
    }
}

fn from(source: &str) -> RouteKey {
    RouteKey {
        source: Some(address(source).into()),
        ..key()
    }
}

fn range(length: u8, ports: (u16, u16)) -> RouteKey {
    RouteKey {
        groups: Prefix::new(address("239.1.0.0"), length),
        ports: Ports {
            first: ports.0,
            last: ports.1,
        },
        ..key()
    }
}

fn one_rule() -> Vec<Case> {
    let last = Craft {
        fragment: 0x0005,
        ..orphan(101)
    };
    let other_group = Craft {
        destination: socket("239.1.1.2", PORT),
        ..orphan(102)
    };
    let mut malformed = orphan(103).frame();
    malformed[16..18].copy_from_slice(&500u16.to_be_bytes());
    packet::craft::fix_ipv4_checksum(&mut malformed, 14);
    let mut stranger = Case::passed("an orphan from a source that no rule takes", orphan(104));
    stranger.routes[0].0.source = Some(address("10.0.0.9").into());
    let mut of_range = relayed("an orphan of a range of groups", orphan(105));
    of_range.routes[0].0 = range(16, (PORT, PORT));
    let mut of_ports = relayed("an orphan of a range of ports", orphan(106));
    of_ports.routes[0].0.ports.last = PORT + 100;
    let two_ports = relayed("an orphan of a rule with two ports", orphan(107));
    let source = relayed("an orphan whose source has its own rule", orphan(108));
    let mut source = add(source, from("10.0.0.9"), "other", vec![output(B)]);
    source.routes[0].0.source = Some(address("10.0.0.5").into());
    vec![
        relayed("a middle fragment without its first", orphan(100)),
        relayed("a last fragment without its first", last),
        Case::passed("an orphan to a group without a rule", other_group),
        Case::dropped(
            "an orphan that is longer than it is",
            malformed,
            DropReason::Malformed,
            108,
        ),
        stranger,
        of_range,
        of_ports,
        add(two_ports, port(PORT + 1), RULE, vec![output(A)]),
        source,
    ]
}

fn several_rules() -> Vec<Case> {
    let two = |name, id, rule| unknown(name, orphan(id), rule);
    let mut specific = two(
        "an orphan of (S,G) and (*,G) on other ports",
        200,
        "specific",
    );
    specific.routes = vec![
        (from("10.0.0.5"), route("specific", vec![output(B)])),
        (port(PORT + 1), route(RULE, vec![output(A)])),
    ];
    let ports = two("an orphan of two rules' ports", 201, RULE);
    let group = two("an orphan of a group and a range around it", 202, RULE);
    let narrow = RouteKey {
        groups: Prefix::new(address("239.1.1.0"), 24),
        ..range(16, (PORT, PORT))
    };
    let mut ranges = two("an orphan of two ranges", 203, "narrow");
    ranges.routes = vec![
        (range(16, (1, 65_535)), route(RULE, vec![output(A)])),
        (narrow, route("narrow", vec![output(C)])),
    ];
    vec![
        add(ports, port(PORT + 1), "other", vec![output(B)]),
        add(group, range(16, (1, 65_535)), "wide", vec![output(C)]),
        specific,
        ranges,
    ]
}
