//! IPv6: what differs from IPv4.

use compile::table::{Egress, Output, Ttl};
use packet::craft::{Craft, CraftChecksum, group_mac};
use packet::verdict::DropReason;
use rules::net::{Ports, Prefix};

use crate::case::{
    A, Case, INGRESS, Outlet, Packet, address, changed, own_addresses, socket, with,
};

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

pub(crate) fn cases() -> Vec<Case> {
    [fields(), extensions(), hostile(), link_local(), trailers()].concat()
}

fn input() -> Craft {
    let payload = (0..100).collect();
    Craft::new(socket("fd00::5", 4000), socket("ff3e::1:1", 5001), payload)
}

/// A link-local address is this host's own on its interface alone.
fn link_local() -> Vec<Case> {
    let case = |name, scope, is_own| {
        let packet = Craft {
            source: socket("fe80::1", 4000),
            ..input()
        };
        let mut case = if is_own {
            Case::dropped(name, packet.clone(), DropReason::OwnSource, 100)
        } else {
            Case::relayed(name, packet.clone(), [plain(&packet)])
        };
        case.own_addresses = own_addresses(([(Some(scope), address("fe80::1"))].into(), None));
        on_group(case)
    };
    vec![
        case("a link-local address of the interface", INGRESS, true),
        case("a link-local address of another interface", A, false),
    ]
}

/// Bytes behind the packet that are none of its.
fn trailers() -> Vec<Case> {
    let case = |name, size, checksum| {
        let craft = Craft {
            payload: vec![7; size],
            checksum,
            ..input()
        };
        let mut packet = Packet::from(craft.clone());
        packet.frame.extend([0xa5; 9]);
        on_group(Case::relayed(name, packet, [plain(&craft)]))
    };
    vec![
        case("IPv6 with a trailer", 100, CraftChecksum::Complete),
        case(
            "IPv6 of the MTU with a trailer",
            1452,
            CraftChecksum::Complete,
        ),
        case(
            "IPv6 with a partial checksum and a trailer",
            101,
            CraftChecksum::Partial,
        ),
    ]
}

/// The copy of `input` by A with every option at its default.
fn copy_of(input: &Craft) -> Craft {
    let destination = socket("ff3e::a:1", 6001);
    Craft {
        source: socket("fd00:1::1", input.source.port()),
        destination,
        macs: (group_mac(destination.ip()), [2, 0, 0, 0, 0xe, 2]),
        ..input.clone()
    }
}

/// A plain output by A and the copy it makes.
fn plain(input: &Craft) -> (Output, Outlet) {
    changed_to(|_| {}, copy_of(input))
}

fn changed_to(change: impl FnOnce(&mut Egress), copy: Craft) -> (Output, Outlet) {
    let (output, outlet) = changed(A, change, copy);
    (over_ipv6(output), outlet)
}

/// Sends to an IPv6 group, from an IPv6 address unless the packet's is kept.
fn over_ipv6(output: Output) -> Output {
    with(output, |egress| {
        egress.destination = Prefix::host(address("ff3e::a:1"));
        egress.ports = Ports::single(6001);
        egress.source = egress.source.map(|_| address("fd00:1::1"));
    })
}

/// Puts the case's key on the IPv6 group, and every output.
fn on_group(mut case: Case) -> Case {
    for (key, route) in &mut case.routes {
        key.groups = Prefix::host(address("ff3e::1:1"));
        route.outputs = route.outputs.drain(..).map(over_ipv6).collect();
    }
    case
}

fn relayed(name: &'static str, packet: Craft) -> Case {
    let outputs = [plain(&packet)];
    on_group(Case::relayed(name, packet, outputs))
}

/// A fragment that comes before its datagram's first: all behind its headers is payload.
fn orphan(name: &'static str, packet: Craft) -> Case {
    let mut copy = copy_of(&packet).frame();
    let data = 14 + 40 + packet.options.len();
    copy[data..].copy_from_slice(&packet.frame()[data..]);
    let outlet = Outlet::Sent {
        interface: A,
        frame: copy,
    };
    let mut case = on_group(Case::relayed(name, packet, [(plain(&input()).0, outlet)]));
    case.expected.passed_up = true;
    case.expected.bytes += 8;
    case
}

fn fields() -> Vec<Case> {
    let partial = Craft {
        checksum: CraftChecksum::Partial,
        ..input()
    };
    let marked = Craft {
        traffic_class: 46 << 2 | 1,
        ttl: 8,
        ..input()
    };
    let expired = with(plain(&input()).0, |egress| egress.ttl = Ttl::Decrement);
    let too_big = Craft {
        payload: vec![0; 1453],
        ..input()
    };
    vec![
        relayed("IPv6 1:1", input()),
        relayed("IPv6 with a partial checksum", partial),
        relayed("IPv6 traffic class kept", marked.clone()),
        relayed(
            "IPv6 with an empty payload",
            Craft {
                payload: vec![],
                ..input()
            },
        ),
        on_group(Case::relayed(
            "IPv6 source=keep",
            input(),
            [changed_to(
                |egress| egress.source = None,
                Craft {
                    source: input().source,
                    ..copy_of(&input())
                },
            )],
        )),
        on_group(Case::relayed(
            "IPv6 dscp=N and ttl=dec",
            marked.clone(),
            [changed_to(
                |egress| {
                    egress.dscp = Some(10);
                    egress.ttl = Ttl::Decrement;
                },
                Craft {
                    traffic_class: 10 << 2 | 1,
                    ttl: 7,
                    ..copy_of(&marked)
                },
            )],
        )),
        on_group(Case::relayed(
            "IPv6 ttl=dec drops at 1",
            Craft { ttl: 1, ..input() },
            [(expired, Outlet::Dropped(DropReason::TtlExpired))],
        )),
        on_group(Case::relayed(
            "IPv6 above the MTU",
            too_big,
            [(plain(&input()).0, Outlet::Dropped(DropReason::TooBig))],
        )),
    ]
}

fn extensions() -> Vec<Case> {
    let with_extensions = |first_extension, options: &[u8]| Craft {
        first_extension,
        options: options.to_vec(),
        ..input()
    };
    let hop = [17, 0, 1, 4, 0, 0, 0, 0];
    let chain = [
        [DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0],
        [ROUTING, 0, 1, 4, 0, 0, 0, 0],
        [17, 0, 4, 0, 0, 0, 0, 0],
    ]
    .concat();
    // 264 bytes, all of it padding: PadN of 253 and of 5 bytes (RFC 8200 section 4.2).
    let mut long = vec![17, 32, 1, 253];
    long.resize(4 + 253, 0);
    long.extend([1, 5, 0, 0, 0, 0, 0]);
    let segments_left = [17, 0, 4, 1, 0, 0, 0, 0];
    let atomic = [17, 0, 0, 0, 0, 0, 0, 9];
    let passed = |name, craft: Craft| on_group(Case::passed(name, craft));
    vec![
        relayed(
            "IPv6 behind hop-by-hop options",
            with_extensions(HOP_BY_HOP, &hop),
        ),
        relayed(
            "IPv6 behind hop-by-hop options of 264 bytes",
            with_extensions(HOP_BY_HOP, &long),
        ),
        relayed(
            "IPv6 with a partial checksum behind hop-by-hop options of 264 bytes",
            Craft {
                checksum: CraftChecksum::Partial,
                ..with_extensions(HOP_BY_HOP, &long)
            },
        ),
        relayed(
            "IPv6 behind three extension headers",
            with_extensions(HOP_BY_HOP, &chain),
        ),
        relayed(
            "IPv6 in an atomic fragment",
            with_extensions(FRAGMENT, &atomic),
        ),
        passed(
            "IPv6 behind a routing header with segments left",
            with_extensions(ROUTING, &segments_left),
        ),
        relayed(
            "IPv6 first fragment",
            with_extensions(FRAGMENT, &[17, 0, 0, 1, 0, 0, 0, 9]),
        ),
        orphan(
            "IPv6 last fragment without its first",
            with_extensions(FRAGMENT, &[17, 0, 0, 8, 0, 0, 0, 10]),
        ),
        passed(
            "IPv6 authentication header",
            with_extensions(51, &[17, 1, 0, 0, 0, 0, 0, 0]),
        ),
    ]
}

fn hostile() -> Vec<Case> {
    let malformed = |name, packet: Packet, bytes| {
        on_group(Case::dropped(name, packet, DropReason::Malformed, bytes))
    };
    let changed = |at: usize, value: u16| {
        let mut frame = input().frame();
        frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
        Packet::from(frame)
    };
    let zero = Craft {
        checksum: CraftChecksum::Zero,
        ..input()
    };
    let mut cut = input().frame();
    cut.truncate(14 + 47);
    let mut in_extension = Craft {
        first_extension: 60,
        options: vec![17; 8],
        ..input()
    }
    .frame();
    in_extension.truncate(14 + 43);
    vec![
        malformed("IPv6 with a zero UDP checksum", zero.into(), 100),
        malformed(
            "IPv6 payload length beyond the packet",
            changed(18, 109),
            100,
        ),
        malformed("IPv6 payload length of 0", changed(18, 0), 100),
        malformed("IPv6 UDP length of 7", changed(58, 7), 100),
        malformed("IPv6 UDP length beyond the packet", changed(58, 109), 100),
        on_group(Case::passed("IPv6 cut in the UDP header", cut)),
        on_group(Case::passed(
            "IPv6 cut in an extension header",
            in_extension,
        )),
    ]
}
