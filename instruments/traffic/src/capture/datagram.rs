//! Parses the UDP datagram in a captured frame.

use std::net::{IpAddr, SocketAddr};

use packet::parse::NotOurs;
use packet::{ethernet, ipv4, ipv6, udp};
use pcap_parser::Linktype;

/// Why a frame holds no datagram to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotUsable {
    /// A part of one.
    Fragment,
    /// The capture does not hold its end.
    CutShort,
    /// Not UDP over IP.
    Other,
}

/// Parses destination and payload of an unfragmented datagram that is captured whole.
pub(super) fn parse(link: Linktype, frame: &[u8]) -> Result<(SocketAddr, &[u8]), NotUsable> {
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

/// The IP packet with an Ethernet header: its own if it had one.
pub(super) fn framed(link: Linktype, frame: &[u8]) -> Option<Vec<u8>> {
    if link == Linktype::ETHERNET {
        return Some(frame.to_vec());
    }
    let packet = ip_packet(link, frame)?;
    let ethertype = match packet.first()? >> 4 {
        4 => ethernet::IPV4,
        _ => ethernet::IPV6,
    };
    let header = [&[0; 12][..], &ethertype.to_be_bytes()].concat();
    Some([&header, packet].concat())
}

/// The IP packet after the link-layer header (and VLAN tags).
fn ip_packet(link: Linktype, frame: &[u8]) -> Option<&[u8]> {
    let (at, header) = match link {
        Linktype::ETHERNET => (12, ethernet::HEADER),
        Linktype::LINUX_SLL => (14, 16),
        Linktype::LINUX_SLL2 => (0, 20),
        Linktype::NULL | Linktype::LOOP => return frame.get(4..),
        Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => return Some(frame),
        _ => return None,
    };
    let ethertype = |bytes: &[u8]| bytes.first_chunk().copied().map(u16::from_be_bytes);
    let (mut protocol, mut rest) = (ethertype(frame.get(at..)?)?, frame.get(header..)?);
    while matches!(protocol, ethernet::VLAN | ethernet::VLAN_SERVICE) {
        (protocol, rest) = (ethertype(rest.get(2..)?)?, rest.get(4..)?);
    }
    matches!(protocol, ethernet::IPV4 | ethernet::IPV6).then_some(rest)
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
