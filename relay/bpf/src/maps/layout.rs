//! The Rust mirror of `layout.h`; a test holds it against the object's BTF: names, offsets, sizes.
//!
//! Addresses and ports (`layout.h` says which) are stored in network order, that is, as the bytes of
//! the packet.

mod counts;
mod streams;

use std::net::IpAddr;

pub use counts::*;
pub use streams::*;
pub use sys::memory::Plain;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// An address as maps hold it: IPv4 in the first four bytes.
pub fn address_bytes(address: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes = address.octets(),
    }
    bytes
}

/// Decodes an address.
pub fn address_of(bytes: [u8; 16], is_ipv6: bool) -> IpAddr {
    match bytes {
        [a, b, c, d, ..] if !is_ipv6 => IpAddr::from([a, b, c, d]),
        _ => IpAddr::from(bytes),
    }
}

/// Hash of `layout.h` without its comments, part of the pin directory's name: pins of another layout are
/// never adopted.
pub const HASH: &str = env!("MCR_LAYOUT_HASH");

/// Key of `routes`; source 0 is (*,G).
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes,
)]
pub struct RouteKey {
    /// Interface the packet arrives on.
    pub ifindex: u32,
    /// Group, network order.
    pub group: [u8; 4],
    /// Sender, network order, or zero.
    pub source: [u8; 4],
    /// Destination port, network order.
    pub port: [u8; 2],
    /// Zero.
    pub pad: u16,
}

/// Key of `routes6`; source :: is (*,G).
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes,
)]
pub struct RouteKey6 {
    /// Interface the packet arrives on.
    pub ifindex: u32,
    /// Destination port, network order.
    pub port: [u8; 2],
    /// Zero.
    pub pad: u16,
    /// Group.
    pub group: [u8; 16],
    /// Sender, or zero.
    pub source: [u8; 16],
}

/// Key of `group_routes`: an exact route's key without its ports.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes,
)]
pub struct GroupKey {
    /// Interface the packet arrives on.
    pub ifindex: u32,
    /// Sender, or zero; IPv4 in the first four bytes.
    pub source: [u8; 16],
    /// Group; IPv4 in the first four bytes.
    pub group: [u8; 16],
}

/// Bit in a value of `group_routes`, beside the index in `route_table`: several rules take the group.
pub const GROUP_OF_SEVERAL: u32 = 1 << 31;

/// Key of `ranges`.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes,
)]
pub struct RangeKey {
    /// Leading bits of what follows: 64 and those of the group.
    pub prefix: u32,
    /// Interface the packet arrives on.
    pub ifindex: u32,
    /// 1 for IPv6.
    pub ipv6: u32,
    /// First group; IPv4 in the first four bytes.
    pub group: [u8; 16],
}

/// Value of `ranges`: the slots of its candidates.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Range {
    /// First slot in `candidates`.
    pub first: u32,
    /// Number of slots.
    pub count: u32,
}

/// Slot of `candidates`: a route for a range of groups or ports.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Candidate {
    /// Sender, of which `specific` bits count; IPv4 in the first four bytes.
    pub source: [u8; 16],
    /// Lowest port, host order.
    pub first_port: u16,
    /// Highest port, host order.
    pub last_port: u16,
    /// Index in `route_table`.
    pub route: u32,
    /// Leading bits of `source` that a sender has to have; 0 for any sender.
    pub specific: u32,
    /// Leading bits of the route's own group prefix.
    pub prefix: u32,
}

/// Entry of `route_table`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Route {
    /// See [`Word`].
    pub word: u64,
    /// [`LOOKUP_PLACEHOLDER`] and the three below it.
    pub lookup: u16,
    /// Index of its gate in `gates`; 0 for none. Nothing passes a gate that does not exist.
    pub gate: u16,
    /// Its own index plus one if its packets are inspected; else 0.
    pub health: u32,
}

/// No (*,G) route here: the entry only shows that (S,G) entries exist.
pub const LOOKUP_PLACEHOLDER: u16 = 1;
/// (S,G) entries exist for this interface, group and port.
pub const LOOKUP_SOURCES: u16 = 2;
/// Source-specific ranges cover this interface, group and port.
pub const LOOKUP_RANGES: u16 = 4;
/// Answers to its copies are returned to the packets' senders.
pub const LOOKUP_ANSWERED: u16 = 8;
/// Changes paths: what arrives since the hand-over is the userspace path's.
pub const LOOKUP_LEAVING: u16 = 16;
/// Changes paths: what arrived before the hand-over is the userspace path's.
pub const LOOKUP_COMING: u16 = 32;
/// Mark by which taps recognise a packet sent by a program of this host.
pub const LOOPED_MARK: u32 = 1_296_257_612;

/// Also up the stack if a UDP socket matches.
pub const ROUTE_LOCAL_AUTO: u8 = 1;
/// Always up the stack too.
pub const ROUTE_LOCAL_YES: u8 = 2;
/// The rule has a rate limit.
pub const ROUTE_LIMITED: u8 = 4;
/// The userspace path relays the packet: consume it here and count nothing.
pub const ROUTE_SHADOW: u8 = 8;
/// The rule has several inputs: the word names this one's counter, whose identity names the rule's.
pub const ROUTE_INPUT: u8 = 16;

/// What determines a packet's outputs, changed for every packet at once by one store of [`Route::word`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// First slot in `outputs`, below 2^22.
    pub first: u32,
    /// Number of slots.
    pub count: u16,
    /// The rule's counter, or the input's with [`ROUTE_INPUT`]; below 2^21.
    pub counter: u32,
    /// `ROUTE_*`.
    pub flags: u8,
}

impl Word {
    /// Slots that a word can name.
    pub const SLOT_LIMIT: u32 = 1 << 22;
    /// Counters that a word can name.
    pub const COUNTER_LIMIT: u32 = 1 << 21;

    /// Packs the fields as the program reads them.
    pub const fn pack(self) -> u64 {
        self.first as u64
            | (self.count as u64) << 22
            | (self.counter as u64) << 38
            | (self.flags as u64) << 59
    }

    /// Unpacks what [`Word::pack`] made.
    pub const fn unpack(word: u64) -> Self {
        Self {
            first: word as u32 & (Self::SLOT_LIMIT - 1),
            count: (word >> 22) as u16,
            counter: (word >> 38) as u32 & (Self::COUNTER_LIMIT - 1),
            flags: (word >> 59) as u8,
        }
    }
}

/// Entries of `gates`; the first has no owner.
pub const GATES: u32 = 4096;
/// Bytes of a share's name, the zero behind it included.
pub const SHARE_NAME: usize = 64;

/// Entry of `gates`: until when packets of a share's routes pass.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Gate {
    /// They pass before that time, in nanoseconds by the kernel's own `CLOCK_BOOTTIME`.
    pub until: u64,
    /// The share's name, followed by a zero; only zeros without an owner.
    pub share: [u8; SHARE_NAME],
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            until: 0,
            share: [0; SHARE_NAME],
        }
    }
}

/// Slot of `outputs`; immutable while a live route refers to it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Output {
    /// Interface the copy leaves by.
    pub ifindex: u32,
    /// The output's counter.
    pub counter: u32,
    /// `OUTPUT_*`.
    pub flags: u16,
    /// Drop reason, with [`OUTPUT_DOWN`].
    pub down: u8,
    /// Leading bits of `destination` that replace the packet's.
    pub prefix: u8,
    /// MTU in bytes, saturated.
    pub mtu: u16,
    /// TTL, with [`OUTPUT_TTL_SET`].
    pub ttl: u8,
    /// DSCP in the upper six bits, with [`OUTPUT_DSCP`].
    pub tos: u8,
    /// Ethernet destination and source, with [`OUTPUT_MAC`].
    pub mac: [u8; 12],
    /// Source port, network order, with [`OUTPUT_SPORT`].
    pub sport: [u8; 2],
    /// Destination port in network order; with [`OUTPUT_PORT_DELTA`] a delta in host order.
    pub dport: [u8; 2],
    /// Source address, with [`OUTPUT_SOURCE`]; IPv4 in the first four bytes.
    pub source: [u8; 16],
    /// Destination address; IPv4 in the first four bytes, the mask of its host bits behind it.
    pub destination: [u8; 16],
}

/// Drop every packet under the reason in `down`.
pub const OUTPUT_DOWN: u16 = 1 << 0;
/// The device has Ethernet headers: write `mac`.
pub const OUTPUT_MAC: u16 = 1 << 1;
/// Replace the source address.
pub const OUTPUT_SOURCE: u16 = 1 << 2;
/// Replace the source port.
pub const OUTPUT_SPORT: u16 = 1 << 3;
/// Set the TTL.
pub const OUTPUT_TTL_SET: u16 = 1 << 4;
/// Decrement the TTL, drop at 1.
pub const OUTPUT_TTL_DEC: u16 = 1 << 5;
/// Replace the DSCP.
pub const OUTPUT_DSCP: u16 = 1 << 6;
/// Keep the packet's host bits of the group.
pub const OUTPUT_GROUP_RANGE: u16 = 1 << 7;
/// Add `dport` to the packet's port.
pub const OUTPUT_PORT_DELTA: u16 = 1 << 8;
/// The output has a rate limit.
pub const OUTPUT_LIMITED: u16 = 1 << 9;
/// The budget applies.
pub const OUTPUT_UNICAST: u16 = 1 << 10;
/// With [`OUTPUT_GROUP_RANGE`]: add the packet's port.
pub const OUTPUT_GROUP_OF_PORT: u16 = 1 << 11;
/// With [`OUTPUT_PORT_DELTA`]: to the group's last bits.
pub const OUTPUT_PORT_OF_GROUP: u16 = 1 << 12;
/// Answers to copies are returned to the packet's sender.
pub const OUTPUT_ANSWERS: u16 = 1 << 13;

/// The one entry of `settings`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Settings {
    /// Limit of all unicast outputs together; all zero for none.
    pub budget: Limit,
    /// 4096 bits, one per value of [`Settings::own_bit`].
    pub own_bloom: [u64; 64],
    /// Not zero if there are range routes.
    pub ranges: u64,
    /// Routes for addresses of this host, and those whose copies are answered.
    pub addresses: u64,
    /// Only the latter.
    pub answers: u64,
    /// `CLOCK_REALTIME` less `CLOCK_MONOTONIC`, to compare receive timestamps with.
    pub clock_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

impl Settings {
    /// The bit an address has, as `own_source` in `lookup.h` computes it.
    pub fn own_bit(address: IpAddr) -> u32 {
        let word = |at: &[u8]| u32::from_ne_bytes([at[0], at[1], at[2], at[3]]);
        let mixed = match address {
            IpAddr::V4(address) => word(&address.octets()),
            IpAddr::V6(address) => address
                .octets()
                .chunks_exact(4)
                .fold(0, |sum, chunk| sum ^ word(chunk)),
        };
        mixed.wrapping_mul(0x9e37_79b1) >> 20
    }

    /// Sets the address's bit.
    pub fn insert_own(&mut self, address: IpAddr) {
        let bit = Self::own_bit(address) as usize;
        self.own_bloom[bit / 64] |= 1 << (bit % 64);
    }

    /// Returns whether the address's bit is set.
    #[inline]
    pub fn may_be_own(&self, address: IpAddr) -> bool {
        let bit = Self::own_bit(address) as usize;
        self.own_bloom[bit / 64] & 1 << (bit % 64) != 0
    }
}

/// Entries of `askers`: recorded questions.
pub const ASKERS: u32 = 4096;

/// Key of `own_sources`; IPv4 as `::ffff:a.b.c.d`. The value of an interface is the VRF that it is in.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes,
)]
pub struct Address {
    /// The address's bytes, in network order.
    pub words: [[u8; 4]; 4],
}

impl Address {
    /// The key of an interface that is in a VRF, `OWN_INTERFACES` in `lookup.h`.
    pub fn of_interface(index: u32) -> Self {
        let mut words = [[0; 4]; 4];
        (words[0], words[3]) = ([1, 0, 0, 0], index.to_ne_bytes());
        Self { words }
    }

    /// The key of an address within a VRF, or on an interface; 0 for neither.
    pub fn within(scope: u32, address: IpAddr) -> Self {
        let octets = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let mut words = [[0; 4]; 4];
        words.as_flattened_mut().copy_from_slice(&octets);
        words[0] = (u32::from_ne_bytes(words[0]) ^ scope).to_ne_bytes();
        Self { words }
    }
}
