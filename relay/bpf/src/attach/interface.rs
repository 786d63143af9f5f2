//! What kind of device an interface is: with or without a link-layer header.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::{io, mem};

/// Device types (linux/if_arp.h) that carry bare IP, as `dev_is_mac_header_xmit` of the kernel
/// (include/linux/if_arp.h) has them: tunnels of five kinds, void, none (tun), raw IP.
const BARE: [u16; 8] = [768, 769, 776, 778, 823, 0xffff, 0xfffe, 519];

/// Says whether packets of the interface begin with an Ethernet header. An interface that does not
/// exist is taken for Ethernet; attaching to it fails anyway.
pub(crate) fn has_link_header(ifindex: u32) -> bool {
    device_type(ifindex).is_none_or(|device| !BARE.contains(&device))
}

fn device_type(ifindex: u32) -> Option<u16> {
    let socket = socket().ok()?;
    // SAFETY: ifreq is a plain C struct; all-zero is a value of it.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = ifindex as i32;
    control(&socket, libc::SIOCGIFNAME, &mut request).ok()?;
    control(&socket, libc::SIOCGIFHWADDR, &mut request).ok()?;
    // SAFETY: SIOCGIFHWADDR filled in this member of the union.
    Some(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: socket() takes no pointers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn control(socket: &OwnedFd, operation: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: both operations read and write one ifreq, which `request` is.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), operation, std::ptr::from_mut(request)) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
