//! Makes whole frames, for generators, tests and fuzzers. Not hot path: it allocates.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::checksum;
use crate::ethernet;
use crate::parse::Link;
use crate::udp;

/// A UDP datagram to be made into a frame. Start from [`Craft::new`] and set what differs.
#[derive(Clone, Debug)]
pub struct Craft {
    /// Sender.
    pub source: SocketAddr,
    /// Group and port.
    pub destination: SocketAddr,
    /// UDP payload.
    pub payload: Vec<u8>,
    /// Header in front of IP.
    pub link: Link,
    /// Ethernet addresses, destination then source.
    pub macs: ([u8; 6], [u8; 6]),
    /// TTL or hop limit.
    pub ttl: u8,
    /// DSCP (upper six bits) and ECN.
    pub traffic_class: u8,
    /// IPv4 identification.
    pub id: u16,
    /// IPv4 flags and fragment offset as in the header.
    pub fragment: u16,
    /// IPv4 options, a multiple of 4 bytes up to 40; IPv6 extension headers, a multiple of 8,
    /// whose chain ends in UDP and starts with `first_extension`.
    pub options: Vec<u8>,
    /// Protocol number of the first IPv6 extension header, if `options` holds any.
    pub first_extension: u8,
    /// Content of the UDP checksum field.
    pub checksum: CraftChecksum,
    /// Bytes after the IP packet, as Ethernet pads short frames.
    pub padding: usize,
}

/// Content of the UDP checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CraftChecksum {
    /// The right checksum.
    Complete,
    /// Zero: none.
    Zero,
    /// The sum of the pseudo header, for a device to finish.
    Partial,
}

impl Craft {
    /// A plain datagram: TTL 8, no options, right checksum, Ethernet header for the group.
    pub fn new(source: SocketAddr, destination: SocketAddr, payload: Vec<u8>) -> Self {
        Self {
            source,
            destination,
            payload,
            link: Link::Ethernet,
            macs: (group_mac(destination.ip()), [0x02, 0, 0, 0, 0, 0x99]),
            ttl: 8,
            traffic_class: 0,
            id: 0x1234,
            fragment: 0x4000,
            options: Vec::new(),
            first_extension: udp::PROTOCOL,
            checksum: CraftChecksum::Complete,
            padding: 0,
        }
    }

    /// Makes the frame.
    pub fn frame(&self) -> Vec<u8> {
        let udp = self.udp();
        let mut frame = Vec::with_capacity(14 + 60 + udp.len() + self.padding);
        if self.link == Link::Ethernet {
            frame.extend(self.macs.0);
            frame.extend(self.macs.1);
            let ethertype = if self.source.is_ipv4() {
                ethernet::IPV4
            } else {
                ethernet::IPV6
            };
            frame.extend(ethertype.to_be_bytes());
        }
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend(self.ipv4_header(source, destination, udp.len()));
            }
            _ => frame.extend(self.ipv6_header(udp.len())),
        }
        frame.extend(udp);
        frame.resize(frame.len() + self.padding, 0);
        frame
    }

    fn udp(&self) -> Vec<u8> {
        let length = (udp::HEADER + self.payload.len()) as u16;
        let mut udp = Vec::with_capacity(usize::from(length));
        udp.extend(self.source.port().to_be_bytes());
        udp.extend(self.destination.port().to_be_bytes());
        udp.extend(length.to_be_bytes());
        udp.extend([0, 0]);
        udp.extend(&self.payload);
        let (source, destination) = (self.source.ip(), self.destination.ip());
        let field = match self.checksum {
            CraftChecksum::Complete => checksum::udp(source, destination, &udp),
            CraftChecksum::Partial => checksum::pseudo_header(source, destination, length),
            CraftChecksum::Zero => 0,
        };
        udp[6..8].copy_from_slice(&field.to_be_bytes());
        udp
    }

    fn ipv4_header(&self, source: Ipv4Addr, destination: Ipv4Addr, payload: usize) -> Vec<u8> {
        let length = 20 + self.options.len();
        let mut header = vec![0x40 | (length / 4) as u8, self.traffic_class];
        header.extend(((length + payload) as u16).to_be_bytes());
        header.extend(self.id.to_be_bytes());
        header.extend(self.fragment.to_be_bytes());
        header.extend([self.ttl, udp::PROTOCOL, 0, 0]);
        header.extend(source.octets());
        header.extend(destination.octets());
        header.extend(&self.options);
        let checksum = !checksum::sum(&header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    fn ipv6_header(&self, payload: usize) -> Vec<u8> {
        let mut header = vec![
            0x60 | self.traffic_class >> 4,
            self.traffic_class << 4,
            0,
            0,
        ];
        header.extend(((self.options.len() + payload) as u16).to_be_bytes());
        header.extend([self.first_extension, self.ttl]);
        for address in [self.source.ip(), self.destination.ip()] {
            match address {
                IpAddr::V6(address) => header.extend(address.octets()),
                IpAddr::V4(address) => header.extend(address.to_ipv6_mapped().octets()),
            }
        }
        header.extend(&self.options);
        header
    }
}

/// Maps a group to its Ethernet address: RFC 1112 section 6.4, RFC 2464 section 7.
pub fn group_mac(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

/// Recomputes the IPv4 header checksum of the packet at `ip_offset` after a test has changed the
/// header. Does nothing if the header is cut off.
#[cfg(any(test, feature = "test-support"))]
pub fn fix_ipv4_checksum(frame: &mut [u8], ip_offset: usize) {
    let Some(packet) = frame.get_mut(ip_offset..) else {
        return;
    };
    let Some(length) = packet.first().map(|first| usize::from(first & 0x0f) * 4) else {
        return;
    };
    let Some(header) = packet.get_mut(..length).filter(|header| header.len() >= 20) else {
        return;
    };
    header[10..12].fill(0);
    let checksum = !checksum::sum(header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}
