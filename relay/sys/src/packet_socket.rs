//! AF_PACKET sockets: the tap (a receive ring behind `packet_fanout`) and the egress socket, both
//! with a virtio-net header, so that GSO super-packets and partial checksums pass through whole.
//!
//! This module has what both have in common, and the egress socket.

#![expect(unsafe_code, reason = "socket options need raw system calls")]

mod probe;
mod ring;
mod tap;
mod vnet;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use socket2::{Domain, Socket, Type};
use zerocopy::FromBytes;

use crate::udp::option;

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
        option::force_send_buffer(socket.as_fd(), buffer_bytes)?;
        Ok(socket)
    }

    /// Opens one that takes only IP packets: the kernel puts each device's own link header in front. It has no
    /// virtio-net header then. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The system call's.
    pub fn framed(buffer_bytes: usize) -> io::Result<Self> {
        let socket = Self::open_as(Type::DGRAM)?;
        option::force_send_buffer(socket.as_fd(), buffer_bytes)?;
        Ok(socket)
    }

    /// Opens a socket for a [`Sniffer`](crate::sniffer::Sniffer): it receives nothing yet, and binding it needs no
    /// capability. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The system call's.
    pub fn capture(buffer_bytes: usize) -> io::Result<Self> {
        let socket = Self::open()?;
        option::force_receive_buffer(socket.as_fd(), buffer_bytes)?;
        Ok(socket)
    }

    /// Takes over a descriptor that [`PacketSocket::tap`] or [`PacketSocket::egress`] opened in
    /// another process.
    pub const fn adopt(fd: OwnedFd) -> Self {
        Self { fd }
    }

    pub(crate) fn open() -> io::Result<Self> {
        Self::open_as(Type::RAW)
    }

    pub(crate) fn open_as(kind: Type) -> io::Result<Self> {
        let socket = Socket::new(Domain::PACKET, kind.nonblocking(), None)?;
        Ok(Self { fd: socket.into() })
    }

    pub(crate) fn set<T>(&self, name: i32, value: &T) -> io::Result<()> {
        self.set_at(libc::SOL_PACKET, name, value)
    }

    pub(crate) fn set_at<T>(&self, level: i32, name: i32, value: &T) -> io::Result<()> {
        option::set(self.as_fd(), level, name, value)
    }

    fn read<T: FromBytes>(&self, name: i32) -> io::Result<T> {
        option::get(self.as_fd(), libc::SOL_PACKET, name)
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
    check(result)
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

/// What a socket receives beyond its host's own packets, of one kind (`PACKET_MR_ALLMULTI` and such), as
/// `PACKET_ADD_MEMBERSHIP` takes it.
pub(crate) const fn reception(interface: u32, kind: libc::c_int) -> libc::packet_mreq {
    libc::packet_mreq {
        mr_ifindex: interface as libc::c_int,
        mr_type: kind as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    }
}

/// Sends a packet to a link-layer address.
pub(crate) fn send_to(
    socket: BorrowedFd<'_>,
    address: &libc::sockaddr_ll,
    packet: &[u8],
) -> io::Result<()> {
    // SAFETY: the kernel reads `packet.len()` bytes of `packet` and one sockaddr_ll; both live
    // during the call.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            0,
            std::ptr::from_ref(address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    Errno::result(sent)?;
    Ok(())
}

fn check(result: libc::c_int) -> io::Result<()> {
    Errno::result(result)?;
    Ok(())
}
