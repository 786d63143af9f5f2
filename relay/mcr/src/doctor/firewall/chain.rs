//! A packet filter as far as it can be judged from outside: chains of rules whose tests may be
//! true, false or unknown for a given packet.

use std::fmt;
use std::net::IpAddr;

use rules::net::Prefix;

/// The packet to judge.
#[derive(Clone, Debug)]
pub(crate) struct ProbePacket {
    /// `igmp`, `icmpv6` or `udp`.
    pub(crate) protocol: &'static str,
    pub(crate) is_ipv4: bool,
    pub(crate) destination: IpAddr,
    pub(crate) port: Option<u16>,
    /// The ICMPv6 type's name.
    pub(crate) icmp_type: Option<&'static str>,
    /// Interface that it arrives on or leaves by.
    pub(crate) interface: String,
    pub(crate) is_inbound: bool,
    /// Whether it is a copy that MCR hands to the device: those pass its egress hook only.
    pub(crate) is_copy: bool,
}

/// What a rule may ask about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    InInterface,
    OutInterface,
    Protocol,
    Family,
    Source,
    Destination,
    DestinationPort,
    State,
    IcmpType,
}

/// A value that a field is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Word(String),
    Net(Prefix),
    Ports(u16, u16),
}

/// One test of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// The field is (or is not) one of the values.
    Is {
        field: Field,
        values: Vec<Value>,
        negated: bool,
    },
    /// A test that cannot be judged from outside.
    Unknown,
}

/// What a rule does with a packet that passes its tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Accept,
    Drop,
    Jump(String),
    Goto(String),
    Return,
    /// Counts, logs, marks: the next rule follows.
    Continue,
}

/// A rule.
#[derive(Clone, Debug)]
pub(crate) struct FilterRule {
    pub(crate) tests: Vec<Test>,
    pub(crate) target: Target,
    /// How to name it to the operator.
    pub(crate) text: String,
}

/// A chain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    pub(crate) family: String,
    pub(crate) table: String,
    pub(crate) name: String,
    /// `input`, `output`, …; empty for chains that are only jumped to.
    pub(crate) hook: String,
    /// The devices of a chain that hangs at devices.
    pub(crate) devices: Vec<String>,
    pub(crate) drops_by_default: bool,
    pub(crate) rules: Vec<FilterRule>,
}

impl fmt::Display for Chain {
    /// As nft names it: family, table and its own name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.family, self.table, self.name)
    }
}

impl Chain {
    /// Whether packets of this family, device and direction pass through it.
    pub(crate) fn sees(&self, packet: &ProbePacket) -> bool {
        let hook = match (packet.is_copy, packet.is_inbound) {
            (true, _) => self.hook == "egress",
            (_, true) => matches!(self.hook.as_str(), "ingress" | "prerouting" | "input"),
            (_, false) => matches!(self.hook.as_str(), "output" | "postrouting" | "egress"),
        };
        let family = match self.family.as_str() {
            "inet" | "netdev" => true,
            "ip" => packet.is_ipv4,
            "ip6" => !packet.is_ipv4,
            _ => false,
        };
        let is_there = || {
            let mut devices = self.devices.iter();
            devices.any(|device| word_matches(device, &packet.interface))
        };
        hook && family && (!self.is_at_devices() || is_there())
    }

    /// Whether only packets of its devices pass through it.
    pub(crate) fn is_at_devices(&self) -> bool {
        matches!(self.hook.as_str(), "ingress" | "egress")
    }
}

/// What a chain does to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Passes,
    /// Dropped, and by which rule or policy.
    Drops(String),
    /// Dropped unless an earlier rule that cannot be judged accepts it.
    MayDrop(String),
}

enum End {
    Accepted,
    Dropped(String),
    Returned,
}

/// Sends a packet through a base chain.
pub(crate) fn judge(chains: &[Chain], base: &Chain, packet: &ProbePacket) -> Fate {
    let mut doubtful = false;
    let dropped = match walk(chains, base, packet, &mut doubtful, 0) {
        End::Accepted => return Fate::Passes,
        End::Dropped(text) => text,
        End::Returned if base.drops_by_default => "its policy is drop".to_owned(),
        End::Returned => return Fate::Passes,
    };
    if doubtful {
        Fate::MayDrop(dropped)
    } else {
        Fate::Drops(dropped)
    }
}

fn walk(
    chains: &[Chain],
    chain: &Chain,
    packet: &ProbePacket,
    doubtful: &mut bool,
    depth: u8,
) -> End {
    const DEEPEST: u8 = 16;
    for rule in &chain.rules {
        let outcome = all(rule.tests.iter().map(|test| passes(test, packet)));
        match (outcome, &rule.target) {
            (Some(false), _) | (_, Target::Continue) => {}
            // A rule that may accept makes the verdict doubtful; one that may drop is assumed not to.
            (None, Target::Drop) => {}
            (None, _) => *doubtful = true,
            (Some(true), Target::Accept) => return End::Accepted,
            (Some(true), Target::Drop) => return End::Dropped(rule.text.clone()),
            (Some(true), Target::Return) => return End::Returned,
            (Some(true), Target::Jump(name) | Target::Goto(name)) => {
                let same = |c: &&Chain| {
                    c.name == *name && c.table == chain.table && c.family == chain.family
                };
                let Some(next) = chains.iter().find(same).filter(|_| depth < DEEPEST) else {
                    *doubtful = true;
                    continue;
                };
                match walk(chains, next, packet, doubtful, depth + 1) {
                    End::Returned if matches!(rule.target, Target::Jump(_)) => {}
                    end => return end,
                }
            }
        }
    }
    End::Returned
}

/// False if one of them is false, even if others are unknown.
fn all(outcomes: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut all = Some(true);
    for outcome in outcomes {
        match outcome {
            Some(false) => return Some(false),
            None => all = None,
            Some(true) => {}
        }
    }
    all
}

/// Whether a packet passes a test; `None` if that is unknown.
fn passes(test: &Test, packet: &ProbePacket) -> Option<bool> {
    let Test::Is {
        field,
        values,
        negated,
    } = test
    else {
        return None;
    };
    let any = |matches: &dyn Fn(&Value) -> bool| Some(values.iter().any(matches));
    let word =
        |have: &str| any(&|value| matches!(value, Value::Word(word) if word_matches(word, have)));
    let is_match = match field {
        Field::InInterface if packet.is_inbound => word(&packet.interface),
        Field::OutInterface if !packet.is_inbound => word(&packet.interface),
        Field::InInterface | Field::OutInterface => Some(false),
        Field::Protocol => word(packet.protocol),
        Field::Family => word(if packet.is_ipv4 { "ipv4" } else { "ipv6" }),
        // Neither queries nor reports belong to a connection.
        Field::State => {
            any(&|value| matches!(value, Value::Word(word) if word == "new" || word == "untracked"))
        }
        Field::IcmpType => packet
            .icmp_type
            .and_then(|have| any(&|value| matches!(value, Value::Word(word) if word == have))),
        Field::DestinationPort => any(&|value| {
            let is_in = |port| matches!(value, Value::Ports(first, last) if (*first..=*last).contains(&port));
            packet.port.is_some_and(is_in)
        }),
        Field::Destination => {
            any(&|value| matches!(value, Value::Net(net) if net.contains(packet.destination)))
        }
        Field::Source => None,
    };
    is_match.map(|is_match| is_match != *negated)
}

/// Interface names may end in a wildcard: `*` for nft, `+` for iptables.
fn word_matches(pattern: &str, have: &str) -> bool {
    match pattern.strip_suffix(['*', '+']) {
        Some(start) => have.starts_with(start),
        None => pattern == have,
    }
}
