//! Protocols that a copy spoils: clocks, which measure the way that a packet takes, and those that carry
//! groups in their payload, which no relay changes. Nothing forbids to relay them, so it is reported and
//! never refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::endpoint::Endpoint;
use crate::net::Ports;
use crate::rule::Rule;

/// So many are reported one by one.
const TOLD: usize = 8;

struct Protocol {
    name: &'static str,
    /// Its groups of IPv4.
    of_4: &'static [Ipv4Addr],
    /// What its groups of IPv6 end in, in whatever scope; none: [`Self::scoped`] alone.
    of_6: Option<u128>,
    /// The scope of its groups of IPv6 where it has but one.
    scoped: &'static [Ipv6Addr],
    ports: Ports,
    harm: Harm,
}

#[derive(PartialEq, Eq)]
enum Harm {
    /// Whatever becomes of it.
    Always,
    /// Where a copy has another group or port, for what the payload says.
    Renumbered(&'static str),
}

const fn ports(first: u16, last: u16) -> Ports {
    Ports { first, last }
}

const PROTOCOLS: [Protocol; 5] = [
    Protocol {
        name: "PTP (IEEE 1588)",
        of_4: &[
            Ipv4Addr::new(224, 0, 1, 129),
            Ipv4Addr::new(224, 0, 1, 130),
            Ipv4Addr::new(224, 0, 1, 131),
            Ipv4Addr::new(224, 0, 1, 132),
            Ipv4Addr::new(224, 0, 0, 107),
        ],
        of_6: Some(0x181),
        scoped: &[Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x6b)],
        ports: ports(319, 320),
        harm: Harm::Always,
    },
    Protocol {
        name: "SAP (RFC 2974)",
        of_4: &[
            Ipv4Addr::new(224, 2, 127, 254),
            Ipv4Addr::new(239, 195, 255, 255),
            Ipv4Addr::new(239, 255, 255, 255),
        ],
        of_6: Some(0x2_7ffe),
        scoped: &[],
        ports: ports(9875, 9875),
        harm: Harm::Renumbered("the groups of the sessions that it announces"),
    },
    Protocol {
        name: "SSDP (UPnP)",
        of_4: &[Ipv4Addr::new(239, 255, 255, 250)],
        of_6: Some(0xc),
        scoped: &[],
        ports: ports(1900, 1900),
        harm: Harm::Renumbered("its group, in HOST"),
    },
    Protocol {
        name: "RTPS (discovery of DDS)",
        of_4: &[Ipv4Addr::new(239, 255, 0, 1)],
        of_6: None,
        scoped: &[],
        ports: ports(7400, u16::MAX),
        harm: Harm::Renumbered("the groups that its participants receive by"),
    },
    Protocol {
        name: "PGM (RFC 3208) in UDP",
        of_4: &[],
        of_6: None,
        scoped: &[],
        ports: ports(3055, 3056),
        harm: Harm::Renumbered("its group, in each NAK and SPM"),
    },
];

impl Protocol {
    fn is_at(&self, end: &Endpoint) -> bool {
        let range = end.destination;
        let in_scopes = self
            .of_6
            .into_iter()
            .flat_map(|low| (0..16_u128).map(move |scope| (0xff00 | scope) << 112 | low));
        let mut groups = self
            .of_4
            .iter()
            .map(|group| IpAddr::V4(*group))
            .chain(self.scoped.iter().map(|group| IpAddr::V6(*group)))
            .chain(in_scopes.map(|group| Ipv6Addr::from_bits(group).into()));
        let has_ports = self.ports.overlaps(end.ports);
        match self.of_4 {
            // Known by its ports alone, so no wide range is taken for it.
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

    /// What is wrong with a rule that takes it.
    fn harm_to(&self, rule: &Rule) -> Option<String> {
        let Rule { name, outputs, .. } = rule;
        let mut inputs = rule.inputs.iter().filter(|input| self.is_at(input));
        match self.harm {
            Harm::Always => {
                let mut made = outputs.iter().map(|output| &output.to);
                let end = inputs.next().or_else(|| made.find(|to| self.is_at(to)))?;
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

/// Says of which rules copies are of little use, and why.
pub fn spoilt<'a>(rules: impl Iterator<Item = &'a Rule>) -> Vec<String> {
    let rules = rules.filter(|rule| rule.enabled);
    let mut told: Vec<String> = rules
        .flat_map(|rule| {
            PROTOCOLS
                .iter()
                .filter_map(|protocol| protocol.harm_to(rule))
        })
        .collect();
    let more = told.len().saturating_sub(TOLD);
    told.truncate(TOLD);
    told.extend((more > 0).then(|| format!("{more} more rules take what a relay spoils")));
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::RuleDocument;

    #[track_caller]
    fn told(input: &str, output: &str) -> String {
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
        let groups = (129..=132).map(|last| format!("224.0.1.{last}%eth0"));
        let groups = groups.chain([
            "224.0.0.107%eth0".to_owned(),
            "224.0.1.0/24%eth0".to_owned(),
        ]);
        let groups = groups.chain(
            ["ff02::6b", "ff02::181", "ff05::181", "ff0e::181"]
                .map(|group| format!("[{group}%eth0]")),
        );
        for group in groups {
            let input = format!("{group}:319");
            let said = told(&input, &input.replace("eth0", "eth1"));
            assert!(
                said.starts_with(&format!("rule \"a\": {input} is of PTP")),
                "{said}"
            );
            assert!(said.contains("boundary clock"), "{said}");
        }
        assert!(told("224.0.1.129%eth0:5001", "239.1.1.1%eth1:1").contains("PTP"));
        assert!(told("239.1.1.1%eth0:319", "224.0.1.129%eth1:319").contains("PTP"));
        for input in [
            "224.0.1.0/24%eth0:5001",
            "224.0.1.133%eth0:319",
            "[ff0e::6b%eth0]:319",
        ] {
            assert_eq!(told(input, &input.replace("eth0", "eth1")), "", "{input}");
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
            assert_eq!(told(input, &input.replace("eth0", "eth1")), "", "{input}");
            let other = if input.starts_with('[') {
                "[ff0e::99%eth1]:9"
            } else {
                "10.9.9.9:7000"
            };
            let said = told(input, other);
            assert!(
                said.starts_with(&format!("rule \"a\": output {other}: {name}")),
                "{said}"
            );
        }
        assert_eq!(
            told("239.1.1.1%eth0:3000-4000", "239.2.1.1%eth0:3000-4000"),
            ""
        );
    }
}
