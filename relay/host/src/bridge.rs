//! How bridges of this host treat multicast, and who has joined which groups behind them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use compile::host::Host;
use rtnetlink::packet_route::link::{
    BridgeQuerierState, InfoBridge, InfoData, LinkAttribute, LinkInfo, LinkMessage,
};
use rules::net::Ifindex;
use sys::netlink::{Attribute, DUMP, Protocol, Request, nested};

/// How a bridge treats multicast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Whether it sends a group only to ports that joined it.
    pub snoops: bool,
    /// Whether it is a querier itself.
    pub asks: bool,
    /// Whether it keeps VLANs apart.
    pub by_vlan: bool,
    /// Addresses of another querier, for IGMP and MLD.
    pub hears: (Option<Ipv4Addr>, Option<Ipv6Addr>),
}

impl Bridge {
    /// Reads it from a link; `None` if that is no bridge.
    #[must_use]
    pub fn of(message: &LinkMessage) -> Option<Self> {
        let infos = first!(message.attributes, LinkAttribute::LinkInfo(infos) => infos)?;
        let data = first!(infos, LinkInfo::Data(InfoData::Bridge(data)) => data)?;
        let mut bridge = Self::default();
        for attribute in data {
            match attribute {
                InfoBridge::MulticastSnooping(on) => bridge.snoops = *on,
                InfoBridge::MulticastQuerier(on) => bridge.asks = *on,
                InfoBridge::VlanFiltering(on) => bridge.by_vlan = *on,
                // The bridge's own queries are listed too, but without the timer of another querier.
                InfoBridge::MulticastQuerierState(state) => {
                    use BridgeQuerierState as State;
                    let ipv4 = first!(state, State::Ipv4Address(address) => *address);
                    let ipv6 = first!(state, State::Ipv6Address(address) => *address);
                    let is_other_ipv4 = first!(state, State::Ipv4OtherTimer(_) => ()).is_some();
                    let is_other_ipv6 = first!(state, State::Ipv6OtherTimer(_) => ()).is_some();
                    bridge.hears = (
                        ipv4.filter(|_| is_other_ipv4),
                        ipv6.filter(|_| is_other_ipv6),
                    );
                }
                _ => {}
            }
        }
        Some(bridge)
    }

    /// Whether groups of a family are withheld from ports that did not join them: without a querier they are
    /// flooded (`br_multicast_querier_exists`).
    #[must_use]
    pub const fn prunes(&self, ipv4: bool) -> bool {
        let has_querier = if ipv4 {
            self.hears.0.is_some()
        } else {
            self.hears.1.is_some()
        };
        self.snoops && (self.asks || has_querier)
    }
}

/// Memberships behind the bridges of this host.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// Joined groups by port.
    groups: BTreeSet<(Ifindex, IpAddr)>,
    /// Ports with a router behind them, which get every group.
    routers: BTreeSet<Ifindex>,
}

impl Members {
    /// Reads them; `None` if the kernel has no such list.
    #[must_use]
    pub fn read() -> Option<Self> {
        /// `RTM_GETMDB`, and the parts of its answers (linux/rtnetlink.h, linux/if_bridge.h).
        const GET: u16 = 86;
        const LIST: u16 = 1;
        const ROUTERS: u16 = 2;
        const ENTRY: u16 = 1;
        /// `struct br_port_msg`, of `AF_BRIDGE`.
        const HEAD: [u8; 8] = [7, 0, 0, 0, 0, 0, 0, 0];
        let answers = Request::new(GET, DUMP, &HEAD)
            .exchange(Protocol::NetlinkRoute)
            .ok()?;
        let within = |of: &Attribute, kind: u16| {
            let all = nested(&of.value).into_iter();
            all.filter(move |one| one.kind == kind)
        };
        let mut members = Self::default();
        for part in answers.iter().flatten() {
            for entry in within(part, ENTRY) {
                match part.kind {
                    ROUTERS => members.routers.extend(port(&entry.value)),
                    LIST => members
                        .groups
                        .extend(within(&entry, ENTRY).filter_map(|of| member(&of.value))),
                    _ => {}
                }
            }
        }
        Some(members)
    }

    /// Whether packets to a group that leave by a bridge reach any of its ports.
    #[must_use]
    pub fn has(&self, bridge: Ifindex, group: IpAddr, host: &Host) -> bool {
        let is_port = |port: Ifindex| {
            let link = host.interfaces.get(&port);
            link.is_some_and(|link| link.doubled_by == Some(bridge))
        };
        self.routers.iter().any(|port| is_port(*port))
            || self
                .groups
                .iter()
                .any(|(port, joined)| *joined == group && is_port(*port))
    }
}

fn port(bytes: &[u8]) -> Option<Ifindex> {
    Some(Ifindex(u32::from_ne_bytes(*bytes.first_chunk()?)))
}

/// Parses a `struct br_mdb_entry`: port, state, flags, VLAN, group and its protocol.
fn member(bytes: &[u8]) -> Option<(Ifindex, IpAddr)> {
    let address = bytes.get(8..24)?;
    let group = match bytes.get(24..26)? {
        [0x08, 0x00] => IpAddr::from(*address.first_chunk::<4>()?),
        [0x86, 0xdd] => IpAddr::from(*address.first_chunk::<16>()?),
        _ => return None,
    };
    Some((port(bytes)?, group))
}
