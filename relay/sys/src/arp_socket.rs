//! A packet socket that probes by ARP whether another host has an IPv4 address, and receives claims to have one.
//! It takes only ARP, so traffic costs nothing here.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::sys::socket::{LinkAddr, recvfrom};
use socket2::Type;

use crate::packet_socket::{PacketSocket, bind, link_address, send_to};

const ARP: u16 = libc::ETH_P_ARP as u16;
/// Ethernet and IPv4, with addresses of six and four bytes (RFC 826); the operation follows.
const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];
/// The length of a packet, and the offsets of the sender's two addresses.
const LENGTH: usize = 28;
const MAC: usize = 8;
const ADDRESS: usize = 14;

/// The socket, for all interfaces of a network namespace.
#[derive(Debug)]
pub struct ArpSocket(PacketSocket);

/// The claim of an ARP packet's sender to have an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The interface that it arrived by.
    pub interface: u32,
    /// The sender.
    pub mac: [u8; 6],
    /// The claimed address.
    pub address: Ipv4Addr,
}

impl ArpSocket {
    /// Opens it in the calling thread's network namespace. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The system call's.
    pub fn open() -> io::Result<Self> {
        let socket = PacketSocket::open_as(Type::DGRAM)?;
        bind(socket.as_fd(), 0, ARP)?;
        Ok(Self(socket))
    }

    /// Probes for an address on an interface, as a host does before it uses one (RFC 5227, 2.1.1): that changes no
    /// host's cache.
    ///
    /// # Errors
    /// The system call's.
    pub fn probe(&self, interface: u32, own: [u8; 6], address: Ipv4Addr) -> io::Result<()> {
        let mut everybody = link_address(interface, ARP);
        everybody.sll_halen = 6;
        everybody.sll_addr[..6].copy_from_slice(&[0xff; 6]);
        let nobody = [0; 10];
        let request = [&KIND[..], &REQUEST, &own, &nobody, &address.octets()];
        send_to(self.0.as_fd(), &everybody, &request.concat())
    }

    /// The next claim that was received; probes, which claim nothing, are skipped.
    pub fn next(&self) -> Option<Claim> {
        let mut packet = [0; LENGTH];
        loop {
            let (length, from) = match recvfrom::<LinkAddr>(self.0.as_fd().as_raw_fd(), &mut packet)
            {
                Ok(read) => read,
                // Once after an interface went down.
                Err(Errno::EINTR | Errno::ENETDOWN) => continue,
                Err(_) => return None,
            };
            let mac = packet[MAC..ADDRESS]
                .first_chunk()
                .copied()
                .unwrap_or_default();
            let address: [u8; 4] = packet[ADDRESS..].first_chunk().copied().unwrap_or_default();
            if length == LENGTH && packet.starts_with(&KIND) && address != [0; 4] {
                let interface = from.map_or(0, |from| from.ifindex() as u32);
                let address = address.into();
                return Some(Claim {
                    interface,
                    mac,
                    address,
                });
            }
        }
    }
}
