//! From bytes to a [`Datagram`], or to the reason why the packet is not for us.
//!
//! Decides only what a packet is; its lengths and checksums are checked later, once a route has matched
//! ([`Datagram::defect`]). Any bytes give a result.

use std::net::IpAddr;

use crate::bytes::read_u16;
use crate::datagram::{Datagram, Part};
use crate::ethernet;
use crate::fragment::{Fragment, FragmentKey};
use crate::ipv4;
use crate::ipv6;
use crate::udp;

pub use crate::meta::{ChecksumState, Gso, Link, Meta, NotOurs};

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole UDP datagram to a multicast group, or to an address in a frame that is not for another
    /// host.
    Udp(Datagram),
    /// A piece of such a datagram.
    Fragment(Fragment),
    /// Anything else: left to the host's stack, uncounted.
    NotOurs(NotOurs),
}

/// Returns what `frame` is.
#[inline]
pub fn parse(frame: &[u8], link: Link, meta: Meta) -> Parsed {
    match try_parse(frame, link, meta) {
        Ok(parsed) => parsed,
        Err(why) => Parsed::NotOurs(why),
    }
}

#[inline]
fn try_parse(frame: &[u8], link: Link, meta: Meta) -> Result<Parsed, NotOurs> {
    if meta.vlan {
        return Err(NotOurs::Vlan);
    }
    match link {
        Link::Ethernet => match ethernet::ethertype(frame).ok_or(NotOurs::Truncated)? {
            ethernet::IPV4 => parse_ipv4(frame, ethernet::HEADER, meta),
            ethernet::IPV6 => parse_ipv6(frame, ethernet::HEADER, meta),
            ethernet::VLAN | ethernet::VLAN_SERVICE => parse_tagged(frame, meta),
            _ => Err(NotOurs::Ethertype),
        },
        Link::None => match frame.first().ok_or(NotOurs::Truncated)? >> 4 {
            4 => parse_ipv4(frame, 0, meta),
            6 => parse_ipv6(frame, 0, meta),
            _ => Err(NotOurs::Version),
        },
    }
}

/// A tag that names only a priority and no VLAN (IEEE 802.1Q) does not change what a packet is.
#[cold]
fn parse_tagged(frame: &[u8], meta: Meta) -> Result<Parsed, NotOurs> {
    let word = |at| read_u16(frame, at).ok_or(NotOurs::Truncated);
    if word(ethernet::HEADER)? & ethernet::VLAN_ID != 0 {
        return Err(NotOurs::Vlan);
    }
    let ip_offset = ethernet::HEADER + ethernet::TAG;
    match word(ip_offset - 2)? {
        ethernet::IPV4 => parse_ipv4(frame, ip_offset, meta),
        ethernet::IPV6 => parse_ipv6(frame, ip_offset, meta),
        _ => Err(NotOurs::Ethertype),
    }
}

#[inline]
fn parse_ipv4(frame: &[u8], ip_offset: usize, meta: Meta) -> Result<Parsed, NotOurs> {
    let packet = frame.get(ip_offset..).ok_or(NotOurs::Truncated)?;
    let header = ipv4::Header::parse(packet)?;
    if header.protocol() != udp::PROTOCOL {
        return Err(NotOurs::Protocol);
    }
    if meta.other_host && !header.destination().is_multicast() {
        return Err(NotOurs::OtherHost);
    }
    let datagram = |part: Part, udp: udp::Header| Datagram {
        part,
        ip_offset,
        udp_offset: ip_offset + header.length(),
        present: frame.len(),
        source: IpAddr::V4(header.source()),
        destination: IpAddr::V4(header.destination()),
        source_port: udp.source_port,
        destination_port: udp.destination_port,
        ttl: header.ttl(),
        traffic_class: header.traffic_class(),
        dont_fragment: header.dont_fragment(),
        ip_length: usize::from(header.total_length()),
        udp_length: udp.length,
        udp_checksum: udp.checksum,
        gso: meta.gso,
        checksum: meta.checksum,
    };
    let udp = udp::Header::parse(packet, header.length());
    let (offset, more) = (header.fragment_offset(), header.more_fragments());
    if offset != 0 || more {
        return Ok(Parsed::Fragment(Fragment {
            key: FragmentKey {
                source: IpAddr::V4(header.source()),
                destination: IpAddr::V4(header.destination()),
                id: u32::from(header.id()),
            },
            offset,
            more,
            datagram: match offset {
                0 => udp.map(|udp| datagram(Part::First, udp)),
                _ => Some(datagram(Part::Later, udp::Header::NONE)),
            },
        }));
    }
    let datagram = udp.map(|udp| datagram(Part::Whole, udp));
    datagram.map(Parsed::Udp).ok_or(NotOurs::Truncated)
}

#[inline]
fn parse_ipv6(frame: &[u8], ip_offset: usize, meta: Meta) -> Result<Parsed, NotOurs> {
    let packet = frame.get(ip_offset..).ok_or(NotOurs::Truncated)?;
    let header = ipv6::Header::parse(packet)?;
    let destination = header.destination();
    if meta.other_host && !destination.is_multicast() {
        return Err(NotOurs::OtherHost);
    }
    let upper = ipv6::upper(packet, header.next_header())?;
    let datagram = |part: Part, udp: udp::Header| Datagram {
        part,
        ip_offset,
        udp_offset: ip_offset + upper.offset,
        present: frame.len(),
        source: IpAddr::V6(header.source()),
        destination: IpAddr::V6(destination),
        source_port: udp.source_port,
        destination_port: udp.destination_port,
        ttl: header.hop_limit(),
        traffic_class: header.traffic_class(),
        dont_fragment: true,
        ip_length: ipv6::HEADER + usize::from(header.payload_length()),
        udp_length: udp.length,
        udp_checksum: udp.checksum,
        gso: meta.gso,
        checksum: meta.checksum,
    };
    let udp = udp::Header::parse(packet, upper.offset);
    match upper.fragment {
        // An atomic fragment (RFC 6946) is a whole datagram.
        Some(piece) if piece.offset != 0 || piece.more => Ok(Parsed::Fragment(Fragment {
            key: FragmentKey {
                source: IpAddr::V6(header.source()),
                destination: IpAddr::V6(destination),
                id: piece.id,
            },
            offset: piece.offset,
            more: piece.more,
            datagram: match piece.offset {
                0 => udp.map(|udp| datagram(Part::First, udp)),
                _ => Some(datagram(Part::Later, udp::Header::NONE)),
            },
        })),
        _ => {
            let datagram = udp.map(|udp| datagram(Part::Whole, udp));
            datagram.map(Parsed::Udp).ok_or(NotOurs::Truncated)
        }
    }
}
