//! A tap's receive ring: frames that the kernel fills and this process gives back.

#![expect(unsafe_code, reason = "the ring is memory shared with the kernel")]

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::mman::munmap;
use packet::ethernet::VLAN_ID;

use super::PacketSocket;
use super::vnet::{VNET_HEADER, VnetHeader};
use crate::memory::map_shared;

/// Bytes the kernel puts in front of a packet in a ring frame (header, address, alignment, vnet
/// header), rounded up.
pub const FRAME_OVERHEAD: usize = 128;
/// Bytes of a block, the unit the kernel allocates.
pub(super) const RING_BLOCK: usize = 1 << 16;

/// Size of a tap's ring. Both are powers of two; a frame is at most 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize {
    /// Frames, each for one packet.
    pub frames: usize,
    /// Bytes of a frame, [`FRAME_OVERHEAD`] of them not for the packet.
    pub frame_bytes: usize,
}

impl RingSize {
    const fn bytes(self) -> usize {
        self.frames * self.frame_bytes
    }
}

impl PacketSocket {
    /// Maps the tap's ring.
    ///
    /// # Errors
    /// `EINVAL` unless `size` is what the tap was opened with.
    pub fn map_ring(&self, size: RingSize) -> io::Result<Ring> {
        Ok(Ring {
            base: map_shared(self.as_fd(), size.bytes())?.cast(),
            size,
            head: 0,
        })
    }
}

/// A tap's ring, shared with the kernel.
///
/// Invariant: of the frames from `head` on, those whose status carries `TP_STATUS_USER` belong to
/// this process until [`Ring::release`] gives them back; the kernel does not touch them meanwhile.
#[derive(Debug)]
pub struct Ring {
    base: NonNull<u8>,
    size: RingSize,
    head: usize,
}

/// One packet in the ring.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Segmentation and checksum.
    pub vnet: VnetHeader,
    /// The packet's bytes, link header first, as many as fit.
    pub bytes: &'a [u8],
    /// Bytes of the whole packet.
    pub length: usize,
    /// Where the IP header starts in `bytes`, according to the kernel at the packet's arrival.
    pub network: usize,
    /// A tag that names a VLAN was removed.
    pub vlan: bool,
    /// The frame is for another host's link-layer address.
    pub other_host: bool,
    /// The frame is too small: the packet waits in the socket's queue.
    pub queued: bool,
    /// The frame is too small and the queue was full: the packet is truncated.
    pub truncated: bool,
}

impl Ring {
    /// The `index`-th packet not yet released, `None` if it has not arrived.
    #[inline]
    pub fn frame(&self, index: usize) -> Option<Frame<'_>> {
        let (frame, status) = self.bytes(index)?;
        Some(decode_frame(frame, status))
    }

    /// The whole of a frame that belongs to this process, and its status.
    #[inline]
    fn bytes(&self, index: usize) -> Option<(&[u8], u32)> {
        if index >= self.size.frames {
            return None;
        }
        let start = self.start(index);
        let status = self.status(start).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: `start` is the offset of a whole frame in the mapping (see `start`), and by the
        // ring's invariant nobody writes to a frame with `TP_STATUS_USER` while `self` is
        // borrowed, because `release` takes it mutably.
        let frame = unsafe {
            std::slice::from_raw_parts(self.base.as_ptr().add(start), self.size.frame_bytes)
        };
        Some((frame, status))
    }

    /// When the kernel received the `index`-th packet not yet released, in nanoseconds of
    /// `CLOCK_REALTIME`; 0 if it has not arrived.
    #[inline]
    pub fn received_ns(&self, index: usize) -> u64 {
        self.bytes(index).map_or(0, |(frame, _)| {
            // struct tpacket2_hdr: tp_sec and tp_nsec follow what `decode_frame` reads.
            let bytes = |at: usize| frame.get(at..).and_then(|rest| rest.first_chunk::<4>());
            let word = |at| bytes(at).map_or(0, |word| u64::from(u32::from_ne_bytes(*word)));
            word(16) * 1_000_000_000 + word(20)
        })
    }

    /// Gives the first `count` packets back to the kernel.
    #[inline]
    pub fn release(&mut self, count: usize) {
        for index in 0..count.min(self.size.frames) {
            self.status(self.start(index))
                .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.head = (self.head + count) & (self.size.frames - 1);
    }

    /// Offset of the frame `index` after the head.
    #[inline]
    fn start(&self, index: usize) -> usize {
        ((self.head + index) & (self.size.frames - 1)) * self.size.frame_bytes
    }

    #[inline]
    fn status(&self, start: usize) -> &AtomicU32 {
        // SAFETY: `start` is a multiple of the frame size below the mapping's length, and a frame
        // starts with its aligned 32-bit status, which both sides access atomically.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(start).cast()) }
    }
}

/// Offset of a packet's type: in the `sockaddr_ll` after `struct tpacket2_hdr`.
const PACKET_TYPE: usize = 32 + std::mem::offset_of!(libc::sockaddr_ll, sll_pkttype);

#[inline]
fn decode_frame(frame: &[u8], status: u32) -> Frame<'_> {
    // struct tpacket2_hdr: status, len, snaplen (32 bit each), mac, net (16 bit each).
    // Behind the time stamp: vlan_tci (16 bit).
    let word = |at: usize| frame.get(at..).and_then(|rest| rest.first_chunk::<4>());
    let length = word(4).map_or(0, |b| u32::from_ne_bytes(*b) as usize);
    let snapped = word(8).map_or(0, |b| u32::from_ne_bytes(*b));
    let [mac, network] = word(12).map_or([0; 2], |[a, b, c, d]| {
        [[*a, *b], [*c, *d]].map(|b| usize::from(u16::from_ne_bytes(b)))
    });
    let tag = word(24).map_or(0, |b| u16::from_ne_bytes([b[0], b[1]]));
    let start = mac;
    let bytes = frame
        .get(start..start + snapped as usize)
        .unwrap_or_default();
    let kind = frame.get(PACKET_TYPE).copied().unwrap_or_default();
    let vnet = start
        .checked_sub(VNET_HEADER)
        .and_then(|at| frame.get(at..)?.first_chunk::<VNET_HEADER>());
    Frame {
        vnet: vnet.map_or_else(VnetHeader::default, |bytes| VnetHeader::decode(*bytes)),
        bytes,
        length,
        network: network.saturating_sub(mac),
        vlan: status & libc::TP_STATUS_VLAN_VALID != 0 && tag & VLAN_ID != 0,
        other_host: kind == libc::PACKET_OTHERHOST,
        queued: status & libc::TP_STATUS_COPY != 0,
        truncated: bytes.len() < length,
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `map_ring` made the mapping of exactly this length, and slices of it cannot
        // outlive `self`.
        let _ = unsafe { munmap(self.base.cast(), self.size.bytes()) };
    }
}

#[cfg(test)]
mod tests {
    use packet::classic_bpf::Program;

    use super::*;
    use crate::netns::Namespace;

    #[test]
    fn a_frame_whose_lengths_reach_beyond_it_is_empty() {
        let mut frame = [0u8; 256];
        frame[4..8].copy_from_slice(&1000u32.to_ne_bytes());
        frame[8..12].copy_from_slice(&1000u32.to_ne_bytes());
        frame[12..14].copy_from_slice(&76u16.to_ne_bytes());
        let decoded = decode_frame(&frame, libc::TP_STATUS_USER);
        assert!(decoded.bytes.is_empty());
        assert!(decoded.truncated);
    }

    /// The kernel sets this status only for a timestamp that the packet already had.
    #[test]
    fn packets_are_stamped_before_they_wait_for_their_core() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let namespace = Namespace::create("mcrsys", "stamps").unwrap();
        let (status, received) = namespace.run(stamp).unwrap();
        assert_ne!(status & libc::TP_STATUS_TS_SOFTWARE, 0, "{status:#x}");
        assert!(received.abs_diff(crate::clock::realtime_ns()) < 60_000_000_000);
    }

    /// Status and time of the first packet whose timestamp was taken early, else of the last of many: the kernel
    /// begins to take them a while after the first request.
    fn stamp() -> (u32, u64) {
        let up = std::process::Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(up.unwrap().success());
        let size = RingSize {
            frames: 64,
            frame_bytes: 2048,
        };
        let _asked = crate::udp::ask_for_stamps().unwrap();
        let tap = PacketSocket::tap(size, 1 << 16).unwrap();
        let mut ring = tap.map_ring(size).unwrap();
        tap.bind(1).unwrap();
        let mut everything = Program::new();
        everything.take(u32::MAX);
        tap.attach_filter(&everything.finish()).unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut last = (0, 0);
        for _ in 0..10_000 {
            sender.send_to(&[0; 8], "127.0.0.1:9").unwrap();
            while let Some((_, status)) = ring.bytes(0) {
                last = (status, ring.received_ns(0));
                if status & libc::TP_STATUS_TS_SOFTWARE != 0 {
                    return last;
                }
                ring.release(1);
            }
            std::thread::yield_now();
        }
        last
    }
}
