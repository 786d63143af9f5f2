//! Links of this network namespace, through netlink, with what the checks want to know of them.

use std::net::IpAddr;

use futures::TryStreamExt;
use model::host::Interface;
use model::net::{Ifindex, Mac};
use rtnetlink::Handle;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    BridgeQuerierState, InfoBridge, InfoData, InfoKind, LinkAttribute, LinkFlags, LinkInfo,
    LinkLayerType, LinkMessage, LinkXdp, XdpAttached,
};
use sys::ethtool::Switch;

use super::route::Error;

/// A link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// `veth`, `bridge`, …; empty for hardware.
    pub(crate) kind: String,
    /// Administratively up.
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    /// Whether the link carries multicast at all (`ip link set multicast on`).
    pub(crate) multicast: bool,
    pub(crate) mtu: u32,
    /// The bridge, bond or VRF above it.
    pub(crate) master: Option<u32>,
    pub(crate) mac: Option<Mac>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) bridge: Option<Bridge>,
    /// An XDP program is attached; its number.
    pub(crate) xdp: Option<u32>,
    /// A clsact or ingress qdisc is attached.
    pub(crate) clsact: bool,
}

/// How a bridge deals with multicast.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bridge {
    pub(crate) snoops: bool,
    /// Whether it asks for members itself.
    pub(crate) asks: bool,
    /// Address of a querier that it hears elsewhere.
    pub(crate) hears: Option<IpAddr>,
}

impl Link {
    /// The link as the model has it.
    pub(crate) fn interface(&self) -> Interface {
        Interface {
            index: Ifindex(self.index),
            name: self.name.clone(),
            up: self.up && self.carrier,
            mtu: self.mtu,
            mac: self.mac,
            addresses: self.addresses.clone(),
            gro_list: Switch::named("rx-gro-list")
                .ok()
                .flatten()
                .is_some_and(|feature| feature.is_on(&self.name).unwrap_or(false)),
        }
    }
}

/// Lists all links.
pub(super) async fn list(handle: &Handle) -> Result<Vec<Link>, Error> {
    let messages: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
    let addresses: Vec<AddressMessage> = handle.address().get().execute().try_collect().await?;
    let mut links: Vec<Link> = messages.iter().map(link).collect();
    for message in &addresses {
        let owner = links
            .iter_mut()
            .find(|link| link.index == message.header.index);
        if let (Some(link), Some(address)) = (owner, address(message)) {
            link.addresses.push(address);
        }
    }
    for index in super::route::ingress_qdiscs(handle).await? {
        if let Some(link) = links.iter_mut().find(|link| link.index == index) {
            link.clsact = true;
        }
    }
    Ok(links)
}

fn link(message: &LinkMessage) -> Link {
    let header = &message.header;
    let mut link = Link {
        index: header.index,
        up: header.flags.contains(LinkFlags::Up),
        multicast: header.flags.contains(LinkFlags::Multicast),
        carrier: true,
        ..Link::default()
    };
    let has_header = matches!(
        header.link_layer_type,
        LinkLayerType::Ether | LinkLayerType::Loopback
    );
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Carrier(carrier) => link.carrier = *carrier != 0,
            LinkAttribute::Controller(master) => link.master = Some(*master),
            LinkAttribute::Address(bytes) if has_header => {
                link.mac = bytes.as_slice().try_into().ok().map(Mac);
            }
            LinkAttribute::Xdp(parts) => link.xdp = xdp(parts),
            LinkAttribute::LinkInfo(infos) => infos.iter().for_each(|info| note(&mut link, info)),
            _ => {}
        }
    }
    link
}

fn note(link: &mut Link, info: &LinkInfo) {
    match info {
        LinkInfo::Kind(InfoKind::Other(kind)) => link.kind.clone_from(kind),
        LinkInfo::Kind(kind) => link.kind = kind.to_string(),
        LinkInfo::Data(InfoData::Bridge(data)) => link.bridge = Some(bridge(data)),
        _ => {}
    }
}

fn bridge(data: &[InfoBridge]) -> Bridge {
    let mut bridge = Bridge::default();
    for attribute in data {
        match attribute {
            InfoBridge::MulticastSnooping(on) => bridge.snoops = *on,
            InfoBridge::MulticastQuerier(on) => bridge.asks = *on,
            // The bridge's own queries are listed too, but without the other's timer.
            InfoBridge::MulticastQuerierState(state) => {
                let timed = state.iter().any(|part| {
                    matches!(
                        part,
                        BridgeQuerierState::Ipv4OtherTimer(_)
                            | BridgeQuerierState::Ipv6OtherTimer(_)
                    )
                });
                bridge.hears = state.iter().find_map(querier).filter(|_| timed);
            }
            _ => {}
        }
    }
    bridge
}

fn querier(part: &BridgeQuerierState) -> Option<IpAddr> {
    match part {
        BridgeQuerierState::Ipv4Address(address) => Some((*address).into()),
        BridgeQuerierState::Ipv6Address(address) => Some((*address).into()),
        _ => None,
    }
}

fn xdp(parts: &[LinkXdp]) -> Option<u32> {
    let none = |part: &LinkXdp| matches!(part, LinkXdp::Attached(XdpAttached::None));
    if parts.iter().any(none) {
        return None;
    }
    parts.iter().find_map(|part| match part {
        LinkXdp::ProgId(id)
        | LinkXdp::DrvProgId(id)
        | LinkXdp::SkbProgId(id)
        | LinkXdp::HwProgId(id) => Some(*id),
        _ => None,
    })
}

fn address(message: &AddressMessage) -> Option<IpAddr> {
    let (mut local, mut other) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => other = Some(*address),
            _ => {}
        }
    }
    local.or(other)
}
