//! Which route a packet takes, local delivery, outputs that are down, loops.

use compile::table::{DownReason, LocalDelivery, RouteKey};
use packet::craft::Craft;
use packet::verdict::DropReason;
use rules::net::{Ifindex, Ports, Prefix};

use crate::case::{
    A, B, C, Case, INGRESS, PORT, address, copy_of, down, input, key, output, own_addresses, plain,
    route, sent, socket,
};

pub(crate) fn cases() -> Vec<Case> {
    [
        matching(),
        local_delivery(),
        down_outputs(),
        loops(),
        ranges(),
    ]
    .concat()
}

fn matching() -> Vec<Case> {
    let to_group = |group| Craft::new(socket("10.0.0.5", 4000), socket(group, PORT), vec![1; 20]);
    let to_port = |port| Craft {
        destination: socket("239.1.1.1", port),
        ..input()
    };
    let mut other_interface = Case::passed("another interface's route", input());
    for (key, _) in &mut other_interface.routes {
        key.ingress = Ifindex(4);
    }
    vec![
        Case::passed("another group", to_group("239.1.1.2")),
        // 32 groups share an Ethernet address (RFC 1112).
        Case::passed(
            "another group with the same Ethernet address",
            to_group("238.129.1.1"),
        ),
        Case::passed("another port", to_port(PORT + 1)),
        other_interface,
        source_specific(
            "(S,G) beside (*,G): the source's own route",
            "10.0.0.5",
            "ssm",
            A,
        ),
        source_specific("(S,G) beside (*,G): a second source", "10.0.0.6", "ssm", B),
        source_specific("(S,G) beside (*,G): any other source", "10.0.0.7", "asm", C),
        source_specific_alone("(S,G) alone: its source", "10.0.0.5", true),
        source_specific_alone("(S,G) alone: another source", "10.0.0.7", false),
    ]
}

/// A table with two (S,G) routes of rule "ssm" (to A and B) and a (*,G) route of rule "asm" (to C).
fn source_specific(name: &'static str, source: &str, rule: &str, interface: Ifindex) -> Case {
    let packet = Craft {
        source: socket(source, 4000),
        ..input()
    };
    let mut case = Case::relayed(name, packet.clone(), [plain(&packet, interface)]);
    let of = |source: &str| RouteKey {
        source: Some(address(source).into()),
        ..key()
    };
    case.routes = vec![
        (of("10.0.0.5"), route("ssm", vec![output(A)])),
        (of("10.0.0.6"), route("ssm", vec![output(B)])),
        (key(), route("asm", vec![output(C)])),
    ];
    // Both routes of "ssm" are one rule, whose outputs are told apart by their index.
    case.routes[1].1.outputs[0].index = 1;
    case.expected.rule = Some(rule.into());
    let index = u32::from(interface == B);
    case.expected.outputs = [(
        u64::from(index),
        sent(interface, copy_of(&packet, interface)),
    )]
    .into();
    case
}

fn source_specific_alone(name: &'static str, source: &str, taken: bool) -> Case {
    let packet = Craft {
        source: socket(source, 4000),
        ..input()
    };
    let mut case = if taken {
        Case::relayed(name, packet.clone(), [plain(&packet, A)])
    } else {
        Case::passed(name, packet)
    };
    for (key, route) in &mut case.routes {
        key.source = Some(address("10.0.0.5").into());
        route.outputs = vec![output(A)];
    }
    case
}

fn local_delivery() -> Vec<Case> {
    // Each a flow of its own: a path may go by what it knew of sockets a timer tick ago.
    let case = |name, local, source_port, socket_bound, passed_up| {
        let packet = Craft {
            source: socket("10.0.0.5", source_port),
            ..input()
        };
        let mut case = Case::relayed(name, packet.clone(), [plain(&packet, A), plain(&packet, B)]);
        case.routes[0].1.local = local;
        case.socket_bound = socket_bound;
        case.expected.passed_up = passed_up;
        case
    };
    vec![
        case(
            "local=auto without a socket consumes",
            LocalDelivery::Auto,
            4001,
            false,
            false,
        ),
        case(
            "local=auto with a socket passes up",
            LocalDelivery::Auto,
            4002,
            true,
            true,
        ),
        case("local=yes passes up", LocalDelivery::Yes, 4003, false, true),
        case(
            "local=no consumes in spite of a socket",
            LocalDelivery::No,
            4004,
            true,
            false,
        ),
    ]
}

fn down_outputs() -> Vec<Case> {
    let reasons = [
        (
            "interface missing",
            DownReason::InterfaceMissing,
            DropReason::InterfaceMissing,
        ),
        (
            "interface down",
            DownReason::InterfaceDown,
            DropReason::InterfaceDown,
        ),
        ("no address", DownReason::NoAddress, DropReason::NoAddress),
        ("no route", DownReason::NoRoute, DropReason::NoRoute),
        (
            "no neighbour",
            DownReason::NoNeighbour,
            DropReason::NoNeighbour,
        ),
        ("not wanted", DownReason::NotWanted, DropReason::NotWanted),
        ("ipsec", DownReason::IpsecPolicy, DropReason::IpsecPolicy),
    ];
    let mut cases = reasons
        .map(|(name, reason, drop)| Case::relayed(name, input(), [down(reason, drop)]))
        .to_vec();
    let missing = || down(DownReason::InterfaceMissing, DropReason::InterfaceMissing);
    cases.push(Case::relayed(
        "outputs that are down do not stop the others",
        input(),
        [
            missing(),
            plain(&input(), A),
            missing(),
            plain(&input(), B),
            missing(),
        ],
    ));
    let mut none = Case::relayed("a rule without outputs still counts", input(), []);
    none.routes[0].1.outputs.clear();
    cases.push(none);
    cases
}

fn loops() -> Vec<Case> {
    let looped = Craft {
        source: socket("10.0.2.1", 4000),
        ..input()
    };
    let bytes = looped.payload.len() as u64;
    let mut own = Case::dropped("own source", looped, DropReason::OwnSource, bytes);
    let addresses = ["10.0.2.1", "10.0.3.1"].map(address);
    own.own_addresses = addresses.into_iter().collect();
    let mut other = Case::relayed(
        "a source that is not our own",
        input(),
        [plain(&input(), A)],
    );
    other.own_addresses = own.own_addresses.clone();
    let mut cases = vec![own, other];
    cases.extend(vrfs());
    cases
}

/// An address is this host's own within its VRF, a link-local one on its interface, and elsewhere another
/// host's.
fn vrfs() -> impl Iterator<Item = Case> {
    let (red, blue) = (Some(Ifindex(77)), Some(Ifindex(78)));
    let (here, elsewhere) = (Some(INGRESS), Some(A));
    let cases = [
        ("an address of another VRF", red, blue, false),
        (
            "an address of a VRF, by an interface in none",
            None,
            blue,
            false,
        ),
        (
            "an address in no VRF, by an interface in one",
            red,
            None,
            false,
        ),
        ("an own address within its VRF", red, red, true),
        ("a link-local address of its interface", None, here, true),
        ("one in a VRF", red, here, true),
        ("one of another interface", None, elsewhere, false),
        ("one of another interface in a VRF", red, elsewhere, false),
    ];
    cases
        .into_iter()
        .map(move |(name, ingress, scope, is_own)| {
            let is_link_local = scope == here || scope == elsewhere;
            let source = if is_link_local {
                "169.254.2.1"
            } else {
                "10.0.2.1"
            };
            let packet = Craft {
                source: socket(source, 4000),
                ..input()
            };
            let mut case = if is_own {
                let bytes = packet.payload.len() as u64;
                Case::dropped(name, packet, DropReason::OwnSource, bytes)
            } else {
                let copy = plain(&packet, A);
                Case::relayed(name, packet, [copy])
            };
            case.own_addresses = own_addresses(([(scope, address(source))].into(), ingress));
            case
        })
}

/// Ranges of groups and ports.
fn ranges() -> Vec<Case> {
    let packet = Craft {
        destination: socket("239.1.0.77", 5010),
        ..input()
    };
    let copy = Craft {
        destination: socket("239.9.0.77", 6010),
        ..copy_of(&packet, A)
    };
    let copy = Craft {
        macs: ([1, 0, 0x5e, 9, 0, 77], copy.macs.1),
        ..copy
    };
    let output = crate::case::with(output(A), |egress| {
        egress.destination = Prefix {
            address: address("239.9.0.0"),
            length: 24,
        };
        egress.ports = Ports {
            first: 6001,
            last: 6150,
        };
    });
    let mut case = Case::relayed(
        "a range keeps host bits and port offset",
        packet,
        [(output, sent(A, copy))],
    );
    case.routes[0].0.groups = Prefix {
        address: address("239.1.0.0"),
        length: 24,
    };
    case.routes[0].0.ports = Ports {
        first: 5001,
        last: 5150,
    };
    vec![case]
}
