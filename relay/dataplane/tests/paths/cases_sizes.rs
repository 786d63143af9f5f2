//! Sizes: MTU, jumbo packets, GSO super-packets.

use packet::craft::{Craft, CraftChecksum};
use packet::parse::Gso;
use packet::verdict::DropReason;

use crate::case::{
    A, B, C, Case, Outlet, Packet, changed, copy_of, input, output, plain, to, with,
};

pub(crate) fn cases() -> Vec<Case> {
    [mtu(), trailers(), super_packets()].concat()
}

fn of_size(payload: usize) -> Craft {
    let payload = (0..payload).map(|n| n as u8).collect();
    Craft { payload, ..input() }
}

fn mtu() -> Vec<Case> {
    let too_big = || to(A, Outlet::Dropped(DropReason::TooBig));
    let jumbo = of_size(8972);
    let jumbo_to = |interface| {
        changed(
            interface,
            |egress| egress.mtu = 9000,
            copy_of(&jumbo, interface),
        )
    };
    let options = Craft {
        options: vec![1; 40],
        ..of_size(1433)
    };
    let fits = of_size(1472);
    vec![
        Case::relayed("exactly the MTU", fits.clone(), [plain(&fits, A)]),
        Case::relayed("one byte above the MTU", of_size(1473), [too_big()]),
        Case::relayed("IP options count towards the MTU", options, [too_big()]),
        Case::relayed("9000 bytes", jumbo.clone(), [jumbo_to(A), jumbo_to(B)]),
        Case::relayed(
            "too big for one output does not stop the others",
            jumbo.clone(),
            [jumbo_to(B), too_big(), jumbo_to(C)],
        ),
        Case::relayed(
            "above the MTU with DF clear",
            Craft {
                fragment: 0,
                ..of_size(1473)
            },
            [too_big()],
        ),
    ]
}

/// What Ethernet or a switch appends: it is not the packet's, whatever its length.
fn trailers() -> Vec<Case> {
    let trailed = |name, payload, padding| {
        let craft = Craft {
            padding,
            ..of_size(payload)
        };
        let copy = of_size(payload);
        Case::relayed(name, craft, [plain(&copy, A), plain(&copy, B)])
    };
    vec![
        trailed("a trailer behind a packet of the MTU", 1472, 24),
        trailed("a trailer that reaches above the MTU", 1471, 5),
        trailed("a trailer behind a short packet", 100, 16),
        stamped("a time stamp behind a packet", 100, CraftChecksum::Complete),
        stamped(
            "a time stamp behind a packet of the MTU",
            1472,
            CraftChecksum::Complete,
        ),
        stamped(
            "a time stamp behind a partial checksum",
            101,
            CraftChecksum::Partial,
        ),
        stamped("a time stamp behind no checksum", 100, CraftChecksum::Zero),
        stamped("a padded packet of one byte", 1, CraftChecksum::Partial),
        trailed("a packet of nothing, padded to Ethernet's least", 0, 18),
        trailed("a short packet with one byte behind it", 5, 1),
    ]
}

/// Bytes that are none of the packet's and not zero, so that a sum over them shows.
fn stamped(name: &'static str, payload: usize, checksum: CraftChecksum) -> Case {
    let craft = Craft {
        checksum,
        ..of_size(payload)
    };
    let copy = [plain(&craft, A), plain(&craft, B)];
    let mut packet = Packet::from(craft);
    let stamp = if payload == 1 { 17 } else { 9 };
    packet.frame.extend(vec![0xa5; stamp]);
    Case::relayed(name, packet, copy)
}

fn super_packet(size: u16, payload: usize) -> (Craft, Packet) {
    let craft = Craft {
        checksum: CraftChecksum::Partial,
        ..of_size(payload)
    };
    let mut packet = Packet::from(craft.clone());
    packet.meta.gso = Some(Gso { size });
    (craft, packet)
}

fn super_packets() -> Vec<Case> {
    let case = |name, size, payload| {
        let (craft, packet) = super_packet(size, payload);
        Case::relayed(name, packet, [plain(&craft, A), plain(&craft, B)])
    };
    let (whole, against_mtu) = super_packet(1000, 10_000);
    let small = || {
        (
            with(output(A), |egress| egress.mtu = 1027),
            Outlet::Dropped(DropReason::TooBig),
        )
    };
    let (largest, sixty_kilobytes) = super_packet(1400, 60_000);
    vec![
        case("a super-packet of 10 segments", 1000, 10_000),
        case("a super-packet with a short last segment", 1000, 9_001),
        case(
            "a super-packet whose segments are exactly the MTU",
            1472,
            14_720,
        ),
        Case::relayed(
            "a super-packet whose segments are above one output's MTU",
            against_mtu,
            [plain(&whole, B), small(), plain(&whole, C)],
        ),
        Case::relayed(
            "a super-packet of 60,000 bytes",
            sixty_kilobytes,
            [plain(&largest, A)],
        ),
    ]
}
