//! AF_PACKET sockets that look on: one interface, one direction, one destination, never part of the
//! relay. What the socket cannot hold is lost to the onlooker alone, and counted.

#![expect(
    unsafe_code,
    reason = "ancillary data of packet sockets needs raw system calls"
)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::packet_socket::{Filter, TapStatistics, instruction, link_address};

const ETH_P_ALL: u16 = 0x0003;
const OUTGOING: u32 = 4;
/// Ancillary loads of classic BPF: `SKF_AD_OFF + SKF_AD_PKTTYPE`, and `SKF_NET_OFF`, which reads
/// from the IP header on whatever link header there is.
const PACKET_TYPE: u32 = (-0x1000_i32 + 4) as u32;
const NETWORK: u32 = -0x10_0000_i32 as u32;
const LOAD_WORD: u16 = 0x20;
const LOAD_BYTE: u16 = 0x30;
const AND: u16 = 0x54;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// Which packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Those that arrive.
    In,
    /// Those that leave.
    Out,
}

/// One onlooker.
#[derive(Debug)]
pub struct Sniffer {
    fd: OwnedFd,
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
    /// Looks on at one interface: UDP to `destination`, of which the first `bits` count, at most
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
        // Protocol 0: nothing arrives before the filter stands.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain system call without pointers.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: `fd` is a descriptor that was just opened and that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut sniffer = Self { fd, ethernet: true };
        let size = libc::c_int::try_from(buffer_bytes).unwrap_or(libc::c_int::MAX);
        sniffer.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &size)?;
        sniffer.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32)?;
        sniffer.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, &1i32)?;
        let filter = filter(direction, destination, bits, snap_length);
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_ptr().cast_mut(),
        };
        // The kernel copies the program and does not write to it.
        sniffer.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        let mut address = link_address(interface, ETH_P_ALL);
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `address` is a sockaddr_ll that lives during the call; the length is its size.
        check(unsafe { libc::bind(sniffer.fd.as_raw_fd(), (&raw const address).cast(), length) })?;
        // SAFETY: the kernel writes at most `length` bytes to `address`, any bytes are a value.
        check(unsafe {
            libc::getsockname(
                sniffer.fd.as_raw_fd(),
                (&raw mut address).cast(),
                &raw mut length,
            )
        })?;
        sniffer.ethernet = matches!(
            address.sll_hatype,
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK
        );
        Ok(sniffer)
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
        let received = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, 0) };
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
        let mut raw = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `raw`, any bytes are a value.
        check(unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut raw).cast(),
                &raw mut length,
            )
        })?;
        Ok(TapStatistics {
            packets: u64::from(raw.tp_packets),
            drops: u64::from(raw.tp_drops),
        })
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: `value` lives during the call and the length is its size.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        check(result).map(drop)
    }
}

impl AsFd for Sniffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
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
fn filter(direction: Direction, destination: IpAddr, bits: u8, snap_length: u32) -> Filter {
    let mut tests = vec![instruction(LOAD_BYTE, 0, 0, PACKET_TYPE)];
    // A test fails into the last instruction; how far that is is known when all are there.
    match direction {
        Direction::In => tests.push(instruction(JUMP_EQUAL, FAIL, 0, OUTGOING)),
        Direction::Out => tests.push(instruction(JUMP_EQUAL, 0, FAIL, OUTGOING)),
    }
    let (version, at, words): (u32, u32, Vec<u32>) = match destination {
        IpAddr::V4(address) => (0x40, 16, vec![address.to_bits()]),
        IpAddr::V6(address) => {
            let word = |shift: u32| (address.to_bits() >> shift) as u32;
            (0x60, 24, vec![word(96), word(64), word(32), word(0)])
        }
    };
    tests.push(instruction(LOAD_BYTE, 0, 0, NETWORK));
    tests.push(instruction(AND, 0, 0, 0xf0));
    tests.push(instruction(JUMP_EQUAL, 0, FAIL, version));
    if destination.is_ipv4() {
        tests.push(instruction(LOAD_BYTE, 0, 0, NETWORK + 9));
        tests.push(instruction(JUMP_EQUAL, 0, FAIL, 17));
    }
    for (position, word) in (0u32..).zip(words) {
        let left = u32::from(bits).saturating_sub(position * 32).min(32);
        if left == 0 {
            break;
        }
        let mask = u32::MAX << (32 - left);
        tests.push(instruction(LOAD_WORD, 0, 0, NETWORK + at + position * 4));
        tests.push(instruction(AND, 0, 0, mask));
        tests.push(instruction(JUMP_EQUAL, 0, FAIL, word & mask));
    }
    tests.push(instruction(RETURN, 0, 0, snap_length));
    let last = tests.len();
    for (position, test) in tests.iter_mut().enumerate() {
        let distance = (last - position - 1) as u8;
        if test.jt == FAIL {
            test.jt = distance;
        }
        if test.jf == FAIL {
            test.jf = distance;
        }
    }
    tests.push(instruction(RETURN, 0, 0, 0));
    tests
}

/// Stands for the way to the last instruction; filters are far shorter.
const FAIL: u8 = u8::MAX;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}
