//! AF_PACKET sockets that capture at one interface, in one direction, for one destination; never part
//! of the relay. What the socket cannot hold is lost to the capture alone, and counted.

#![expect(
    unsafe_code,
    reason = "ancillary data of packet sockets needs raw system calls"
)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use packet::classic_bpf::{Instruction, NETWORK, OUTGOING, PACKET_TYPE, Program};
use packet::{ipv4, ipv6, udp};

use crate::packet_socket::{PacketSocket, TapStatistics, bind};

const ETH_P_ALL: u16 = 0x0003;

/// Which packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Those that arrive.
    In,
    /// Those that leave.
    Out,
}

/// A socket that captures.
#[derive(Debug)]
pub struct Sniffer {
    socket: PacketSocket,
    ethernet: bool,
}

/// What is known of a packet beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sniffed {
    /// Bytes in the buffer.
    pub captured: usize,
    /// Bytes the packet had.
    pub length: usize,
    /// When the kernel saw it, in nanoseconds since the epoch.
    pub at_ns: u64,
}

#[repr(C, align(8))]
struct Control([u8; 256]);

impl Sniffer {
    /// Captures at one interface: UDP to `destination`, of which the first `bits` count, at most
    /// `snap_length` bytes of each packet. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The system call's.
    pub fn open(
        interface: u32,
        direction: Direction,
        destination: IpAddr,
        bits: u8,
        snap_length: u32,
        buffer_bytes: usize,
    ) -> io::Result<Self> {
        // Not bound yet: nothing arrives before the filter stands.
        let socket = PacketSocket::open()?;
        let size = libc::c_int::try_from(buffer_bytes).unwrap_or(libc::c_int::MAX);
        socket.set_at(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &size)?;
        socket.set_at(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32)?;
        socket.set(libc::PACKET_AUXDATA, &1i32)?;
        socket.attach_filter(&filter(direction, destination, bits, snap_length))?;
        bind(socket.as_fd(), interface, ETH_P_ALL)?;
        let ethernet = socket.is_ethernet()?;
        Ok(Self { socket, ethernet })
    }

    /// Says whether packets begin with an Ethernet header; otherwise with that of IP.
    #[must_use]
    pub const fn is_ethernet(&self) -> bool {
        self.ethernet
    }

    /// Takes the next packet, if there is one.
    ///
    /// # Errors
    /// The system call's, such as `ENETDOWN` once after the interface went down.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Sniffed>> {
        let mut vector = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let mut control = Control([0; 256]);
        // SAFETY: all zeroes is a value of msghdr: no name, no vectors, no control data.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = size_of::<Control>();
        // SAFETY: `message` points at `vector` and `control`, which live during the call; the kernel
        // writes at most their lengths.
        let received =
            unsafe { libc::recvmsg(self.socket.as_fd().as_raw_fd(), &raw mut message, 0) };
        if received < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        let mut sniffed = Sniffed {
            captured: received as usize,
            length: received as usize,
            at_ns: 0,
        };
        read_control(&message, &mut sniffed);
        Ok(Some(sniffed))
    }

    /// Reads and resets the kernel's counts.
    ///
    /// # Errors
    /// The system call's.
    pub fn statistics(&self) -> io::Result<TapStatistics> {
        self.socket.statistics()
    }
}

impl AsFd for Sniffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Finds time and original length in a received message's ancillary data.
fn read_control(message: &libc::msghdr, sniffed: &mut Sniffed) {
    // SAFETY: `message` is as `recvmsg` left it: control data and its length belong together, so
    // the macros walk whole headers. Data is read unaligned, and only of the type that level and
    // kind announce; `open` turned on two kinds, 72 bytes together, so the kernel has cut none of
    // them short in the 256 that `receive` gives it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) => {
                    let time: libc::timespec = data.cast::<libc::timespec>().read_unaligned();
                    sniffed.at_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
                }
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                    let about = data.cast::<libc::tpacket_auxdata>().read_unaligned();
                    sniffed.length = about.tp_len as usize;
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Takes what arrives, or what leaves, as UDP for one destination; all else is not copied.
fn filter(
    direction: Direction,
    destination: IpAddr,
    bits: u8,
    snap_length: u32,
) -> Vec<Instruction> {
    let mut program = Program::new();
    program.load_byte(PACKET_TYPE);
    match direction {
        Direction::In => program.refuse_if(OUTGOING),
        Direction::Out => program.require(OUTGOING),
    }
    let (version, at, words): (u32, usize, Vec<u32>) = match destination {
        IpAddr::V4(address) => (4, ipv4::DESTINATION, vec![address.to_bits()]),
        IpAddr::V6(address) => {
            let word = |shift: u32| (address.to_bits() >> shift) as u32;
            let words = vec![word(96), word(64), word(32), word(0)];
            (6, ipv6::DESTINATION, words)
        }
    };
    program.load_byte(NETWORK);
    program.mask(0xf0);
    program.require(version << 4);
    if destination.is_ipv4() {
        program.load_byte(NETWORK + ipv4::PROTOCOL as u32);
        program.require(u32::from(udp::PROTOCOL));
    }
    for (position, word) in (0u32..).zip(words) {
        let left = u32::from(bits).saturating_sub(position * 32).min(32);
        if left == 0 {
            break;
        }
        let mask = u32::MAX << (32 - left);
        program.load_word(NETWORK + at as u32 + position * 4);
        program.mask(mask);
        program.require(word & mask);
    }
    program.take(snap_length);
    program.finish()
}
