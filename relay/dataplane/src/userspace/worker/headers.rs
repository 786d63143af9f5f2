//! The headers of a packet, or of packets that leave as one, and those of a copy made from them.

use packet::checksum;
use packet::datagram::Datagram;
use packet::ethernet;
use packet::ipv6;
use packet::parse::{ChecksumState, Gso};
use packet::rewrite::rewrite;
use packet::udp;
use packet::verdict::DropReason;
use sys::packet_socket::{VNET_HEADER, VnetHeader};
use sys::uring::Head;

use super::rewrite::Sending;

/// Offset of the IP header in a [`Headers`]: behind room for vnet header and link header.
pub(super) const IP_AT: usize = VNET_HEADER + ethernet::HEADER;
/// Room for 60 bytes of IPv4 or 40 of IPv6 with the usual extensions, and 8 of UDP.
pub(super) const HEADERS_ROOM: usize = sys::uring::HEAD;

/// The headers of a packet or a run of packets, as received, with room in front.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    /// The headers, IP at [`IP_AT`].
    pub bytes: [u8; HEADERS_ROOM],
    /// The datagram, its offsets within `bytes`.
    pub datagram: Datagram,
    /// Bytes of IPv6 extension headers that are omitted between IP and UDP, because they are too long: none of
    /// them is rewritten, so they are sent from the packet's buffer.
    pub omitted: usize,
}

/// One copy's headers: vnet header, link header, IP and UDP.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyHeaders {
    bytes: [u8; HEADERS_ROOM],
    start: usize,
    end: usize,
}

impl Headers {
    /// Extracts the headers of `packet`; `None` if they are missing.
    #[inline]
    #[must_use]
    pub(super) fn of(packet: &[u8], datagram: &Datagram) -> Option<Self> {
        let headers = packet.get(datagram.ip_offset..datagram.payload_offset())?;
        let mut bytes = [0; HEADERS_ROOM];
        let mut head = match bytes.get_mut(IP_AT..IP_AT + headers.len()) {
            Some(room) => {
                room.copy_from_slice(headers);
                Self {
                    bytes,
                    datagram: datagram.moved(IP_AT),
                    omitted: 0,
                }
            }
            None => Self::without_extensions(headers, datagram)?,
        };
        if datagram.gso.is_some() {
            head.leave_checksum();
        }
        Some(head)
    }

    #[cold]
    fn without_extensions(headers: &[u8], datagram: &Datagram) -> Option<Self> {
        let (ip, rest) = headers.split_at_checked(ipv6::HEADER)?;
        let omitted = datagram.udp_offset - datagram.ip_offset - ipv6::HEADER;
        let udp = rest.get(omitted..)?;
        let mut bytes = [0; HEADERS_ROOM];
        let udp_at = IP_AT + ipv6::HEADER;
        bytes.get_mut(IP_AT..udp_at)?.copy_from_slice(ip);
        bytes
            .get_mut(udp_at..udp_at + udp.len())?
            .copy_from_slice(udp);
        let mut datagram = datagram.moved(IP_AT);
        datagram.udp_offset = udp_at;
        Some(Self {
            bytes,
            datagram,
            omitted,
        })
    }

    /// Bytes of the largest IP packet that leaves for it.
    #[inline]
    pub(super) fn largest_packet(&self) -> usize {
        let omitted = self.datagram.gso.map_or(0, |_| self.omitted);
        self.datagram.largest_packet() + omitted
    }

    /// Leaves the checksums of a super-packet to its segmentation. A chain (`rx-gro-list`) carries
    /// its first datagram's, partial or complete.
    fn leave_checksum(&mut self) {
        let datagram = &mut self.datagram;
        let length = datagram.udp_length;
        datagram.checksum = ChecksumState::Partial;
        datagram.udp_checksum =
            checksum::pseudo_header(datagram.source, datagram.destination, length);
        let at = datagram.udp_offset + 6;
        self.bytes[at..at + 2].copy_from_slice(&datagram.udp_checksum.to_be_bytes());
    }

    /// Makes a single datagram's headers those of a super-packet of `ip_length` bytes whose
    /// datagrams carry `size` bytes of payload; its UDP checksum becomes partial.
    pub(super) fn enlarge(&mut self, ip_length: usize, size: u16) {
        self.datagram.gso = Some(Gso { size });
        self.resize(ip_length);
    }

    /// The headers of one datagram of a super-packet: the `index`-th, which carries `size` bytes.
    pub(super) fn segment(&self, index: u16, size: u16) -> Self {
        let mut segment = *self;
        segment.datagram.gso = None;
        let headers = self.datagram.payload_offset() - IP_AT + self.omitted;
        segment.resize(headers + usize::from(size));
        if self.datagram.source.is_ipv4() {
            let ip = &mut segment.bytes[IP_AT..];
            let id = u16::from_be_bytes([ip[4], ip[5]]);
            replace(ip, 4, id.wrapping_add(index));
        }
        segment
    }

    /// The headers of segments of a super-packet that leave on their own: from the `first` one, with
    /// `bytes` of payload.
    pub(super) fn part(&self, first: u16, bytes: u16) -> Self {
        let mut part = self.segment(first, bytes);
        let is_several = |gso: &Gso| bytes > gso.size;
        part.datagram.gso = self.datagram.gso.filter(is_several);
        part
    }

    /// Changes the lengths, and makes the UDP checksum partial to match.
    fn resize(&mut self, ip_length: usize) {
        let datagram = &mut self.datagram;
        let udp_length = (ip_length - self.omitted - (datagram.udp_offset - IP_AT)) as u16;
        datagram.ip_length = ip_length;
        datagram.udp_length = udp_length;
        datagram.checksum = ChecksumState::Partial;
        datagram.udp_checksum =
            checksum::pseudo_header(datagram.source, datagram.destination, udp_length);
        let (ip, udp) = self.bytes[IP_AT..].split_at_mut(datagram.udp_offset - IP_AT);
        udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
        udp[6..8].copy_from_slice(&datagram.udp_checksum.to_be_bytes());
        if datagram.source.is_ipv4() {
            replace(ip, 2, ip_length as u16);
        } else {
            let payload = (ip_length - ipv6::HEADER) as u16;
            ip[4..6].copy_from_slice(&payload.to_be_bytes());
        }
    }

    /// Makes the headers of one copy.
    ///
    /// # Errors
    /// The reason why it cannot be sent.
    #[inline]
    pub(super) fn copy_for(&self, to: &Sending) -> Result<CopyHeaders, DropReason> {
        let mut bytes = self.bytes;
        let datagram = &self.datagram;
        let start = rewrite(&mut bytes, datagram, &to.change_for(datagram))?;
        let end = datagram.payload_offset();
        let vnet = self.vnet(start).encode();
        let at = start - VNET_HEADER;
        bytes[at..start].copy_from_slice(&vnet);
        Ok(CopyHeaders {
            bytes,
            start: at,
            end,
        })
    }

    #[inline]
    fn vnet(&self, start: usize) -> VnetHeader {
        let mut vnet = VnetHeader::default();
        if self.datagram.checksum == ChecksumState::Partial {
            vnet.flags = VnetHeader::NEEDS_CHECKSUM;
            vnet.checksum_start = (self.datagram.udp_offset + self.omitted - start) as u16;
            vnet.checksum_offset = 6;
        }
        if let Some(gso) = self.datagram.gso {
            vnet.gso_type = VnetHeader::GSO_UDP;
            vnet.gso_size = gso.size;
            vnet.header_bytes = (self.datagram.payload_offset() + self.omitted - start) as u16;
        }
        vnet
    }
}

impl CopyHeaders {
    /// Clears the vnet header: no work is left to the device.
    pub(super) fn forget_offload(&mut self) {
        self.bytes[self.start..self.start + VNET_HEADER].fill(0);
    }

    /// The UDP header.
    pub(super) fn udp_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end - udp::HEADER..self.end]
    }

    /// The IP header and the UDP header.
    pub(super) fn ip_and_udp(&self) -> (&[u8], &[u8]) {
        let udp = self.end - udp::HEADER;
        (&self.bytes[IP_AT..udp], &self.bytes[udp..self.end])
    }

    /// Offset of the IP header in [`CopyHeaders::without`]'s bytes.
    pub(super) const fn ip_at(&self) -> usize {
        IP_AT - self.start
    }

    /// The bytes to send before the payload, without the last `cut`.
    pub(super) fn without(&self, cut: usize) -> ([u8; HEADERS_ROOM], usize) {
        let end = self.end - cut;
        let mut bytes = [0; HEADERS_ROOM];
        let length = end - self.start;
        bytes[..length].copy_from_slice(&self.bytes[self.start..end]);
        (bytes, length)
    }

    /// What to send before the payload; `extensions` are the omitted ones.
    #[inline]
    #[must_use]
    pub(super) fn head<'p>(&self, extensions: &'p [u8]) -> Head<'_, 'p> {
        Head {
            bytes: &self.bytes[self.start..self.end],
            gap: (
                if extensions.is_empty() {
                    self.end - self.start
                } else {
                    IP_AT + ipv6::HEADER - self.start
                },
                extensions,
            ),
        }
    }
}

/// Replaces a word of an IPv4 header and updates its checksum.
fn replace(header: &mut [u8], at: usize, new: u16) {
    let mut delta = checksum::Delta::default();
    delta.replace(u16::from_be_bytes([header[at], header[at + 1]]), new);
    let sum = delta.apply(u16::from_be_bytes([header[10], header[11]]));
    header[at..at + 2].copy_from_slice(&new.to_be_bytes());
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}
