//! A packet socket that asks by ARP who else has an IPv4 address, and hears who says to have one. It takes
//! ARP alone, so traffic costs nothing here.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::sys::socket::{LinkAddr, recvfrom};
use socket2::Type;

use crate::packet_socket::{PacketSocket, bind, link_address, send_to};

const ARP: u16 = libc::ETH_P_ARP as u16;
/// Ethernet and IPv4, with addresses of six and four bytes (RFC 826); what is asked or said comes next.
const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];
/// The length of a packet, and where the sender's two addresses stand in it.
const LENGTH: usize = 28;
const MAC: usize = 8;
const ADDRESS: usize = 14;

/// The socket, for all interfaces of a network namespace.
#[derive(Debug)]
pub struct ArpSocket(PacketSocket);

/// What somebody says in an ARP packet: that they have an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The interface that it came by.
    pub interface: u32,
    /// Who says so.
    pub mac: [u8; 6],
    /// What they say to have.
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

    /// Asks everybody on an interface as a host does that wants to take an address (RFC 5227, 2.1.1): that
    /// changes nobody's cache.
    ///
    /// # Errors
    /// The system call's.
    pub fn probe(&self, interface: u32, own: [u8; 6], address: Ipv4Addr) -> io::Result<()> {
        let mut everybody = link_address(interface, ARP);
        everybody.sll_halen = 6;
        everybody.sll_addr[..6].copy_from_slice(&[0xff; 6]);
        let nobody = [0; 10];
        let asked = [&KIND[..], &REQUEST, &own, &nobody, &address.octets()];
        send_to(self.0.as_fd(), &everybody, &asked.concat())
    }

    /// What somebody has said that was not taken yet; those who only ask say nothing of themselves.
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
