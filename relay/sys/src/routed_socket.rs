//! UDP sockets whose datagrams are routed by the host's own stack: by its routing policy, its IPsec policies and the
//! encapsulation of its routes.
//!
//! Each has a source port of its own, the one part of a packet that no message can set. They receive nothing, and
//! none has an address to which a datagram could be sent.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use packet::classic_bpf::RETURN;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use crate::udp::option::{force_send_buffer, set};

/// Which datagrams a socket sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketKind {
    /// Over IPv4, not IPv6.
    pub ipv4: bool,
    /// Their source port.
    pub port: u16,
    /// Whether the stack may cut those that are above the MTU; only over IPv4.
    pub cut: bool,
}

/// A datagram's headers, as such a socket takes them.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    /// Source address, of this host or not; unspecified for the route's own, only over IPv4.
    pub source: IpAddr,
    /// Destination.
    pub to: SocketAddr,
    /// Interface that the route has to use; 0 where the routing table decides.
    pub by: u32,
    /// TTL or hop limit.
    pub ttl: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
}

/// Bytes that [`Headers::control`] writes at most.
pub(crate) const CONTROL: usize = 88;

/// An unassigned address (RFC 7600, RFC 6666): a socket bound to it receives nothing, from no sender.
const NOBODY: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(192, 0, 0, 8),
    Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1),
);
// linux/in6.h.
const IPV6_DONTFRAG: libc::c_int = 62;
const IPV6_TRANSPARENT: libc::c_int = 75;

/// Opens one. Needs `CAP_NET_RAW`, and `CAP_NET_BIND_SERVICE` for a port below 1024.
///
/// # Errors
/// `EADDRINUSE` where a program has that port and does not share it.
pub fn open(kind: SocketKind, buffer_bytes: usize) -> io::Result<OwnedFd> {
    let (domain, nobody) = if kind.ipv4 {
        (Domain::IPV4, IpAddr::V4(NOBODY.0))
    } else {
        (Domain::IPV6, IpAddr::V6(NOBODY.1))
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])?;
    socket.set_reuse_address(true)?;
    // The queue of errors, which nobody reads, takes as much.
    socket.set_recv_buffer_size(0)?;
    force_send_buffer(socket.as_fd(), buffer_bytes)?;
    let (yes, no) = (1_i32, 0_i32);
    let discover = if kind.cut {
        libc::IP_PMTUDISC_DONT
    } else {
        libc::IP_PMTUDISC_DO
    };
    let options: &[(libc::c_int, libc::c_int, i32)] = if kind.ipv4 {
        &[
            (libc::IPPROTO_IP, libc::IP_TRANSPARENT, yes),
            // Without it a send that the device's queue drops is reported as done (udp_send_skb).
            (libc::IPPROTO_IP, libc::IP_RECVERR, yes),
            (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, no),
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, discover),
            (libc::SOL_SOCKET, libc::SO_BROADCAST, yes),
        ]
    } else {
        &[
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, yes),
            (libc::IPPROTO_IPV6, IPV6_TRANSPARENT, yes),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, yes),
            (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, no),
            (
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_DO,
            ),
            (libc::IPPROTO_IPV6, IPV6_DONTFRAG, yes),
        ]
    };
    for (level, name, value) in options {
        set(socket.as_fd(), *level, *name, value)?;
    }
    socket.bind(&SocketAddr::new(nobody, kind.port).into())?;
    Ok(socket.into())
}

impl Headers {
    /// Writes the ancillary messages (`struct cmsghdr`) that set all but the destination, and returns how many bytes
    /// they take.
    pub(crate) fn control(&self, room: &mut [u8]) -> usize {
        let [ttl, class] =
            [self.ttl, self.traffic_class].map(|value| i32::from(value).to_ne_bytes());
        let by = self.by.to_ne_bytes();
        let mut at = 0;
        let mut put = |level: libc::c_int, name: libc::c_int, parts: &[&[u8]]| {
            const HEADER: usize = size_of::<libc::cmsghdr>();
            let length = HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
            let header: [&[u8]; 3] = [
                &length.to_ne_bytes(),
                &level.to_ne_bytes(),
                &name.to_ne_bytes(),
            ];
            let mut to = at;
            for part in header.iter().chain(parts) {
                if let Some(room) = room.get_mut(to..to + part.len()) {
                    room.copy_from_slice(part);
                }
                to += part.len();
            }
            at += length.next_multiple_of(align_of::<libc::cmsghdr>());
        };
        match self.source {
            IpAddr::V4(source) => {
                let source = source.octets();
                let info: [&[u8]; 3] = [&by, &source, &[0; 4]];
                put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
                put(libc::IPPROTO_IP, libc::IP_TTL, &[&ttl]);
                put(libc::IPPROTO_IP, libc::IP_TOS, &[&class]);
            }
            IpAddr::V6(source) => {
                let source = source.octets();
                put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &[&source, &by]);
                put(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &[&ttl]);
                put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &[&class]);
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::unistd::geteuid;

    use super::*;
    use crate::uring::Uring;

    /// An ICMP message that a port cannot be reached, about a datagram of the socket.
    fn unreachable(port: u16) -> Vec<u8> {
        let udp = [port.to_be_bytes(), [0, 9], [0, 8], [0, 0]].concat();
        let ip = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
        let ends = [NOBODY.0.octets(), [127, 0, 0, 1]].concat();
        let mut message = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &ip, &ends, &udp].concat();
        let sum = packet::checksum::fold(packet::checksum::sum(&message).into());
        message[2..4].copy_from_slice(&(!sum).to_be_bytes());
        message
    }

    #[test]
    fn an_icmp_message_fails_no_send() {
        if !geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let kind = SocketKind {
            ipv4: true,
            port: UdpSocket::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .port(),
            cut: false,
        };
        let socket = open(kind, 1 << 16).unwrap();
        let icmp = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
        let to: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let headers = Headers {
            source: to.ip(),
            to: receiver.local_addr().unwrap(),
            by: 0,
            ttl: 1,
            traffic_class: 0,
        };
        for has_ring in [true, false] {
            icmp.send_to(&unreachable(kind.port), &to.into()).unwrap();
            let mut waiting = [PollFd::new(socket.as_fd(), PollFlags::empty())];
            assert_eq!(poll(&mut waiting, PollTimeout::from(5_000_u16)).unwrap(), 1);
            let mut uring = Uring::new(4, has_ring).unwrap();
            let mut batch = uring.batch();
            batch
                .push_routed(socket.as_fd(), &headers, b"copy")
                .unwrap();
            assert_eq!(batch.submit().unwrap(), [4]);
            let mut copy = [0; 9];
            assert_eq!(receiver.recv(&mut copy).unwrap(), 4);
        }
    }
}
