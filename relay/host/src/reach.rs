//! Whom packets handed to a device reach, as far as its settings show: a tunnel may have no remote.

use compile::host::{Interface, Reach};
use futures::TryStreamExt;
use rtnetlink::Handle;
use rtnetlink::packet_core::{Nla, NlasIterator};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{
    InfoData, InfoIpVlan, InfoKind, IpVlanMode, LinkInfo, LinkLayerType,
};
use rtnetlink::packet_route::neighbour::{NeighbourAttribute, NeighbourMessage};

/// Types (linux/if_arp.h) of devices that carry no IP: CAN, monitors and others of wireless links, PhoNet,
/// CAIF, monitors of netlink and of vsockets.
const WITHOUT_IP: [u16; 11] = [280, 801, 802, 803, 804, 805, 820, 821, 822, 824, 826];

/// The reach according to a device's type and settings.
pub(super) fn reach(device: LinkLayerType, infos: &[LinkInfo]) -> Reach {
    let data = first!(infos, LinkInfo::Data(data) => of_data(data));
    match data {
        _ if WITHOUT_IP.contains(&device.into()) => Reach::NoIp,
        _ if infos.contains(&LinkInfo::Kind(InfoKind::Ifb)) => Reach::Returns,
        data => data.unwrap_or_default(),
    }
}

fn of_data(data: &InfoData) -> Reach {
    use InfoData as Of;
    use IpVlanMode::{L3, L3S};
    // The attributes (linux/if_link.h, linux/if_tunnel.h) that name a remote, and the one that lets each
    // packet carry its own.
    let (remotes, external) = match data {
        Of::Vxlan(_) => ([2, 16], 25),
        Of::Geneve(_) => ([2, 7], 6),
        Of::GreTun(_) | Of::GreTap(_) | Of::ErSpan(_) => ([7; 2], 18),
        Of::GreTun6(_) | Of::GreTap6(_) | Of::Ip6ErSpan(_) => ([7; 2], 18),
        Of::IpTunnel(_) => ([3; 2], 19),
        Of::BareUdp(_) => return Reach::External,
        Of::IpVlan(settings) => {
            let mut settings = settings.iter();
            let routes = settings.any(|one| matches!(one, InfoIpVlan::Mode(L3 | L3S)));
            return if routes { Reach::NoGroups } else { Reach::All };
        }
        _ => return Reach::All,
    };
    let mut bytes = vec![0; data.value_len()];
    data.emit_value(&mut bytes);
    let has = |kinds: &[u16]| {
        let mut attributes = NlasIterator::new(&bytes).map_while(Result::ok);
        attributes.any(|one| {
            let is_set = one.value_length() == 0 || one.value().iter().any(|byte| *byte != 0);
            kinds.contains(&one.kind()) && is_set
        })
    };
    match (has(&[external]), has(&remotes)) {
        (true, _) => Reach::External,
        (false, true) => Reach::All,
        (false, false) => Reach::NoRemote,
    }
}

/// Adds the forwarding entries of links without a remote: a VXLAN sends groups to their destinations.
pub(super) async fn read_forwarding(handle: &Handle, mut links: Vec<&mut Interface>) {
    if links.is_empty() {
        return;
    }
    let get = handle.neighbours().get();
    let request = get.set_address_family(AddressFamily::Bridge);
    let entries: Vec<NeighbourMessage> = request.execute().try_collect().await.unwrap_or_default();
    for entry in entries.iter().filter(|entry| floods(entry)) {
        let mut links = links.iter_mut();
        if let Some(link) = links.find(|link| link.index.0 == entry.header.ifindex) {
            link.reach = Reach::All;
        }
    }
}

/// Whether a forwarding entry applies to groups: its address is a group's or zero, and it leads to another
/// host.
pub(super) fn floods(entry: &NeighbourMessage) -> bool {
    let mut attributes = entry.attributes.iter();
    let has_destination = |one: &_| matches!(one, NeighbourAttribute::Destination(_));
    let is_of_groups = |mac: &[u8]| mac.iter().all(|byte| *byte == 0) || mac[0] & 1 != 0;
    let is_for_groups = attributes.any(|one| match one {
        NeighbourAttribute::LinkLayerAddress(mac) => !mac.is_empty() && is_of_groups(mac),
        _ => false,
    });
    let is_forwarding = entry.header.family == AddressFamily::Bridge;
    is_forwarding && is_for_groups && entry.attributes.iter().any(has_destination)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use rtnetlink::packet_route::link::{InfoGre, InfoGre6, InfoIpTunnel, InfoVxlan};

    use super::*;

    #[test]
    fn tunnels_need_a_remote_and_some_devices_carry_no_ip() {
        let ether = LinkLayerType::Ether;
        let of = |data: InfoData| reach(ether, &[LinkInfo::Data(data)]);
        let (any, one) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(of(InfoData::Vxlan(vec![InfoVxlan::Id(5)])), Reach::NoRemote);
        assert_eq!(of(InfoData::Vxlan(vec![InfoVxlan::Group(one)])), Reach::All);
        let external = vec![InfoVxlan::CollectMetadata(true)];
        assert_eq!(of(InfoData::Vxlan(external)), Reach::External);
        assert_eq!(
            of(InfoData::GreTun(vec![InfoGre::Remote(any)])),
            Reach::NoRemote
        );
        assert_eq!(of(InfoData::ErSpan(vec![InfoGre::Remote(one)])), Reach::All);
        let six = vec![InfoGre6::Remote(Ipv6Addr::LOCALHOST)];
        assert_eq!(of(InfoData::GreTap6(six)), Reach::All);
        let external = vec![InfoIpTunnel::CollectMetadata];
        assert_eq!(of(InfoData::IpTunnel(external)), Reach::External);
        let routed = vec![InfoIpVlan::Mode(IpVlanMode::L3S)];
        assert_eq!(of(InfoData::IpVlan(routed)), Reach::NoGroups);
        assert_eq!(of(InfoData::BareUdp(Vec::new())), Reach::External);
        let inner = vec![InfoVxlan::CollectMetadata(false), InfoVxlan::Group(one)];
        assert_eq!(of(InfoData::Vxlan(inner)), Reach::All);
        assert_eq!(reach(LinkLayerType::Netlink, &[]), Reach::NoIp);
        assert_eq!(reach(LinkLayerType::Ppp, &[]), Reach::All);
        let ifb = [LinkInfo::Kind(InfoKind::Ifb)];
        assert_eq!(reach(ether, &ifb), Reach::Returns);
    }
}
