//! What routes have that the kernel's answer for one packet does not show: that some are for one TOS or
//! source alone, and that packets are divided among several next hops, by what they are divided.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use compile::host::{Interface, PacketQuery};
use futures::TryStreamExt;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage};
use rtnetlink::{Handle, RouteMessageBuilder};
use rules::net::{Ifindex, Ports};
use rules::rule::SourceChoice;

/// The kinds of routes that there are.
#[derive(Clone, Debug, Default)]
pub struct RouteKinds {
    /// Some IPv4 routes are for one TOS alone.
    pub(crate) by_tos: bool,
    /// One address of each source that some IPv6 routes are for alone.
    pub(crate) sources: BTreeSet<IpAddr>,
    /// Some have several next hops.
    pub(crate) several: bool,
}

impl RouteKinds {
    /// Reads the routes of both families.
    pub async fn read(handle: &Handle) -> Self {
        let mut kinds = Self::default();
        for all in [
            RouteMessageBuilder::<Ipv4Addr>::new().build(),
            RouteMessageBuilder::<Ipv6Addr>::new().build(),
        ] {
            let mut routes = Box::pin(handle.route().get(all).execute());
            // A router may have a million, which are not kept; the list is read to its end.
            while let Ok(Some(route)) = routes.try_next().await {
                kinds.take_up(&route);
            }
        }
        kinds
    }

    /// Says whether a route is of such a kind.
    pub(crate) fn concern(route: &RouteMessage) -> bool {
        let mut kinds = Self::default();
        kinds.take_up(route);
        kinds.by_tos || kinds.several || !kinds.sources.is_empty()
    }

    fn take_up(&mut self, route: &RouteMessage) {
        self.by_tos |= route.header.tos != 0;
        self.several |= has_several(route);
        if let Some(source) =
            first!(route.attributes, RouteAttribute::Source(RouteAddress::Inet6(from)) => *from)
        {
            self.sources.insert(source.into());
        }
    }
}

/// A route by the number of a nexthop object may show no more, so it may be that of a group.
fn has_several(route: &RouteMessage) -> bool {
    let has = |is: fn(&RouteAttribute) -> bool| route.attributes.iter().any(is);
    has(|attribute| matches!(attribute, RouteAttribute::MultiPath(_)))
        || has(|attribute| matches!(attribute, RouteAttribute::NhId(_)))
            && !has(|attribute| matches!(attribute, RouteAttribute::Oif(_)))
}

/// By what packets are divided among several next hops (`fib_multipath_hash` in net/ipv4/route.c,
/// `rt6_multipath_hash` in net/ipv6/route.c), IPv4's first, and whether next hops that do not answer are
/// passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Division {
    by: [Fields; 2],
    by_neighbour: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fields {
    source: bool,
    ports: bool,
    /// The table answers for another packet than sockets send (`fib_multipath_custom_hash_skb`).
    asked_in_vain: bool,
}

impl Division {
    /// Reads it.
    pub(crate) fn read() -> Self {
        let number = |family: &str, name: &str| -> u32 {
            let text = fs::read_to_string(format!("/proc/sys/net/{family}/fib_multipath_{name}"));
            text.ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0)
        };
        let by = ["ipv4", "ipv6"].map(|family| {
            let policy = number(family, "hash_policy");
            // FIB_MULTIPATH_HASH_FIELD_SRC_IP, _SRC_PORT and _DST_PORT of net/ip_fib.h.
            let fields = match policy {
                1 => 0x31,
                3 => number(family, "hash_fields"),
                _ => 1,
            };
            Fields {
                source: fields & 1 != 0,
                ports: fields & 0x30 != 0,
                asked_in_vain: policy == 3 && family == "ipv4",
            }
        });
        Self {
            by,
            by_neighbour: number("ipv4", "use_neigh") != 0,
        }
    }

    pub(crate) const fn is_by_neighbour(&self) -> bool {
        self.by_neighbour
    }

    /// Says whether ports make a difference.
    pub(crate) fn is_by_ports(&self) -> bool {
        self.by.iter().any(|fields| fields.ports)
    }

    /// Says whether it cannot be known beforehand which next hop a packet is for.
    pub(crate) fn tells_apart(
        &self,
        destination: IpAddr,
        packet: &PacketQuery,
        interfaces: &BTreeMap<Ifindex, Interface>,
    ) -> bool {
        let by = self.by[usize::from(destination.is_ipv6())];
        let by_source = by.source && !can_ask(packet.source, destination, interfaces);
        let known = packet.source_port.is_some() && packet.ports.is_some_and(Ports::is_single);
        by.asked_in_vain || by_source || by.ports && !known
    }
}

/// Says whether the routing table can be asked for packets of a source. Of IPv4's other hosts it refuses
/// to say anything.
pub(crate) fn can_ask(
    source: SourceChoice,
    destination: IpAddr,
    interfaces: &BTreeMap<Ifindex, Interface>,
) -> bool {
    match source {
        SourceChoice::Auto => true,
        SourceChoice::Keep => false,
        SourceChoice::Address(source) => {
            let mut links = interfaces.values();
            destination.is_ipv6() || links.any(|link| link.addresses.contains(&source))
        }
    }
}

/// Says whether a packet that `request` is about is for one of several next hops.
pub(crate) async fn is_divided(handle: &Handle, mut request: RouteMessage) -> bool {
    request.header.flags |= RouteFlags::FibMatch;
    let mut answers = Box::pin(handle.route().get(request).execute());
    let route = answers.try_next().await.ok().flatten();
    route.is_some_and(|route| has_several(&route))
}
