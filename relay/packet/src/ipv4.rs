//! The IPv4 header (RFC 791), read in place.

use std::net::Ipv4Addr;

use crate::checksum;
use crate::meta::NotOurs;

/// Bytes of a header without options.
pub const HEADER: usize = 20;
/// Offset of the payload's protocol number.
pub const PROTOCOL: usize = 9;
/// Offset of the source address.
pub const SOURCE: usize = 12;
/// Offset of the destination address.
pub const DESTINATION: usize = 16;

/// Offsets of the fields that a rewrite touches.
pub(crate) mod field {
    pub(crate) const TRAFFIC_CLASS: usize = 1;
    pub(crate) const TOTAL_LENGTH: usize = 2;
    pub(crate) const FRAGMENT: usize = 6;
    pub(crate) const TTL: usize = 8;
    pub(crate) const CHECKSUM: usize = 10;
    pub(crate) const SOURCE: usize = super::SOURCE;
    pub(crate) const DESTINATION: usize = super::DESTINATION;
}

/// A header, options included, that lies wholly in the packet.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    fixed: &'a [u8; HEADER],
    whole: &'a [u8],
}

impl<'a> Header<'a> {
    /// Reads the header at the start of `packet`.
    ///
    /// # Errors
    /// A header that is cut off, of another version or shorter than 20 bytes.
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Result<Self, NotOurs> {
        let fixed = packet.first_chunk::<HEADER>().ok_or(NotOurs::Truncated)?;
        if fixed[0] >> 4 != 4 {
            return Err(NotOurs::Version);
        }
        let length = usize::from(fixed[0] & 0x0f) * 4;
        if length < HEADER {
            return Err(NotOurs::HeaderLength);
        }
        let whole = packet.get(..length).ok_or(NotOurs::Truncated)?;
        Ok(Self { fixed, whole })
    }

    /// The header's length in bytes, options included: 20 to 60.
    pub const fn length(self) -> usize {
        self.whole.len()
    }

    /// The options, 0 to 40 bytes.
    pub fn options(self) -> &'a [u8] {
        self.whole.get(HEADER..).unwrap_or_default()
    }

    /// DSCP (upper six bits) and ECN.
    pub const fn traffic_class(self) -> u8 {
        self.fixed[1]
    }

    /// The packet's length as the header claims it, header included.
    pub const fn total_length(self) -> u16 {
        u16::from_be_bytes([self.fixed[2], self.fixed[3]])
    }

    /// Identification, equal in all fragments of a datagram.
    pub const fn id(self) -> u16 {
        u16::from_be_bytes([self.fixed[4], self.fixed[5]])
    }

    /// Returns whether routers must not fragment the packet.
    pub const fn dont_fragment(self) -> bool {
        self.fixed[6] & 0x40 != 0
    }

    /// Returns whether more fragments follow.
    pub const fn more_fragments(self) -> bool {
        self.fixed[6] & 0x20 != 0
    }

    /// Offset of the fragment in the datagram, in bytes.
    pub const fn fragment_offset(self) -> u16 {
        (u16::from_be_bytes([self.fixed[6], self.fixed[7]]) & 0x1fff) << 3
    }

    /// Time to live.
    pub const fn ttl(self) -> u8 {
        self.fixed[8]
    }

    /// Protocol number of the payload.
    pub const fn protocol(self) -> u8 {
        self.fixed[9]
    }

    /// Sender.
    pub const fn source(self) -> Ipv4Addr {
        Ipv4Addr::new(
            self.fixed[12],
            self.fixed[13],
            self.fixed[14],
            self.fixed[15],
        )
    }

    /// Receiver or group.
    pub const fn destination(self) -> Ipv4Addr {
        Ipv4Addr::new(
            self.fixed[16],
            self.fixed[17],
            self.fixed[18],
            self.fixed[19],
        )
    }

    /// Returns whether the header checksum is right.
    pub fn checksum_is_valid(self) -> bool {
        checksum::ipv4_header_is_valid(self.whole)
    }
}
