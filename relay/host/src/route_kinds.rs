//! Properties of routes that the kernel's answer for one packet does not show: that some apply to one TOS or
//! source only, and how packets are distributed over several next hops.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use compile::host::{Interface, PacketQuery};
use futures::TryStreamExt;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage};
use rtnetlink::{Handle, RouteMessageBuilder};
use rules::net::{Ifindex, Ports};
use rules::rule::SourceChoice;

/// The kinds of routes that exist.
#[derive(Clone, Debug, Default)]
pub struct RouteKinds {
    /// Whether some IPv4 routes apply to one TOS only.
    pub(crate) by_tos: bool,
    /// One address of each source prefix to which some IPv6 routes are restricted.
    pub(crate) sources: BTreeSet<IpAddr>,
    /// Whether some have several next hops.
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
            // A router may have a million, which are not stored; the list is read to its end.
            while let Ok(Some(route)) = routes.try_next().await {
                kinds.add(&route);
            }
        }
        kinds
    }

    /// Whether a route is of such a kind.
    pub(crate) fn concern(route: &RouteMessage) -> bool {
        let mut kinds = Self::default();
        kinds.add(route);
        kinds.by_tos || kinds.several || !kinds.sources.is_empty()
    }

    fn add(&mut self, route: &RouteMessage) {
        self.by_tos |= route.header.tos != 0;
        self.several |= has_several(route);
        if let Some(source) =
            first!(route.attributes, RouteAttribute::Source(RouteAddress::Inet6(from)) => *from)
        {
            self.sources.insert(source.into());
        }
    }
}

/// Whether a route has, or may have, several next hops: one with only the ID of a nexthop object may
/// refer to a group.
fn has_several(route: &RouteMessage) -> bool {
    let has = |is: fn(&RouteAttribute) -> bool| route.attributes.iter().any(is);
    has(|attribute| matches!(attribute, RouteAttribute::MultiPath(_)))
        || has(|attribute| matches!(attribute, RouteAttribute::NhId(_)))
            && !has(|attribute| matches!(attribute, RouteAttribute::Oif(_)))
}

/// The fields by which packets are distributed over several next hops (`fib_multipath_hash` in
/// net/ipv4/route.c, `rt6_multipath_hash` in net/ipv6/route.c), IPv4's first, and whether next hops that
/// do not answer are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Division {
    by: [Fields; 2],
    by_neighbour: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fields {
    source: bool,
    ports: bool,
    /// Whether a lookup answers for another packet than sockets send (`fib_multipath_custom_hash_skb`).
    is_unpredictable: bool,
}

impl Division {
    /// Reads the settings.
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
                is_unpredictable: policy == 3 && family == "ipv4",
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

    /// Whether ports make a difference.
    pub(crate) fn is_by_ports(&self) -> bool {
        self.by.iter().any(|fields| fields.ports)
    }

    /// Whether the next hop of a packet cannot be known beforehand.
    pub(crate) fn depends_on_packet(
        &self,
        destination: IpAddr,
        packet: &PacketQuery,
        interfaces: &BTreeMap<Ifindex, Interface>,
    ) -> bool {
        let by = self.by[usize::from(destination.is_ipv6())];
        let by_source = by.source && !can_look_up(packet.source, destination, interfaces);
        let has_ports = packet.source_port.is_some() && packet.ports.is_some_and(Ports::is_single);
        by.is_unpredictable || by_source || by.ports && !has_ports
    }
}

/// Whether a lookup can be made for packets of a source. For IPv4 sources of other hosts the kernel
/// refuses it.
pub(crate) fn can_look_up(
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

/// Whether the route for `request` has several next hops.
pub(crate) async fn is_divided(handle: &Handle, mut request: RouteMessage) -> bool {
    request.header.flags |= RouteFlags::FibMatch;
    let mut answers = Box::pin(handle.route().get(request).execute());
    let route = answers.try_next().await.ok().flatten();
    route.is_some_and(|route| has_several(&route))
}
