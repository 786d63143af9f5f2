//! The UDP header (RFC 768), read in place.

use crate::bytes::read_u16;

/// Bytes of the header.
pub const HEADER: usize = 8;
/// UDP's IP protocol number.
pub const PROTOCOL: u8 = 17;

/// Offsets of the fields that a rewrite touches.
pub(crate) mod field {
    pub(crate) const SOURCE_PORT: usize = 0;
    pub(crate) const DESTINATION_PORT: usize = 2;
    pub(crate) const CHECKSUM: usize = 6;
}

/// The header's four fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Sender's port.
    pub source_port: u16,
    /// Receiver's port.
    pub destination_port: u16,
    /// Header and payload in bytes, as the header claims.
    pub length: u16,
    /// Checksum field as in the packet.
    pub checksum: u16,
}

impl Header {
    /// A substitute for the header where there is none: in a later fragment.
    pub(crate) const NONE: Self = Self {
        source_port: 0,
        destination_port: 0,
        length: 0,
        checksum: 0,
    };

    /// Reads the header at `offset`; `None` if it is cut off.
    #[inline]
    pub fn parse(packet: &[u8], offset: usize) -> Option<Self> {
        let header = packet.get(offset..)?.first_chunk::<HEADER>()?;
        Some(Self {
            source_port: read_u16(header, 0)?,
            destination_port: read_u16(header, 2)?,
            length: read_u16(header, 4)?,
            checksum: read_u16(header, 6)?,
        })
    }
}
