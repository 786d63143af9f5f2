//! The host as the daemon sees it: links, addresses, routes and neighbours, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use config::Tunnel;
use rules::host_name::HostName;
use rules::net::{Ifindex, Mac, Ports};
use rules::rule::SourceChoice;
use serde::{Deserialize, Serialize};

pub use rules::host_name::Destination;
pub use rules::net::LOOPBACK;

use crate::ipsec::Policies;

/// A snapshot of the network namespace the daemon runs in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Interfaces by index.
    pub interfaces: BTreeMap<Ifindex, Interface>,
    /// Next hops of the destinations that rules name, looked up by the daemon.
    pub next_hops: BTreeMap<NextHopQuery, NextHop>,
    /// The addresses of the names that outputs have in place of addresses; a name that is absent has not been
    /// looked up yet.
    pub names: BTreeMap<HostName, Named>,
    /// All addresses of names whose outputs go to all of them.
    pub all: BTreeMap<Destination, Addresses>,
    /// The kernel's multicast routing.
    pub multicast_routing: MulticastRouting,
    /// Interfaces that the settings make tunnels of, by name.
    pub tunnels: BTreeMap<String, HostTunnel>,
    /// IPsec policies on outgoing packets.
    pub policies: Arc<Policies>,
    /// Who else sees, takes or filters packets of an interface: programs and filters at its ingress,
    /// devices stacked on it.
    pub other_users: BTreeMap<Ifindex, Vec<String>>,
}

/// Groups and interfaces of the kernel's multicast routing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MulticastRouting {
    /// Groups that it forwards, with their input interface.
    pub routes: BTreeSet<(Ifindex, IpAddr)>,
    /// Interfaces that it routes from, for IPv4 (true) or IPv6: a group's route is created when its first
    /// packet arrives.
    pub inputs: BTreeSet<(bool, Ifindex)>,
}

/// A tunnel of the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTunnel {
    /// The tunnel as configured.
    pub tunnel: Tunnel,
    /// Why the tunnel does not exist; another interface of its name is not used.
    pub refused: Option<String>,
}

impl Host {
    /// The address of a destination, if it is or has one.
    pub fn address(&self, destination: &Destination) -> Option<IpAddr> {
        match destination {
            Destination::Address(address) => Some(*address),
            Destination::Name { name, ipv4 } => self.names.get(name)?.address(*ipv4),
            Destination::All { .. } => None,
        }
    }

    /// The names of the interfaces.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.interfaces.values().map(|link| link.name.as_str())
    }

    /// Finds an interface by name.
    pub fn by_name(&self, name: &str) -> Option<&Interface> {
        self.interfaces
            .values()
            .find(|interface| interface.is_named(name))
    }
}

/// One network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Kernel index.
    pub index: Ifindex,
    /// Name, at most 15 bytes.
    pub name: String,
    /// Its alternative names.
    #[serde(default)]
    pub alternatives: Vec<String>,
    /// Administratively up and, if the driver reports it, with carrier.
    pub up: bool,
    /// Whether it is administratively up without carrier.
    #[serde(default)]
    pub no_carrier: bool,
    /// MTU in bytes.
    pub mtu: u32,
    /// Ethernet address; `None` for devices without a link-layer header (tun, some tunnels).
    pub mac: Option<Mac>,
    /// Addresses, in the kernel's order.
    pub addresses: Vec<IpAddr>,
    /// The broadcast addresses of its networks.
    #[serde(default)]
    pub broadcasts: Vec<Ipv4Addr>,
    /// Whether it chains received datagrams (`rx-gro-list`) so that only the first of a chain would be
    /// rewritten.
    #[serde(default)]
    pub gro_list: bool,
    /// Whether IPv6 is turned off on it (`disable_ipv6`), so that no IPv6 group can be joined there.
    #[serde(default)]
    pub no_ipv6: bool,
    /// Who else gets its incoming packets: the device that it is a port of, macvlans on it.
    #[serde(default)]
    pub shared_with: Vec<String>,
    /// The interface that receives its packets too: the bridge or bond that it is a port of, or the one that it
    /// is a macvlan on.
    #[serde(default)]
    pub doubled_by: Option<Ifindex>,
    /// Whether it is a link of a bond, of which several may receive the same packet.
    #[serde(default)]
    pub bonded: bool,
    /// The VRF that it is a port of; for a VRF, itself.
    #[serde(default)]
    pub vrf: Option<Ifindex>,
    /// Who can write the link header of outgoing packets.
    #[serde(default)]
    pub framing: Framing,
    /// Whom packets reach that it sends.
    #[serde(default)]
    pub reach: Reach,
    /// Whether something precedes IP in its incoming packets that the kernel path does not parse: a link
    /// header of its own, a tag within the frame.
    #[serde(default)]
    pub veiled: bool,
}

/// Who can write the link header of packets that leave by an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Framing {
    /// Both paths: it is an Ethernet header, or there is none.
    #[default]
    Plain,
    /// The same, but packet sockets have to leave it to the kernel, which expects another length of them
    /// (PPP; a VLAN on a card that inserts no tags).
    Kernel,
    /// The host's own stack alone.
    Stack,
}

/// Whom packets reach that an interface sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reach {
    /// All that they are addressed to.
    #[default]
    All,
    /// No groups: it is a tunnel without a remote.
    NoRemote,
    /// No groups: it is an ipvlan that routes.
    NoGroups,
    /// Nobody: it is a tunnel whose packets must carry its remote.
    External,
    /// Nobody: it carries no IP.
    NoIp,
    /// Nobody: it is a bridge without a port.
    NoPorts,
    /// Nobody: a bridge, of which it may be a VLAN, has no port that is up in its VLAN.
    NoVlan,
    /// Nobody: it is an ifb.
    Returns,
}

impl Reach {
    /// Why no packet leaves, to groups and broadcasts or to a single host.
    pub fn obstacle(self, name: &str, to_many: bool) -> Option<String> {
        match self {
            Self::NoRemote if to_many => Some(format!(
                "tunnel {name} has no remote, so nothing says where groups go; give it one, or, if it is a \
                 vxlan, `bridge fdb append 00:00:00:00:00:00 dev {name} dst ADDRESS`"
            )),
            Self::NoGroups if to_many => Some(format!(
                "{name} is an ipvlan that routes, which drops groups; make it one of mode l2"
            )),
            Self::External => Some(format!(
                "tunnel {name} sends only what brings its remote with it (external), as no copy does; name a \
                 tunnel that has a remote"
            )),
            Self::NoIp => Some(format!("{name} carries no IP packets")),
            Self::NoPorts => Some(format!(
                "bridge {name} has no port, so nothing leaves by it; `ip link set IFACE master {name}`"
            )),
            Self::NoVlan => Some(format!(
                "nothing leaves by {name}: its bridge and a port of that which is up must be in its VLAN; \
                 `bridge vlan show` lists them, `bridge vlan add vid VID dev PORT` and `… dev BRIDGE self` add to \
                 them"
            )),
            Self::Returns => Some(format!(
                "{name} is an ifb: it hands back what tc redirects to it, drops all else and receives \
                 nothing; name the interface that is meant"
            )),
            Self::All | Self::NoRemote | Self::NoGroups => None,
        }
    }

    /// Returns whether it never receives anything that a rule could relay.
    pub fn has_no_input(self) -> bool {
        matches!(self, Self::NoIp | Self::Returns)
    }
}

impl Interface {
    /// Returns whether `name` is one of its names.
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.alternatives.iter().any(|other| other == name)
    }

    /// Returns whether an address is a broadcast address of its networks.
    pub fn is_broadcast(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(address) if self.broadcasts.contains(&address))
    }

    /// Returns whether it is a VRF.
    pub fn is_vrf(&self) -> bool {
        self.vrf == Some(self.index)
    }

    /// The address that `source=auto` uses if the routing table names none: the first one of the same
    /// family as `peer`; for IPv6, a link-local one towards a destination of the link's scope or below, and
    /// only there (RFC 6724 section 5, rule 2).
    pub fn primary_address(&self, peer: IpAddr) -> Option<IpAddr> {
        let has_family = |address: &&IpAddr| address.is_ipv4() == peer.is_ipv4();
        let is_suitable = |address: &&IpAddr| scope_matches(**address, peer);
        let candidates = self.addresses.iter().filter(has_family);
        candidates
            .clone()
            .find(is_suitable)
            .or_else(|| candidates.clone().next())
            .copied()
    }
}

fn scope_matches(address: IpAddr, peer: IpAddr) -> bool {
    match (address, peer) {
        (IpAddr::V6(address), IpAddr::V6(peer)) => {
            let [first, ..] = peer.segments();
            let near_group = first >> 8 == 0xff && first & 0xf <= 2;
            address.is_unicast_link_local() == (peer.is_unicast_link_local() || near_group)
        }
        _ => true,
    }
}

/// A query to the routing table for a destination, as an output names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHopQuery {
    /// Destination.
    pub destination: Destination,
    /// Interface the output names, `None` if the routing table decides.
    pub interface: Option<String>,
    /// What else routing may depend on.
    pub packet: PacketQuery,
}

impl NextHopQuery {
    /// The query for each of the addresses of its name.
    pub fn each(&self, addresses: &[(IpAddr, Option<u16>)]) -> impl Iterator<Item = Self> {
        addresses.iter().map(|(address, port)| {
            let mut query = self.clone();
            query.destination = Destination::Address(*address);
            query.packet.ports = port.map(Ports::single).or(query.packet.ports);
            query
        })
    }
}

/// The fields of packets beside their destination, as far as they are known before they arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketQuery {
    /// Source.
    pub source: SourceChoice,
    /// Source port; `None` if each packet keeps its own.
    pub source_port: Option<u16>,
    /// Destination ports; `None` if they are unknown.
    pub ports: Option<Ports>,
    /// DSCP; `None` if each packet keeps its own.
    pub dscp: Option<u8>,
}

/// What a route needs beyond a device and a neighbour, which only the host's own stack can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detour {
    /// It encapsulates (MPLS, segment routing).
    Encapsulated,
    /// It leads into a VRF.
    Vrf,
    /// The route depends on fields that each packet keeps.
    ByPacket,
}

impl fmt::Display for Detour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Encapsulated => "its route encapsulates",
            Self::Vrf => "its route leads into a VRF",
            Self::ByPacket => "its route goes by what it keeps of each packet",
        })
    }
}

/// The result of resolving a name: for each family the address in use, which stays as long as answers
/// contain it, and after lookups fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Why the last lookup failed.
    pub problem: Option<String>,
}

/// All addresses of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The addresses in use, with their ports for a service.
    pub used: Vec<(IpAddr, Option<u16>)>,
    /// How many addresses exceed the output's maximum.
    pub left_out: usize,
    /// Why the last lookup failed, or which part of its answer is refused; valid addresses stay in use.
    pub problem: Option<String>,
}

impl Named {
    /// The address of a family.
    pub fn address(&self, ipv4: bool) -> Option<IpAddr> {
        if ipv4 {
            self.ipv4.map(IpAddr::V4)
        } else {
            self.ipv6.map(IpAddr::V6)
        }
    }
}

impl NextHop {
    /// The address that a socket would send from.
    pub const fn source(&self) -> Option<IpAddr> {
        match self {
            Self::NoRoute(_) => None,
            Self::Here { source, .. }
            | Self::Unresolved { source, .. }
            | Self::Routed { source, .. }
            | Self::Resolved { source, .. } => *source,
        }
    }
}

/// How a destination is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// No route leads there; with the type of the route that rejects packets, if there is one, such as
    /// `blackhole`.
    NoRoute(Option<&'static str>),
    /// This host itself: an address of its own, or one that a route makes local.
    Here {
        /// Interface of the route: the loopback interface, or a VRF.
        interface: Ifindex,
        /// The address that a socket here would send from.
        source: Option<IpAddr>,
    },
    /// A route leads through `interface`; the neighbour's link-layer address is unknown.
    Unresolved {
        /// Interface of the route.
        interface: Ifindex,
        /// The gateway, or the destination itself when on-link.
        via: IpAddr,
        /// Whether the kernel has given up on an answer; otherwise it is still trying.
        silent: bool,
        /// The address that a socket would send from.
        source: Option<IpAddr>,
    },
    /// A route leads through `interface` and needs more than sending there.
    Routed {
        /// Interface of the route.
        interface: Ifindex,
        /// The address that a socket would send from.
        source: Option<IpAddr>,
        /// What it needs.
        why: Detour,
    },
    /// Ready: `mac` is `None` on devices without a link-layer header.
    Resolved {
        /// Interface of the route.
        interface: Ifindex,
        /// The gateway, or the destination itself when on-link.
        via: IpAddr,
        /// The next hop's Ethernet address.
        mac: Option<Mac>,
        /// The address that a socket would send from.
        source: Option<IpAddr>,
        /// The MTU that the route sets.
        mtu: Option<u32>,
    },
}
