//! Finds the UDP datagram in a captured frame.

use std::net::{IpAddr, SocketAddr};

use packet::parse::NotOurs;
use packet::{ipv4, ipv6, udp};
use pcap_parser::Linktype;

/// Why there is none to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotUsable {
    /// A part of one.
    Fragment,
    /// The capture does not hold its end.
    CutShort,
    /// Not UDP over IP.
    Other,
}

/// Finds destination and payload of an unfragmented datagram that is wholly there.
pub(super) fn find(link: Linktype, frame: &[u8]) -> Result<(SocketAddr, &[u8]), NotUsable> {
    let packet = ip_packet(link, frame).ok_or(NotUsable::Other)?;
    let (destination, offset) = match packet.first().ok_or(NotUsable::CutShort)? >> 4 {
        4 => v4(packet)?,
        6 => v6(packet)?,
        _ => return Err(NotUsable::Other),
    };
    let header = udp::Header::parse(packet, offset).ok_or(NotUsable::CutShort)?;
    let length = usize::from(header.length);
    if length < udp::HEADER {
        return Err(NotUsable::Other);
    }
    let payload = packet.get(offset + udp::HEADER..offset + length);
    let destination = SocketAddr::new(destination, header.destination_port);
    Ok((destination, payload.ok_or(NotUsable::CutShort)?))
}

/// Finds the IP packet behind the link-layer header (and VLAN tags).
fn ip_packet(link: Linktype, frame: &[u8]) -> Option<&[u8]> {
    let (mut protocol, mut rest) = match link {
        Linktype::ETHERNET => (frame.get(12..14)?, frame.get(14..)?),
        Linktype::LINUX_SLL => (frame.get(14..16)?, frame.get(16..)?),
        Linktype::LINUX_SLL2 => (frame.get(..2)?, frame.get(20..)?),
        Linktype::NULL | Linktype::LOOP => return frame.get(4..),
        Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => return Some(frame),
        _ => return None,
    };
    while matches!(protocol, [0x81, 0x00] | [0x88, 0xa8]) {
        (protocol, rest) = (rest.get(2..4)?, rest.get(4..)?);
    }
    matches!(protocol, [0x08, 0x00] | [0x86, 0xdd]).then_some(rest)
}

fn v4(packet: &[u8]) -> Result<(IpAddr, usize), NotUsable> {
    let header = ipv4::Header::parse(packet)?;
    if header.protocol() != udp::PROTOCOL {
        return Err(NotUsable::Other);
    }
    if header.more_fragments() || header.fragment_offset() != 0 {
        return Err(NotUsable::Fragment);
    }
    Ok((header.destination().into(), header.length()))
}

fn v6(packet: &[u8]) -> Result<(IpAddr, usize), NotUsable> {
    let header = ipv6::Header::parse(packet)?;
    let upper = ipv6::upper(packet, header.next_header())?;
    if upper.fragment.is_some() {
        return Err(NotUsable::Fragment);
    }
    Ok((header.destination().into(), upper.offset))
}

impl From<NotOurs> for NotUsable {
    fn from(reason: NotOurs) -> Self {
        match reason {
            NotOurs::Truncated => Self::CutShort,
            _ => Self::Other,
        }
    }
}
