//! Sends whole link-layer frames by one interface (AF_PACKET), receiving nothing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use packet::classic_bpf::RETURN;
use socket2::{Domain, SockFilter, Socket, Type};

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

/// Opens a socket whose messages are IP packets of that ethertype: the kernel puts the interface's own
/// link header in front, if it has one. Needs CAP_NET_RAW.
///
/// # Errors
/// `ENODEV` if there is no such interface.
pub fn open_bare(ifindex: u32, ethertype: u16) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
    socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])?;
    bind(socket.as_fd(), ifindex, ethertype)?;
    Ok(socket.into())
}
