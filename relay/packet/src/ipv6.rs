//! The IPv6 header and the extension headers that may precede UDP (RFC 8200), read in place.

use std::net::Ipv6Addr;

use crate::bytes::{read, read_u16};
use crate::meta::NotOurs;
use crate::udp;

/// Bytes of the fixed header.
pub const HEADER: usize = 40;
/// Offset of the source address.
pub const SOURCE: usize = 8;
/// Offset of the destination address.
pub const DESTINATION: usize = 24;
/// Extension headers that are followed before UDP; a packet with more is left to the stack. The
/// kernel path's loop has the same bound.
pub const MAX_EXTENSIONS: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

/// Offsets of the fields that a rewrite touches.
pub(crate) mod field {
    pub(crate) const HOP_LIMIT: usize = 7;
    pub(crate) const SOURCE: usize = super::SOURCE;
    pub(crate) const DESTINATION: usize = super::DESTINATION;
}

/// A fixed header that lies wholly in the packet.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    fixed: &'a [u8; HEADER],
}

impl<'a> Header<'a> {
    /// Reads the header at the start of `packet`.
    ///
    /// # Errors
    /// A header that is cut off or of another version.
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Result<Self, NotOurs> {
        let fixed = packet.first_chunk::<HEADER>().ok_or(NotOurs::Truncated)?;
        if fixed[0] >> 4 != 6 {
            return Err(NotOurs::Version);
        }
        Ok(Self { fixed })
    }

    /// DSCP (upper six bits) and ECN.
    pub const fn traffic_class(self) -> u8 {
        self.fixed[0] << 4 | self.fixed[1] >> 4
    }

    /// Bytes after the fixed header, as the header claims.
    pub const fn payload_length(self) -> u16 {
        u16::from_be_bytes([self.fixed[4], self.fixed[5]])
    }

    /// Protocol number of the first header after this one.
    pub const fn next_header(self) -> u8 {
        self.fixed[6]
    }

    /// Hop limit.
    pub const fn hop_limit(self) -> u8 {
        self.fixed[7]
    }

    /// Sender.
    pub fn source(self) -> Ipv6Addr {
        self.address(field::SOURCE)
    }

    /// Receiver or group.
    pub fn destination(self) -> Ipv6Addr {
        self.address(field::DESTINATION)
    }

    fn address(self, offset: usize) -> Ipv6Addr {
        Ipv6Addr::from(read::<16>(self.fixed, offset).unwrap_or_default())
    }
}

/// The end of the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// Offset of the UDP header (or of the fragment's data) from the start of the packet.
    pub offset: usize,
    /// The fragment header, if there is one.
    pub fragment: Option<FragmentHeader>,
}

/// A fragment header (RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// Offset of the header from the start of the packet.
    pub at: usize,
    /// Offset of the fragment in the datagram's fragmentable part, in bytes.
    pub offset: u16,
    /// Whether more fragments follow.
    pub more: bool,
    /// Identification, equal in all fragments of a datagram.
    pub id: u32,
}

/// Follows the extension headers of `packet` from `next_header` to UDP. Hop-by-hop options,
/// routing headers that are used up, and destination options are skipped; a fragment header ends
/// the walk in every fragment but the first, because what follows there is data. Destination options may be part
/// of these data, and then every fragment's header names them.
///
/// # Errors
/// A header that is cut off, more than [`MAX_EXTENSIONS`], a routing header with segments left
/// (the destination is not the final one), or a protocol other than UDP.
#[inline]
pub fn upper(packet: &[u8], next_header: u8) -> Result<Upper, NotOurs> {
    let mut next = next_header;
    let mut offset = HEADER;
    let mut fragment = None;
    for _ in 0..=MAX_EXTENSIONS {
        if next == udp::PROTOCOL {
            return Ok(Upper { offset, fragment });
        }
        let [following, length, _, segments_left] =
            read::<4>(packet, offset).ok_or(NotOurs::Truncated)?;
        let header = match next {
            HOP_BY_HOP | DESTINATION_OPTIONS => usize::from(length) * 8 + 8,
            ROUTING if segments_left == 0 => usize::from(length) * 8 + 8,
            FRAGMENT if fragment.is_none() => {
                let header = read_fragment(packet, offset)?;
                fragment = Some(header);
                if header.offset != 0 {
                    let may_be_udp = matches!(following, udp::PROTOCOL | DESTINATION_OPTIONS);
                    let offset = offset + 8;
                    return may_be_udp
                        .then_some(Upper { offset, fragment })
                        .ok_or(NotOurs::Protocol);
                }
                8
            }
            _ => return Err(NotOurs::Protocol),
        };
        offset += header;
        next = following;
    }
    Err(NotOurs::Protocol)
}

fn read_fragment(packet: &[u8], at: usize) -> Result<FragmentHeader, NotOurs> {
    let word = read_u16(packet, at + 2).ok_or(NotOurs::Truncated)?;
    let id = read::<4>(packet, at + 4).ok_or(NotOurs::Truncated)?;
    Ok(FragmentHeader {
        at,
        offset: word & 0xfff8,
        more: word & 1 != 0,
        id: u32::from_be_bytes(id),
    })
}
