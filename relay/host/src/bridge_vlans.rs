//! Bridges, and VLANs of them, that nothing leaves by: they have no port, or none that is up in the VLAN.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use compile::host::Reach;
use futures::TryStreamExt;
use rtnetlink::Handle;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{
    AfSpecBridge, BridgeVlanInfoFlags, InfoData, InfoVlan, LinkAttribute, LinkExtentMask, LinkInfo,
    LinkMessage,
};
use rules::net::Ifindex;

use super::Link;
use super::bridge::Bridge;

/// The VLANs that bridges themselves and their ports are in.
#[derive(Debug, Default)]
struct Vlans {
    ranges: BTreeMap<Ifindex, Vec<RangeInclusive<u16>>>,
    /// The VLAN of what has no tag.
    untagged: BTreeMap<Ifindex, u16>,
}

/// Marks them.
pub(super) async fn note_dead_ends(handle: &Handle, links: &mut [Link]) {
    let bridges = links.iter().filter_map(|link| {
        let bridge = Bridge::of(&link.message)?;
        Some((link.interface.index, bridge.by_vlan))
    });
    let bridges: BTreeMap<Ifindex, bool> = bridges.collect();
    let vlans = if bridges.values().any(|by_vlan| *by_vlan) {
        Vlans::read(handle).await
    } else {
        None
    };
    let reaches: Vec<Option<Reach>> = links
        .iter()
        .map(|link| dead_end(link, links, &bridges, vlans.as_ref()))
        .collect();
    for (link, reach) in links.iter_mut().zip(reaches) {
        link.interface.reach = reach.unwrap_or(link.interface.reach);
    }
}

fn dead_end(
    link: &Link,
    links: &[Link],
    bridges: &BTreeMap<Ifindex, bool>,
    vlans: Option<&Vlans>,
) -> Option<Reach> {
    let own = link.interface.index;
    let (bridge, tag) = if bridges.contains_key(&own) {
        (own, None)
    } else {
        (Ifindex(link.lower()?), Some(tag(link)?))
    };
    let by_vlan = *bridges.get(&bridge)?;
    let is_port = |port: &&Link| port.controller() == Some(bridge.0);
    let mut ports = links.iter().filter(is_port).peekable();
    if ports.peek().is_none() {
        return Some(tag.map_or(Reach::NoPorts, |_| Reach::NoVlan));
    }
    let vlans = vlans.filter(|_| by_vlan)?;
    let vlan = tag.or_else(|| vlans.untagged.get(&bridge).copied());
    let leaves = vlan.is_some_and(|vlan| {
        vlans.has(bridge, vlan)
            && ports.any(|port| port.interface.up && vlans.has(port.interface.index, vlan))
    });
    (!leaves).then_some(Reach::NoVlan)
}

/// The number of a VLAN.
fn tag(link: &Link) -> Option<u16> {
    let infos = first!(link.message.attributes, LinkAttribute::LinkInfo(infos) => infos)?;
    let data = first!(infos, LinkInfo::Data(InfoData::Vlan(data)) => data)?;
    first!(data, InfoVlan::Id(id) => *id)
}

impl Vlans {
    /// Reads them; `None` if the kernel has no such list.
    async fn read(handle: &Handle) -> Option<Self> {
        let mask = vec![LinkExtentMask::BrvlanCompressed];
        let all = handle.link().get();
        let request = all.set_filter_mask(AddressFamily::Bridge, mask);
        let messages: Vec<LinkMessage> = request.execute().try_collect().await.ok()?;
        let mut vlans = Self::default();
        for message in &messages {
            vlans.add(message);
        }
        Some(vlans)
    }

    fn add(&mut self, message: &LinkMessage) {
        let index = Ifindex(message.header.index);
        let ranges = self.ranges.entry(index).or_default();
        let specs = first!(message.attributes, LinkAttribute::AfSpecBridge(specs) => specs);
        let mut first = 0;
        for spec in specs.into_iter().flatten() {
            let AfSpecBridge::VlanInfo(info) = spec else {
                continue;
            };
            if info.flags.contains(BridgeVlanInfoFlags::Pvid) {
                self.untagged.insert(index, info.vid);
            }
            if info.flags.contains(BridgeVlanInfoFlags::RangeBegin) {
                first = info.vid;
            } else if info.flags.contains(BridgeVlanInfoFlags::RangeEnd) {
                ranges.push(first..=info.vid);
            } else {
                ranges.push(info.vid..=info.vid);
            }
        }
    }

    fn has(&self, link: Ifindex, vlan: u16) -> bool {
        let mut ranges = self.ranges.get(&link).into_iter().flatten();
        ranges.any(|range| range.contains(&vlan))
    }
}
