//! The worker's side of its taps: packets are read in place in the ring, and their frames are given back
//! once all copies have left.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use packet::parse::{ChecksumState, Gso, Link, Meta};
use sys::packet_socket::{Frame, PacketSocket, Ring, RingSize, VNET_HEADER, VnetHeader};

/// Most packets of one batch: enough that many streams have several packets waiting together.
pub(super) const BATCH: usize = 1024;
/// Super-packets and jumbo frames that one batch may hold.
const LARGE_BUFFERS: usize = 8;
/// The largest IP packet, with room for link header and vnet header.
const LARGE_BYTES: usize = 65_535 + 128;

/// One tap.
#[derive(Debug)]
pub(super) struct Tap {
    /// The interface it listens on.
    pub interface: u32,
    link: Link,
    socket: PacketSocket,
    ring: Ring,
    batch: u32,
}

/// Buffers for packets that are larger than a ring frame, shared by all taps.
#[derive(Debug)]
pub(super) struct LargeBuffers {
    buffers: Vec<Box<[u8]>>,
    used: usize,
}

/// The buffer of a packet of the current batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferSlot {
    /// A frame of the ring, counted from the head.
    Frame(u32),
    /// A large buffer, and the bytes used of it.
    Large(u32, u32),
}

/// The content of the next ring frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrival {
    /// A packet, and what the kernel reports of it.
    Packet(BufferSlot, (Link, Meta), VnetHeader),
    /// The beginning of a packet of this length: there was no room for the rest.
    Truncated(BufferSlot, (Link, Meta), usize),
    /// All large buffers are in use: send the batch first.
    Full,
    /// Nothing has arrived.
    Nothing,
}

impl Tap {
    /// Maps the ring of a tap that the supervisor opened.
    ///
    /// # Errors
    /// `EINVAL` if `size` is not the ring's.
    pub(super) fn adopt(
        fd: OwnedFd,
        interface: u32,
        link: Link,
        size: RingSize,
    ) -> io::Result<Self> {
        let socket = PacketSocket::adopt(fd);
        let ring = socket.map_ring(size)?;
        Ok(Self {
            interface,
            link,
            socket,
            ring,
            batch: (size.frames / 4).clamp(1, BATCH) as u32,
        })
    }

    /// Most frames that a batch may hold: while it is sent, the kernel has the rest of the ring.
    #[must_use]
    pub(super) const fn batch(&self) -> u32 {
        self.batch
    }

    /// The descriptor, to wait on.
    #[must_use]
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Lets nothing more in.
    pub(super) fn close(&self) {
        // The kernel never refuses this to the owner of the socket.
        let _ = self.socket.close_filter();
    }

    /// What the kernel dropped at the full ring since the last reading.
    pub(super) fn lost(&self) -> u64 {
        self.socket.statistics().map_or(0, |counted| counted.drops)
    }

    /// Returns whether anything has arrived.
    #[inline]
    pub(super) fn has_arrival(&self) -> bool {
        self.ring.frame(0).is_some()
    }

    /// Reads the frame `index` after the head.
    #[inline]
    pub(super) fn arrival(&self, index: u32, large: &mut LargeBuffers) -> Arrival {
        let Some(frame) = self.ring.frame(index as usize) else {
            return Arrival::Nothing;
        };
        let start = self.start(frame);
        let link = match start {
            0 => self.link,
            _ => Link::None,
        };
        let about = (link, meta(frame.vnet, frame));
        let slot = BufferSlot::Frame(index);
        let length = frame.length.saturating_sub(start);
        if frame.queued {
            let large = self.large_arrival((link, frame, start), large);
            return large.unwrap_or(Arrival::Truncated(slot, about, length));
        }
        if frame.truncated {
            return Arrival::Truncated(slot, about, length);
        }
        Arrival::Packet(slot, about, frame.vnet)
    }

    /// The offset from which a frame is read: its Ethernet header, or unless that has 14 bytes its IP header,
    /// whatever precedes it (an inner tag of a VLAN with `reorder_hdr off`, a tunnel's header).
    #[inline]
    const fn start(&self, frame: Frame<'_>) -> usize {
        match (self.link, frame.network) {
            (Link::Ethernet, packet::ethernet::HEADER) => 0,
            (_, network) => network,
        }
    }

    /// When the kernel received that frame, in nanoseconds of `CLOCK_REALTIME`.
    #[inline]
    pub(super) fn received_ns(&self, index: u32) -> u64 {
        self.ring.received_ns(index as usize)
    }

    /// Reads the next packet of the socket's queue; `None` if it cannot be read.
    fn large_arrival(
        &self,
        (link, frame, start): (Link, Frame<'_>, usize),
        large: &mut LargeBuffers,
    ) -> Option<Arrival> {
        let index = large.used;
        let Some(buffer) = large.buffers.get_mut(index) else {
            return Some(Arrival::Full);
        };
        let read = self.socket.receive(buffer).ok()?;
        let vnet = VnetHeader::decode(*buffer.first_chunk::<VNET_HEADER>()?);
        if start > 0 {
            buffer.copy_within((VNET_HEADER + start).min(read)..read, VNET_HEADER);
        }
        large.used += 1;
        let slot = BufferSlot::Large(index as u32, read.saturating_sub(start) as u32);
        Some(Arrival::Packet(slot, (link, meta(vnet, frame)), vnet))
    }

    /// Datagrams beyond the first in the packet that the frame `index` after the head holds or announces, as [`bpf::socket_filter::HiddenDatagrams`] counts them.
    #[cold]
    pub(super) fn hidden(&self, index: u32) -> u64 {
        let Some(frame) = self.ring.frame(index as usize) else {
            return 0;
        };
        let sizes = (frame.length, frame.vnet.gso_size);
        hidden_datagrams(frame.bytes, frame.network, sizes)
    }

    /// The bytes of a packet, link header first.
    #[inline]
    #[must_use]
    pub(super) fn bytes<'a>(&'a self, large: &'a LargeBuffers, slot: BufferSlot) -> &'a [u8] {
        match slot {
            BufferSlot::Frame(index) => self
                .ring
                .frame(index as usize)
                .and_then(|frame| frame.bytes.get(self.start(frame)..))
                .unwrap_or_default(),
            BufferSlot::Large(index, end) => large
                .buffers
                .get(index as usize)
                .and_then(|buffer| buffer.get(VNET_HEADER..end as usize))
                .unwrap_or_default(),
        }
    }

    /// Gives the first `frames` frames back and empties the large buffers.
    #[inline]
    pub(super) fn release(&mut self, frames: u32, large: &mut LargeBuffers) {
        self.ring.release(frames as usize);
        large.used = 0;
    }
}

impl Default for LargeBuffers {
    fn default() -> Self {
        Self {
            buffers: vec![vec![0; LARGE_BYTES].into_boxed_slice(); LARGE_BUFFERS],
            used: 0,
        }
    }
}

/// Datagrams beyond the first in a packet of `length` bytes, cut to segments of `size` bytes of payload.
fn hidden_datagrams(bytes: &[u8], ip_offset: usize, (length, size): (usize, u16)) -> u64 {
    let first = usize::from(bytes.get(ip_offset).copied().unwrap_or_default());
    let ip_header = match first >> 4 {
        4 => (first & 0xf) * 4,
        _ => packet::ipv6::HEADER,
    };
    let headers = ip_offset + ip_header + packet::udp::HEADER;
    match length.checked_sub(headers + 1) {
        Some(payload_but_one) if size > 0 => (payload_but_one / usize::from(size)) as u64,
        _ => 0,
    }
}

#[inline]
const fn meta(vnet: VnetHeader, frame: Frame<'_>) -> Meta {
    let gso = match vnet.gso_type {
        0 => None,
        _ => Some(Gso {
            size: vnet.gso_size,
        }),
    };
    let checksum = if vnet.flags & VnetHeader::NEEDS_CHECKSUM == 0 {
        ChecksumState::Complete
    } else {
        ChecksumState::Partial
    };
    Meta {
        vlan: frame.vlan,
        other_host: frame.other_host,
        gso,
        checksum,
    }
}
