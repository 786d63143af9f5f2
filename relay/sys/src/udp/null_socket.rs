//! A UDP socket that receives nothing: the kernel drops packets to its port, and does not report to the sender that
//! the port is closed.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

use packet::classic_bpf::RETURN;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

/// Opens one at a port of one interface's address.
///
/// # Errors
/// `EADDRINUSE` where a program has the port already, `EACCES` for a port below 1024 without
/// `CAP_NET_BIND_SERVICE`.
pub fn open(interface: u32, address: IpAddr, port: u16) -> io::Result<OwnedFd> {
    let at = match address {
        IpAddr::V4(address) => SocketAddr::new(address.into(), port),
        IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, interface).into(),
    };
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
    socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])?;
    if let (IpAddr::V4(_), Some(interface)) = (address, NonZeroU32::new(interface)) {
        socket.bind_device_by_index_v4(Some(interface))?;
    } else if let Some(interface) = NonZeroU32::new(interface) {
        socket.set_only_v6(true)?;
        socket.bind_device_by_index_v6(Some(interface))?;
    }
    socket.bind(&at.into())?;
    Ok(socket.into())
}
