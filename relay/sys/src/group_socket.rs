//! AF_PACKET sockets of a multicast router: they receive IGMP or MLD on one interface, whatever group
//! it is sent to, and send it.
//!
//! Bound to one protocol, so frames that are tagged for a VLAN, copies on their way out and the traffic
//! itself cost nothing here.

#![expect(
    unsafe_code,
    reason = "sockets with link addresses need raw system calls"
)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use packet::classic_bpf::{Instruction, NETWORK, OUTGOING, PACKET_TYPE, Program, WHOLE};

use crate::packet_socket::{PacketSocket, bind, link_address};

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
        socket.force_buffer(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, BUFFER)?;
        socket.attach_filter(&filter(ipv4))?;
        let all = libc::packet_mreq {
            mr_ifindex: interface as libc::c_int,
            mr_type: libc::PACKET_MR_ALLMULTI as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        socket.set(libc::PACKET_ADD_MEMBERSHIP, &all)?;
        bind(socket.as_fd(), interface, opened.protocol)?;
        Ok(opened)
    }

    /// Opens one that receives nothing. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The system call's.
    pub fn to_send(interface: u32, ipv4: bool) -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain system call without pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let socket = PacketSocket::adopt(unsafe { OwnedFd::from_raw_fd(fd) });
        let protocol = if ipv4 {
            libc::ETH_P_IP
        } else {
            libc::ETH_P_IPV6
        } as u16;
        Ok(Self {
            socket,
            interface,
            protocol,
        })
    }

    /// Takes the next IP packet, if there is one; of one that is longer than `buffer` its beginning.
    ///
    /// # Errors
    /// The system call's, such as `ENETDOWN` once after the interface went down or away.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`, which lives during the call.
        let received = unsafe {
            libc::recv(
                self.socket.as_fd().as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
            )
        };
        match usize::try_from(received) {
            Ok(length) => Ok(Some(length)),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
                error => Err(error),
            },
        }
    }

    /// Sends an IP packet to a link-layer address; devices without such take no notice of it.
    ///
    /// # Errors
    /// The system call's.
    pub fn send(&self, to: [u8; 6], packet: &[u8]) -> io::Result<()> {
        let mut address = link_address(self.interface, self.protocol);
        address.sll_halen = 6;
        address.sll_addr[..6].copy_from_slice(&to);
        // SAFETY: the kernel reads `packet.len()` bytes of `packet` and one sockaddr_ll; both live during
        // the call.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_fd().as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
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
