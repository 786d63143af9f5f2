//! The taps' classic BPF programs: which packets some route of their interface may want, and which
//! worker they are for. They need no BPF privilege, and decide nothing: the worker checks again.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bpf::layout::LOOPED_MARK;
use packet::classic_bpf::{
    Instruction, MARK, NETWORK, OTHER_HOST, OUTGOING, PACKET_TYPE, Program, WHOLE,
};
use packet::{ethernet, ipv4, ipv6, udp};
use rules::net::Ports;

use super::worker_spec::Listening;

/// Groups compared one by one; beyond, all UDP multicast is let in. A comparison costs about a
/// nanosecond for each packet of the interface.
const MAX_GROUPS: usize = 64;
/// Addresses of this host compared one by one; beyond, all UDP to this host is let in.
const MAX_ADDRESSES: usize = 16;
/// Comparisons for the ports of one address; beyond, all of its ports are let in.
const MAX_PORTS: usize = 32;
const TCP: u32 = 6;
const ICMPV6: u32 = 58;

/// Builds the program that shares packets among workers, by their addresses alone: only a datagram's
/// first fragment has ports, and all packets of a flow have to go to the same worker to keep their order.
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

/// Builds the filter, for packets behind an Ethernet header or any other link header.
#[must_use]
pub(super) fn filter(listening: &Listening, ethernet: bool) -> Vec<Instruction> {
    let ip_offset = if ethernet {
        ethernet::HEADER as u32
    } else {
        NETWORK
    };
    let Listening { groups, addresses } = listening;
    let mut v4: Vec<(u32, u8)> = Vec::new();
    for prefix in groups {
        if let IpAddr::V4(group) = prefix.address {
            v4.push((group.to_bits(), prefix.length));
        }
    }
    let v6_groups = groups.iter().any(|prefix| prefix.address.is_ipv6());
    let (mut v4_addresses, mut v6_addresses) = (Vec::new(), Vec::new());
    for (address, ports) in addresses {
        match address {
            IpAddr::V4(address) => v4_addresses.push((*address, ports)),
            IpAddr::V6(address) => v6_addresses.push((*address, ports)),
        }
    }
    let mut program = Program::new();
    // Before Linux 6.2 a `packet_fanout` group is given what leaves the interface as well, whatever
    // its sockets ask for (PACKET_FANOUT_FLAG_IGNORE_OUTGOING).
    program.load_byte(PACKET_TYPE);
    program.refuse_if(OUTGOING);
    if ethernet {
        when_words(&mut program, 0, &[0x0100_0000, 0, 0], &|program| {
            program.load_word(MARK);
            program.require(LOOPED_MARK);
        });
        take_tagged(&mut program);
    }
    if v6_groups || !v6_addresses.is_empty() {
        program.load_byte(ip_offset);
        program.mask(0xf0);
        program.only_if(0x60, |program| {
            if v6_groups {
                // Extension headers cannot be walked here: all multicast is let in.
                program.load_byte(ip_offset + ipv6::DESTINATION as u32);
                program.take_if(0xff);
            }
            take_ipv6(program, &v6_addresses, ip_offset);
        });
    }
    if v4.is_empty() && v4_addresses.is_empty() {
        return program.finish();
    }
    program.load_byte(ip_offset + ipv4::PROTOCOL as u32);
    program.require(u32::from(udp::PROTOCOL));
    if v4.len() > MAX_GROUPS {
        v4 = vec![(0xe000_0000, 4)];
    }
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
    take_ipv4(&mut program, &v4_addresses, ip_offset);
    program.finish()
}

/// Takes UDP behind a tag within the frame: the kernel has IP there only on a VLAN interface with
/// `reorder_hdr off`.
fn take_tagged(program: &mut Program) {
    program.load_word(12);
    program.mask(0xffff_0000);
    for tag in [ethernet::VLAN, ethernet::VLAN_SERVICE] {
        program.when(u32::from(tag) << 16, |program| {
            program.load_byte(NETWORK + ipv4::PROTOCOL as u32);
            program.take_if(udp::PROTOCOL.into());
            program.load_byte(NETWORK);
            program.mask(0xf0);
            program.take_if(0x60);
            program.refuse();
        });
    }
}

type Wanted<'a, A> = [(A, &'a BTreeSet<Ports>)];

/// Refuses frames for another host; returns whether addresses are compared one by one.
fn takes_each(program: &mut Program, addresses: usize) -> bool {
    if addresses > 0 {
        program.load_byte(PACKET_TYPE);
        program.refuse_if(OTHER_HOST);
    }
    if addresses > MAX_ADDRESSES {
        program.take(WHOLE);
    }
    (1..=MAX_ADDRESSES).contains(&addresses)
}

/// Takes UDP to addresses of this host, in frames that are not for another.
fn take_ipv4(program: &mut Program, addresses: &Wanted<'_, Ipv4Addr>, ip_offset: u32) {
    if !takes_each(program, addresses.len()) {
        return;
    }
    for (address, ports) in addresses {
        program.load_word(ip_offset + ipv4::DESTINATION as u32);
        program.when(address.to_bits(), |program| {
            // With options ports are elsewhere, and fragments have none.
            program.load_byte(ip_offset);
            program.when(0x45, |program| {
                program.load_word(ip_offset + 4);
                program.mask(0x3fff);
                program.when(0, |program| {
                    take_ports(program, ports, ip_offset + ipv4::HEADER as u32);
                });
            });
            program.take(WHOLE);
        });
    }
}

fn take_ipv6(program: &mut Program, addresses: &Wanted<'_, Ipv6Addr>, ip_offset: u32) {
    if !takes_each(program, addresses.len()) {
        return;
    }
    for (address, ports) in addresses {
        let at = ip_offset + ipv6::DESTINATION as u32;
        let words = [96, 64, 32, 0].map(|shift| (address.to_bits() >> shift) as u32);
        when_words(program, at, &words, &|program| {
            program.load_byte(ip_offset + 6);
            program.when(u32::from(udp::PROTOCOL), |program| {
                take_ports(program, ports, ip_offset + ipv6::HEADER as u32);
            });
            // What follows extension headers cannot be determined here.
            program.refuse_if(TCP);
            program.refuse_if(ICMPV6);
            program.take(WHOLE);
        });
    }
}

/// Runs `then` if the words at `at` equal `words`; continues where that does not end the program.
fn when_words(program: &mut Program, at: u32, words: &[u32], then: &dyn Fn(&mut Program)) {
    let Some((word, rest)) = words.split_first() else {
        return then(program);
    };
    program.load_word(at);
    program.when(*word, |program| when_words(program, at + 4, rest, then));
}

/// Takes packets whose UDP header at `udp_at` names one of the ports, refuses all others.
fn take_ports(program: &mut Program, ports: &BTreeSet<Ports>, udp_at: u32) {
    let blocks: Vec<(u16, u16)> = ports.iter().flat_map(|ports| blocks(*ports)).collect();
    if blocks.len() > MAX_PORTS {
        return program.take(WHOLE);
    }
    for (first, mask) in blocks {
        program.load_word(udp_at);
        program.mask(mask.into());
        program.take_if(first.into());
    }
    program.refuse();
}

/// Splits a range of ports into blocks that a mask matches: each with its first port and mask.
fn blocks(ports: Ports) -> Vec<(u16, u16)> {
    let (mut first, end) = (u32::from(ports.first), u32::from(ports.last) + 1);
    let mut blocks = Vec::new();
    while first < end {
        let aligned = 1 << first.trailing_zeros().min(16);
        let fitting = 1 << (end - first).ilog2();
        let size: u32 = u32::min(aligned, fitting);
        blocks.push((first as u16, (0xffff - (size - 1)) as u16));
        first += size;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use rules::net::Prefix;

    use super::*;

    fn is_in(port: u16, ports: Ports) -> bool {
        let mut blocks = blocks(ports).into_iter();
        blocks.any(|(first, mask)| port & mask == first)
    }

    #[test]
    fn blocks_hold_the_ports_of_a_range_and_no_others() {
        for (first, last) in [
            (1, 1),
            (7000, 7255),
            (5001, 5150),
            (1, 65535),
            (65535, 65535),
        ] {
            let ports = Ports { first, last };
            let all = (0..=u16::MAX).all(|port| is_in(port, ports) == ports.contains(port));
            assert!(all, "{ports}: {:?}", blocks(ports));
        }
        assert_eq!(
            blocks(Ports {
                first: 7168,
                last: 7423
            }),
            [(7168, 0xff00)]
        );
    }

    #[test]
    fn the_longest_filter_is_one_that_the_kernel_takes() {
        let odd = (1..=16).map(|port| Ports::single(port * 4000));
        let ports: BTreeSet<Ports> = odd.collect();
        let own = |n: u32| {
            let v4 = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n));
            let v6 = IpAddr::V6(Ipv6Addr::from_bits(u128::from(n) + 1));
            [(v4, ports.clone()), (v6, ports.clone())]
        };
        let group = |n: u32| Prefix::host(IpAddr::V4(Ipv4Addr::from_bits(0xef01_0000 + n)));
        let listening = Listening {
            groups: (0..64).map(group).collect(),
            addresses: (0..MAX_ADDRESSES as u32).flat_map(own).collect(),
        };
        // BPF_MAXINSNS in linux/bpf_common.h.
        assert!(filter(&listening, true).len() <= 4096);
    }
}
