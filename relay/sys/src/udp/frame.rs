//! Sends whole link-layer frames by one interface (AF_PACKET), receiving nothing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Domain, Socket, Type};

use crate::packet_socket::bind;

/// Opens a socket whose messages are frames that leave by `ifindex`, as they are. Needs
/// CAP_NET_RAW.
///
/// # Errors
/// `ENODEV` if there is no such interface.
pub fn open(ifindex: u32) -> io::Result<OwnedFd> {
    // Without a protocol the kernel copies no received frames to the socket (packet(7)).
    let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
    bind(socket.as_fd(), ifindex, 0)?;
    Ok(socket.into())
}
