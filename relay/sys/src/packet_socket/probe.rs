//! What packet sockets support: sending UDP super-packets (`VIRTIO_NET_HDR_GSO_UDP_L4`, Linux 6.2), sharing
//! packets by flow. Probed by trying without side effects: on the loopback of a temporary network namespace.

#![expect(unsafe_code, reason = "an interface's flags need a raw system call")]

use std::io;
use std::os::fd::AsFd;
use std::thread;

use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};

use packet::classic_bpf::Program;

use super::ring::{RING_BLOCK, RingSize};
use super::{PacketSocket, VnetHeader, link_address, send_to};
use crate::ifreq::control;

/// Bytes of the Ethernet, IPv4 and UDP headers.
const HEADERS: u16 = 14 + 20 + 8;
/// Locally administered and unused: the loopback's IP stack ignores what is for another host.
const NOBODY: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// What packet sockets support here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// They send super-packets.
    pub super_packets: bool,
    /// They share packets as a program decides.
    pub fanout: bool,
}

impl PacketSocket {
    /// Probes what sockets support. In a process that may not make a network namespace the packet uses the loopback
    /// of its own.
    ///
    /// # Errors
    /// Any other reason why it cannot be sent; the support is unknown then.
    pub fn probe() -> io::Result<Abilities> {
        let probe = thread::spawn(|| {
            if unshare(CloneFlags::CLONE_NEWNET).is_ok() {
                raise_loopback()?;
            }
            let loopback = if_nametoindex("lo")?;
            Ok(Abilities {
                super_packets: is_valid(send_super_packet(loopback))?,
                fanout: is_valid(join_fanout(loopback))?,
            })
        });
        let unknown = |_| Err(io::Error::other("the probe panicked"));
        probe.join().unwrap_or_else(unknown)
    }
}

/// `EINVAL` is the kernel's error for an unknown option.
fn is_valid(tried: io::Result<()>) -> io::Result<bool> {
    match tried {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        other => other.map(|()| true),
    }
}

fn join_fanout(interface: u32) -> io::Result<()> {
    let size = RingSize {
        frames: RING_BLOCK / 2048,
        frame_bytes: 2048,
    };
    let tap = PacketSocket::tap(size, 1 << 16)?;
    tap.bind(interface)?;
    let program = Program::new().finish();
    tap.join_fanout(None, &program).map(drop)
}

/// Sends two datagrams of one byte as one packet.
fn send_super_packet(interface: u32) -> io::Result<()> {
    let socket = PacketSocket::egress(1 << 16)?;
    let address = link_address(interface, libc::ETH_P_IP as u16);
    send_to(socket.as_fd(), &address, &super_packet())
}

fn super_packet() -> Vec<u8> {
    let vnet = VnetHeader {
        flags: VnetHeader::NEEDS_CHECKSUM,
        gso_type: VnetHeader::GSO_UDP,
        header_bytes: HEADERS,
        gso_size: 1,
        checksum_start: HEADERS - 8,
        checksum_offset: 6,
    };
    let mut packet = vnet.encode().to_vec();
    packet.extend(NOBODY);
    packet.extend(NOBODY);
    packet.extend([8, 0]);
    // 127.0.0.1 to itself, 30 bytes, TTL 1. Its checksum is not checked.
    packet.extend([0x45, 0, 0, 30, 0, 0, 0x40, 0, 1, 17, 0, 0]);
    packet.extend([127, 0, 0, 1, 127, 0, 0, 1]);
    // From and to the port of discard, 10 bytes.
    packet.extend([0, 9, 0, 9, 0, 10, 0, 0, 0, 0]);
    packet
}

/// Brings the loopback of the thread's own, new namespace up.
fn raise_loopback() -> io::Result<()> {
    let up = |request: &mut libc::ifreq| {
        request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    };
    // SAFETY: SIOCSIFFLAGS reads the request itself and nothing else.
    unsafe { control(b"lo", libc::SIOCSIFFLAGS, up) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_from_6_2_on_sends_super_packets() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let system = nix::sys::utsname::uname().unwrap();
        let release = system.release().to_string_lossy();
        let mut numbers = release
            .split(['.', '-', '+'])
            .map(|number| number.parse::<u32>());
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
            eprintln!("skipped: {release} is no version");
            return;
        };
        let support = PacketSocket::probe().unwrap();
        assert_eq!(support.super_packets, (major, minor) >= (6, 2));
        assert!(support.fanout);
    }
}
