//! The host's routing policy (`ip rule`), for what a route lookup cannot answer: fields that an output
//! keeps of each packet are not known beforehand.

use compile::host::{Interface, PacketQuery};
use compile::ipsec::{Holds, within};
use futures::TryStreamExt;
use rtnetlink::packet_core::Nla;
use rtnetlink::packet_route::rule::{RuleAttribute, RuleFlags, RuleMessage, RulePortRange};
use rtnetlink::{Handle, IpVersion};
use rules::net::{Ports, Prefix};
use rules::rule::SourceChoice;
use std::collections::{BTreeMap, BTreeSet, btree_set};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rules::net::Ifindex;

use super::route_kinds::{Division, RouteKinds, can_ask};

/// The rules that go by more than the destination.
#[derive(Clone, Debug, Default)]
pub struct RoutingPolicy {
    rules: Vec<Rule>,
    kinds: RouteKinds,
    division: Division,
}

/// What a rule goes by.
#[derive(Clone, Debug, Default)]
struct Rule {
    is_inverted: bool,
    source: Option<Prefix>,
    destination: Option<Prefix>,
    source_ports: Option<Ports>,
    ports: Option<Ports>,
    tos: u8,
    by: Option<String>,
    /// Something that no packet of a socket of this host shows, without mark.
    is_for_others: bool,
}

const UDP: u8 = 17;
/// Attribute of a rule since Linux 6.13.
const FRA_DSCP: u16 = 25;

impl RoutingPolicy {
    /// Reads both families' rules, those of one that the kernel has not are none, for routes of these
    /// kinds.
    pub async fn read(handle: &Handle, kinds: RouteKinds) -> Self {
        let mut rules = Vec::new();
        for (family, any) in [
            (IpVersion::V4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            (IpVersion::V6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        ] {
            let listed = handle.rule().get(family).execute();
            let listed: Vec<RuleMessage> = listed.try_collect().await.unwrap_or_default();
            rules.extend(listed.iter().map(|message| rule(message, any)));
        }
        rules.retain(|rule| {
            rule.source.is_some()
                || rule.source_ports.is_some()
                || rule.ports.is_some()
                || rule.tos != 0
        });
        Self {
            rules,
            kinds,
            division: Division::read(),
        }
    }

    /// What of `packet` can make a difference.
    pub(crate) fn relevant(&self, packet: PacketQuery) -> PacketQuery {
        let mut rules = self.rules.iter();
        let by_ports = self.kinds.several && self.division.is_by_ports()
            || rules.any(|rule| rule.ports.is_some() || rule.source_ports.is_some());
        let by_source = self.kinds.several
            || !self.kinds.sources.is_empty()
            || self.rules.iter().any(|rule| rule.source.is_some());
        PacketQuery {
            source: match packet.source {
                SourceChoice::Keep if !by_source => SourceChoice::Auto,
                source => source,
            },
            source_port: packet.source_port.filter(|_| by_ports),
            ports: packet.ports.filter(|_| by_ports),
            dscp: packet.dscp,
        }
    }

    /// Says whether a rule or route is for some of the packets only, or a rule goes by a source that the
    /// routing table cannot be asked about, as it is of another host.
    pub(crate) fn tells_apart(
        &self,
        destination: IpAddr,
        interface: Option<&str>,
        packet: &PacketQuery,
        interfaces: &BTreeMap<Ifindex, Interface>,
    ) -> bool {
        if self.kinds.by_tos && destination.is_ipv4() && packet.dscp.is_none()
            || self.kept_sources(destination, packet).len() > 0
        {
            return true;
        }
        let mut rules = self.rules.iter();
        rules.any(|rule| {
            let holds = rule.holds(destination, interface, packet);
            let asks_in_vain =
                rule.source.is_some() && !can_ask(packet.source, destination, interfaces);
            holds == Holds::Sometimes || holds == Holds::Always && asks_in_vain
        })
    }

    /// An address of each source that routes are for alone, where it is the packets' own that counts.
    pub(crate) fn kept_sources(
        &self,
        destination: IpAddr,
        packet: &PacketQuery,
    ) -> btree_set::Iter<'_, IpAddr> {
        const NONE: &BTreeSet<IpAddr> = &BTreeSet::new();
        if packet.source == SourceChoice::Keep && destination.is_ipv6() {
            self.kinds.sources.iter()
        } else {
            NONE.iter()
        }
    }

    /// Says whether a route with several next hops would take some of the packets to one, some to another.
    pub(crate) fn may_divide(
        &self,
        destination: IpAddr,
        packet: &PacketQuery,
        interfaces: &BTreeMap<Ifindex, Interface>,
    ) -> bool {
        self.kinds.several && self.division.tells_apart(destination, packet, interfaces)
    }

    /// Says whether the host divides packets in another way by now.
    pub(crate) fn is_outdated(&self) -> bool {
        self.kinds.several && self.division != Division::read()
    }

    /// Says whether a route may be another when a neighbour answers or not.
    pub(crate) const fn is_by_neighbour(&self) -> bool {
        self.kinds.several && self.division.is_by_neighbour()
    }
}

fn rule(message: &RuleMessage, any: IpAddr) -> Rule {
    let header = &message.header;
    let mut rule = Rule {
        is_inverted: header.flags.contains(RuleFlags::Invert),
        // None but one of the same family has its rules.
        destination: Some(Prefix::new(any, 0)),
        tos: header.tos,
        ..Rule::default()
    };
    let (mut mark, mut mask) = (0, u32::MAX);
    let ports = |range: &RulePortRange| Ports {
        first: range.start,
        last: range.end,
    };
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Source(source) => {
                rule.source = Some(Prefix::new(*source, header.src_len))
            }
            RuleAttribute::Destination(to) => {
                rule.destination = Some(Prefix::new(*to, header.dst_len));
            }
            RuleAttribute::SourcePortRange(range) => rule.source_ports = Some(ports(range)),
            RuleAttribute::DestinationPortRange(range) => rule.ports = Some(ports(range)),
            RuleAttribute::Oifname(name) => rule.by = Some(name.clone()),
            RuleAttribute::Iifname(name) => rule.is_for_others |= name != compile::host::LOOPBACK,
            RuleAttribute::IpProtocol(protocol) => {
                rule.is_for_others |= i32::from(*protocol) != i32::from(UDP)
            }
            RuleAttribute::UidRange(range) => rule.is_for_others |= range.start > 0,
            RuleAttribute::L3MDev(is_set) => rule.is_for_others |= is_set,
            RuleAttribute::TunId(id) => rule.is_for_others |= *id != 0,
            RuleAttribute::FwMark(value) => mark = *value,
            RuleAttribute::FwMask(value) => mask = *value,
            // All six bits, which the header has no room for.
            RuleAttribute::Other(other) if (other.kind(), other.value_len()) == (FRA_DSCP, 1) => {
                let mut value = [0; 1];
                other.emit_value(&mut value);
                rule.tos = value[0] << 2;
            }
            _ => {}
        }
    }
    rule.is_for_others |= mark & mask != 0;
    rule
}

impl Rule {
    /// Of which packets it holds.
    fn holds(&self, destination: IpAddr, interface: Option<&str>, packet: &PacketQuery) -> Holds {
        let source = match (self.source, packet.source) {
            (None, _) => Holds::Always,
            (Some(_), SourceChoice::Keep) => Holds::Sometimes,
            // It is chosen once the route is known.
            (Some(prefix), SourceChoice::Auto) => (prefix.length == 0).into(),
            (Some(prefix), SourceChoice::Address(source)) => prefix.contains(source).into(),
        };
        let tos = match packet.dscp {
            _ if self.tos == 0 => Holds::Always,
            Some(dscp) => (dscp << 2 == self.tos).into(),
            None => Holds::Sometimes,
        };
        let to = Prefix::host(destination);
        let held = self
            .destination
            .map_or(Holds::Always, |prefix| within(prefix, to))
            .min(source)
            .min(tos)
            .min(among(self.ports, packet.ports))
            .min(among(
                self.source_ports,
                packet.source_port.map(Ports::single),
            ))
            .min(
                self.by
                    .as_deref()
                    .is_none_or(|by| Some(by) == interface)
                    .into(),
            )
            .min((!self.is_for_others).into());
        match (held, self.is_inverted) {
            (Holds::Never, true) => Holds::Always,
            (Holds::Always, true) => Holds::Never,
            (held, _) => held,
        }
    }
}

/// Of which ports it holds that they are among those of a rule.
fn among(rule: Option<Ports>, ports: Option<Ports>) -> Holds {
    match (rule, ports) {
        (None, _) => Holds::Always,
        (Some(rule), Some(ports)) if rule.contains(ports.first) && rule.contains(ports.last) => {
            Holds::Always
        }
        (Some(rule), Some(ports)) if !rule.overlaps(ports) => Holds::Never,
        (Some(_), _) => Holds::Sometimes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn told(rule: Rule, packet: PacketQuery) -> bool {
        let own = BTreeMap::new();
        let policy = RoutingPolicy {
            rules: vec![rule],
            ..RoutingPolicy::default()
        };
        policy.tells_apart(ip("10.9.9.9"), Some("eth1"), &packet, &own)
    }

    fn from(source: &str) -> Rule {
        Rule {
            source: Some(Prefix::new(ip(source), 24)),
            ..Rule::default()
        }
    }

    #[test]
    fn what_is_kept_of_each_packet_cannot_be_asked_about() {
        let auto = PacketQuery {
            ports: Some(Ports::single(7000)),
            ..PacketQuery::default()
        };
        let source = |source| PacketQuery { source, ..auto };
        assert!(told(from("10.1.1.0"), source(SourceChoice::Keep)));
        assert!(!told(from("10.1.1.0"), auto));
        assert!(!told(
            from("10.1.1.0"),
            source(SourceChoice::Address(ip("10.2.2.2")))
        ));
        // Of another host.
        assert!(told(
            from("10.1.1.0"),
            source(SourceChoice::Address(ip("10.1.1.9")))
        ));
        let port = |first, last| Rule {
            ports: Some(Ports { first, last }),
            ..Rule::default()
        };
        assert!(!told(port(7000, 7001), auto));
        assert!(!told(port(8000, 8001), auto));
        let range = PacketQuery {
            ports: Some(Ports {
                first: 7000,
                last: 7009,
            }),
            ..auto
        };
        assert!(told(port(7000, 7001), range));
        let by_source_port = || Rule {
            source_ports: Some(Ports::single(5001)),
            ..Rule::default()
        };
        assert!(told(by_source_port(), auto));
        assert!(!told(
            by_source_port(),
            PacketQuery {
                source_port: Some(1),
                ..auto
            }
        ));
        for others in [
            Rule {
                is_for_others: true,
                ..from("10.1.1.0")
            },
            Rule {
                by: Some("eth2".to_owned()),
                ..from("10.1.1.0")
            },
            Rule {
                destination: Some(Prefix::host(ip("10.9.9.8"))),
                ..from("10.1.1.0")
            },
        ] {
            assert!(!told(others, source(SourceChoice::Keep)));
        }
    }
}
