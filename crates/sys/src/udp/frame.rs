//! Sends whole link-layer frames by one interface (AF_PACKET), receiving nothing.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Opens a socket whose messages are frames that leave by `ifindex`, as they are. Needs
/// CAP_NET_RAW.
///
/// # Errors
/// `ENODEV` if there is no such interface.
pub fn open(ifindex: u32) -> io::Result<OwnedFd> {
    // SAFETY: socket takes no pointers; protocol 0 keeps the kernel from copying received frames
    // to the socket (packet(7)).
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: sockaddr_ll is a plain C struct for which all zeroes is a value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = ifindex as i32;
    // SAFETY: `address` lives during the call and the length is its own.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(socket)
    } else {
        Err(io::Error::last_os_error())
    }
}
