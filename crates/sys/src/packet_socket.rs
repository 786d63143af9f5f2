//! AF_PACKET sockets: the tap (a receive ring behind `packet_fanout`) and the egress socket, both
//! with a virtio-net header, so that GSO super-packets and partial checksums pass through whole.
//!
//! Taps use `TPACKET_V2`: unlike version 3 it has no block timer, so a packet is readable as soon
//! as it has arrived. Packets larger than a ring frame come through the socket's queue
//! (`PACKET_COPY_THRESH`), announced by a frame in the ring, so order is kept.

#![expect(
    unsafe_code,
    reason = "socket options and the shared ring need raw system calls"
)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a [`VnetHeader`] on the wire.
pub const VNET_HEADER: usize = 10;
/// Bytes the kernel puts in front of a packet in a ring frame (header, address, alignment, vnet
/// header), rounded up.
pub const FRAME_OVERHEAD: usize = 128;

const ETH_P_ALL: u16 = 0x0003;
const RING_BLOCK: usize = 1 << 16;
const FANOUT_HASH: u32 = 0;
const FANOUT_UNIQUE_ID: u32 = 0x2000;
const FANOUT_IGNORE_OUTGOING: u32 = 0x4000;

/// An AF_PACKET socket with virtio-net headers.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

/// Size of a tap's ring. Both are powers of two; a frame is at most 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize {
    /// Frames, each for one packet.
    pub frames: usize,
    /// Bytes of a frame, [`FRAME_OVERHEAD`] of them not for the packet.
    pub frame_bytes: usize,
}

/// What the kernel counted at a tap since the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapStatistics {
    /// Packets that passed the filter, dropped ones included.
    pub packets: u64,
    /// Packets dropped because ring or queue were full.
    pub drops: u64,
}

/// Instructions of a classic BPF filter.
pub type Filter = Vec<libc::sock_filter>;

impl PacketSocket {
    /// Opens a tap that receives nothing yet: not bound, and closed by a filter. Needs
    /// `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The system call's.
    pub fn tap(size: RingSize, queue_bytes: usize) -> io::Result<Self> {
        let socket = Self::open()?;
        socket.set(
            libc::PACKET_VERSION,
            &(libc::tpacket_versions::TPACKET_V2 as libc::c_int),
        )?;
        socket.set(libc::PACKET_VNET_HDR, &1i32)?;
        socket.set(libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        socket.set(libc::PACKET_COPY_THRESH, &1i32)?;
        socket.force_buffer(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, queue_bytes)?;
        let per_block = RING_BLOCK / size.frame_bytes;
        let request = libc::tpacket_req {
            tp_block_size: RING_BLOCK as u32,
            tp_block_nr: (size.frames / per_block) as u32,
            tp_frame_size: size.frame_bytes as u32,
            tp_frame_nr: size.frames as u32,
        };
        socket.set(libc::PACKET_RX_RING, &request)?;
        socket.close_filter()?;
        Ok(socket)
    }

    /// Opens a socket to send from, by any interface. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The system call's.
    pub fn egress(buffer_bytes: usize) -> io::Result<Self> {
        let socket = Self::open()?;
        socket.set(libc::PACKET_VNET_HDR, &1i32)?;
        socket.force_buffer(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, buffer_bytes)?;
        Ok(socket)
    }

    /// Takes over a descriptor that [`PacketSocket::tap`] or [`PacketSocket::egress`] opened in
    /// another process.
    #[must_use]
    pub const fn adopt(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Binds the tap to one interface, for all protocols: taps for all protocols run before tc
    /// ingress, those for one after it.
    ///
    /// # Errors
    /// `ENODEV` if there is no such interface.
    pub fn bind(&self, interface: u32) -> io::Result<()> {
        let address = link_address(interface, ETH_P_ALL);
        // SAFETY: `address` is a sockaddr_ll that lives during the call; the length is its size.
        let result = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        check(result).map(drop)
    }

    /// Says whether packets of the interface the tap is bound to carry an Ethernet header.
    ///
    /// # Errors
    /// The system call's.
    pub fn is_ethernet(&self) -> io::Result<bool> {
        let mut address = link_address(0, 0);
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `address`, any bytes are a value.
        let result = unsafe {
            libc::getsockname(
                self.fd.as_raw_fd(),
                (&raw mut address).cast(),
                &raw mut length,
            )
        };
        check(result)?;
        Ok(matches!(
            address.sll_hatype,
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK
        ))
    }

    /// Joins the bound tap to a `packet_fanout` group by flow hash, a new one for `None`, takes its
    /// filter off, and returns the group's number, unique in the network namespace.
    ///
    /// From its joining on the tap is given its share of the packets, so what stands between that
    /// and the open filter is lost: two short system calls. Compiling another filter takes longer.
    ///
    /// # Errors
    /// `EINVAL` if the group is gone or of another interface.
    pub fn join_fanout(&self, group: Option<u16>) -> io::Result<u16> {
        let flags = match group {
            Some(_) => FANOUT_HASH | FANOUT_IGNORE_OUTGOING,
            None => FANOUT_HASH | FANOUT_IGNORE_OUTGOING | FANOUT_UNIQUE_ID,
        };
        let argument = u32::from(group.unwrap_or(0)) | flags << 16;
        self.set(libc::PACKET_FANOUT, &argument)?;
        self.set_at(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0i32)?;
        let joined: u32 = self.read(libc::PACKET_FANOUT)?;
        Ok(joined as u16)
    }

    /// Lets nothing in.
    ///
    /// # Errors
    /// The system call's.
    pub fn close_filter(&self) -> io::Result<()> {
        self.attach_filter(&[instruction(0x06, 0, 0, 0)])
    }

    /// Replaces the filter; `ret 0` drops a packet, any other value takes it whole.
    ///
    /// # Errors
    /// `EINVAL` for a program the kernel does not accept.
    pub fn attach_filter(&self, filter: &[libc::sock_filter]) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_ptr().cast_mut(),
        };
        // The kernel copies the program and does not write to it.
        self.set_at(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// Reads and resets the kernel's counts.
    ///
    /// # Errors
    /// The system call's.
    pub fn statistics(&self) -> io::Result<TapStatistics> {
        let raw: libc::tpacket_stats = self.read(libc::PACKET_STATISTICS)?;
        Ok(TapStatistics {
            packets: u64::from(raw.tp_packets),
            drops: u64::from(raw.tp_drops),
        })
    }

    /// Takes the pending error off the socket, such as `ENETDOWN` after its interface went down.
    ///
    /// # Errors
    /// The system call's own.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let mut code: libc::c_int = 0;
        self.read_at(libc::SOL_SOCKET, libc::SO_ERROR, &mut code)?;
        Ok((code != 0).then(|| io::Error::from_raw_os_error(code)))
    }

    /// Reads one packet from the socket's queue into `buffer`, its vnet header first, and returns
    /// the bytes read. Does not wait.
    ///
    /// # Errors
    /// `EAGAIN` if the queue is empty.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`.
        let read = unsafe {
            libc::recv(
                self.fd.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Maps the tap's ring.
    ///
    /// # Errors
    /// `EINVAL` unless `size` is what the tap was opened with.
    pub fn map_ring(&self, size: RingSize) -> io::Result<Ring> {
        let bytes = size.frames * size.frame_bytes;
        // SAFETY: a new mapping is asked for, so no memory in use is replaced.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                self.fd.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Ring {
            base,
            size,
            head: 0,
        })
    }

    fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain system call without pointers.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// Sets a buffer size beyond the sysctl's limit where allowed, up to it otherwise.
    fn force_buffer(&self, forced: i32, limited: i32, bytes: usize) -> io::Result<()> {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        self.set_at(libc::SOL_SOCKET, forced, &bytes)
            .or_else(|_| self.set_at(libc::SOL_SOCKET, limited, &bytes))
    }

    fn set<T>(&self, name: i32, value: &T) -> io::Result<()> {
        self.set_at(libc::SOL_PACKET, name, value)
    }

    fn set_at<T>(&self, level: i32, name: i32, value: &T) -> io::Result<()> {
        // SAFETY: `value` lives during the call and the length is its size; the kernel only reads.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                (&raw const *value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        check(result).map(drop)
    }

    fn read<T: Plain>(&self, name: i32) -> io::Result<T> {
        let mut value = T::ZERO;
        self.read_at(libc::SOL_PACKET, name, &mut value)?;
        Ok(value)
    }

    fn read_at<T: Plain>(&self, level: i32, name: i32, value: &mut T) -> io::Result<()> {
        let mut length = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `value`, a type for which `Plain`
        // promises that any bytes are a value.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                (&raw mut *value).cast(),
                &raw mut length,
            )
        };
        check(result).map(drop)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<PacketSocket> for OwnedFd {
    fn from(socket: PacketSocket) -> Self {
        socket.fd
    }
}

/// Makes one filter instruction.
#[must_use]
pub const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// A link-layer address that names only an interface and a protocol.
pub(crate) fn link_address(interface: u32, protocol: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: interface as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// What the kernel says of a packet's segmentation and checksum (`struct virtio_net_hdr`, host
/// byte order).
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
    /// The device found the checksum right.
    pub const CHECKSUM_VALID: u8 = 2;
    /// UDP segmentation.
    pub const GSO_UDP: u8 = 5;

    /// Reads the header.
    #[inline]
    #[must_use]
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
    #[must_use]
    pub const fn encode(self) -> [u8; VNET_HEADER] {
        let [a, b] = self.header_bytes.to_ne_bytes();
        let [c, d] = self.gso_size.to_ne_bytes();
        let [e, f] = self.checksum_start.to_ne_bytes();
        let [g, h] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h]
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
    /// A VLAN tag was taken off.
    pub vlan: bool,
    /// The frame is too small: the packet waits in the socket's queue.
    pub queued: bool,
    /// The frame is too small and the queue was full: the packet's end is lost.
    pub truncated: bool,
}

impl Ring {
    /// The `index`-th packet not yet released, `None` if it has not arrived.
    #[inline]
    #[must_use]
    pub fn frame(&self, index: usize) -> Option<Frame<'_>> {
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
        Some(decode_frame(frame, status))
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

    /// Offset of the frame `index` places behind the head.
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

#[inline]
fn decode_frame(frame: &[u8], status: u32) -> Frame<'_> {
    // struct tpacket2_hdr: status, len, snaplen (32 bit each), mac, net (16 bit each).
    let word = |at: usize| frame.get(at..).and_then(|rest| rest.first_chunk::<4>());
    let length = word(4).map_or(0, |b| u32::from_ne_bytes(*b));
    let snapped = word(8).map_or(0, |b| u32::from_ne_bytes(*b));
    let offset = word(12).map_or(0, |b| u16::from_ne_bytes([b[0], b[1]]));
    let start = usize::from(offset);
    let bytes = frame
        .get(start..start + snapped as usize)
        .unwrap_or_default();
    let vnet = start
        .checked_sub(VNET_HEADER)
        .and_then(|at| frame.get(at..)?.first_chunk::<VNET_HEADER>());
    Frame {
        vnet: vnet.map_or_else(VnetHeader::default, |bytes| VnetHeader::decode(*bytes)),
        bytes,
        vlan: status & libc::TP_STATUS_VLAN_VALID != 0,
        queued: status & libc::TP_STATUS_COPY != 0,
        truncated: bytes.len() < length as usize,
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `map_ring` made the mapping of exactly this length, and slices of it cannot
        // outlive `self`.
        unsafe {
            libc::munmap(
                self.base.as_ptr().cast(),
                self.size.frames * self.size.frame_bytes,
            );
        }
    }
}

/// Types for which all bytes zero, and any other bytes, are a value.
trait Plain {
    const ZERO: Self;
}

impl Plain for libc::c_int {
    const ZERO: Self = 0;
}

impl Plain for u32 {
    const ZERO: Self = 0;
}

impl Plain for libc::tpacket_stats {
    const ZERO: Self = Self {
        tp_packets: 0,
        tp_drops: 0,
    };
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
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
}
