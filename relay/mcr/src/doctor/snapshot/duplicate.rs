//! Addresses of this host that somebody else on the link has too. For IPv4 they are asked for as a host
//! does that wants to take one (RFC 5227, 2.1.1): a probe tells nobody anything and changes no cache. For
//! IPv6 the kernel has asked already.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use compile::host::{Host, Interface};
use rules::net::{Ifindex, Mac};
use sys::frame_socket::{Capture, FrameSocket};
use sys::packet_socket::VNET_HEADER;

/// How long answers are waited for: they come from the same link.
const PATIENCE: Duration = Duration::from_millis(500);
/// Ethernet to all, with ARP in it.
const TO_ALL: [u8; 6] = [0xff; 6];
const ETHERTYPE: [u8; 2] = [0x08, 0x06];
/// Ethernet and IPv4, with addresses of six and four bytes; a request (RFC 826).
const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
/// Where the sender's addresses stand in a frame.
const SENDER_MAC: usize = 22;
const SENDER: usize = 28;
/// The flag of an address that somebody else has (linux/if_addr.h, `IFA_F_DADFAILED`).
const DAD_FAILED: u32 = 0x08;

/// An address, the interface that has it, and who else has it where that is known.
#[derive(Debug)]
pub(crate) struct Duplicate {
    pub(crate) interface: String,
    pub(crate) address: IpAddr,
    pub(crate) other: Option<Mac>,
}

/// Asks on these interfaces. Where frames may not be sent nothing is known of IPv4.
pub(crate) fn ask(host: &Host, interfaces: &BTreeSet<Ifindex>) -> Vec<Duplicate> {
    let own: BTreeSet<Mac> = { host.interfaces.values() }
        .filter_map(|link| link.mac)
        .collect();
    let asked = interfaces
        .iter()
        .filter_map(|index| host.interfaces.get(index));
    let asked: Vec<(&Interface, FrameSocket)> = asked
        .filter(|link| link.up && link.name != "lo")
        .filter_map(|link| Some((link, probe(link)?)))
        .collect();
    let deadline = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    for (link, socket) in asked {
        while let Ok(Some((_, frame))) = socket.receive(deadline) {
            let Some((mac, address)) = sender(&frame).filter(|(mac, _)| !own.contains(mac)) else {
                continue;
            };
            let address = IpAddr::from(address);
            let is_known = |known: &Duplicate| known.address == address;
            if link.addresses.contains(&address) && !found.iter().any(is_known) {
                let (interface, other) = (link.name.clone(), Some(mac));
                found.push(Duplicate {
                    interface,
                    address,
                    other,
                });
            }
        }
    }
    let failed = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    found.extend(failed.lines().filter_map(dad_failed));
    found
}

/// Asks for each address of an interface, twice: one question may be lost.
fn probe(link: &Interface) -> Option<FrameSocket> {
    let mac = link.mac?;
    let socket = FrameSocket::open(link.index.0, Capture::Arp).ok()?;
    let four = link.addresses.iter().filter_map(|address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    for address in four.clone().chain(four) {
        let head = [&TO_ALL, &mac.0, &ETHERTYPE[..], &REQUEST].concat();
        let body = [&mac.0, &[0; 10][..], &address.octets()].concat();
        socket.send([0; VNET_HEADER], &[head, body].concat()).ok()?;
    }
    Some(socket)
}

/// Who says in an ARP frame that an address is theirs.
fn sender(frame: &[u8]) -> Option<(Mac, Ipv4Addr)> {
    let is_arp = frame.get(12..14)? == ETHERTYPE;
    let mac = frame.get(SENDER_MAC..SENDER)?.try_into().ok()?;
    let address: [u8; 4] = frame.get(SENDER..SENDER + 4)?.try_into().ok()?;
    is_arp.then_some((Mac(mac), address.into()))
}

/// A line of `/proc/net/if_inet6`: address, index, prefix, scope, flags, name.
fn dad_failed(line: &str) -> Option<Duplicate> {
    let mut words = line.split_whitespace();
    let address = Ipv6Addr::from_bits(u128::from_str_radix(words.next()?, 16).ok()?);
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    (flags & DAD_FAILED != 0).then_some(Duplicate {
        interface: words.next()?.to_owned(),
        address: address.into(),
        other: None,
    })
}
