//! The taps' classic BPF programs: which packets some route of their interface may want, and which
//! worker they are for. They need no BPF privilege, and decide nothing: the worker looks again.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::net::Prefix;
use packet::classic_bpf::{Instruction, NETWORK, OUTGOING, PACKET_TYPE, Program};
use packet::{ipv4, ipv6, udp};

/// Groups compared one by one; beyond, all UDP multicast is let in. A comparison costs about a
/// nanosecond for each packet of the interface.
const MAX_GROUPS: usize = 64;

/// Builds the program that shares packets among workers, by their addresses alone: only a datagram's
/// first fragment has ports, and all packets of a flow have to go the same way to keep their order.
#[must_use]
pub(super) fn share() -> Vec<Instruction> {
    let words = |offset: usize, bytes: usize| {
        let words = (offset..offset + bytes).step_by(4);
        words.map(|at| NETWORK.wrapping_add(at as u32))
    };
    let mut program = Program::new();
    program.load_byte(NETWORK);
    program.mask(0xf0);
    program.only_if(0x60, |program| program.hash(words(ipv6::SOURCE, 32)));
    program.hash(words(ipv4::SOURCE, 8));
    program.finish()
}

/// Builds the filter for packets whose IP header starts at `ip_offset`.
#[must_use]
pub(super) fn filter(groups: &BTreeSet<Prefix>, ip_offset: u32) -> Vec<Instruction> {
    let v4: Vec<_> = groups
        .iter()
        .filter_map(|prefix| match prefix.address {
            IpAddr::V4(group) => Some((group.to_bits(), prefix.length)),
            IpAddr::V6(_) => None,
        })
        .collect();
    let v6 = groups.iter().any(|prefix| prefix.address.is_ipv6());
    let mut program = Program::new();
    // Before Linux 6.2 a `packet_fanout` group is given what leaves the interface as well, whatever
    // its sockets ask for (PACKET_FANOUT_FLAG_IGNORE_OUTGOING).
    program.load_byte(PACKET_TYPE);
    program.refuse_if(OUTGOING);
    if v6 {
        // IPv6 extension headers cannot be walked here: multicast is enough to be looked at.
        program.load_byte(ip_offset);
        program.mask(0xf0);
        program.only_if(0x60, |program| {
            program.load_byte(ip_offset + ipv6::DESTINATION as u32);
            program.take_if(0xff);
        });
    }
    if v4.is_empty() {
        return program.finish();
    }
    program.load_byte(ip_offset + ipv4::PROTOCOL as u32);
    program.require(u32::from(udp::PROTOCOL));
    let v4 = if v4.len() > MAX_GROUPS {
        vec![(0xe000_0000, 4)]
    } else {
        v4
    };
    let mut loaded = false;
    for (group, length) in v4 {
        if !loaded {
            program.load_word(ip_offset + ipv4::DESTINATION as u32);
        }
        loaded = length >= 32;
        if !loaded {
            program.mask(u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0));
        }
        program.take_if(group);
    }
    program.finish()
}
