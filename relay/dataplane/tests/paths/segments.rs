//! Super-packets where a kernel's packet sockets have none: those that a path sends as their
//! datagrams, and those that the bed cannot make.

use packet::checksum;
use packet::craft::fix_ipv4_checksum;
use packet::parse::{ChecksumState, Meta};

use crate::case::{Case, Packet};
use crate::relayed::Relay;

/// Why the bed cannot make a case.
pub(crate) const NO_SUPER_PACKETS: &str = "packet sockets know no UDP GSO here";

/// The cases that the bed can make; names the others.
pub(crate) fn possible(relay: &Relay<'_>, cases: Vec<Case>) -> Vec<Case> {
    if relay.gets_super_packets() {
        return cases;
    }
    let (possible, not): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|case| is_single(&case.packet));
    for case in not {
        eprintln!("skipped: case {:?}: {NO_SUPER_PACKETS}", case.name);
    }
    possible
}

/// Returns whether it is one datagram.
pub(crate) fn is_single(packet: &Packet) -> bool {
    packet.meta.gso.is_none()
}

/// The datagrams of a packet, as segmentation makes them (RFC 791: each has an ID of its own).
pub(crate) fn datagrams(packet: &Packet) -> Vec<Packet> {
    let Some(gso) = packet.meta.gso else {
        return vec![packet.clone()];
    };
    let udp = packet.udp_offset();
    let (headers, payload) = packet.frame.split_at(udp + 8);
    let chunks = payload.chunks(gso.size.into()).enumerate();
    let frames = chunks.map(|(index, payload)| {
        let mut frame = [headers, payload].concat();
        let length = (8 + payload.len()) as u16;
        let ip_length = frame.len() as u16 - 14;
        frame[udp + 4..udp + 6].copy_from_slice(&length.to_be_bytes());
        if frame[14] >> 4 == 4 {
            let id = u16::from_be_bytes([frame[18], frame[19]]).wrapping_add(index as u16);
            frame[16..18].copy_from_slice(&ip_length.to_be_bytes());
            frame[18..20].copy_from_slice(&id.to_be_bytes());
            fix_ipv4_checksum(&mut frame, 14);
        } else {
            frame[18..20].copy_from_slice(&(ip_length - 40).to_be_bytes());
        }
        let (source, destination) = addresses(&frame);
        let sum = checksum::pseudo_header(source, destination, length);
        frame[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
        frame
    });
    let meta = Meta {
        gso: None,
        checksum: ChecksumState::Partial,
        ..packet.meta
    };
    frames.map(|frame| Packet { frame, meta }).collect()
}

fn addresses(frame: &[u8]) -> (std::net::IpAddr, std::net::IpAddr) {
    let four = |at: usize| {
        <[u8; 4]>::try_from(&frame[at..at + 4])
            .expect("four bytes")
            .into()
    };
    let six = |at: usize| {
        <[u8; 16]>::try_from(&frame[at..at + 16])
            .expect("16 bytes")
            .into()
    };
    match frame[14] >> 4 {
        4 => (four(26), four(30)),
        _ => (six(22), six(38)),
    }
}
