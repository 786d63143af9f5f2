//! How bridges of this host deal with multicast, and who has joined what behind them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use compile::host::Host;
use rtnetlink::packet_route::link::{
    BridgeQuerierState, InfoBridge, InfoData, LinkAttribute, LinkInfo, LinkMessage,
};
use rules::net::Ifindex;
use sys::netlink::{Attribute, DUMP, Protocol, Request, nested};

/// How a bridge deals with multicast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Whether it sends a group to those ports alone that joined it.
    pub snoops: bool,
    /// Whether it asks for members itself.
    pub asks: bool,
    /// Addresses of another querier, by IGMP and by MLD.
    pub hears: (Option<Ipv4Addr>, Option<Ipv6Addr>),
}

impl Bridge {
    /// Of a link; `None` of one that is no bridge.
    #[must_use]
    pub fn of(message: &LinkMessage) -> Option<Self> {
        let infos = first!(message.attributes, LinkAttribute::LinkInfo(infos) => infos)?;
        let data = first!(infos, LinkInfo::Data(InfoData::Bridge(data)) => data)?;
        let mut bridge = Self::default();
        for attribute in data {
            match attribute {
                InfoBridge::MulticastSnooping(on) => bridge.snoops = *on,
                InfoBridge::MulticastQuerier(on) => bridge.asks = *on,
                // The bridge's own queries are listed too, but without the other's timer.
                InfoBridge::MulticastQuerierState(state) => {
                    use BridgeQuerierState as State;
                    let four = first!(state, State::Ipv4Address(address) => *address);
                    let six = first!(state, State::Ipv6Address(address) => *address);
                    let four =
                        four.filter(|_| first!(state, State::Ipv4OtherTimer(_) => ()).is_some());
                    let six =
                        six.filter(|_| first!(state, State::Ipv6OtherTimer(_) => ()).is_some());
                    bridge.hears = (four, six);
                }
                _ => {}
            }
        }
        Some(bridge)
    }

    /// Whether nothing of a family goes to ports that did not join it: without a querier all of it does
    /// (`br_multicast_querier_exists`).
    #[must_use]
    pub const fn prunes(&self, ipv4: bool) -> bool {
        let is_asked = if ipv4 {
            self.hears.0.is_some()
        } else {
            self.hears.1.is_some()
        };
        self.snoops && (self.asks || is_asked)
    }
}

/// Who has joined what behind the bridges of this host.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// By port.
    groups: BTreeSet<(Ifindex, IpAddr)>,
    /// Ports with a router behind them: those get every group.
    routers: BTreeSet<Ifindex>,
}

impl Members {
    /// Reads them; `None` where the kernel has no list.
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

/// A `struct br_mdb_entry`: port, state, flags, VLAN, group, and of which protocol that is.
fn member(bytes: &[u8]) -> Option<(Ifindex, IpAddr)> {
    let group = bytes.get(8..24)?;
    let group = match bytes.get(24..26)? {
        [0x08, 0x00] => IpAddr::from(*group.first_chunk::<4>()?),
        [0x86, 0xdd] => IpAddr::from(*group.first_chunk::<16>()?),
        _ => return None,
    };
    Some((port(bytes)?, group))
}
