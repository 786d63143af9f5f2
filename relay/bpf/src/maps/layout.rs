//! The Rust mirror of `layout.h`; a test holds it against the object's BTF: names, offsets, sizes.
//!
//! Addresses and ports (`layout.h` says which) are stored in network order, that is, as the bytes of
//! the packet.

use std::net::{IpAddr, Ipv6Addr};

use packet::latency;
use packet::verdict::DropReason;
pub use sys::memory::Plain;
use zerocopy::{FromBytes, IntoBytes};

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

/// Bit in a value of `group_routes`, beside the index in `route_table`: several rules take it.
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

/// Value of `ranges`: where its candidates lie.
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
    /// Sender, as far as `specific` says; IPv4 in the first four bytes.
    pub source: [u8; 16],
    /// Lowest port, host order.
    pub first_port: u16,
    /// Highest port, host order.
    pub last_port: u16,
    /// Index in `route_table`.
    pub route: u32,
    /// Leading bits of `source` that a sender has to have; 0: any.
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
    /// [`LOOKUP_PLACEHOLDER`], [`LOOKUP_SOURCES`], [`LOOKUP_RANGES`].
    pub lookup: u16,
    /// Index of its gate in `gates`; 0: none. Of one that is not there nothing passes.
    pub gate: u16,
    /// Its own index plus one: its packets are inspected; 0: they are not.
    pub health: u32,
}

/// No (*,G) route here: the entry only says that (S,G) entries exist.
pub const LOOKUP_PLACEHOLDER: u16 = 1;
/// (S,G) entries exist for this interface, group and port.
pub const LOOKUP_SOURCES: u16 = 2;
/// Source-specific ranges cover this interface, group and port.
pub const LOOKUP_RANGES: u16 = 4;

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

/// What one packet obeys, changed for every packet at once by one store of [`Route::word`].
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
    #[must_use]
    pub const fn pack(self) -> u64 {
        self.first as u64
            | (self.count as u64) << 22
            | (self.counter as u64) << 38
            | (self.flags as u64) << 59
    }

    /// Unpacks what [`Word::pack`] made.
    #[must_use]
    pub const fn unpack(word: u64) -> Self {
        Self {
            first: word as u32 & (Self::SLOT_LIMIT - 1),
            count: (word >> 22) as u16,
            counter: (word >> 38) as u32 & (Self::COUNTER_LIMIT - 1),
            flags: (word >> 59) as u8,
        }
    }
}

/// Entries of `gates`, of which the first is nobody's.
pub const GATES: u32 = 4096;
/// Bytes of a share's name, the zero behind it included.
pub const SHARE_NAME: usize = 64;

/// Entry of `gates`: until when packets of a share's routes pass.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Gate {
    /// They pass before that time, in nanoseconds by the kernel's own `CLOCK_BOOTTIME`.
    pub until: u64,
    /// The share's name, a zero behind it; nothing but zeros: it is nobody's.
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
/// Answers to copies go back to who sent the packet.
pub const OUTPUT_ANSWERS: u16 = 1 << 13;

/// Packets and UDP payload bytes, on one CPU or summed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Tally {
    /// Datagrams; segments of a super-packet each count.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
    /// When a packet was counted last, `CLOCK_MONOTONIC` as of the timer tick; 0: none was.
    pub last_ns: u64,
    /// The program's own note: that tick.
    pub tick: u64,
    /// The program's own note: for which sender it last looked for a local socket.
    pub sender: u64,
    /// The program's own note: for which group and port, when, and the answer.
    pub asked: u64,
    /// Of the packets, those sent back to who asked.
    pub answers: u64,
}

impl Tally {
    /// Adds what another CPU counted; the program's notes stay each CPU's own.
    #[must_use]
    pub fn with(self, other: &Self) -> Self {
        Self {
            packets: self.packets.wrapping_add(other.packets),
            bytes: self.bytes.wrapping_add(other.bytes),
            last_ns: self.last_ns.max(other.last_ns),
            answers: self.answers.wrapping_add(other.answers),
            ..self
        }
    }
}

/// Counters in an [`Activity`].
pub const ACTIVITY_TICKS: u32 = 16;

/// Entry of `activity`: when packets were last counted in each of as many counters of rules.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Activity {
    /// The timer tick of the last packet that was the first of its tick on its CPU, lower half; one
    /// that is not as it was says that packets came.
    pub ticks: [u32; ACTIVITY_TICKS as usize],
}

/// Entries of `activity` for so many counters.
#[must_use]
pub const fn activity_entries(counters: u32) -> u32 {
    counters.div_ceil(ACTIVITY_TICKS)
}

/// Key of `flows`: one group and port of a rule's ranges.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes,
)]
pub struct FlowKey {
    /// The rule's counter.
    pub counter: u32,
    /// Destination port, network order.
    pub port: [u8; 2],
    /// 1 if the destination is of IPv6.
    pub ipv6: u16,
    /// Group or address; IPv4 in the first four bytes.
    pub group: [u8; 16],
}

/// Packets and UDP payload bytes of a flow, on one CPU or summed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Flow {
    /// Datagrams; segments of a super-packet each count.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
}

/// Entry of `drops`: packets by [`DropReason`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Drops {
    /// Indexed by reason.
    pub packets: [u64; DropReason::SLOTS],
}

/// Entry of `limits`: a token bucket as `packet::limit` defines it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Limit {
    /// Nanoseconds per token, times 2^20.
    pub per_token: u64,
    /// Nanoseconds in which an empty bucket fills up.
    pub depth_ns: u64,
    /// State: when the bucket will be full again.
    pub due_ns: u64,
    /// 1: a token is a bit of payload; 0: a packet.
    pub bits: u64,
}

/// Inputs that a [`Failover`] decides between.
pub const FAILOVER_LINES: usize = rules::failover::LINES_MAX;

/// Value of `failovers`: [`packet::failover::Failover`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Failover {
    /// Time without a packet of the active leg, in nanoseconds.
    pub silence_ns: u64,
    /// How long a leg before the active one must deliver to take over again; 0: never.
    pub revert_ns: u64,
    /// How many legs there are.
    pub count: u32,
    /// The inputs' counters, the preferred first.
    pub lines: [u32; FAILOVER_LINES],
    /// Zero.
    pub pad: u32,
}

/// Entry of `lines`: [`packet::failover::Line`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Line {
    /// When its last packet came.
    pub last_ns: u64,
    /// When the first since its last silence did.
    pub since_ns: u64,
}

/// Entry of `choices`: [`packet::failover::Choice`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Choice {
    /// Which leg is active, and since when.
    pub active: u64,
    /// Times another took over.
    pub changes: u64,
}

/// Entry of `health`: a [`packet::health::Watch`], by lines of the cache.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Health {
    /// [`packet::health::Content`].
    pub content: u64,
    /// Nanoseconds per tick of the RTP clock, times 2^16.
    pub per_tick: u64,
    /// Arrival of the last packet, `CLOCK_MONOTONIC`; 0: none came.
    pub last_ns: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Longest gap that ended in this epoch.
    pub gap_ns: u64,
    /// RTP packets of the source, each once.
    pub rtp_packets: u64,
    /// The program's: which of the last 64 sequence numbers came.
    pub window: u64,
    /// The program's: arrival that goes with `timestamp`.
    pub rtp_ns: u64,
    /// Interarrival jitter in nanoseconds, times 16.
    pub jitter_ns_16: u64,
    /// The source.
    pub ssrc: u32,
    /// The program's: last RTP timestamp.
    pub timestamp: u32,
    /// The program's: highest sequence number.
    pub highest: u16,
    /// The program's: sequence number that would confirm the candidate.
    pub candidate_next: u16,
    /// Whether a source is followed.
    pub followed: u16,
    /// The program's: whether there is a candidate.
    pub has_candidate: u16,
    /// The program's: source that may take over.
    pub candidate_ssrc: u32,
    /// Payload type of the last packet.
    pub payload_type: u32,
    /// RTP packets that never came.
    pub lost: u64,
    /// RTP packets that came behind a later one.
    pub reordered: u64,
    /// RTP packets that came again.
    pub duplicated: u64,
    /// MPEG-TS packets.
    pub ts_packets: u64,
    /// The program's: the PIDs seen last.
    pub known: [u16; 32],
    /// Longest gap that ended in the epoch before.
    pub gap_before_ns: u64,
    /// Sequences that began anew.
    pub restarts: u64,
    /// Times another source took over.
    pub ssrc_changes: u64,
    /// MPEG-TS packets that do not go on from the last one of their PID.
    pub continuity_errors: u64,
    /// Those marked broken by the sender.
    pub transport_errors: u64,
    /// Those without the sync byte.
    pub sync_errors: u64,
    /// PIDs seen.
    pub pids: u64,
    /// Datagrams that are not of the form looked for.
    pub unrecognised: u64,
}

/// Value of `pids`: a byte for each PID that is not among those seen last.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Pids {
    /// The program's.
    pub state: [u8; 8192],
}

impl Default for Pids {
    fn default() -> Self {
        Self { state: [0; 8192] }
    }
}

/// Value of `past_health`: what was found in packets of a rule's routes that have gone.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct PastHealth {
    /// What only grows, in an order of user space's own.
    pub sums: [u64; 12],
}

/// Value of `latency`: how long a sample of a rule's packets stayed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Latency {
    /// Packets by how long they stayed.
    pub buckets: [u64; latency::BUCKETS],
    /// All times together.
    pub sum_ns: u64,
    /// Packets that came with the kernel's receive timestamp.
    pub stamped: u64,
}

/// Entry of `identities`: whose counter it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Identity {
    /// Hash of the rule's, the input's or the output's identity; zero: nobody's.
    pub hash: [u64; 2],
    /// Packets the per-CPU values stood at when the counter was given out.
    pub packets: u64,
    /// Bytes, likewise.
    pub bytes: u64,
    /// Answers, likewise.
    pub answers: u64,
    /// Of an input's counter: its rule's.
    pub rule: u32,
    /// Of an input's counter: what decides whether its packets pass, `ARBITER_*` or [`merge_arbiter`].
    pub arbiter: u32,
}

/// Bits that say what kind of arbiter it is; 0: none.
pub const ARBITER_KIND: u32 = 0xf;
/// The rule's inputs stand by for each other.
pub const ARBITER_FAILOVER: u32 = 1;
/// The rule's inputs are merged.
pub const ARBITER_MERGE: u32 = 2;
/// Where the leg's place stands then.
pub const ARBITER_LINE_SHIFT: u32 = 4;
/// Where the number of the merge stands, plus one.
pub const ARBITER_MERGE_SHIFT: u32 = 8;

/// What decides about packets of a leg that has place `line` in merge `merge`.
#[must_use]
pub const fn merge_arbiter(merge: u32, line: u32) -> u32 {
    (merge + 1) << ARBITER_MERGE_SHIFT | line << ARBITER_LINE_SHIFT | ARBITER_MERGE
}

/// The merge that an arbiter leads to, if it is one.
#[must_use]
pub const fn merge_of(arbiter: u32) -> Option<u32> {
    match arbiter & ARBITER_KIND {
        ARBITER_MERGE => (arbiter >> ARBITER_MERGE_SHIFT).checked_sub(1),
        _ => None,
    }
}

/// The one entry of `settings`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes)]
pub struct Settings {
    /// Of all unicast outputs together; all zero for none.
    pub budget: Limit,
    /// 4096 bits, one per value of [`Settings::own_bit`].
    pub own_bloom: [u64; 64],
    /// Not zero: there are range routes.
    pub ranges: u64,
    /// Routes for addresses of this host, and those whose copies are answered.
    pub addresses: u64,
    /// The latter alone.
    pub answers: u64,
    /// `CLOCK_REALTIME` less `CLOCK_MONOTONIC`, to compare receive timestamps with.
    pub clock_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            budget: Limit::default(),
            own_bloom: [0; 64],
            ranges: 0,
            addresses: 0,
            answers: 0,
            clock_ns: 0,
        }
    }
}

impl Settings {
    /// The bit an address has, as `own_source` in `lookup.h` computes it.
    #[must_use]
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
}

/// Entries of `askers`: questions that are remembered.
pub const ASKERS: u32 = 4096;

/// Key of `own_sources`; IPv4 as `::ffff:a.b.c.d`.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes,
)]
pub struct Address {
    /// The address's bytes, in network order.
    pub words: [[u8; 4]; 4],
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        let octets = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let mut words = [[0; 4]; 4];
        words.as_flattened_mut().copy_from_slice(&octets);
        Self { words }
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> Self {
        let mut octets = [0; 16];
        octets.copy_from_slice(address.words.as_flattened());
        let address = Ipv6Addr::from(octets);
        address.to_ipv4_mapped().map_or(Self::V6(address), Self::V4)
    }
}
