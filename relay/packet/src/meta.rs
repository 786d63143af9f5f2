//! The input of parsing beside a packet's bytes, and its reasons to ignore a packet.

/// What precedes the IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// An Ethernet header.
    #[default]
    Ethernet,
    /// Nothing: the device carries bare IP.
    None,
}

impl Link {
    /// Returns whether a frame was sent by a program of this host by the interface, and given to the taps by the
    /// kernel path's program (`complete` in `relay.bpf.c`); their filters take no such frame from the wire.
    pub fn is_looped(self, frame: &[u8]) -> bool {
        self == Self::Ethernet && frame.starts_with(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    }
}

/// What the kernel reports of a packet beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// A tag that names a VLAN was removed by the device and is stored beside the packet.
    pub vlan: bool,
    /// The frame is for another host's link-layer address (`PACKET_OTHERHOST`): the interface receives more than
    /// its own.
    pub other_host: bool,
    /// The packet is a super-packet of several datagrams.
    pub gso: Option<Gso>,
    /// State of the UDP checksum.
    pub checksum: ChecksumState,
}

/// A super-packet's segmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// UDP payload bytes of each datagram but perhaps the last, at least 1.
    pub size: u16,
}

/// State of a packet's UDP checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumState {
    /// The field holds the finished checksum, right or wrong, or zero for none.
    #[default]
    Complete,
    /// The field holds the sum of the pseudo header; a device adds the rest (`CHECKSUM_PARTIAL`,
    /// virtio's `NEEDS_CSUM`).
    Partial,
}

/// Why a packet is left to the host's stack without a lookup of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOurs {
    /// It carries a VLAN tag, which belongs to the VLAN interface.
    Vlan,
    /// It is neither IPv4 nor IPv6.
    Ethertype,
    /// A header is cut off.
    Truncated,
    /// The version field contradicts the ethertype.
    Version,
    /// The IPv4 header claims fewer than 20 bytes.
    HeaderLength,
    /// It is not UDP, or not UDP that can be reached through the extension headers.
    Protocol,
    /// Its destination is no multicast group, and the frame is for another host.
    OtherHost,
}
