//! The rewrite of one copy: addresses, ports, TTL, DSCP, link header, and every checksum with them.
//!
//! Works in place and touches nothing after the UDP header, so a slice of the headers suffices and one payload
//! serves many copies. Checksums are updated incrementally: a wrong UDP checksum stays
//! wrong, a partial one stays partial, a zero one (IPv4) stays zero.

use std::net::IpAddr;

use crate::bytes::{read_u16, write, write_u16};
use crate::checksum::{Delta, transmitted_udp};
use crate::datagram::{Datagram, Part};
use crate::ethernet;
use crate::ipv4;
use crate::ipv6;
use crate::parse::ChecksumState;
use crate::udp;
use crate::verdict::DropReason;

/// Bytes a copy may need in front of its IP header for the link header.
pub const LINK_HEADROOM: usize = ethernet::HEADER;

/// The headers of one copy. `None` keeps the packet's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// New sender address, of the packet's family.
    pub source: Option<IpAddr>,
    /// New destination address, of the packet's family.
    pub destination: IpAddr,
    /// New sender port.
    pub source_port: Option<u16>,
    /// New destination port.
    pub destination_port: u16,
    /// TTL or hop limit.
    pub ttl: TtlChange,
    /// New DSCP, 0 to 63; ECN is always kept.
    pub dscp: Option<u8>,
    /// Link header of the copy.
    pub link: LinkChange,
}

/// What happens to TTL or hop limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TtlChange {
    /// Kept.
    #[default]
    Keep,
    /// One less; dropped at 1 or 0.
    Decrement,
    /// Set to a value.
    Set(u8),
}

/// Link header of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// An Ethernet header.
    Ethernet {
        /// Sender: the egress interface.
        source: [u8; 6],
        /// Receiver: the group's address or the next hop's.
        destination: [u8; 6],
    },
    /// None: the device carries bare IP.
    None,
}

/// Rewrites the headers of `datagram` in `frame` and returns where the copy starts: the link
/// header's offset, 14 bytes before the IP header, or the IP header's own without one.
///
/// `frame` holds at least the bytes up to [`Datagram::payload_offset`], unchanged since they were
/// parsed. A datagram from a bare-IP device that leaves with an Ethernet header needs 14 bytes in
/// front ([`Datagram::moved`]).
///
/// # Errors
/// [`DropReason::TtlExpired`] where a decrement meets 1 or 0; [`DropReason::EgressError`] where the
/// families differ or the headers do not fit in `frame`. The frame must not be sent then.
#[inline]
pub fn rewrite(
    frame: &mut [u8],
    datagram: &Datagram,
    change: &Rewrite,
) -> Result<usize, DropReason> {
    let ttl = new_ttl(datagram.ttl, change.ttl).ok_or(DropReason::TtlExpired)?;
    rewrite_network(frame, datagram, change, ttl).ok_or(DropReason::EgressError)?;
    rewrite_udp(frame, datagram, change).ok_or(DropReason::EgressError)?;
    rewrite_link(frame, datagram, change).ok_or(DropReason::EgressError)
}

#[inline]
const fn new_ttl(ttl: u8, change: TtlChange) -> Option<u8> {
    match change {
        TtlChange::Keep => Some(ttl),
        TtlChange::Set(ttl) => Some(ttl),
        TtlChange::Decrement if ttl <= 1 => None,
        TtlChange::Decrement => Some(ttl - 1),
    }
}

#[inline]
fn rewrite_network(frame: &mut [u8], datagram: &Datagram, change: &Rewrite, ttl: u8) -> Option<()> {
    let header = frame.get_mut(datagram.ip_offset..datagram.udp_offset)?;
    let class = match change.dscp {
        Some(dscp) => dscp << 2 | datagram.traffic_class & 0b11,
        None => datagram.traffic_class,
    };
    match (change.source.unwrap_or(datagram.source), change.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) if datagram.source.is_ipv4() => {
            let mut delta = addresses_delta(datagram, change);
            // Version and IHL share a word with the class, the protocol one with the TTL: equal
            // halves cancel out.
            delta.replace(u16::from(datagram.traffic_class), u16::from(class));
            delta.replace(u16::from(datagram.ttl) << 8, u16::from(ttl) << 8);
            let checksum = delta.apply(read_u16(header, ipv4::field::CHECKSUM)?);
            write(header, ipv4::field::TRAFFIC_CLASS, [class])?;
            write(header, ipv4::field::TTL, [ttl])?;
            write(header, ipv4::field::SOURCE, source.octets())?;
            write(header, ipv4::field::DESTINATION, destination.octets())?;
            write_u16(header, ipv4::field::CHECKSUM, checksum)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) if datagram.source.is_ipv6() => {
            let first = header.first_chunk_mut::<2>()?;
            first[0] = first[0] & 0xf0 | class >> 4;
            first[1] = class << 4 | first[1] & 0x0f;
            write(header, ipv6::field::HOP_LIMIT, [ttl])?;
            write(header, ipv6::field::SOURCE, source.octets())?;
            write(header, ipv6::field::DESTINATION, destination.octets())
        }
        _ => None,
    }
}

#[inline]
fn rewrite_udp(frame: &mut [u8], datagram: &Datagram, change: &Rewrite) -> Option<()> {
    if datagram.part == Part::Later {
        return Some(());
    }
    let header = frame.get_mut(datagram.udp_offset..datagram.payload_offset())?;
    let source_port = change.source_port.unwrap_or(datagram.source_port);
    write_u16(header, udp::field::SOURCE_PORT, source_port)?;
    write_u16(
        header,
        udp::field::DESTINATION_PORT,
        change.destination_port,
    )?;
    if datagram.udp_checksum == 0 {
        return Some(());
    }
    let mut delta = addresses_delta(datagram, change);
    let checksum = match datagram.checksum {
        // The ports are not part of the pseudo header: the device will add them.
        ChecksumState::Partial => delta.apply_partial(datagram.udp_checksum),
        ChecksumState::Complete => {
            delta.replace(datagram.source_port, source_port);
            delta.replace(datagram.destination_port, change.destination_port);
            delta.apply(datagram.udp_checksum)
        }
    };
    write_u16(header, udp::field::CHECKSUM, transmitted_udp(checksum))
}

#[inline]
fn rewrite_link(frame: &mut [u8], datagram: &Datagram, change: &Rewrite) -> Option<usize> {
    let LinkChange::Ethernet {
        source,
        destination,
    } = change.link
    else {
        return Some(datagram.ip_offset);
    };
    let ethertype = match datagram.source {
        IpAddr::V4(_) => ethernet::IPV4,
        IpAddr::V6(_) => ethernet::IPV6,
    };
    let start = datagram.ip_offset.checked_sub(ethernet::HEADER)?;
    ethernet::write_header(frame, start, destination, source, ethertype)?;
    Some(start)
}

#[inline]
fn addresses_delta(datagram: &Datagram, change: &Rewrite) -> Delta {
    let mut delta = Delta::default();
    if let Some(source) = change.source {
        delta.replace_address(datagram.source, source);
    }
    delta.replace_address(datagram.destination, change.destination);
    delta
}
