//! One parsed UDP datagram: the offsets of its headers, their content, and whether it is consistent.

use std::net::IpAddr;

use crate::ipv4;
use crate::meta::{ChecksumState, Gso};
use crate::udp;

/// A UDP datagram, or a super-packet of several.
///
/// Offsets count from the start of the frame and are within it; everything else is as the headers claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Where the IP header starts: 14 behind Ethernet, 18 behind a priority tag, else 0.
    pub ip_offset: usize,
    /// How much of the datagram this is.
    pub part: Part,
    /// Where the UDP header starts, with its 8 bytes present; in a later fragment, where its data start.
    pub udp_offset: usize,
    /// Bytes of the whole frame that are present.
    pub present: usize,
    /// Sender.
    pub source: IpAddr,
    /// Group, or address of a host.
    pub destination: IpAddr,
    /// Sender's port.
    pub source_port: u16,
    /// Receiver's port.
    pub destination_port: u16,
    /// TTL or hop limit.
    pub ttl: u8,
    /// DSCP (upper six bits) and ECN.
    pub traffic_class: u8,
    /// Routers must not fragment it; always so for IPv6.
    pub dont_fragment: bool,
    /// Bytes of the IP packet, header included, as its header claims.
    pub ip_length: usize,
    /// Bytes of UDP header and payload, as the UDP header claims.
    pub udp_length: u16,
    /// The UDP checksum field.
    pub udp_checksum: u16,
    /// Segmentation, if it is a super-packet.
    pub gso: Option<Gso>,
    /// State of the UDP checksum.
    pub checksum: ChecksumState,
}

/// How much of a datagram a packet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// Its first fragment, with the UDP header.
    First,
    /// Another fragment, without headers. Its ports are 0 until those of the first are looked up.
    Later,
}

/// How a datagram's headers contradict its bytes or each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The IP length reaches beyond the bytes that are present.
    LengthBeyondPacket,
    /// The IP length leaves no room for the headers.
    LengthTooShort,
    /// The UDP length is below 8.
    UdpLengthTooShort,
    /// The UDP length reaches beyond the IP length.
    UdpLengthBeyondPacket,
    /// The IPv4 header checksum is wrong.
    HeaderChecksum,
    /// The UDP checksum is zero on IPv6 (RFC 8200 section 8.1).
    ZeroChecksum,
}

impl Datagram {
    /// Finds the first defect; `frame` is what the datagram was parsed from. A datagram without
    /// one can be rewritten and sent.
    #[inline]
    pub fn defect(&self, frame: &[u8]) -> Option<Defect> {
        if let Some(defect) = self.length_defect() {
            return Some(defect);
        }
        match self.source {
            IpAddr::V4(_) => {
                let packet = frame.get(self.ip_offset..).unwrap_or_default();
                let valid = ipv4::Header::parse(packet).is_ok_and(ipv4::Header::checksum_is_valid);
                (!valid).then_some(Defect::HeaderChecksum)
            }
            IpAddr::V6(_) if self.part == Part::Later => None,
            IpAddr::V6(_) => (self.udp_checksum == 0).then_some(Defect::ZeroChecksum),
        }
    }

    #[inline]
    fn length_defect(&self) -> Option<Defect> {
        let headers = self.udp_offset - self.ip_offset;
        let udp_length = usize::from(self.udp_length);
        if self.ip_length > self.present - self.ip_offset {
            return Some(Defect::LengthBeyondPacket);
        }
        if self.ip_length < headers + self.udp_header() {
            return Some(Defect::LengthTooShort);
        }
        if self.part == Part::Later {
            return None;
        }
        if udp_length < udp::HEADER {
            return Some(Defect::UdpLengthTooShort);
        }
        if self.part == Part::Whole && udp_length > self.ip_length - headers {
            return Some(Defect::UdpLengthBeyondPacket);
        }
        None
    }

    /// Bytes of UDP header in it.
    #[inline]
    const fn udp_header(&self) -> usize {
        match self.part {
            Part::Whole | Part::First => udp::HEADER,
            Part::Later => 0,
        }
    }

    /// UDP payload bytes: what the UDP header claims, of a fragment what the IP header does, or,
    /// where the lengths contradict each other, everything that is present.
    #[inline]
    pub fn payload_bytes(&self) -> usize {
        if self.length_defect().is_some() {
            self.present - self.payload_offset()
        } else if self.part == Part::Whole {
            usize::from(self.udp_length) - udp::HEADER
        } else {
            self.ip_offset + self.ip_length - self.payload_offset()
        }
    }

    /// Datagrams in it: a super-packet's segments, else 1.
    #[inline]
    pub fn packets(&self) -> u32 {
        match self.gso {
            Some(Gso { size }) if size > 0 => {
                let segments = self.payload_bytes().div_ceil(usize::from(size)).max(1);
                u32::try_from(segments).unwrap_or(u32::MAX)
            }
            _ => 1,
        }
    }

    /// Payload bytes of each datagram in it but the last, which may have fewer.
    #[inline]
    pub fn segment_bytes(&self) -> usize {
        match self.gso {
            Some(Gso { size }) if size > 0 => size.into(),
            _ => self.payload_bytes(),
        }
    }

    /// Bytes of the largest IP packet that leaves for it: a super-packet's segment, else the
    /// packet itself. This is what an MTU bounds.
    #[inline]
    pub fn largest_packet(&self) -> usize {
        match self.gso {
            Some(Gso { size }) if size > 0 => {
                self.udp_offset - self.ip_offset + udp::HEADER + usize::from(size)
            }
            _ => self.ip_length,
        }
    }

    /// Where the UDP payload starts, which is where the headers end.
    #[inline]
    pub const fn payload_offset(&self) -> usize {
        self.udp_offset + self.udp_header()
    }

    /// Where the IP packet ends in the frame; what follows is padding. Never beyond the frame.
    #[inline]
    pub fn end(&self) -> usize {
        (self.ip_offset + self.ip_length).min(self.present)
    }

    /// The same datagram in a buffer where the IP header starts at `ip_offset`, for a worker that
    /// keeps headers apart or needs headroom for a link header.
    #[inline]
    #[must_use]
    pub const fn moved(mut self, ip_offset: usize) -> Self {
        self.udp_offset = self.udp_offset - self.ip_offset + ip_offset;
        self.present = self.present - self.ip_offset + ip_offset;
        self.ip_offset = ip_offset;
        self
    }
}
