//! The tap: opened closed, bound, filtered, joined to its group.
//!
//! Taps use `TPACKET_V2`: unlike version 3 it has no block timer, so a packet is readable as soon
//! as it has arrived. Packets larger than a ring frame take the socket's queue
//! (`PACKET_COPY_THRESH`), announced by a frame in the ring, so order is kept.
//!
//! The ring has the timestamp that a packet was received with, before it was put into a core's queue, where
//! any socket of the host requests them ([`ask_for_stamps`](crate::udp::ask_for_stamps)), else when the tap
//! got it.

#![expect(unsafe_code, reason = "binding and receiving need raw system calls")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::net::if_::if_indextoname;
use nix::sys::socket::{MsgFlags, recv};
use packet::classic_bpf::{Instruction, Program};

use super::ring::{RING_BLOCK, RingSize};
use super::{PacketSocket, check, link_address};
use crate::udp::option;

const ETH_P_ALL: u16 = 0x0003;
const FANOUT_CBPF: u32 = 6;
const FANOUT_UNIQUE_ID: u32 = 0x2000;
const FANOUT_IGNORE_OUTGOING: u32 = 0x4000;

/// What the kernel counted at a tap since the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapStatistics {
    /// Packets that passed the filter, dropped ones included.
    pub packets: u64,
    /// Packets dropped because ring or queue were full.
    pub drops: u64,
}

impl PacketSocket {
    /// Opens a tap that receives nothing yet: not bound, and closed by a filter. Needs
    /// `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The system call's.
    pub fn tap(size: RingSize, queue_bytes: usize) -> io::Result<Self> {
        let socket = Self::open()?;
        socket.set(
            libc::PACKET_VERSION,
            &(libc::tpacket_versions::TPACKET_V2 as libc::c_int),
        )?;
        socket.set(libc::PACKET_VNET_HDR, &1i32)?;
        socket.set(libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        socket.set(libc::PACKET_COPY_THRESH, &1i32)?;
        socket.set(libc::PACKET_TIMESTAMP, &libc::SOF_TIMESTAMPING_SOFTWARE)?;
        option::force_receive_buffer(socket.as_fd(), queue_bytes)?;
        let per_block = RING_BLOCK / size.frame_bytes;
        let request = libc::tpacket_req {
            tp_block_size: RING_BLOCK as u32,
            tp_block_nr: (size.frames / per_block) as u32,
            tp_frame_size: size.frame_bytes as u32,
            tp_frame_nr: size.frames as u32,
        };
        socket.set(libc::PACKET_RX_RING, &request)?;
        socket.close_filter()?;
        Ok(socket)
    }

    /// Binds the tap to one interface, for all protocols: taps for all protocols run before tc
    /// ingress, those for one after it.
    ///
    /// # Errors
    /// `ENODEV` if there is no such interface.
    pub fn bind(&self, interface: u32) -> io::Result<()> {
        super::bind(self.as_fd(), interface, ETH_P_ALL)
    }

    /// Returns whether packets of the interface the tap is bound to carry an Ethernet header.
    ///
    /// # Errors
    /// The system call's.
    pub fn is_ethernet(&self) -> io::Result<bool> {
        Ok(matches!(
            self.name()?.sll_hatype,
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK
        ))
    }

    /// Returns whether the interface that the tap was bound to was removed, and another one added with its number: the
    /// kernel unbinds the tap from a removed interface, and binds it to no other.
    ///
    /// # Errors
    /// The system call's.
    pub fn is_left_behind(&self, interface: u32) -> io::Result<bool> {
        let at = u32::try_from(self.name()?.sll_ifindex).ok();
        Ok(at != Some(interface) && if_indextoname(interface).is_ok())
    }

    /// The interface that the tap is bound to.
    fn name(&self) -> io::Result<libc::sockaddr_ll> {
        let mut address = link_address(0, 0);
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `address`, any bytes are a value.
        let result = unsafe {
            libc::getsockname(
                self.fd.as_raw_fd(),
                (&raw mut address).cast(),
                &raw mut length,
            )
        };
        check(result).map(|()| address)
    }

    /// Joins the bound tap to a `packet_fanout` group, a new one for `None`, and returns the group's
    /// number, unique in the network namespace. `program` returns, modulo the number of taps, which tap a packet is
    /// for; it sees no link header, so it has to load from [`NETWORK`] on.
    ///
    /// [`NETWORK`]: packet::classic_bpf::NETWORK
    ///
    /// From then on the tap is given its share of the packets. A packet that was on its way past the
    /// taps of its interface meanwhile may still be given to this one alone, although the group has
    /// it already: the filter must stay closed for a grace period.
    ///
    /// # Errors
    /// `EINVAL` if the group is gone or of another interface.
    pub fn join_fanout(&self, group: Option<u16>, program: &[Instruction]) -> io::Result<u16> {
        let flags = match group {
            Some(_) => FANOUT_CBPF | FANOUT_IGNORE_OUTGOING,
            None => FANOUT_CBPF | FANOUT_IGNORE_OUTGOING | FANOUT_UNIQUE_ID,
        };
        let argument = u32::from(group.unwrap_or(0)) | flags << 16;
        self.set(libc::PACKET_FANOUT, &argument)?;
        if group.is_none() {
            self.set_program(libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, program)?;
        }
        let joined: u32 = self.read(libc::PACKET_FANOUT)?;
        Ok(joined as u16)
    }

    /// Lets nothing in.
    ///
    /// # Errors
    /// The system call's.
    pub fn close_filter(&self) -> io::Result<()> {
        self.attach_filter(&Program::new().finish())
    }

    /// Replaces the filter; `ret 0` drops a packet, any other value takes it whole.
    ///
    /// # Errors
    /// `EINVAL` for a program the kernel does not accept.
    pub fn attach_filter(&self, filter: &[Instruction]) -> io::Result<()> {
        self.set_program(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter)
    }

    fn set_program(
        &self,
        level: libc::c_int,
        name: libc::c_int,
        program: &[Instruction],
    ) -> io::Result<()> {
        let instructions = program.iter().map(|one| libc::sock_filter {
            code: one.code,
            jt: one.jt,
            jf: one.jf,
            k: one.k,
        });
        let mut instructions: Vec<_> = instructions.collect();
        let program = libc::sock_fprog {
            len: instructions.len() as u16,
            filter: instructions.as_mut_ptr(),
        };
        // The kernel copies the program and does not write to it.
        self.set_at(level, name, &program)
    }

    /// Replaces the filter by a loaded BPF program (`BPF_PROG_TYPE_SOCKET_FILTER`), which returns what
    /// a filter does.
    ///
    /// # Errors
    /// `EINVAL` for a program of another kind.
    pub fn attach_program(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let program = program.as_raw_fd();
        self.set_at(libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program)
    }

    /// Reads and resets the kernel's counts.
    ///
    /// # Errors
    /// The system call's.
    pub fn statistics(&self) -> io::Result<TapStatistics> {
        // struct tpacket_stats.
        let [packets, drops]: [u32; 2] = self.read(libc::PACKET_STATISTICS)?;
        Ok(TapStatistics {
            packets: packets.into(),
            drops: drops.into(),
        })
    }

    /// Reads one packet from the socket's queue into `buffer`, its vnet header first, and returns
    /// the bytes read. Does not wait.
    ///
    /// # Errors
    /// `EAGAIN` if the queue is empty.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.fd.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT)?)
    }
}
