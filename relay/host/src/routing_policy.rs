//! The host's routing policy (`ip rule`), for what a route lookup cannot answer: fields that an output keeps
//! from each packet are not known beforehand.

use std::collections::{BTreeMap, BTreeSet, btree_set};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use compile::host::{Interface, PacketQuery};
use compile::ipsec::{Holds, within};
use futures::TryStreamExt;
use rtnetlink::packet_core::Nla;
use rtnetlink::packet_route::rule::{RuleAttribute, RuleFlags, RuleMessage, RulePortRange};
use rtnetlink::{Handle, IpVersion};
use rules::net::{Ifindex, Ports, Prefix};
use rules::rule::SourceChoice;

use super::route_kinds::{Division, RouteKinds, can_look_up};

/// The rules that depend on more than the destination.
#[derive(Clone, Debug, Default)]
pub struct RoutingPolicy {
    rules: Vec<Rule>,
    kinds: RouteKinds,
    division: Division,
}

/// The selectors of a rule.
#[derive(Clone, Debug, Default)]
struct Rule {
    is_inverted: bool,
    source: Option<Prefix>,
    destination: Option<Prefix>,
    source_ports: Option<Ports>,
    ports: Option<Ports>,
    tos: u8,
    by: Option<String>,
    /// Whether it has a selector that no packet of a socket of this host without a mark matches.
    is_for_others: bool,
}

const UDP: u8 = 17;
/// Attribute of a rule since Linux 6.13.
const FRA_DSCP: u16 = 25;

impl RoutingPolicy {
    /// Reads the rules of both families, none for one that the kernel lacks, to go with these kinds of
    /// routes.
    pub async fn read(handle: &Handle, kinds: RouteKinds) -> Self {
        let mut rules = Vec::new();
        for (family, any) in [
            (IpVersion::V4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            (IpVersion::V6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        ] {
            let request = handle.rule().get(family).execute();
            let listed: Vec<RuleMessage> = request.try_collect().await.unwrap_or_default();
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

    /// The fields of `packet` that can make a difference.
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

    /// Whether a rule or route applies to some of the packets only, or a rule depends on a source that a
    /// lookup cannot use because it belongs to another host.
    pub(crate) fn depends_on_packet(
        &self,
        destination: IpAddr,
        interface: Option<&str>,
        packet: &PacketQuery,
        interfaces: &BTreeMap<Ifindex, Interface>,
    ) -> bool {
        if self.kinds.by_tos && destination.is_ipv4() && packet.dscp.is_none()
            || self.restricting_sources(destination, packet).len() > 0
        {
            return true;
        }
        let mut rules = self.rules.iter();
        rules.any(|rule| {
            let holds = rule.holds(destination, interface, packet);
            let is_undecided =
                rule.source.is_some() && !can_look_up(packet.source, destination, interfaces);
            holds == Holds::Sometimes || holds == Holds::Always && is_undecided
        })
    }

    /// An address of each source prefix to which routes are restricted, if packets keep their own source.
    pub(crate) fn restricting_sources(
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

    /// Whether a route with several next hops may distribute the packets over them.
    pub(crate) fn may_divide(
        &self,
        destination: IpAddr,
        packet: &PacketQuery,
        interfaces: &BTreeMap<Ifindex, Interface>,
    ) -> bool {
        self.kinds.several
            && self
                .division
                .depends_on_packet(destination, packet, interfaces)
    }

    /// Whether the host now distributes packets in another way.
    pub(crate) fn is_outdated(&self) -> bool {
        self.kinds.several && self.division != Division::read()
    }

    /// Whether a route may depend on a neighbour's answers.
    pub(crate) const fn is_by_neighbour(&self) -> bool {
        self.kinds.several && self.division.is_by_neighbour()
    }
}

fn rule(message: &RuleMessage, any: IpAddr) -> Rule {
    let header = &message.header;
    let mut rule = Rule {
        is_inverted: header.flags.contains(RuleFlags::Invert),
        // A rule applies to destinations of its own family only.
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
    /// For which packets it holds.
    fn holds(&self, destination: IpAddr, interface: Option<&str>, packet: &PacketQuery) -> Holds {
        let source = match (self.source, packet.source) {
            (None, _) => Holds::Always,
            (Some(_), SourceChoice::Keep) => Holds::Sometimes,
            // The source is chosen after the route.
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

/// For which ports it holds that they are among those of a rule.
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

    fn distinguishes(rule: Rule, packet: PacketQuery) -> bool {
        let own = BTreeMap::new();
        let policy = RoutingPolicy {
            rules: vec![rule],
            ..RoutingPolicy::default()
        };
        policy.depends_on_packet(ip("10.9.9.9"), Some("eth1"), &packet, &own)
    }

    fn from(source: &str) -> Rule {
        Rule {
            source: Some(Prefix::new(ip(source), 24)),
            ..Rule::default()
        }
    }

    #[test]
    fn fields_kept_from_each_packet_cannot_be_looked_up() {
        let auto = PacketQuery {
            ports: Some(Ports::single(7000)),
            ..PacketQuery::default()
        };
        let source = |source| PacketQuery { source, ..auto };
        assert!(distinguishes(from("10.1.1.0"), source(SourceChoice::Keep)));
        assert!(!distinguishes(from("10.1.1.0"), auto));
        assert!(!distinguishes(
            from("10.1.1.0"),
            source(SourceChoice::Address(ip("10.2.2.2")))
        ));
        // A source of another host.
        assert!(distinguishes(
            from("10.1.1.0"),
            source(SourceChoice::Address(ip("10.1.1.9")))
        ));
        let port = |first, last| Rule {
            ports: Some(Ports { first, last }),
            ..Rule::default()
        };
        assert!(!distinguishes(port(7000, 7001), auto));
        assert!(!distinguishes(port(8000, 8001), auto));
        let range = PacketQuery {
            ports: Some(Ports {
                first: 7000,
                last: 7009,
            }),
            ..auto
        };
        assert!(distinguishes(port(7000, 7001), range));
        let by_source_port = || Rule {
            source_ports: Some(Ports::single(5001)),
            ..Rule::default()
        };
        assert!(distinguishes(by_source_port(), auto));
        assert!(!distinguishes(
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
            assert!(!distinguishes(others, source(SourceChoice::Keep)));
        }
    }
}
