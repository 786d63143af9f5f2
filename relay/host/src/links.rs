//! Links and their addresses, as the kernel lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use bpf::device::{Framing as Shape, framing, header_length};
use compile::host::{Framing, Interface, Reach};
use futures::TryStreamExt;
use rtnetlink::Handle;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, InfoData, InfoKind, InfoPortKind, InfoVlan, LinkAttribute,
    LinkFlags, LinkHeader, LinkInfo, LinkLayerType, LinkMessage, LinkXdp, Prop, VlanFlags,
};
use rules::net::{Ifindex, Mac, Prefix};
use rules::printable::printable;

use super::{Error, bridge_vlans, gro_list, reach};

/// Bytes of an Ethernet header.
const ETHERNET_HEADER: u32 = 14;

/// A link of this network namespace.
#[derive(Clone, Debug)]
pub struct Link {
    /// The properties that rules need.
    pub interface: Interface,
    /// The whole netlink message.
    pub message: LinkMessage,
}

impl Link {
    /// Its kind, `veth`, `bridge`, …; `None` for hardware.
    #[must_use]
    pub fn kind(&self) -> Option<&InfoKind> {
        let infos = first!(self.message.attributes, LinkAttribute::LinkInfo(infos) => infos)?;
        first!(infos, LinkInfo::Kind(kind) => kind)
    }

    /// The bridge, bond or VRF above it.
    #[must_use]
    pub fn controller(&self) -> Option<u32> {
        first!(self.message.attributes, LinkAttribute::Controller(index) => *index)
    }

    /// The link below it, if that is in this namespace.
    #[must_use]
    pub fn lower(&self) -> Option<u32> {
        let attributes = &self.message.attributes;
        let elsewhere = first!(attributes, LinkAttribute::LinkNetNsId(_) => ());
        first!(attributes, LinkAttribute::Link(index) => *index).filter(|_| elsewhere.is_none())
    }

    /// The number of the XDP program that is attached.
    #[must_use]
    pub fn xdp(&self) -> Option<u32> {
        let parts = first!(self.message.attributes, LinkAttribute::Xdp(parts) => parts);
        parts?.iter().find_map(|part| match part {
            LinkXdp::ProgId(id)
            | LinkXdp::DrvProgId(id)
            | LinkXdp::SkbProgId(id)
            | LinkXdp::HwProgId(id) => Some(*id),
            _ => None,
        })
    }
}

/// Reads all links with their addresses.
///
/// # Errors
/// The kernel's answer, if it refuses.
pub async fn read_links(handle: &Handle) -> Result<Vec<Link>, Error> {
    let dump = |what| move |source| Error::Dump { what, source };
    let list = handle.link().get().execute();
    let links: Vec<LinkMessage> = list.try_collect().await.map_err(dump("links"))?;
    let list = handle.address().get().execute();
    let messages: Vec<AddressMessage> = list.try_collect().await.map_err(dump("addresses"))?;
    let mut addresses: BTreeMap<Ifindex, Vec<IpAddr>> = BTreeMap::new();
    for (index, address) in messages.iter().filter_map(address) {
        addresses.entry(index).or_default().push(address);
    }
    let mut broadcasts = broadcasts_of(&messages);
    let mut links: Vec<Link> = links.into_iter().map(link).collect();
    share(&mut links);
    bridge_vlans::note_dead_ends(handle, &mut links).await;
    let interfaces = links.iter_mut().map(|link| &mut link.interface);
    let without_remote = interfaces.filter(|link| link.reach == Reach::NoRemote);
    reach::read_forwarding(handle, without_remote.collect()).await;
    let gro_list = gro_list::read_among(links.iter().map(|link| &link.interface));
    for Link { interface, .. } in &mut links {
        interface.gro_list = gro_list.contains(&interface.index);
        interface.addresses = addresses.remove(&interface.index).unwrap_or_default();
        interface.broadcasts = broadcasts.remove(&interface.index).unwrap_or_default();
    }
    Ok(links)
}

fn link(message: LinkMessage) -> Link {
    let header = &message.header;
    let mut carrier = true;
    let mut interface = Interface {
        index: Ifindex(header.index),
        reach: reach::reach(header.link_layer_type, &[]),
        ..Interface::default()
    };
    let has_header = matches!(
        header.link_layer_type,
        LinkLayerType::Ether | LinkLayerType::Loopback
    );
    let (mut kind, mut is_tagged, mut is_open) = (None, false, false);
    for attribute in &message.attributes {
        match attribute {
            // Sanitised because it is shown to people; nothing is looked up by it.
            LinkAttribute::IfName(name) => interface.name = printable(name).into_owned(),
            LinkAttribute::PropList(properties) => {
                let name = |property: &Prop| match property {
                    Prop::AltIfName(name) => Some(name.clone()),
                    _ => None,
                };
                interface.alternatives = properties.iter().filter_map(name).collect();
            }
            LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
            LinkAttribute::Carrier(value) => carrier = *value != 0,
            LinkAttribute::Address(bytes) if has_header => {
                interface.mac = bytes.as_slice().try_into().ok().map(Mac);
            }
            LinkAttribute::AfSpecUnspec(families) => interface.no_ipv6 = has_no_ipv6(families),
            // The peer of a tunnel; without one, or with a group, it has many.
            LinkAttribute::Broadcast(peer) => {
                is_open = matches!(peer.first(), Some(0 | 224..=239 | 255) | None);
            }
            LinkAttribute::LinkInfo(infos) => {
                interface.reach = reach::reach(header.link_layer_type, infos);
                for info in infos {
                    match info {
                        LinkInfo::Kind(of_link) => kind = Some(of_link),
                        LinkInfo::Data(InfoData::Vlan(data)) => is_tagged = keeps_its_tag(data),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let is_vxlan = kind == Some(&InfoKind::Vxlan);
    // Hardware, and veths, of which there are many, have the usual header.
    let is_usual = has_header && matches!(kind, None | Some(InfoKind::Veth));
    let shape;
    (shape, interface.framing) = framed(header, is_usual, is_open);
    interface.veiled = is_tagged || shape == Shape::Foreign;
    // The stack determines the other end by the packet's own route; a VXLAN by the frame's address.
    if interface.reach == Reach::NoRemote && !is_vxlan {
        interface.framing = Framing::Stack;
    }
    let is_enabled = header.flags.contains(LinkFlags::Up);
    (interface.up, interface.no_carrier) = (is_enabled && carrier, is_enabled && !carrier);
    Link { interface, message }
}

/// The header before IP, and who can write it.
fn framed(header: &LinkHeader, is_usual: bool, is_open: bool) -> (Shape, Framing) {
    let device = header.link_layer_type;
    let length = Some(header.index)
        .filter(|_| !is_usual)
        .and_then(header_length);
    let shape = framing(device.into(), length, is_open);
    let framing = match shape {
        Shape::Foreign => Framing::Stack,
        Shape::Ethernet if length.is_some_and(|length| length != ETHERNET_HEADER) => {
            Framing::Kernel
        }
        Shape::Bare if device == LinkLayerType::Ppp => Framing::Kernel,
        Shape::Ethernet | Shape::Bare => Framing::Plain,
    };
    (shape, framing)
}

/// Whether a VLAN leaves its tag within the frame (`reorder_hdr off`). The attribute is missing if no
/// flag is set.
fn keeps_its_tag(data: &[InfoVlan]) -> bool {
    !data.iter().any(
        |one| matches!(one, InfoVlan::Flags((flags, _)) if flags.contains(VlanFlags::ReorderHdr)),
    )
}

fn has_no_ipv6(families: &[AfSpecUnspec]) -> bool {
    let ipv6 = first!(families, AfSpecUnspec::Inet6(ipv6) => ipv6);
    ipv6.into_iter()
        .flatten()
        .any(|of| matches!(of, AfSpecInet6::DevConf(settings) if settings.disable_ipv6 != 0))
}

/// Records what takes packets from a link after its ingress hook: the device that it is a port of, and
/// macvlans and MACsec on top of it (`rx_handler`). A device in another namespace is not visible here.
fn share(links: &mut [Link]) {
    let mut shared: BTreeMap<Ifindex, Vec<String>> = BTreeMap::new();
    let mut doubles = BTreeMap::new();
    let mut vrfs = BTreeMap::new();
    let names: BTreeMap<u32, String> = links
        .iter()
        .map(|link| (link.interface.index.0, link.interface.name.clone()))
        .collect();
    for link in links.iter() {
        let Link { interface, message } = link;
        let infos = first!(message.attributes, LinkAttribute::LinkInfo(infos) => infos);
        for info in infos.into_iter().flatten() {
            match info {
                LinkInfo::Kind(
                    kind @ (InfoKind::MacVlan
                    | InfoKind::MacVtap
                    | InfoKind::IpVlan
                    | InfoKind::MacSec
                    | InfoKind::IpVtap),
                ) => {
                    if let Some(below) = link.lower().map(Ifindex) {
                        let text = format!("{kind} {}", interface.name);
                        shared.entry(below).or_default().push(text);
                        if *kind != InfoKind::MacSec {
                            doubles.insert(interface.index, (below, false));
                        }
                    }
                }
                // A VRF takes no packets away: sockets and routing within it get them.
                LinkInfo::Kind(InfoKind::Vrf) => {
                    vrfs.insert(interface.index, interface.index);
                }
                LinkInfo::PortKind(InfoPortKind::Vrf) => {
                    let vrf = link.controller();
                    vrfs.extend(vrf.map(|vrf| (interface.index, Ifindex(vrf))));
                    // Sockets that are bound to it are not looked up by the ingress interface.
                    if let Some(name) = vrf.and_then(|vrf| names.get(&vrf)) {
                        shared
                            .entry(interface.index)
                            .or_default()
                            .push(format!("vrf {name}"));
                    }
                }
                LinkInfo::PortKind(kind) => {
                    let above = link.controller();
                    if let Some(name) = above.and_then(|index| names.get(&index)) {
                        let bonded = matches!(kind, InfoPortKind::Bond | InfoPortKind::Team);
                        doubles.extend(above.map(|it| (interface.index, (Ifindex(it), bonded))));
                        let text = format!("{kind} {name}");
                        shared.entry(interface.index).or_default().push(text);
                    }
                }
                _ => {}
            }
        }
    }
    for Link { interface, .. } in links {
        interface.shared_with = shared.remove(&interface.index).unwrap_or_default();
        interface.vrf = vrfs.get(&interface.index).copied();
        let double = doubles.get(&interface.index);
        interface.doubled_by = double.map(|(by, _)| *by);
        interface.bonded = double.is_some_and(|(_, bonded)| *bonded);
    }
}

/// An address that this host can use by now.
fn address(message: &AddressMessage) -> Option<(Ifindex, IpAddr)> {
    let mut flags = AddressFlags::from_bits_truncate(message.header.flags.bits().into());
    let (mut local, mut other) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link IFA_ADDRESS is the peer's and IFA_LOCAL this host's.
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => other = Some(*address),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    if flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed) {
        return None;
    }
    Some((Ifindex(message.header.index), local.or(other)?))
}

/// The broadcast addresses of the interfaces' networks: the last address of each, and configured ones, as
/// the kernel accepts them (`fib_add_ifaddr`).
fn broadcasts_of(messages: &[AddressMessage]) -> BTreeMap<Ifindex, Vec<Ipv4Addr>> {
    let mut broadcasts: BTreeMap<Ifindex, BTreeSet<Ipv4Addr>> = BTreeMap::new();
    for message in messages {
        let own = broadcasts.entry(Ifindex(message.header.index)).or_default();
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Broadcast(address) => drop(own.insert(*address)),
                // On a point-to-point link the network is the peer's.
                AddressAttribute::Address(IpAddr::V4(address))
                    if message.header.prefix_len < 31 =>
                {
                    let network = Prefix::new((*address).into(), message.header.prefix_len);
                    if let IpAddr::V4(last) = network.last() {
                        own.insert(last);
                    }
                }
                _ => {}
            }
        }
        own.retain(|address| !address.is_broadcast());
    }
    broadcasts
        .into_iter()
        .map(|(link, own)| (link, own.into_iter().collect()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_without_any_flag_keeps_its_tag() {
        let with = |flags| InfoVlan::Flags((flags, VlanFlags::all()));
        assert!(keeps_its_tag(&[InfoVlan::Id(10)]));
        assert!(keeps_its_tag(&[InfoVlan::Id(10), with(VlanFlags::Gvrp)]));
        let usual = with(VlanFlags::ReorderHdr | VlanFlags::Gvrp);
        assert!(!keeps_its_tag(&[InfoVlan::Id(10), usual]));
    }
}
