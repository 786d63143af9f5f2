//! Every field that an output may change, keep or repair.

use compile::table::{LinkHeader, Ttl};
use packet::craft::{Craft, CraftChecksum};
use packet::verdict::DropReason;
use rules::net::{Mac, Ports, Prefix};

use crate::case::output;
use crate::case::{A, B, C, Case, Outlet, address, changed, copy_of, input, plain, socket, with};

pub(crate) fn cases() -> Vec<Case> {
    [fan_out(), addresses(), ttl_and_dscp(), checksums(), kept()].concat()
}

fn fan_out() -> Vec<Case> {
    let packet = input();
    vec![
        Case::relayed("1:1", packet.clone(), [plain(&packet, A)]),
        Case::relayed(
            "1:3",
            packet.clone(),
            [plain(&packet, A), plain(&packet, B), plain(&packet, C)],
        ),
        Case::relayed(
            "the same interface several times, each copy its own",
            packet.clone(),
            [1, 2, 3, 4].map(|n| {
                let copy = Craft {
                    destination: socket("239.10.2.1", 7000 + n),
                    ..copy_of(&packet, A)
                };
                changed(A, |egress| egress.ports = Ports::single(7000 + n), copy)
            }),
        ),
    ]
}

fn addresses() -> Vec<Case> {
    let packet = input();
    let copy = copy_of(&packet, A);
    vec![
        Case::relayed(
            "source=keep",
            packet.clone(),
            [changed(
                A,
                |egress| egress.source = None,
                Craft {
                    source: packet.source,
                    ..copy.clone()
                },
            )],
        ),
        Case::relayed(
            "source=ADDR",
            packet.clone(),
            [changed(
                A,
                |egress| egress.source = Some(address("192.0.2.77")),
                Craft {
                    source: socket("192.0.2.77", 4000),
                    ..copy.clone()
                },
            )],
        ),
        Case::relayed(
            "sport=N",
            packet.clone(),
            [changed(
                A,
                |egress| egress.source_port = Some(9999),
                Craft {
                    source: socket("10.0.2.1", 9999),
                    ..copy.clone()
                },
            )],
        ),
        Case::relayed(
            "a unicast destination behind a neighbour",
            packet.clone(),
            [changed(
                A,
                |egress| {
                    egress.destination = Prefix::host(address("10.9.9.9"));
                    egress.ports = Ports::single(7000);
                    egress.link = LinkHeader::Neighbour {
                        source: Mac([2, 0, 0, 0, 0xe, 2]),
                        destination: Mac([2, 0, 0, 0, 0, 0x77]),
                    };
                },
                Craft {
                    destination: socket("10.9.9.9", 7000),
                    macs: ([2, 0, 0, 0, 0, 0x77], [2, 0, 0, 0, 0xe, 2]),
                    ..copy
                },
            )],
        ),
    ]
}

fn ttl_and_dscp() -> Vec<Case> {
    let at_ttl = |ttl| Craft { ttl, ..input() };
    let decrement = |packet: &Craft, ttl| {
        let copy = Craft {
            ttl,
            ..copy_of(packet, A)
        };
        changed(A, |egress| egress.ttl = Ttl::Decrement, copy)
    };
    let expired = || {
        let output = with(output(A), |egress| egress.ttl = Ttl::Decrement);
        (output, Outlet::Dropped(DropReason::TtlExpired))
    };
    let marked = Craft {
        traffic_class: 46 << 2 | 1,
        ..input()
    };
    let remarked = Craft {
        traffic_class: 10 << 2 | 1,
        ..copy_of(&marked, A)
    };
    vec![
        Case::relayed("ttl=keep keeps even 1", at_ttl(1), [plain(&at_ttl(1), A)]),
        Case::relayed("ttl=keep keeps even 0", at_ttl(0), [plain(&at_ttl(0), A)]),
        Case::relayed("ttl=dec", at_ttl(8), [decrement(&at_ttl(8), 7)]),
        Case::relayed("ttl=dec at 2", at_ttl(2), [decrement(&at_ttl(2), 1)]),
        Case::relayed("ttl=dec drops at 1", at_ttl(1), [expired()]),
        Case::relayed("ttl=dec drops at 0", at_ttl(0), [expired()]),
        Case::relayed(
            "ttl=dec drops only its own output",
            at_ttl(1),
            [plain(&at_ttl(1), A), expired(), plain(&at_ttl(1), C)],
        ),
        Case::relayed(
            "ttl=N",
            at_ttl(1),
            [changed(
                A,
                |egress| egress.ttl = Ttl::Set(64),
                Craft {
                    ttl: 64,
                    ..copy_of(&at_ttl(1), A)
                },
            )],
        ),
        Case::relayed("DSCP and ECN are kept", marked.clone(), [plain(&marked, A)]),
        Case::relayed(
            "dscp=N keeps ECN",
            marked.clone(),
            [changed(A, |egress| egress.dscp = Some(10), remarked)],
        ),
        Case::relayed(
            "dscp=0 clears DSCP and keeps ECN",
            marked.clone(),
            [changed(
                A,
                |egress| egress.dscp = Some(0),
                Craft {
                    traffic_class: 1,
                    ..copy_of(&marked, A)
                },
            )],
        ),
    ]
}

fn checksums() -> Vec<Case> {
    let zero = Craft {
        checksum: CraftChecksum::Zero,
        ..input()
    };
    let partial = Craft {
        checksum: CraftChecksum::Partial,
        ..input()
    };
    let becomes_zero = checksum_becomes_zero();
    let mut wrong = input().frame();
    let mut wrong_copy = copy_of(&input(), A).frame();
    spoil(&mut wrong, &mut wrong_copy);
    let spoilt = Outlet::Sent {
        interface: A,
        frame: wrong_copy,
    };
    vec![
        Case::relayed(
            "a zero UDP checksum stays zero",
            zero.clone(),
            [plain(&zero, A)],
        ),
        Case::relayed(
            "a partial checksum stays partial",
            partial.clone(),
            [plain(&partial, A), plain(&partial, B)],
        ),
        Case::relayed(
            "a partial checksum and a new source port",
            partial.clone(),
            [changed(
                A,
                |egress| egress.source_port = Some(1),
                Craft {
                    source: socket("10.0.2.1", 1),
                    ..copy_of(&partial, A)
                },
            )],
        ),
        Case::relayed(
            "a checksum that comes to zero is sent as 0xffff",
            becomes_zero.clone(),
            [plain(&becomes_zero, A)],
        ),
        Case::relayed(
            "a wrong UDP checksum stays wrong",
            wrong,
            [(output(A), spoilt)],
        ),
    ]
}

/// A packet whose copy by A has a UDP checksum of zero before the zero rule.
fn checksum_becomes_zero() -> Craft {
    let mut packet = input();
    packet.payload[..2].fill(0);
    let copy = copy_of(&packet, A).frame();
    // The field now holds ~sum; as payload it brings the sum to 0xffff.
    packet.payload[..2].copy_from_slice(&copy[40..42]);
    assert_eq!(copy_of(&packet, A).frame()[40..42], [0xff, 0xff]);
    packet
}

/// Changes one payload byte of both and leaves the checksums.
fn spoil(packet: &mut [u8], copy: &mut [u8]) {
    packet[60] ^= 0x55;
    copy[60] ^= 0x55;
}

fn kept() -> Vec<Case> {
    let fragmentable = Craft {
        fragment: 0,
        id: 0xbeef,
        ..input()
    };
    // Router alert, and a record route with room.
    let alert = Craft {
        options: vec![0x94, 4, 0, 0],
        ..input()
    };
    let mut forty = vec![7, 39, 4];
    forty.resize(40, 0);
    let forty = Craft {
        options: forty,
        ..input()
    };
    let short = Craft {
        payload: vec![1, 2],
        padding: 16,
        ..input()
    };
    let empty = Craft {
        payload: vec![],
        ..input()
    };
    vec![
        Case::relayed(
            "ID and a clear DF are kept",
            fragmentable.clone(),
            [plain(&fragmentable, A)],
        ),
        Case::relayed("an IP option is kept", alert.clone(), [plain(&alert, A)]),
        Case::relayed(
            "40 bytes of IP options are kept",
            forty.clone(),
            [plain(&forty, A)],
        ),
        Case::relayed("a padded short frame", short.clone(), [plain(&short, A)]),
        Case::relayed("an empty payload", empty.clone(), [plain(&empty, A)]),
    ]
}
