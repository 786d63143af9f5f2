//! The RTP header (RFC 3550), read in place, and how it differs from RTCP's.
//!
//! RTP has no distinguishing mark: any payload whose first two bits are version 2 may be taken for it. To be
//! sure, inspect several packets.

use std::ops::RangeInclusive;

use crate::bytes::{read, read_u16};

/// Bytes of the fixed header.
pub const HEADER: usize = 12;
/// First byte of a header of version 2 without padding, extension and contributors.
pub const VERSION: u8 = 2 << 6;
/// Payload type of MPEG-TS (RFC 3551, table 5).
pub const MP2T: u8 = 33;
/// First payload type of the dynamic range (RFC 3551 section 6).
pub const DYNAMIC: u8 = 96;
/// The payload types that RTCP packets seem to have: their types are 192 to 223, of which the highest
/// bit is RTP's marker. No RTP stream may use these beside RTCP (RFC 5761 section 4). RFC 3551
/// reserves only 72 to 76, the five types of RFC 3550; feedback (205, 206) and extended reports (207)
/// were added later.
pub const RTCP_PAYLOAD_TYPES: RangeInclusive<u8> = 64..=95;

/// The fields of an RTP header that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Payload type, without the marker bit.
    pub payload_type: u8,
    /// Sequence number.
    pub sequence: u16,
    /// Timestamp.
    pub timestamp: u32,
    /// Synchronisation source.
    pub ssrc: u32,
}

impl Header {
    /// Reads the header; `None` if there is none, or that of an RTCP packet.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Self> {
        let header = payload.first_chunk::<HEADER>()?;
        let payload_type = header[1] & 0x7f;
        if header[0] >> 6 != 2 || RTCP_PAYLOAD_TYPES.contains(&payload_type) {
            return None;
        }
        Some(Self {
            payload_type,
            sequence: read_u16(header, 2)?,
            timestamp: u32::from_be_bytes(read(header, 4)?),
            ssrc: u32::from_be_bytes(read(header, 8)?),
        })
    }
}

/// The payload between the header, its list of contributors and its extension, and the padding; `None` if they
/// claim more than there is.
#[inline]
pub fn media(payload: &[u8]) -> Option<&[u8]> {
    let first = *payload.first()?;
    let mut at = HEADER + usize::from(first & 0x0f) * 4;
    if first & 0x10 != 0 {
        let words = read_u16(payload, at + 2)?;
        at += 4 + usize::from(words) * 4;
    }
    let padding = match first & 0x20 {
        0 => 0,
        _ => usize::from(*payload.last()?),
    };
    payload.get(at..payload.len().checked_sub(padding)?)
}

/// The clocks of static payload types (RFC 3551, table 4 and 5).
pub const fn clock_hz(payload_type: u8) -> Option<u32> {
    match payload_type {
        0 | 3 | 4 | 5 | 7 | 8 | 9 | 12 | 13 | 15 | 18 => Some(8_000),
        6 => Some(16_000),
        10 | 11 => Some(44_100),
        16 => Some(11_025),
        17 => Some(22_050),
        14 | 25 | 26 | 28 | 31..=34 => Some(90_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_packets_are_not_media() {
        let mut packet = [0_u8; HEADER];
        packet[0] = VERSION;
        let is_media = |second| {
            packet[1] = second;
            Header::read(&packet).is_some()
        };
        let mut is_media = is_media;
        // FIR, the reports and goodbyes of RFC 3550, feedback, extended reports, and the last that
        // may be assigned.
        for control in [192, 200, 201, 202, 203, 204, 205, 206, 207, 213, 223] {
            assert!(!is_media(control), "{control}");
        }
        for media in [0, 33, 63, 96, 127, 128 | 33, 128 | 96, 255] {
            assert!(is_media(media), "{media}");
        }
    }
}
