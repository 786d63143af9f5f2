//! The virtio-net header in front of every packet.

/// Bytes of a [`VnetHeader`] on the wire.
pub const VNET_HEADER: usize = 10;

/// A packet's segmentation and checksum, as the kernel reports it (`struct virtio_net_hdr`, host byte order).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// `NEEDS_CSUM` (1), `DATA_VALID` (2).
    pub flags: u8,
    /// 0 for none, 5 for UDP segmentation (`UDP_L4`).
    pub gso_type: u8,
    /// Bytes of headers in front of the payload.
    pub header_bytes: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Where the checksum starts to cover, from the start of the frame.
    pub checksum_start: u16,
    /// Where the checksum field is, from there.
    pub checksum_offset: u16,
}

impl VnetHeader {
    /// The checksum field holds the pseudo-header's sum; the rest is to be added.
    pub const NEEDS_CHECKSUM: u8 = 1;
    /// The device has verified the checksum.
    pub const CHECKSUM_VALID: u8 = 2;
    /// UDP segmentation.
    pub const GSO_UDP: u8 = 5;

    /// Reads the header.
    #[inline]
    pub fn decode(bytes: [u8; VNET_HEADER]) -> Self {
        let [flags, gso_type, a, b, c, d, e, f, g, h] = bytes;
        Self {
            flags,
            gso_type,
            header_bytes: u16::from_ne_bytes([a, b]),
            gso_size: u16::from_ne_bytes([c, d]),
            checksum_start: u16::from_ne_bytes([e, f]),
            checksum_offset: u16::from_ne_bytes([g, h]),
        }
    }

    /// Writes the header.
    #[inline]
    pub const fn encode(self) -> [u8; VNET_HEADER] {
        let [a, b] = self.header_bytes.to_ne_bytes();
        let [c, d] = self.gso_size.to_ne_bytes();
        let [e, f] = self.checksum_start.to_ne_bytes();
        let [g, h] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vnet_header_survives_encoding() {
        let header = VnetHeader {
            flags: 1,
            gso_type: 5,
            header_bytes: 42,
            gso_size: 1024,
            checksum_start: 34,
            checksum_offset: 6,
        };
        assert_eq!(VnetHeader::decode(header.encode()), header);
    }
}
