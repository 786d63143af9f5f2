//! Protocols that relaying breaks: clocks, which measure a packet's transit time, and those that carry
//! groups in their payload, which no relay changes. Relaying them is not forbidden, so rules for them
//! are reported and never refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::endpoint::Endpoint;
use crate::net::Ports;
use crate::rule::Rule;

/// The most rules that are reported one by one.
const REPORTED_MAX: usize = 8;

struct Protocol {
    name: &'static str,
    /// Its IPv4 groups.
    ipv4_groups: &'static [Ipv4Addr],
    /// The low bits of its IPv6 group, in any scope; `None`: [`Self::scoped`] alone.
    ipv6_low_bits: Option<u128>,
    /// Its IPv6 groups that exist in one scope only.
    scoped: &'static [Ipv6Addr],
    ports: Ports,
    harm: Harm,
}

#[derive(PartialEq, Eq)]
enum Harm {
    /// Any copy is harmed.
    Always,
    /// A copy with another group or port is harmed, because the payload names this.
    Renumbered(&'static str),
}

const fn ports(first: u16, last: u16) -> Ports {
    Ports { first, last }
}

const PROTOCOLS: [Protocol; 5] = [
    Protocol {
        name: "PTP (IEEE 1588)",
        ipv4_groups: &[
            Ipv4Addr::new(224, 0, 1, 129),
            Ipv4Addr::new(224, 0, 1, 130),
            Ipv4Addr::new(224, 0, 1, 131),
            Ipv4Addr::new(224, 0, 1, 132),
            Ipv4Addr::new(224, 0, 0, 107),
        ],
        ipv6_low_bits: Some(0x181),
        scoped: &[Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x6b)],
        ports: ports(319, 320),
        harm: Harm::Always,
    },
    Protocol {
        name: "SAP (RFC 2974)",
        ipv4_groups: &[
            Ipv4Addr::new(224, 2, 127, 254),
            Ipv4Addr::new(239, 195, 255, 255),
            Ipv4Addr::new(239, 255, 255, 255),
        ],
        ipv6_low_bits: Some(0x2_7ffe),
        scoped: &[],
        ports: ports(9875, 9875),
        harm: Harm::Renumbered("the groups of the sessions that it announces"),
    },
    Protocol {
        name: "SSDP (UPnP)",
        ipv4_groups: &[Ipv4Addr::new(239, 255, 255, 250)],
        ipv6_low_bits: Some(0xc),
        scoped: &[],
        ports: ports(1900, 1900),
        harm: Harm::Renumbered("its group, in HOST"),
    },
    Protocol {
        name: "RTPS (discovery of DDS)",
        ipv4_groups: &[Ipv4Addr::new(239, 255, 0, 1)],
        ipv6_low_bits: None,
        scoped: &[],
        ports: ports(7400, u16::MAX),
        harm: Harm::Renumbered("the groups that its participants receive by"),
    },
    Protocol {
        name: "PGM (RFC 3208) in UDP",
        ipv4_groups: &[],
        ipv6_low_bits: None,
        scoped: &[],
        ports: ports(3055, 3056),
        harm: Harm::Renumbered("its group, in each NAK and SPM"),
    },
];

impl Protocol {
    fn is_at(&self, end: &Endpoint) -> bool {
        let range = end.destination;
        let in_scopes = self
            .ipv6_low_bits
            .into_iter()
            .flat_map(|low| (0..16_u128).map(move |scope| (0xff00 | scope) << 112 | low));
        let mut groups = self
            .ipv4_groups
            .iter()
            .map(|group| IpAddr::V4(*group))
            .chain(self.scoped.iter().map(|group| IpAddr::V6(*group)))
            .chain(in_scopes.map(|group| Ipv6Addr::from_bits(group).into()));
        let has_ports = self.ports.overlaps(end.ports);
        match self.ipv4_groups {
            // Recognised by its ports alone, so a wide range does not count.
            [] => {
                range.address.is_multicast()
                    && self.ports.contains(end.ports.first)
                    && self.ports.contains(end.ports.last)
            }
            _ => {
                (has_ports || range.is_host() && self.harm == Harm::Always)
                    && groups.any(|group| range.contains(group))
            }
        }
    }

    /// What is wrong with a rule that relays it, as a warning.
    fn harm_to(&self, rule: &Rule) -> Option<String> {
        let Rule { name, outputs, .. } = rule;
        let mut inputs = rule.inputs.iter().filter(|input| self.is_at(input));
        match self.harm {
            Harm::Always => {
                let mut copies = outputs.iter().map(|output| &output.to);
                let end = inputs.next().or_else(|| copies.find(|to| self.is_at(to)))?;
                Some(format!(
                    "rule {name:?}: {end} is of {}, which a relay spoils: nobody corrects for the time \
                     that its packets take through one; use a boundary clock there",
                    self.name
                ))
            }
            Harm::Renumbered(payload) => inputs.find_map(|input| {
                let is_other = |to: &Endpoint| {
                    (to.destination, to.ports) != (input.destination, input.ports)
                };
                let to = &outputs.iter().find(|output| is_other(&output.to))?.to;
                Some(format!(
                    "rule {name:?}: output {to}: {} carries in its payload {payload}, which stays as it \
                     is in the copies; keep {} port {}",
                    self.name,
                    input.destination,
                    input.ports
                ))
            }),
        }
    }
}

/// Warns of rules whose copies are of little use, and why.
pub fn spoilt<'a>(rules: impl Iterator<Item = &'a Rule>) -> Vec<String> {
    let mut warnings: Vec<String> = rules
        .filter(|rule| rule.enabled)
        .flat_map(|rule| {
            PROTOCOLS
                .iter()
                .filter_map(|protocol| protocol.harm_to(rule))
        })
        .collect();
    let more = warnings.len().saturating_sub(REPORTED_MAX);
    warnings.truncate(REPORTED_MAX);
    warnings.extend((more > 0).then(|| format!("{more} more rules take what a relay spoils")));
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::RuleDocument;

    #[track_caller]
    fn warning(input: &str, output: &str) -> String {
        let document = RuleDocument {
            name: "a".to_owned(),
            inputs: vec![input.to_owned()],
            outputs: vec![output.into()],
            ..RuleDocument::default()
        };
        spoilt([document.to_rule(0).unwrap()].iter()).join("\n")
    }

    #[test]
    fn clocks_are_warned_of_wherever_they_go() {
        let others = ["224.0.0.107%eth0", "224.0.1.0/24%eth0"].map(str::to_owned);
        let ipv6 = ["ff02::6b", "ff02::181", "ff05::181", "ff0e::181"];
        let groups = (129..=132)
            .map(|last| format!("224.0.1.{last}%eth0"))
            .chain(others)
            .chain(ipv6.map(|group| format!("[{group}%eth0]")));
        for group in groups {
            let input = format!("{group}:319");
            let text = warning(&input, &input.replace("eth0", "eth1"));
            assert!(
                text.starts_with(&format!("rule \"a\": {input} is of PTP")),
                "{text}"
            );
            assert!(text.contains("boundary clock"), "{text}");
        }
        assert!(warning("224.0.1.129%eth0:5001", "239.1.1.1%eth1:1").contains("PTP"));
        assert!(warning("239.1.1.1%eth0:319", "224.0.1.129%eth1:319").contains("PTP"));
        for input in [
            "224.0.1.0/24%eth0:5001",
            "224.0.1.133%eth0:319",
            "[ff0e::6b%eth0]:319",
        ] {
            assert_eq!(
                warning(input, &input.replace("eth0", "eth1")),
                "",
                "{input}"
            );
        }
    }

    #[test]
    fn what_carries_its_group_is_warned_of_where_it_gets_another() {
        for (input, name) in [
            ("224.2.127.254%eth0:9875", "SAP"),
            ("239.255.255.255%eth0:9875", "SAP"),
            ("[ff0e::2:7ffe%eth0]:9875", "SAP"),
            ("239.255.255.250%eth0:1900", "SSDP"),
            ("239.255.0.1%eth0:7400", "RTPS"),
            ("239.1.1.1%eth0:3055", "PGM"),
            ("[ff0e::1%eth0]:3056", "PGM"),
        ] {
            assert_eq!(
                warning(input, &input.replace("eth0", "eth1")),
                "",
                "{input}"
            );
            let other = if input.starts_with('[') {
                "[ff0e::99%eth1]:9"
            } else {
                "10.9.9.9:7000"
            };
            let text = warning(input, other);
            assert!(
                text.starts_with(&format!("rule \"a\": output {other}: {name}")),
                "{text}"
            );
        }
        assert_eq!(
            warning("239.1.1.1%eth0:3000-4000", "239.2.1.1%eth0:3000-4000"),
            ""
        );
    }
}
