//! AF_PACKET sockets: the tap (a receive ring behind `packet_fanout`) and the egress socket, both
//! with a virtio-net header, so that GSO super-packets and partial checksums pass through whole.
//!
//! Here is what both have in common, and all there is to an egress socket.

#![expect(unsafe_code, reason = "socket options need raw system calls")]

mod probe;
mod ring;
mod tap;
mod vnet;

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub use probe::Abilities;
pub use ring::{FRAME_OVERHEAD, Frame, Ring, RingSize};
pub use tap::TapStatistics;
pub use vnet::{VNET_HEADER, VnetHeader};

/// An AF_PACKET socket with virtio-net headers.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
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

    /// Opens one that takes IP packets alone: the kernel puts each device's own link header in front. It
    /// knows no virtio-net header then. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The system call's.
    pub fn framed(buffer_bytes: usize) -> io::Result<Self> {
        let socket = Self::open_as(libc::SOCK_DGRAM)?;
        socket.force_buffer(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, buffer_bytes)?;
        Ok(socket)
    }

    /// Takes over a descriptor that [`PacketSocket::tap`] or [`PacketSocket::egress`] opened in
    /// another process.
    #[must_use]
    pub const fn adopt(fd: OwnedFd) -> Self {
        Self { fd }
    }

    pub(crate) fn open() -> io::Result<Self> {
        Self::open_as(libc::SOCK_RAW)
    }

    fn open_as(kind: libc::c_int) -> io::Result<Self> {
        let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain system call without pointers.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// Sets a buffer size beyond the sysctl's limit where allowed, up to it otherwise.
    pub(crate) fn force_buffer(&self, forced: i32, limited: i32, bytes: usize) -> io::Result<()> {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        self.set_at(libc::SOL_SOCKET, forced, &bytes)
            .or_else(|_| self.set_at(libc::SOL_SOCKET, limited, &bytes))
    }

    pub(crate) fn set<T>(&self, name: i32, value: &T) -> io::Result<()> {
        self.set_at(libc::SOL_PACKET, name, value)
    }

    pub(crate) fn set_at<T>(&self, level: i32, name: i32, value: &T) -> io::Result<()> {
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

/// Binds a packet socket to one interface and protocol; 0 for none, to receive nothing.
pub(crate) fn bind(socket: BorrowedFd<'_>, interface: u32, protocol: u16) -> io::Result<()> {
    let address = link_address(interface, protocol);
    // SAFETY: `address` is a sockaddr_ll that lives during the call; the length is its size.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// A link-layer address that names only an interface and a protocol.
pub(crate) const fn link_address(interface: u32, protocol: u16) -> libc::sockaddr_ll {
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
