//! A raw IP socket that hands whole packets to sockets of this host, through its own IP stack.
//!
//! The route is looked up when a packet is sent and stays with it over the loopback interface, so
//! its source address is not checked again on the way in: neither by `rp_filter` nor by the checks that treat a
//! packet from an address of the host's own as a martian (`ip_rcv_finish_core` in
//! net/ipv4/ip_input.c looks up a route only where there is none).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Domain, Protocol, Socket, Type};

use crate::udp::option::{force_send_buffer, set, set_multicast_interface};

/// The loopback interface's index in every network namespace (LOOPBACK_IFINDEX).
const LOOPBACK: u32 = 1;

/// Opens a socket whose packets begin with their IP header; those to groups go to the loopback
/// interface, all others by the routing table. Needs `CAP_NET_RAW`. The kernel makes the IPv4
/// header's checksum anew, and gives a packet that may be fragmented and has the ID 0 another one.
///
/// # Errors
/// The system call's.
pub fn open(is_ipv4: bool, buffer_bytes: usize) -> io::Result<OwnedFd> {
    // With the option a send that a queue drops is not reported as done (raw_send_hdrinc).
    let (domain, family, (level, report_drops)) = if is_ipv4 {
        let option = (libc::IPPROTO_IP, libc::IP_RECVERR);
        (Domain::IPV4, IpAddr::V4(Ipv4Addr::UNSPECIFIED), option)
    } else {
        let option = (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
        (Domain::IPV6, IpAddr::V6(Ipv6Addr::UNSPECIFIED), option)
    };
    // This protocol means that the header is included, in both families (inet_create).
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
    socket.set_nonblocking(true)?;
    // Never read: received packets of this protocol are not to be queued.
    socket.set_recv_buffer_size(0)?;
    force_send_buffer(socket.as_fd(), buffer_bytes)?;
    set(socket.as_fd(), level, report_drops, &1_i32)?;
    set_multicast_interface(socket.as_fd(), family, LOOPBACK)?;
    Ok(socket.into())
}
