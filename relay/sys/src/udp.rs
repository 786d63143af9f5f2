//! Sockets of the traffic tools: UDP with sendmmsg, recvmmsg, segmentation offload, timestamps;
//! whole frames.
//!
//! Sockets are `socket2::Socket`; this module adds only what socket2 lacks a safe call for.
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

/// Opens a socket during whose life the kernel stamps every received packet of this host before it puts it into a
/// core's queue. It begins a while after the first request.
///
/// # Errors
/// The system call's.
pub fn ask_for_stamps() -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    option::enable_timestamps(socket.as_fd())?;
    Ok(socket.into())
}
