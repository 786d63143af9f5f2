//! Queries the kernel for the UDP socket of the host that would take a datagram, by the lookup for received
//! datagrams (`udp_dump_one` in net/ipv4/udp_diag.c). No privilege is needed.

use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

// linux/netlink.h, linux/sock_diag.h.
const NETLINK_SOCK_DIAG: i32 = 4;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Bytes of `struct nlmsghdr`, and of `struct inet_diag_req_v2` behind it.
const HEADER: usize = 16;
const REQUEST: usize = 56;

/// A socket for queries.
#[derive(Debug)]
pub struct SocketLookup {
    netlink: Socket,
}

impl SocketLookup {
    /// Opens one and checks that it reports existing sockets.
    ///
    /// # Errors
    /// `Unsupported` on a kernel without this (CONFIG_INET_UDP_DIAG), or the system call's.
    pub fn open() -> io::Result<Self> {
        let family = Domain::from(libc::AF_NETLINK);
        let protocol = Protocol::from(NETLINK_SOCK_DIAG);
        let netlink = Socket::new(family, Type::DGRAM, Some(protocol))?;
        netlink.set_nonblocking(true)?;
        let lookup = Self { netlink };
        let bound = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, bound.local_addr()?.port()));
        if lookup.finds(here, here, 0)? {
            Ok(lookup)
        } else {
            Err(ErrorKind::Unsupported.into())
        }
    }

    /// Returns whether some socket would take a datagram from `source` to `destination`, both of one
    /// family, that arrives by `interface`, or with 0 by any.
    ///
    /// # Errors
    /// The system call's, or the kernel's error.
    pub fn finds(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
        interface: u32,
    ) -> io::Result<bool> {
        let request = request(source, destination, interface);
        self.netlink.send(&request)?;
        let mut buffer = [0; 512];
        let length = (&self.netlink).read(&mut buffer)?;
        let reply = &buffer[..length.min(buffer.len())];
        match (reply.get(4..6), reply.get(HEADER..HEADER + 4)) {
            (Some(kind), _) if kind == SOCK_DIAG_BY_FAMILY.to_ne_bytes() => Ok(true),
            (Some(kind), Some(error)) if kind == NLMSG_ERROR.to_ne_bytes() => {
                let error = error.try_into().map_err(|_| ErrorKind::InvalidData)?;
                match -i32::from_ne_bytes(error) {
                    libc::ENOENT => Ok(false),
                    error => Err(io::Error::from_raw_os_error(error)),
                }
            }
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }
}

/// A `nlmsghdr` with an `inet_diag_req_v2`, in which the kernel takes the field called source for the datagram's
/// source, although sockets have their own address there.
fn request(source: SocketAddr, destination: SocketAddr, interface: u32) -> [u8; HEADER + REQUEST] {
    let mut bytes = [0; HEADER + REQUEST];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let family = match destination {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    put(0, &((HEADER + REQUEST) as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(16, &[family as u8, libc::IPPROTO_UDP as u8]);
    put(20, &u32::MAX.to_ne_bytes()); // every state
    put(24, &source.port().to_be_bytes());
    put(26, &destination.port().to_be_bytes());
    for (at, end) in [(28, source), (44, destination)] {
        match end.ip() {
            IpAddr::V4(address) => put(at, &address.octets()),
            IpAddr::V6(address) => put(at, &address.octets()),
        }
    }
    put(60, &interface.to_ne_bytes());
    put(64, &[0xff; 8]); // INET_DIAG_NOCOOKIE
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn finds_sockets_as_datagrams_do() {
        let lookup = match SocketLookup::open() {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                eprintln!("skipped: this kernel does not tell of UDP sockets");
                return;
            }
            opened => opened.unwrap(),
        };
        for (own, other, sender) in [
            ("127.0.0.1", "127.0.0.2", "127.0.0.9:4000"),
            ("::1", "::2", "[::9]:4000"),
        ] {
            let at = |address: &str, port| SocketAddr::new(address.parse().unwrap(), port);
            let Ok(bound) = UdpSocket::bind(at(own, 0)) else {
                eprintln!("skipped: there is no {own}");
                continue;
            };
            let port = bound.local_addr().unwrap().port();
            let finds = |from: &str, to: SocketAddr| lookup.finds(socket(from), to, 0).unwrap();
            assert!(finds(sender, at(own, port)));
            assert!(!finds(sender, at(other, port)), "bound to one address");
            bound.connect(at(own, 9)).unwrap();
            assert!(!finds(sender, at(own, port)), "connected to another");
            drop(bound);
            assert!(!finds(sender, at(own, port)), "closed");
        }
    }
}
