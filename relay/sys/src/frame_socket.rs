//! Whole frames in and out of one interface, each with its virtio-net header, for tests and single
//! questions: one system call per frame.

#![expect(unsafe_code, reason = "socket options need raw system calls")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::RcvBufForce;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt};
use socket2::{Domain, Protocol, Socket, Type};

use crate::packet_socket::{VNET_HEADER, bind};

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
    socket: Socket,
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
        let opened = Self {
            socket: Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?,
        };
        opened.set(libc::PACKET_VNET_HDR)?;
        opened.set(libc::PACKET_IGNORE_OUTGOING)?;
        // 8 MiB hold some thousand small frames or a hundred super-packets.
        setsockopt(&opened.socket, RcvBufForce, &(8 << 20))?;
        opened.socket.set_nonblocking(true)?;
        bind(opened.as_fd(), interface, protocol)?;
        Ok(opened)
    }

    /// Sends `frame` (link header first) with the vnet header `vnet`.
    ///
    /// # Errors
    /// `EINVAL` for a vnet header that contradicts the frame, `EMSGSIZE`, `ENOBUFS`, `ENETDOWN`.
    pub fn send(&self, vnet: [u8; VNET_HEADER], frame: &[u8]) -> io::Result<()> {
        let message = [&vnet, frame].concat();
        send(self.socket.as_raw_fd(), &message, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }

    /// Reads the next frame with its vnet header, waiting for one until `deadline`; `None` if none
    /// came.
    ///
    /// # Errors
    /// The system call's, such as `ENETDOWN` once when the interface goes down.
    pub fn receive(&self, deadline: Instant) -> io::Result<Option<([u8; VNET_HEADER], Vec<u8>)>> {
        let mut buffer = vec![0; VNET_HEADER + (1 << 17)];
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => {
                    buffer.truncate(length);
                    let frame = buffer.split_off(VNET_HEADER.min(length));
                    let vnet = buffer.first_chunk().copied().unwrap_or_default();
                    return Ok(Some((vnet, frame)));
                }
                Err(nix::Error::EAGAIN) => {}
                Err(nix::Error::EINTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let mut waiting = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut waiting, timeout) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn set(&self, option: libc::c_int) -> io::Result<()> {
        let on: libc::c_int = 1;
        // SAFETY: `on` lives during the call and the length is its size; the kernel only reads.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                option,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        nix::Error::result(result)?;
        Ok(())
    }
}

impl AsFd for FrameSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
