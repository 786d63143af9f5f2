//! Socket options that socket2 does not offer: egress interface by index, joins by index,
//! forced buffer sizes, segmentation offload, kernel timestamps.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use socket2::SockAddr;
use zerocopy::FromBytes;

/// Chooses the interface by which multicast leaves the socket, by index (IP_MULTICAST_IF,
/// IPV6_MULTICAST_IF).
pub fn set_multicast_interface(
    socket: BorrowedFd<'_>,
    family: IpAddr,
    ifindex: u32,
) -> io::Result<()> {
    match family {
        IpAddr::V4(_) => {
            let request = libc::ip_mreqn {
                imr_multiaddr: libc::in_addr { s_addr: 0 },
                imr_address: libc::in_addr { s_addr: 0 },
                imr_ifindex: ifindex as libc::c_int,
            };
            set(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request)
        }
        IpAddr::V6(_) => set(
            socket,
            libc::IPPROTO_IPV6,
            libc::IPV6_MULTICAST_IF,
            &(ifindex as libc::c_int),
        ),
    }
}

/// Returns whether UDP sockets cut one send into datagrams (UDP_SEGMENT, Linux 4.18).
pub fn has_segmentation() -> bool {
    let size: libc::c_int = 1000;
    std::net::UdpSocket::bind("0.0.0.0:0")
        .is_ok_and(|socket| set(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, &size).is_ok())
}

/// Joins `group` on one interface, for any source or for one (MCAST_JOIN_GROUP,
/// MCAST_JOIN_SOURCE_GROUP, RFC 3678 section 5).
///
/// # Errors
/// `ENOBUFS` when the socket holds as many groups or sources as the host's limits allow.
pub fn join(
    socket: BorrowedFd<'_>,
    ifindex: u32,
    group: IpAddr,
    source: Option<IpAddr>,
) -> io::Result<()> {
    let level = match group {
        IpAddr::V4(_) => libc::IPPROTO_IP,
        IpAddr::V6(_) => libc::IPPROTO_IPV6,
    };
    match source {
        None => {
            let request = libc::group_req {
                gr_interface: ifindex,
                gr_group: storage(group),
            };
            set(socket, level, libc::MCAST_JOIN_GROUP, &request)
        }
        Some(source) => {
            let request = libc::group_source_req {
                gsr_interface: ifindex,
                gsr_group: storage(group),
                gsr_source: storage(source),
            };
            set(socket, level, libc::MCAST_JOIN_SOURCE_GROUP, &request)
        }
    }
}

/// Sets the send buffer to `bytes`, beyond net.core.wmem_max where the process may.
pub fn force_send_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
        .or_else(|_| set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes))
}

/// Sets the receive buffer to `bytes`, beyond net.core.rmem_max where the process may.
pub fn force_receive_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
        .or_else(|_| set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes))
}

/// Requests the kernel's receive time with each datagram (SO_TIMESTAMPNS, CLOCK_REALTIME).
pub fn enable_timestamps(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32)
}

/// Lets the kernel hand over super-packets whole, with their segment size (UDP_GRO).
pub fn enable_receive_offload(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::IPPROTO_UDP, libc::UDP_GRO, &1i32)
}

/// The cookie of the network namespace that the socket belongs to (SO_NETNS_COOKIE, Linux 5.14).
pub fn namespace(socket: BorrowedFd<'_>) -> Option<u64> {
    // asm-generic/socket.h.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    get(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE).ok()
}

/// Counts the datagrams that the socket itself dropped since it was made, mostly because its
/// receive buffer was full (SO_MEMINFO).
pub fn dropped(socket: BorrowedFd<'_>) -> io::Result<u32> {
    // linux/sock_diag.h: SK_MEMINFO_VARS, SK_MEMINFO_DROPS.
    const VARIABLES: usize = 9;
    const DROPS: usize = 8;
    let memory: [u32; VARIABLES] = get(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok(memory[DROPS])
}

pub(crate) fn storage(address: IpAddr) -> libc::sockaddr_storage {
    let address = SockAddr::from(SocketAddr::new(address, 0));
    // SAFETY: SockAddr's storage has the size and layout of sockaddr_storage and socket2 keeps it
    // wholly initialised (zeroed before the family's fields are written); any bytes are a valid
    // sockaddr_storage, and the pointer is to a live local value.
    unsafe {
        address
            .as_ptr()
            .cast::<libc::sockaddr_storage>()
            .read_unaligned()
    }
}

/// Callers pass only initialised C types that belong to the option.
pub(crate) fn set<T>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the kernel reads size_of::<T>() bytes from `value`, which outlives the call; callers
    // in this module pass only initialised C types that belong to the option.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    Errno::result(result)?;
    Ok(())
}

/// Reads an option; bytes that the kernel does not write are zero.
pub(crate) fn get<T: FromBytes>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut value = T::new_zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which lives during the call; any
    // bytes are a value of such a type.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    Errno::result(result)?;
    Ok(value)
}
