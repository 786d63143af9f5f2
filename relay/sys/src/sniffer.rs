//! AF_PACKET sockets that capture at one interface, in one direction, for one destination or for all
//! groups; never part of the relay. What the socket cannot hold is lost only to the capture, and counted.

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

use crate::packet_socket::{PacketSocket, TapStatistics, VNET_HEADER, VnetHeader, bind, reception};

const ETH_P_ALL: u16 = 0x0003;
/// The IP protocol of PGM (RFC 3208).
const PGM: u32 = 113;
/// The bits of a tag that name the VLAN (IEEE 802.1Q).
const VLAN_ID: u16 = 0x0fff;

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
    /// Whether each packet has a virtio-net header in front.
    segmented: bool,
}

/// A packet's metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sniffed {
    /// Bytes in the buffer.
    pub captured: usize,
    /// Bytes the packet had.
    pub length: usize,
    /// When the kernel saw it, in nanoseconds since the epoch; 0 where the socket does not request it.
    pub at_ns: u64,
    /// The VLAN that it is tagged for; its tag is not among the bytes.
    pub vlan: Option<u16>,
    /// UDP payload bytes of each of its datagrams, if it is a super-packet of several.
    pub segment: Option<u16>,
    /// Whether it leaves by the interface.
    pub outgoing: bool,
}

#[repr(C, align(8))]
struct Control([u8; 256]);

impl Sniffer {
    /// Captures at one interface, by a socket of [`PacketSocket::capture`]: UDP to `destination`, of which
    /// the first `bits` count, at most `snap_length` bytes of each packet.
    ///
    /// # Errors
    /// The system call's.
    pub fn open(
        socket: PacketSocket,
        interface: u32,
        direction: Direction,
        (destination, bits): (IpAddr, u8),
        snap_length: u32,
    ) -> io::Result<Self> {
        // Not bound yet: nothing arrives before the filter is set.
        socket.set_at(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1i32)?;
        socket.set(libc::PACKET_AUXDATA, &1i32)?;
        socket.attach_filter(&filter(direction, destination, bits, snap_length))?;
        Self::finish(socket, interface, false)
    }

    /// Captures all multicast UDP, and PGM, that arrives at one interface or leaves by it, also for groups that no
    /// program of this host joined and for VLANs without an interface: while the socket, of
    /// [`PacketSocket::capture`], is open the interface is in promiscuous mode. At most `snap_length` bytes of each packet.
    ///
    /// # Errors
    /// The system call's.
    pub fn multicast(socket: PacketSocket, interface: u32, snap_length: u32) -> io::Result<Self> {
        socket.set(libc::PACKET_VNET_HDR, &1i32)?;
        socket.set(libc::PACKET_AUXDATA, &1i32)?;
        socket.attach_filter(&multicast_filter(snap_length))?;
        let promiscuous = reception(interface, libc::PACKET_MR_PROMISC);
        socket.set(libc::PACKET_ADD_MEMBERSHIP, &promiscuous)?;
        Self::finish(socket, interface, true)
    }

    fn finish(socket: PacketSocket, interface: u32, segmented: bool) -> io::Result<Self> {
        bind(socket.as_fd(), interface, ETH_P_ALL)?;
        let ethernet = socket.is_ethernet()?;
        Ok(Self {
            socket,
            ethernet,
            segmented,
        })
    }

    /// Returns whether packets begin with an Ethernet header; otherwise with that of IP.
    pub const fn is_ethernet(&self) -> bool {
        self.ethernet
    }

    /// Takes the next packet, if there is one. An interface that goes down is no error: the socket continues when it
    /// is up again.
    ///
    /// # Errors
    /// The system call's.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Sniffed>> {
        let mut vnet = [0; VNET_HEADER];
        let in_front = if self.segmented { vnet.len() } else { 0 };
        let mut vectors = [
            libc::iovec {
                iov_base: vnet.as_mut_ptr().cast(),
                iov_len: in_front,
            },
            libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            },
        ];
        let mut control = Control([0; 256]);
        // SAFETY: all zeroes is a value of sockaddr_ll, which is plain numbers.
        let mut from: libc::sockaddr_ll = unsafe { zeroed() };
        // SAFETY: all zeroes is a value of msghdr: no vectors, no control data.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = vectors.len();
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = size_of::<Control>();
        // SAFETY: `message` points at `from`, at `vectors`, these at `vnet` and `buffer`, and at `control`; all
        // live during the call, and the kernel writes at most their lengths.
        let received =
            unsafe { libc::recvmsg(self.socket.as_fd().as_raw_fd(), &raw mut message, 0) };
        if received < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                // Reported once.
                | io::ErrorKind::NetworkDown => Ok(None),
                _ => Err(error),
            };
        }
        let captured = (received as usize).saturating_sub(in_front);
        let vnet = VnetHeader::decode(vnet);
        let mut sniffed = Sniffed {
            captured,
            length: captured,
            outgoing: u32::from(from.sll_pkttype) == OUTGOING,
            segment: (vnet.gso_type == VnetHeader::GSO_UDP).then_some(vnet.gso_size),
            ..Sniffed::default()
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

/// Reads time, original length and VLAN from a received message's ancillary data.
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
                    let tagged = about.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
                    // 0: a priority, and no VLAN.
                    let vlan = Some(about.tp_vlan_tci & VLAN_ID);
                    sniffed.vlan = vlan.filter(|vlan| tagged && *vlan != 0);
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
        let fixed = u32::from(bits).saturating_sub(position * 32).min(32);
        if fixed == 0 {
            break;
        }
        let mask = u32::MAX << (32 - fixed);
        program.load_word(NETWORK + at as u32 + position * 4);
        program.mask(mask);
        program.require(word & mask);
    }
    program.take(snap_length);
    program.finish()
}

/// Takes multicast UDP and PGM; all else is not copied. It does not follow the extension headers of IPv6: the
/// reader of the packets does.
fn multicast_filter(snap_length: u32) -> Vec<Instruction> {
    let mut program = Program::new();
    program.load_byte(NETWORK);
    program.mask(0xf0);
    program.only_if(4 << 4, |four| {
        four.load_byte(NETWORK + ipv4::DESTINATION as u32);
        four.mask(0xf0);
        four.require(0xe0);
        four.load_byte(NETWORK + ipv4::PROTOCOL as u32);
        four.when(PGM, |pgm| pgm.take(snap_length));
        four.require(u32::from(udp::PROTOCOL));
        four.take(snap_length);
    });
    program.require(6 << 4);
    program.load_byte(NETWORK + ipv6::DESTINATION as u32);
    program.require(0xff);
    program.take(snap_length);
    program.finish()
}
