//! The tap's classic BPF filter: only packets that some route of its interface may want are copied
//! to a worker. It needs no BPF privilege, and decides nothing: the worker looks again.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::net::Prefix;
use sys::packet_socket::{Filter, instruction};

/// Groups compared one by one; beyond, all UDP multicast is let in. A comparison costs about a
/// nanosecond for each packet of the interface.
const MAX_GROUPS: usize = 64;

const LOAD_WORD: u16 = 0x20;
const LOAD_BYTE: u16 = 0x30;
const AND: u16 = 0x54;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// More than any packet has.
const WHOLE: u32 = 0x4_0000;

/// Builds the filter for packets whose IP header starts at `ip_offset`.
#[must_use]
pub(super) fn filter(groups: &BTreeSet<Prefix>, ip_offset: u32) -> Filter {
    let v4: Vec<_> = groups
        .iter()
        .filter_map(|prefix| match prefix.address {
            IpAddr::V4(group) => Some((group.to_bits(), prefix.length)),
            IpAddr::V6(_) => None,
        })
        .collect();
    let v6 = groups.iter().any(|prefix| prefix.address.is_ipv6());
    let mut filter = Filter::new();
    if v6 {
        // IPv6 extension headers cannot be walked here: multicast is enough to be looked at.
        version(&mut filter, ip_offset, 6);
        filter.push(instruction(LOAD_BYTE, 0, 0, ip_offset + 24));
        accept_if(&mut filter, 0xff);
        filter.push(instruction(RETURN, 0, 0, 0));
    }
    if v4.is_empty() {
        filter.push(instruction(RETURN, 0, 0, 0));
        return filter;
    }
    filter.push(instruction(LOAD_BYTE, 0, 0, ip_offset + 9));
    filter.push(instruction(JUMP_EQUAL, 1, 0, 17));
    filter.push(instruction(RETURN, 0, 0, 0));
    let v4 = if v4.len() > MAX_GROUPS {
        vec![(0xe000_0000, 4)]
    } else {
        v4
    };
    let mut loaded = false;
    for (group, length) in v4 {
        if !loaded {
            filter.push(instruction(LOAD_WORD, 0, 0, ip_offset + 16));
        }
        loaded = length >= 32;
        if !loaded {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            filter.push(instruction(AND, 0, 0, mask));
        }
        accept_if(&mut filter, group);
    }
    filter.push(instruction(RETURN, 0, 0, 0));
    filter
}

/// Skips the next four instructions unless the packet is of the IP version.
fn version(filter: &mut Filter, ip_offset: u32, version: u32) {
    filter.push(instruction(LOAD_BYTE, 0, 0, ip_offset));
    filter.push(instruction(AND, 0, 0, 0xf0));
    filter.push(instruction(JUMP_EQUAL, 0, 4, version << 4));
}

fn accept_if(filter: &mut Filter, value: u32) {
    filter.push(instruction(JUMP_EQUAL, 0, 1, value));
    filter.push(instruction(RETURN, 0, 0, WHOLE));
}
