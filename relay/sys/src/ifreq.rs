//! Reads or sets properties of one interface by ioctl (`struct ifreq`, netdevice(7)).

#![expect(unsafe_code, reason = "ioctl takes a pointer to what its number names")]

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::net::if_::if_indextoname;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// The device type of an interface (`ARPHRD_ETHER` and such); `None` where it does not exist.
pub fn device_type(ifindex: u32) -> Option<u16> {
    let name = if_indextoname(ifindex).ok()?;
    // SAFETY: SIOCGIFHWADDR reads and writes the request itself and nothing else.
    let request = unsafe { control(name.to_bytes(), libc::SIOCGIFHWADDR, |_| {}) }.ok()?;
    // SAFETY: SIOCGIFHWADDR filled in this member of the union.
    Some(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
}

/// The name of an interface for messages; by its index where it does not exist.
pub fn called(ifindex: u32) -> String {
    let bytes = if_indextoname(ifindex).ok();
    let name = bytes.and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| format!("interface {ifindex}"))
}

/// Carries out an operation on an interface in the calling thread's network namespace, with what
/// `fill` puts beside its name.
///
/// # Safety
/// Where the operation follows a pointer, `fill` puts one in that is good for it during the call.
///
/// # Errors
/// The system call's; `ENODEV` for a name that no interface can have.
pub(crate) unsafe fn control(
    interface: &[u8],
    operation: libc::Ioctl,
    fill: impl FnOnce(&mut libc::ifreq),
) -> io::Result<libc::ifreq> {
    let kind = SockType::Datagram;
    let socket = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: ifreq is a plain C struct of integers and pointers: all bytes zero are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(Errno::ENODEV.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface) {
        *to = *from as libc::c_char;
    }
    fill(&mut request);
    // SAFETY: the request outlives the call, and so does what it points to, as the caller promises.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), operation, &raw mut request) })?;
    Ok(request)
}
