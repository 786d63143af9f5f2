//! The type of a case, and functions to write one.
//!
//! Cases name interfaces by symbol ([`INGRESS`], [`A`], [`B`], [`C`]); a lab bed puts its own
//! indexes instead. Addresses and MACs are the same everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use compile::table::{
    DownReason, Egress, LinkHeader, LocalDelivery, Output, OutputState, OwnAddresses, Path,
    RateLimit, Route, RouteKey, Table, Ttl,
};
use packet::craft::{Craft, CraftChecksum, group_mac};
use packet::parse::{ChecksumState, Gso, Link, Meta};
use packet::verdict::{DropReason, Verdict};
use rules::net::{Ifindex, Mac, Ports, Prefix};

/// The interface that packets arrive by.
pub(crate) const INGRESS: Ifindex = Ifindex(5);
/// The first egress.
pub(crate) const A: Ifindex = Ifindex(2);
/// The second egress.
pub(crate) const B: Ifindex = Ifindex(3);
/// The third egress.
pub(crate) const C: Ifindex = Ifindex(4);

/// The group and port every plain case sends to.
pub(crate) const GROUP: &str = "239.1.1.1";
/// Port of the input.
pub(crate) const PORT: u16 = 5001;
/// Name of the rule where a case has only one.
pub(crate) const RULE: &str = "cam1";

/// The share whose gate is open; every other's is shut.
pub(crate) const OPEN: &str = "open";
/// A share whose gate is shut.
pub(crate) const SHUT: &str = "shut";
/// A share whose gate was open until now.
pub(crate) const PAST: &str = "past";

/// One case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub name: &'static str,
    pub routes: Vec<(RouteKey, Route)>,
    pub own_addresses: OwnAddresses,
    /// Cap on what all unicast outputs send together.
    pub budget: Option<RateLimit>,
    /// A UDP socket on the host is bound to the packet's port.
    pub socket_bound: bool,
    pub packet: Packet,
    pub expected: Expected,
}

/// An incoming packet: its bytes and what the kernel reports beside them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub frame: Vec<u8>,
    pub meta: Meta,
}

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub verdict: Verdict,
    /// The rule whose route it took.
    pub rule: Option<String>,
    /// The input it arrived by, of a rule with several.
    pub input: Option<String>,
    pub passed_up: bool,
    /// Counted as received: datagrams and payload bytes.
    pub packets: u64,
    pub bytes: u64,
    /// Datagrams of a forwarded super-packet that the rule's limit drops.
    pub limited: u64,
    /// Per output of the route, by its index.
    pub outputs: BTreeMap<u64, Outlet>,
}

/// What one output did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outlet {
    Sent {
        interface: Ifindex,
        frame: Vec<u8>,
    },
    /// The first datagrams of a super-packet; and the drop reason of the others, where it is the output's.
    First {
        interface: Ifindex,
        frame: Vec<u8>,
        packets: u64,
        bytes: u64,
        rest: Option<DropReason>,
    },
    Dropped(DropReason),
}

impl Case {
    /// A packet that takes the one route of [`RULE`] to `outputs` and is consumed.
    pub(crate) fn relayed<const N: usize>(
        name: &'static str,
        packet: impl Into<Packet>,
        outputs: [(Output, Outlet); N],
    ) -> Self {
        let packet = packet.into();
        let (outputs, outlets): (Vec<_>, Vec<_>) = outputs.into_iter().unzip();
        let expected = Expected {
            verdict: Verdict::Forwarded,
            rule: Some(RULE.into()),
            input: None,
            passed_up: false,
            packets: packet.datagrams(),
            bytes: packet.payload_bytes(),
            limited: 0,
            outputs: (0..).zip(outlets).collect(),
        };
        Self {
            name,
            routes: vec![(key(), route(RULE, outputs))],
            own_addresses: OwnAddresses::default(),
            budget: None,
            socket_bound: false,
            packet,
            expected,
        }
    }

    /// A packet that no rule sees, although one would take it if it were regular.
    pub(crate) fn passed(name: &'static str, packet: impl Into<Packet>) -> Self {
        let mut case = Self::relayed(
            name,
            packet,
            [to(A, Outlet::Dropped(DropReason::Malformed))],
        );
        case.expected = Expected {
            verdict: Verdict::Passed,
            rule: None,
            input: None,
            passed_up: true,
            packets: 0,
            bytes: 0,
            limited: 0,
            outputs: BTreeMap::new(),
        };
        case
    }

    /// A packet that the rule drops for `reason`, counted with `bytes` of payload.
    pub(crate) fn dropped(
        name: &'static str,
        packet: impl Into<Packet>,
        reason: DropReason,
        bytes: u64,
    ) -> Self {
        let mut case = Self::relayed(name, packet, [to(A, Outlet::Dropped(reason))]);
        case.expected.verdict = Verdict::Dropped(reason);
        case.expected.packets = 1;
        case.expected.bytes = bytes;
        case.expected.outputs.clear();
        case
    }

    /// A malformed packet and one from an own address, which no rule relays whatever its other options.
    pub(crate) fn never_relayed([malformed, own]: [&'static str; 2]) -> [Self; 2] {
        let bytes = input().payload.len() as u64;
        let mut frame = input().frame();
        frame[24] ^= 0xff;
        let looped = Craft {
            source: socket("10.0.2.1", 4000),
            ..input()
        };
        let malformed = Self::dropped(malformed, frame, DropReason::Malformed, bytes);
        let mut own = Self::dropped(own, looped, DropReason::OwnSource, bytes);
        own.own_addresses = [address("10.0.2.1")].into_iter().collect();
        [malformed, own]
    }

    /// The table that the case's routes make.
    pub(crate) fn table(&self) -> Table {
        Table {
            routes: self.routes.iter().cloned().collect(),
            own_addresses: self.own_addresses.clone(),
            budget: self.budget,
        }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} bytes ", self.meta, self.frame.len())?;
        let mut head = self.frame.iter().take(100);
        head.try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Packet {
    /// Datagrams in a sound packet.
    pub(crate) fn datagrams(&self) -> u64 {
        let segments = |gso: Gso| self.payload_bytes().div_ceil(u64::from(gso.size)).max(1);
        self.meta.gso.map_or(1, segments)
    }

    /// Payload bytes of a sound packet.
    fn payload_bytes(&self) -> u64 {
        let at = self.udp_offset() + 4;
        let length = self.frame.get(at..at + 2);
        length.map_or(0, |b| {
            u64::from(u16::from_be_bytes([b[0], b[1]]).saturating_sub(8))
        })
    }

    /// Where the UDP header of a sound packet starts.
    pub(crate) fn udp_offset(&self) -> usize {
        let byte = |at: usize| usize::from(self.frame.get(at).copied().unwrap_or(17));
        if byte(14) >> 4 == 4 {
            return 14 + (byte(14) & 0x0f) * 4;
        }
        let (mut next, mut at) = (byte(20), 14 + 40);
        while next != 17 && at < self.frame.len() {
            (next, at) = (byte(at), at + 8 + byte(at + 1) * 8);
        }
        at
    }
}

impl From<Craft> for Packet {
    fn from(craft: Craft) -> Self {
        let checksum = match craft.checksum {
            CraftChecksum::Partial => ChecksumState::Partial,
            _ => ChecksumState::Complete,
        };
        assert_eq!(craft.link, Link::Ethernet, "packets come in by Ethernet");
        Self {
            frame: craft.frame(),
            meta: Meta {
                checksum,
                ..Meta::default()
            },
        }
    }
}

impl From<Vec<u8>> for Packet {
    fn from(frame: Vec<u8>) -> Self {
        Self {
            frame,
            meta: Meta::default(),
        }
    }
}

impl Expected {
    /// Compares with what an executor did.
    pub(crate) fn assert_matches(&self, name: &str, observed: &Self) {
        assert_eq!(observed, self, "case: {name}");
    }
}

/// Removes the padding of a frame.
pub(crate) fn trim(frame: &mut Vec<u8>) {
    let word = |at: usize| match frame.get(at..at + 2) {
        Some([a, b]) => usize::from(u16::from_be_bytes([*a, *b])),
        _ => 0,
    };
    match word(12) {
        0x0800 => frame.truncate((14 + word(16)).max(34)),
        0x86dd => frame.truncate(14 + 40 + word(18)),
        _ => {}
    }
}

/// The datagram every plain case sends: 10.0.0.5:4000 to [`GROUP`]:[`PORT`], 100 bytes.
pub(crate) fn input() -> Craft {
    let payload = (0..100).collect();
    Craft::new(socket("10.0.0.5", 4000), socket(GROUP, PORT), payload)
}

/// A super-packet of ten datagrams of 1,000 bytes, and what it is made from.
pub(crate) fn craft_super_packet() -> (Craft, Packet) {
    let craft = Craft {
        payload: vec![7; 10_000],
        checksum: CraftChecksum::Partial,
        ..input()
    };
    let mut packet = Packet::from(craft.clone());
    packet.meta.gso = Some(Gso { size: 1000 });
    (craft, packet)
}

/// The copy that [`output`]`(interface)` makes of `input`: what follows the IP packet stays behind.
pub(crate) fn copy_of(input: &Craft, interface: Ifindex) -> Craft {
    let destination = SocketAddr::new(egress_group(interface), 6001);
    Craft {
        source: SocketAddr::new(egress_address(interface), input.source.port()),
        destination,
        macs: (group_mac(destination.ip()), egress_mac(interface)),
        padding: 0,
        ..input.clone()
    }
}

/// An output by `interface` with every option at its default, and what it does with a packet.
pub(crate) fn to(interface: Ifindex, outlet: Outlet) -> (Output, Outlet) {
    (output(interface), outlet)
}

/// An output that differs from the default by `change` and sends `copy`.
pub(crate) fn changed(
    interface: Ifindex,
    change: impl FnOnce(&mut Egress),
    copy: Craft,
) -> (Output, Outlet) {
    (with(output(interface), change), sent(interface, copy))
}

/// A plain output by `interface` and the copy it makes of `input`.
pub(crate) fn plain(input: &Craft, interface: Ifindex) -> (Output, Outlet) {
    to(interface, sent(interface, copy_of(input, interface)))
}

pub(crate) fn sent(interface: Ifindex, copy: Craft) -> Outlet {
    Outlet::Sent {
        interface,
        frame: copy.frame(),
    }
}

/// Addresses of this host, each in a VRF or none, of which the ingress may be in one.
pub(crate) fn own_addresses(
    (addresses, ingress): (BTreeSet<(Option<Ifindex>, IpAddr)>, Option<Ifindex>),
) -> OwnAddresses {
    let vrfs = ingress.into_iter().map(|vrf| (INGRESS, vrf)).collect();
    OwnAddresses { vrfs, addresses }
}

/// The key of the plain route: any source.
pub(crate) fn key() -> RouteKey {
    RouteKey {
        ingress: INGRESS,
        groups: Prefix::host(address(GROUP)),
        ports: Ports::single(PORT),
        source: None,
    }
}

/// A route of `rule`; the outputs are numbered in their order.
pub(crate) fn route(rule: &str, outputs: Vec<Output>) -> Route {
    let numbered = (0..).zip(outputs);
    Route {
        rule: rule.into(),
        input: None,
        path: Path::Kernel,
        local: LocalDelivery::Auto,
        limit: None,
        failover: None,
        merge: None,
        share: None,
        inspect: None,
        outputs: numbered
            .map(|(index, output)| Output { index, ..output })
            .collect(),
    }
}

/// A multicast output by `interface`: group 239.10.INDEX.1, port 6001, source the egress address.
pub(crate) fn output(interface: Ifindex) -> Output {
    let group = egress_group(interface);
    Output {
        index: 0,
        to: format!("{group}%egress{interface}:6001"),
        state: OutputState::Up(Egress {
            interface,
            link: LinkHeader::Group {
                source: Mac(egress_mac(interface)),
            },
            mtu: 1500,
            destination: Prefix::host(group),
            ports: Ports::single(6001),
            source: Some(egress_address(interface)),
            source_port: None,
            ttl: Ttl::Keep,
            dscp: None,
            fragment: false,
            framed: false,
            answers: false,
            answers_by_socket: false,
        }),
        limit: None,
    }
}

/// An output that cannot send, and its drop reason.
pub(crate) fn down(reason: DownReason, drop: DropReason) -> (Output, Outlet) {
    let output = Output {
        state: OutputState::Down(reason),
        ..output(A)
    };
    (output, Outlet::Dropped(drop))
}

/// Changes the egress of an output that is up.
pub(crate) fn with(mut output: Output, change: impl FnOnce(&mut Egress)) -> Output {
    if let OutputState::Up(egress) = &mut output.state {
        change(egress);
    }
    output
}

/// The address of an egress interface: 10.0.INDEX.1.
pub(crate) fn egress_address(interface: Ifindex) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, interface.0 as u8, 1))
}

/// The MAC of an egress interface.
pub(crate) fn egress_mac(interface: Ifindex) -> [u8; 6] {
    [2, 0, 0, 0, 0xe, interface.0 as u8]
}

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().expect("a literal address")
}

pub(crate) fn socket(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address(ip), port)
}

fn egress_group(interface: Ifindex) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(239, 10, interface.0 as u8, 1))
}
