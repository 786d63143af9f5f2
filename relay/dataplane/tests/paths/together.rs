//! Packets that wait together: what leaves coalesced must be, once the next device has cut it again, what the
//! reference sends for each of them.

use std::collections::BTreeMap;

use packet::checksum;
use packet::craft::fix_ipv4_checksum;
use packet::parse::ChecksumState;
use rules::net::Ifindex;

use crate::bed;
use crate::case::{Case, INGRESS, PORT, Packet};
use crate::reference::Reference;
use crate::relayed::{Relay, Sum};
use crate::segments::{datagrams, possible};

/// Packets of each case.
const TOGETHER: u16 = 5;

/// Runs every case with several of its packets and names all that fail. Those with limits are skipped: what passes
/// them depends on time.
pub(crate) fn demand(relay: &mut Relay<'_>, cases: Vec<Case>) {
    let cases = possible(relay, cases).into_iter().filter(is_unlimited);
    let failures: Vec<_> = cases.filter_map(|case| difference(relay, &case)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn is_unlimited(case: &Case) -> bool {
    let mut routes = case.routes.iter().map(|(_, route)| route);
    let limited = routes.any(|route| {
        let mut outputs = route.outputs.iter();
        route.limit.is_some() || outputs.any(|output| output.limit.is_some())
    });
    !limited && case.budget.is_none()
}

fn difference(relay: &mut Relay<'_>, case: &Case) -> Option<String> {
    let table = case.table();
    let mut reference = Reference::of(&table);
    let packets: Vec<_> = (0..TOGETHER).map(|n| numbered(&case.packet, n)).collect();
    let mut expected = Sum::default();
    for packet in &packets {
        expected.expect(
            packet,
            &reference.execute(INGRESS, packet, |_| case.socket_bound),
        );
    }
    relay.apply(&table);
    let _socket = case.socket_bound.then(|| bed::Bound::new(PORT));
    let seen = relay.forward_together(&packets, &expected);
    let name = case.name;
    let (wanted, found) = (settled(&expected.copies), settled(&seen.copies));
    if found != wanted {
        return Some(format!(
            "case {name:?}: copies\n  seen     {found:?}\n  expected {wanted:?}\n  counters {:?}",
            seen.counters
        ));
    }
    (seen.counters != expected.counters || seen.passed_up != expected.passed_up).then(|| {
        format!(
            "case {name:?}: counters or passed up\n  seen     {seen:?}\n  expected {expected:?}"
        )
    })
}

/// The packet with a later IPv4 identification, as the next of its stream has. Fragments keep theirs: they would be of
/// another datagram.
pub(crate) fn numbered(packet: &Packet, n: u16) -> Packet {
    let mut packet = packet.clone();
    let frame = &mut packet.frame;
    let whole = frame.get(12..14) == Some(&[0x08, 0x00]) && frame.len() >= 34;
    if whole && frame[20] & 0x3f == 0 && frame[21] == 0 && header_is_valid(frame) {
        let id = u16::from_be_bytes([frame[18], frame[19]]).wrapping_add(n);
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        fix_ipv4_checksum(frame, 14);
    }
    packet
}

fn header_is_valid(frame: &[u8]) -> bool {
    let length = usize::from(frame[14] & 0x0f) * 4;
    let header = frame.get(14..14 + length);
    header.is_some_and(checksum::ipv4_header_is_valid)
}

/// Single datagrams with whole checksums, as a receiver gets them: in order within each flow.
pub(crate) fn settled(copies: &BTreeMap<Ifindex, Vec<Packet>>) -> BTreeMap<Ifindex, Vec<Vec<u8>>> {
    let frames = |packets: &Vec<Packet>| {
        let single = packets.iter().flat_map(datagrams);
        let mut frames: Vec<_> = single.map(finished).collect();
        frames.sort_by_key(|frame| flow(frame));
        frames
    };
    let copies = copies.iter();
    copies
        .map(|(interface, packets)| (*interface, frames(packets)))
        .collect()
}

/// Addresses and, behind plain headers, ports.
fn flow(frame: &[u8]) -> Vec<u8> {
    let range = if frame[14] >> 4 == 4 { 26..38 } else { 22..58 };
    frame.get(range).unwrap_or_default().to_vec()
}

fn finished(packet: Packet) -> Vec<u8> {
    let udp = packet.udp_offset();
    let mut frame = packet.frame;
    if packet.meta.checksum == ChecksumState::Partial {
        checksum::finish_partial(&mut frame, udp, 6).expect("a UDP header");
    }
    frame
}
