//! The forwarding table: the rules compiled for this host, as both paths execute them.
//!
//! Invariants, established by `compile` and relied upon by the paths: a key belongs to one rule; a range of
//! an output has the size of its route's range of the same kind, or, if that is a single value, of the
//! other kind (the n-th port goes to the n-th group, the n-th group to the n-th port); a route is executed
//! entirely on one path.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use rules::failover::Failover;
use rules::health::Inspect;
use rules::merge::Merge;
use rules::named::named;
use rules::net::{Ifindex, LOOPBACK_INDEX, Mac, Ports, Prefix};
use serde::{Deserialize, Serialize};

pub use rules::limit::{RateLimit, RateUnit};
pub use rules::path::Path;
pub use rules::rule::{LocalDelivery, Ttl};

/// What the paths execute: every route, and the addresses that indicate a loop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Routes by key. The most specific match wins: (S,G) before (*,G), longer prefix before
    /// shorter, fewer ports before more; for senders, too, the longer prefix.
    pub routes: BTreeMap<RouteKey, Route>,
    /// A packet from one of them is `own_source`.
    pub own_addresses: OwnAddresses,
    /// Cap on what all unicast outputs of one path send together, for each path if both have some.
    pub budget: Option<RateLimit>,
}

impl Table {
    /// The part for packets to a group or address that arrive on an interface.
    pub fn of(&self, ingress: Ifindex, destination: IpAddr) -> Self {
        let takes = |key: &RouteKey| key.ingress == ingress && key.groups.contains(destination);
        let routes = self.routes.iter().filter(|(key, _)| takes(key));
        Self {
            routes: routes.map(|(key, route)| (*key, route.clone())).collect(),
            own_addresses: self.own_addresses.clone(),
            budget: self.budget,
        }
    }
}

/// This host's addresses, and those that outputs of rules with a share set, from which other holders of the
/// share send, too. Each is valid only within its VRF, or on its interface if it is link-local: elsewhere it
/// may be another host's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnAddresses {
    /// The VRF of each interface that is in one.
    pub vrfs: BTreeMap<Ifindex, Ifindex>,
    /// Each address with the VRF that it is in, or, if it is link-local, its interface.
    pub addresses: BTreeSet<(Option<Ifindex>, IpAddr)>,
}

impl OwnAddresses {
    /// Returns whether a packet that arrives by `ingress` is this host's own: it looped, unless it arrives
    /// by the loopback interface.
    pub fn betray(&self, ingress: Ifindex, source: IpAddr) -> bool {
        let key = (self.scope(ingress, source), source);
        self.addresses.contains(&key) && ingress != LOOPBACK_INDEX
    }

    /// The scope of an interface's address: the interface if it is link-local, else the VRF.
    pub fn scope(&self, interface: Ifindex, address: IpAddr) -> Option<Ifindex> {
        let is_link_local = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        if is_link_local {
            Some(interface)
        } else {
            self.vrfs.get(&interface).copied()
        }
    }
}

impl FromIterator<IpAddr> for OwnAddresses {
    /// Addresses of a host without VRFs.
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        Self {
            vrfs: BTreeMap::new(),
            addresses: addresses.into_iter().map(|it| (None, it)).collect(),
        }
    }
}

/// What a packet must match to take a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RouteKey {
    /// Interface the packet arrives on.
    pub ingress: Ifindex,
    /// Destination groups, one or a range; or one address of this host, including broadcast addresses, for
    /// which only frames that are not for another host count.
    pub groups: Prefix,
    /// Destination ports, one or a range.
    pub ports: Ports,
    /// Sender for (S,G), `None` for (*,G); a range only if the destination is not a group.
    pub source: Option<Prefix>,
}

/// The value of a table entry: where its packets go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Name of the rule the route was compiled from. Routes of one rule (several inputs, several
    /// sources) share its counters.
    pub rule: String,
    /// The input it was compiled from, as the rule writes it, if the rule has several: then each input's
    /// packets are counted, too. Routes of one input (several sources, several interfaces) share its
    /// counter. `None` if the rule's own counters suffice.
    pub input: Option<String>,
    /// Where the route executes.
    pub path: Path,
    /// What happens to the packet on this host.
    pub local: LocalDelivery,
    /// Cap on what the rule accepts.
    pub limit: Option<RateLimit>,
    /// Which of the rule's inputs is relayed, the same for all of its routes; `None`: each is.
    pub failover: Option<Box<FailoverLegs>>,
    /// How the rule's inputs become one stream, the same for all of its routes; `None`: each packet is
    /// relayed.
    pub merge: Option<Box<MergeLegs>>,
    /// The share whose gate must be open for the rule's packets, the same for all of its routes; `None`: they
    /// always pass.
    pub share: Option<String>,
    /// What to inspect in each packet's payload; `None`: nothing, not even arrival times.
    pub inspect: Option<Inspect>,
    /// The copies to make, in the order of the rule.
    pub outputs: Vec<Output>,
}

impl Route {
    /// Returns whether answers to its copies are returned to the packets' senders.
    pub fn is_answered(&self) -> bool {
        let mut outputs = self.outputs.iter();
        outputs.any(|output| matches!(&output.state, OutputState::Up(egress) if egress.answers))
    }
}

/// When which of a rule's inputs is relayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailoverLegs {
    /// When another takes over.
    pub when: Failover,
    /// The inputs as [`Route::input`] names them, the preferred first.
    pub lines: Vec<String>,
}

/// How a rule's inputs become one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeLegs {
    /// How copies are recognised, and for how long.
    pub how: Merge,
    /// The inputs as [`Route::input`] names them, in the order of the rule.
    pub lines: Vec<String>,
}

impl FailoverLegs {
    /// Time without a packet of the active leg after which another takes over, in nanoseconds.
    pub fn silence_ns(&self) -> u64 {
        nanoseconds(self.when.silence)
    }

    /// How long a leg preferred to the active one must deliver to take over again, in nanoseconds; 0: never.
    pub fn revert_ns(&self) -> u64 {
        self.when.revert.map_or(0, nanoseconds)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// One copy a route makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Position in the rule's list of outputs; with the rule's name and `to` it identifies the
    /// output's counters.
    pub index: u64,
    /// Destination as the rule writes it, without options.
    pub to: String,
    /// Whether the copy can leave, and how.
    pub state: OutputState,
    /// Cap on what the output sends.
    pub limit: Option<RateLimit>,
}

impl Output {
    /// The bit that marks the index of a copy to one of the addresses of a name.
    const COPY: u64 = 1 << 63;
    /// Bits below the number of the output in such an index.
    const BITS: u32 = 47;

    /// The index of the copy that the rule's output of this number sends to one of its addresses; it is the
    /// same whenever the address returns.
    pub fn copy_index(number: u64, address: &str) -> u64 {
        let hash = address
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
        let folded = (hash ^ hash >> Self::BITS) & ((1 << Self::BITS) - 1);
        Self::COPY | number << Self::BITS | folded
    }

    /// The number in the rule of the output that has this index or sends the copy with it.
    pub const fn number(index: u64) -> u64 {
        match index & Self::COPY {
            0 => index,
            _ => (index & !Self::COPY) >> Self::BITS,
        }
    }
}

/// Whether an output can send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputState {
    /// Ready to send.
    Up(Egress),
    /// Not ready; every packet for it is dropped with the reason of the same name.
    Down(DownReason),
}

named! {
    /// Why an output cannot send.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum DownReason {
        /// No interface of that name exists.
        InterfaceMissing = "interface_missing",
        /// The interface is administratively down or has no carrier.
        InterfaceDown = "interface_down",
        /// The interface has no address of the output's family, which `source=auto` needs; or the name in place
        /// of the destination's address has none.
        NoAddress = "no_address",
        /// No route leads to the unicast destination.
        NoRoute = "no_route",
        /// The unicast next hop has no resolved link-layer address.
        NoNeighbour = "no_neighbour",
        /// Nobody on the interface listens to it (`demand`).
        NotWanted = "not_wanted",
        /// The host's IPsec policies block all of its packets.
        IpsecPolicy = "ipsec_policy",
    }
}

/// Everything needed to rewrite and send one copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Egress {
    /// Interface the copy leaves by.
    pub interface: Ifindex,
    /// Link-layer header to prepend.
    pub link: LinkHeader,
    /// The interface's MTU in bytes, of the IP packet.
    pub mtu: u32,
    /// New destination address, or range that keeps the packet's host bits.
    pub destination: Prefix,
    /// New destination port, or range that keeps the packet's offset into the route's range.
    pub ports: Ports,
    /// New source address; `None` keeps the packet's.
    pub source: Option<IpAddr>,
    /// New source port; `None` keeps the packet's.
    pub source_port: Option<u16>,
    /// What happens to TTL or hop limit.
    pub ttl: Ttl,
    /// New DSCP (0 to 63); `None` keeps the packet's. ECN is always kept.
    pub dscp: Option<u8>,
    /// Whether packets above the MTU are fragmented where DF is clear.
    pub fragment: bool,
    /// Whether packet sockets leave the link header to the kernel.
    pub framed: bool,
    /// Whether answers to the copies, which arrive at this host's address, are returned to the packets'
    /// senders.
    pub answers: bool,
    /// Whether answers that leave by this interface are sent by a socket.
    pub answers_by_socket: bool,
}

/// Link-layer header of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkHeader {
    /// Ethernet to the group's own address.
    Group {
        /// Source address: the egress interface's.
        source: Mac,
    },
    /// Ethernet to a neighbour.
    Neighbour {
        /// Source address: the egress interface's.
        source: Mac,
        /// The next hop's address.
        destination: Mac,
    },
    /// None: the device carries bare IP (tun, some tunnels).
    None,
    /// None, and no device: the host's own IP stack delivers to its sockets, over the loopback
    /// interface.
    Host,
    /// Unknown: the host's own stack finds route and link, as for packets of a socket.
    Routed {
        /// Interface that the route must lead through; `None` if the routing table decides.
        by: Option<Ifindex>,
        /// Whether it also selects the source, which depends on the route.
        finds_source: bool,
    },
}
