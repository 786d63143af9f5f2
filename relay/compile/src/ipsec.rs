//! The host's IPsec policies (xfrm) on outgoing packets, and which of them an output's copies match.
//!
//! The fields that an output keeps of each packet are unknown beforehand, so a selector may match only some
//! copies. Copies that one may match are sent by a socket: then the kernel decides about each packet itself.

use std::net::IpAddr;

use rules::net::{Ifindex, Ports, Prefix};

/// The policies in the order in which the kernel evaluates them; the first that matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies(Vec<Policy>);

/// One policy on outgoing packets without mark and interface ID, as copies are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which packets it matches.
    pub selector: Selector,
    /// The lowest takes precedence.
    pub priority: u32,
    /// What it does with them.
    pub action: Action,
    /// The policy as `ip xfrm policy` writes it, in short.
    pub text: String,
}

/// What a policy does with packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Refuses them.
    Block,
    /// Passes them only transformed.
    Protect(Vec<Template>),
    /// Passes them unchanged.
    Pass,
}

/// A transformation that a policy requires.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Template {
    /// The other end of a tunnel; `None` if it is the packet's own destination.
    pub peer: Option<IpAddr>,
    /// The ends that have security associations.
    pub ready: Vec<IpAddr>,
}

/// Which packets a policy matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Sources.
    pub source: Prefix,
    /// Destinations.
    pub destination: Prefix,
    /// Source port and the mask of its bits that count.
    pub source_port: (u16, u16),
    /// The same of the destination port.
    pub port: (u16, u16),
    /// The protocol above IP; 0 for all.
    pub protocol: u8,
    /// The interface that they leave by; `None` for all.
    pub interface: Option<Ifindex>,
}

/// The packets that an output sends, as far as they are known before they arrive.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Source; `None` if each packet keeps its own.
    pub source: Option<IpAddr>,
    /// Destinations.
    pub destination: Prefix,
    /// Source port; `None` if each packet keeps its own.
    pub source_port: Option<u16>,
    /// Destination ports.
    pub ports: Ports,
    /// The interface of the route.
    pub interface: Ifindex,
}

/// What happens to an output's copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement<'a> {
    /// No policy applies to them.
    Free,
    /// The kernel must judge and transform them, this policy being the first that may match.
    Judged(&'a Policy),
    /// None may leave.
    Blocked(&'a Policy),
    /// None can leave until there is a security association.
    Waits(&'a Policy),
}

/// Whether a condition holds for the packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    /// For none.
    Never,
    /// For some, or unknown.
    Sometimes,
    /// For all.
    Always,
}

impl From<bool> for Holds {
    fn from(holds: bool) -> Self {
        if holds { Self::Always } else { Self::Never }
    }
}

impl Policies {
    /// Sorts them. Of two with the same priority the kernel takes the older, which it does not report:
    /// here one that passes packets unchanged comes last.
    pub fn new(mut policies: Vec<Policy>) -> Self {
        policies.sort_by(|a, b| (a.priority, &a.action).cmp(&(b.priority, &b.action)));
        Self(policies)
    }

    /// What happens to the packets of `flow`.
    pub fn judge(&self, flow: &Flow) -> Judgement<'_> {
        let mut some_pass = false;
        for policy in &self.0 {
            match (policy.selector.holds(flow), &policy.action) {
                (Holds::Never, _) => {}
                (Holds::Sometimes, Action::Pass) => some_pass = true,
                (Holds::Always, Action::Pass) => return Judgement::Free,
                (Holds::Always, Action::Block) if !some_pass => return Judgement::Blocked(policy),
                (Holds::Always, Action::Protect(templates))
                    if !some_pass && !templates.iter().all(|t| t.is_ready(flow.destination)) =>
                {
                    return Judgement::Waits(policy);
                }
                _ => return Judgement::Judged(policy),
            }
        }
        Judgement::Free
    }
}

impl Template {
    /// Returns whether some packets to `destination` can be transformed.
    fn is_ready(&self, destination: Prefix) -> bool {
        let mut ready = self.ready.iter();
        ready.any(|end| match self.peer {
            Some(peer) => *end == peer,
            None => destination.contains(*end),
        })
    }
}

impl Selector {
    /// Whether it matches the packets of a flow (`xfrm_selector_match`).
    fn holds(&self, flow: &Flow) -> Holds {
        let source = match flow.source {
            Some(source) => within(self.source, Prefix::host(source)),
            None if self.source.length > 0 => Holds::Sometimes,
            None => Holds::Always,
        };
        let source_port = flow.source_port.map(Ports::single);
        within(self.destination, flow.destination)
            .min(source)
            .min(has_port(self.port, Some(flow.ports)))
            .min(has_port(self.source_port, source_port))
            .min([0, UDP].contains(&self.protocol).into())
            .min(
                self.interface
                    .is_none_or(|link| link == flow.interface)
                    .into(),
            )
    }
}

const UDP: u8 = 17;

/// Whether the addresses of `range` lie in `prefix`.
pub fn within(prefix: Prefix, range: Prefix) -> Holds {
    if prefix.contains(range.address) && prefix.length <= range.length {
        Holds::Always
    } else if prefix.overlaps(range) {
        Holds::Sometimes
    } else {
        Holds::Never
    }
}

fn has_port((port, mask): (u16, u16), ports: Option<Ports>) -> Holds {
    match ports {
        _ if mask == 0 => Holds::Always,
        Some(ports) if ports.is_single() => ((ports.first ^ port) & mask == 0).into(),
        _ => Holds::Sometimes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').unwrap();
        Prefix::new(address.parse().unwrap(), length.parse().unwrap())
    }

    fn selector(source: &str, destination: &str) -> Selector {
        Selector {
            source: prefix(source),
            destination: prefix(destination),
            source_port: (0, 0),
            port: (0, 0),
            protocol: 0,
            interface: None,
        }
    }

    fn policy(selector: Selector, priority: u32, action: Action) -> Policy {
        let text = format!("{priority}");
        Policy {
            selector,
            priority,
            action,
            text,
        }
    }

    fn all(priority: u32, action: Action) -> Policy {
        policy(selector("0.0.0.0/0", "0.0.0.0/0"), priority, action)
    }

    fn protect(peer: Option<&str>, ready: &[&str]) -> Action {
        Action::Protect(vec![Template {
            peer: peer.map(|peer| peer.parse().unwrap()),
            ready: ready.iter().map(|end| end.parse().unwrap()).collect(),
        }])
    }

    fn flow() -> Flow {
        Flow {
            source: Some("10.0.0.1".parse().unwrap()),
            destination: prefix("10.99.0.9/32"),
            source_port: None,
            ports: Ports::single(7001),
            interface: Ifindex(3),
        }
    }

    /// `free`, or the judgement and the policy's priority.
    fn judged(policies: Vec<Policy>, flow: &Flow) -> String {
        match Policies::new(policies).judge(flow) {
            Judgement::Free => "free".to_owned(),
            Judgement::Judged(policy) => format!("judged {}", policy.text),
            Judgement::Blocked(policy) => format!("blocked {}", policy.text),
            Judgement::Waits(policy) => format!("waits {}", policy.text),
        }
    }

    #[test]
    fn the_first_policy_that_holds_decides() {
        let ready = || protect(Some("10.2.0.2"), &["10.2.0.2"]);
        let cases = [
            (vec![], "free"),
            (vec![all(1, Action::Block)], "blocked 1"),
            (vec![all(2, Action::Block), all(1, Action::Pass)], "free"),
            (
                vec![all(2, Action::Pass), all(1, Action::Block)],
                "blocked 1",
            ),
            // Which of these is older is unknown.
            (vec![all(1, Action::Pass), all(1, ready())], "judged 1"),
            (
                vec![all(1, protect(Some("10.2.0.2"), &["10.2.0.3"]))],
                "waits 1",
            ),
            (vec![all(1, protect(None, &["10.99.0.9"]))], "judged 1"),
            (vec![all(1, protect(None, &["10.2.0.2"]))], "waits 1"),
            (vec![all(1, Action::Protect(vec![]))], "judged 1"),
        ];
        for (policies, expected) in cases {
            assert_eq!(judged(policies, &flow()), expected);
        }
    }

    #[test]
    fn policies_that_match_only_some_packets_are_left_to_the_kernel() {
        let any_source = Flow {
            source: None,
            ..flow()
        };
        let some = || selector("10.7.0.0/16", "10.99.0.0/24");
        let block = || policy(some(), 1, Action::Block);
        assert_eq!(judged(vec![block()], &flow()), "free");
        assert_eq!(judged(vec![block()], &any_source), "judged 1");
        let passes = || policy(some(), 1, Action::Pass);
        assert_eq!(judged(vec![passes()], &any_source), "free");
        assert_eq!(
            judged(vec![passes(), all(2, Action::Block)], &any_source),
            "judged 2"
        );
        let waits = policy(some(), 1, protect(Some("10.2.0.2"), &[]));
        assert_eq!(judged(vec![waits], &any_source), "judged 1");
    }

    #[test]
    fn each_part_of_a_selector_counts() {
        let base = || selector("10.0.0.0/24", "10.99.0.0/24");
        let case = |change: fn(&mut Selector)| {
            let mut selector = base();
            change(&mut selector);
            selector.holds(&flow())
        };
        assert_eq!(case(|_| {}), Holds::Always);
        assert_eq!(case(|s| s.source = prefix("10.1.0.0/24")), Holds::Never);
        assert_eq!(case(|s| s.destination = prefix("::/0")), Holds::Never);
        assert_eq!(case(|s| s.protocol = 17), Holds::Always);
        assert_eq!(case(|s| s.protocol = 6), Holds::Never);
        assert_eq!(case(|s| s.port = (7001, 0xffff)), Holds::Always);
        assert_eq!(case(|s| s.port = (7002, 0xffff)), Holds::Never);
        assert_eq!(case(|s| s.port = (7000, 0xfff0)), Holds::Always);
        assert_eq!(case(|s| s.source_port = (5001, 0xffff)), Holds::Sometimes);
        assert_eq!(case(|s| s.interface = Some(Ifindex(3))), Holds::Always);
        assert_eq!(case(|s| s.interface = Some(Ifindex(4))), Holds::Never);
        let range = Flow {
            destination: prefix("10.98.0.0/15"),
            ports: Ports {
                first: 7000,
                last: 7009,
            },
            ..flow()
        };
        assert_eq!(base().holds(&range), Holds::Sometimes);
        let wide = selector("0.0.0.0/0", "10.0.0.0/8");
        assert_eq!(wide.holds(&range), Holds::Always);
    }
}
