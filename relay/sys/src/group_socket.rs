//! AF_PACKET sockets of a multicast router: they receive IGMP or MLD on one interface, whatever group
//! it is sent to, and send it.
//!
//! Bound to one protocol, so frames that are tagged for a VLAN, outgoing copies and the traffic itself cost nothing
//! here.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use packet::classic_bpf::{Instruction, NETWORK, OUTGOING, PACKET_TYPE, Program, WHOLE};
use socket2::Type;

use crate::packet_socket::{PacketSocket, bind, link_address, reception, send_to};
use crate::udp::option;

/// The type of packets that this host sent to itself as well (linux/if_packet.h).
const LOOPED_BACK: u32 = 5;
/// Bytes of reports that wait: some thousand of them.
const BUFFER: usize = 1 << 20;

/// One family's socket on an interface.
#[derive(Debug)]
pub struct GroupSocket {
    socket: PacketSocket,
    interface: u32,
    protocol: u16,
}

impl GroupSocket {
    /// Opens it. Until it is closed the interface takes all multicast. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The system call's; `ENODEV` if there is no such interface.
    pub fn open(interface: u32, ipv4: bool) -> io::Result<Self> {
        let opened = Self::to_send(interface, ipv4)?;
        let socket = &opened.socket;
        option::force_receive_buffer(socket.as_fd(), BUFFER)?;
        socket.attach_filter(&filter(ipv4))?;
        let all = reception(interface, libc::PACKET_MR_ALLMULTI);
        socket.set(libc::PACKET_ADD_MEMBERSHIP, &all)?;
        bind(socket.as_fd(), interface, opened.protocol)?;
        Ok(opened)
    }

    /// Opens one that receives nothing. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The system call's.
    pub fn to_send(interface: u32, ipv4: bool) -> io::Result<Self> {
        let protocol = if ipv4 {
            libc::ETH_P_IP
        } else {
            libc::ETH_P_IPV6
        } as u16;
        Ok(Self {
            socket: PacketSocket::open_as(Type::DGRAM)?,
            interface,
            protocol,
        })
    }

    /// Takes the next IP packet, if there is one; one that is longer than `buffer` is truncated.
    ///
    /// # Errors
    /// The system call's, such as `ENETDOWN` once after the interface went down or away.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match recv(self.as_fd().as_raw_fd(), buffer, MsgFlags::empty()) {
            Ok(length) => Ok(Some(length)),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends an IP packet to a link-layer address, which devices without such addresses ignore.
    ///
    /// # Errors
    /// The system call's.
    pub fn send(&self, to: [u8; 6], packet: &[u8]) -> io::Result<()> {
        let mut address = link_address(self.interface, self.protocol);
        address.sll_halen = 6;
        address.sll_addr[..6].copy_from_slice(&to);
        send_to(self.as_fd(), &address, packet)
    }
}

impl AsFd for GroupSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Takes IGMP, or ICMPv6 behind a hop-by-hop header as MLD is.
fn filter(ipv4: bool) -> Vec<Instruction> {
    const IGMP: u32 = 2;
    const HOP_BY_HOP: u32 = 0;
    const ICMPV6: u32 = 58;
    let mut program = Program::new();
    program.load_byte(PACKET_TYPE);
    program.refuse_if(OUTGOING);
    program.refuse_if(LOOPED_BACK);
    if ipv4 {
        program.load_byte(NETWORK + packet::ipv4::PROTOCOL as u32);
        program.require(IGMP);
    } else {
        program.load_byte(NETWORK + 6);
        program.require(HOP_BY_HOP);
        program.load_byte(NETWORK + packet::ipv6::HEADER as u32);
        program.require(ICMPV6);
    }
    program.take(WHOLE);
    program.finish()
}
