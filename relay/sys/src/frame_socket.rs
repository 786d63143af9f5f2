//! Whole frames in and out of one interface, each with its virtio-net header, for tests and single
//! questions: one system call per frame.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

use crate::packet_socket::{PacketSocket, VNET_HEADER, bind};
use crate::wait::readable;

/// Which frames a [`FrameSocket`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// Everything that arrives, before tc ingress sees it.
    All,
    /// IPv4 and only what tc ingress let pass.
    Ipv4BehindIngress,
    /// IPv6 and only what tc ingress let pass.
    Ipv6BehindIngress,
    /// Nothing.
    None,
}

/// A raw socket on one interface. It never reads what is sent from its own side of the link.
#[derive(Debug)]
pub struct FrameSocket {
    socket: PacketSocket,
}

impl FrameSocket {
    /// Opens the interface with that index in the calling thread's network namespace. Needs
    /// `CAP_NET_RAW` and `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// The system call's; `ENODEV` if there is no such interface.
    pub fn open(interface: u32, capture: Capture) -> io::Result<Self> {
        let protocol = match capture {
            Capture::All => libc::ETH_P_ALL,
            Capture::Ipv4BehindIngress => libc::ETH_P_IP,
            Capture::Ipv6BehindIngress => libc::ETH_P_IPV6,
            Capture::None => 0,
        } as u16;
        // 8 MiB hold some thousand small frames or a hundred super-packets.
        let socket = PacketSocket::capture(8 << 20)?;
        socket.set(libc::PACKET_VNET_HDR, &1i32)?;
        socket.set(libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        bind(socket.as_fd(), interface, protocol)?;
        Ok(Self { socket })
    }

    /// Sends `frame` (link header first) with the vnet header `vnet`.
    ///
    /// # Errors
    /// `EINVAL` for a vnet header that contradicts the frame, `EMSGSIZE`, `ENOBUFS`, `ENETDOWN`.
    pub fn send(&self, vnet: [u8; VNET_HEADER], frame: &[u8]) -> io::Result<()> {
        let message = [&vnet, frame].concat();
        send(self.as_fd().as_raw_fd(), &message, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }

    /// Reads the next frame with its vnet header, waiting for one until `deadline`; `None` if none arrived.
    ///
    /// # Errors
    /// The system call's, such as `ENETDOWN` once when the interface goes down.
    pub fn receive(&self, deadline: Instant) -> io::Result<Option<([u8; VNET_HEADER], Vec<u8>)>> {
        let mut buffer = vec![0; VNET_HEADER + (1 << 17)];
        loop {
            match recv(self.as_fd().as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) => {
                    buffer.truncate(length);
                    let frame = buffer.split_off(VNET_HEADER.min(length));
                    let vnet = buffer.first_chunk().copied().unwrap_or_default();
                    return Ok(Some((vnet, frame)));
                }
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !readable(
                self.as_fd(),
                deadline.saturating_duration_since(Instant::now()),
            )? {
                return Ok(None);
            }
        }
    }
}

impl AsFd for FrameSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
