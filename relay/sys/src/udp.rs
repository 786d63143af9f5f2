//! Sockets of the traffic tools: UDP with sendmmsg, recvmmsg, segmentation offload, timestamps;
//! whole frames.
//!
//! Sockets are `socket2::Socket`; this module adds only what socket2 has no safe call for.
#![expect(
    unsafe_code,
    reason = "setsockopt, bind, sendmmsg and recvmmsg take raw pointers"
)]

pub mod frame;
pub mod null_socket;
pub mod option;
pub mod receive;
pub mod send;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Domain, Socket, Type};

#[cfg(test)]
mod tests;

/// Opens a socket for whose life the kernel notes when it receives a packet of this host, any packet, before
/// it puts it into a core's queue. It begins a while after the first of all who ask.
///
/// # Errors
/// The system call's.
pub fn ask_for_stamps() -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    option::enable_timestamps(socket.as_fd())?;
    Ok(socket.into())
}
