//! What is wrong with rules, each alone and all together. Every problem is reported, not the first.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::index::InputId;
use super::set::RuleSet;
use super::slot::Slot;
use crate::demand::DemandProblem;
use crate::endpoint::Endpoint;
use crate::failover::{FailoverProblem, On};
use crate::loops;
use crate::merge::MergeProblem;
use crate::net::{Ports, Prefix};
use crate::owner::Owner;
use crate::problem::{Part, Problem, Problems, What};
use crate::rule::{OptionsProblem, OutputProblem, OutputSpec, Rule, SourceChoice, is_name};

/// What is permitted beyond the ordinary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether 224.0.0.0/24 and ff02::/16 may be inputs; by default they may not.
    pub allow_link_local: Option<bool>,
}

impl Policy {
    /// Everything: for rules that already run, and where the daemon decides.
    pub const PERMISSIVE: Self = Self {
        allow_link_local: Some(true),
    };
}

/// What is wrong with the rules at `slots`, alone and with any other of the set. Reports everything if
/// these are all rules of the set in their order; otherwise, with the others valid together, at least
/// one problem if there is any.
pub(super) fn problems(rules: &RuleSet, slots: &[Slot], policy: Policy) -> Problems {
    let mut problems = loops::find(rules, slots);
    let mut names = HashMap::new();
    let mut rivals = Vec::new();
    for slot in slots {
        let mut check = Check {
            rules,
            slot: *slot,
            rule: &rules[*slot],
            problems: &mut problems,
        };
        check.name(&mut names);
        check.inputs(policy);
        check.outputs();
        if check.rule.enabled {
            check.problems = &mut rivals;
            check.rivals(slots);
            check.divided();
        }
    }
    problems.append(&mut rivals);
    problems.sort_by_key(|problem| (problem.position, problem.part));
    Problems(problems)
}

struct Check<'r, 'p> {
    rules: &'r RuleSet,
    slot: Slot,
    rule: &'r Rule,
    problems: &'p mut Vec<Problem>,
}

impl<'r> Check<'r, '_> {
    fn report(&mut self, part: Part, what: What) {
        let text = match part {
            Part::Input(index) => self.rule.inputs[index].to_string(),
            Part::Output(index) => self.rule.outputs[index].target(),
            _ => String::new(),
        };
        self.problems.push(Problem {
            position: self.rules.position(self.slot),
            rule: self.rule.name.clone(),
            part,
            text,
            what,
        });
    }

    fn name(&mut self, names: &mut HashMap<&'r str, Slot>) {
        let name = &self.rule.name;
        if name.is_empty() {
            self.report(Part::Name, What::NameEmpty);
        } else if !is_name(name) {
            self.report(Part::Name, What::NameInvalid);
        } else if let Some(first) = names.get(name.as_str()).copied() {
            let first = self.rules.position(first);
            self.report(Part::Name, What::NameTaken { first });
        } else {
            names.insert(name, self.slot);
        }
    }

    fn inputs(&mut self, policy: Policy) {
        if self.rule.inputs.is_empty() {
            self.report(Part::Rule, What::NoInput);
        }
        for (index, input) in self.rule.inputs.iter().enumerate() {
            let part = Part::Input(index);
            if !input.is_multicast() {
                self.address(part, input);
            } else if self.rule.reflect.is_none()
                && policy.allow_link_local != Some(true)
                && is_link_local(input.destination)
            {
                self.report(part, What::LinkLocal(input.destination.to_string()));
            }
            if input.interface.is_none() {
                self.report(part, What::InterfaceMissing(with_interface(input)));
            }
        }
        let failover = self.rule.failover;
        if let Some(what) = failover.and_then(|failover| failover.problem_with(&self.rule.inputs)) {
            self.report(Part::Failover, what.into());
        }
        let needs_health = failover.is_some_and(|failover| failover.on == On::Degraded);
        if needs_health && self.rule.health.is_none() {
            self.report(Part::Failover, FailoverProblem::NoHealth.into());
        }
        let Some(merge) = self.rule.merge else {
            return;
        };
        if failover.is_some() {
            self.report(Part::Merge, MergeProblem::WithFailover.into());
        }
        if let Some(what) = merge.problem_with(&self.rule.inputs) {
            self.report(Part::Merge, what.into());
        }
    }

    /// Checks an input that is not a group.
    fn address(&mut self, part: Part, input: &Endpoint) {
        let destination = input.destination;
        if !destination.is_host() {
            self.report(part, What::AddressRange(destination.to_string()));
        } else if is_mapped(destination.address) {
            self.report(part, What::Unreceivable(destination.to_string()));
        }
    }

    fn outputs(&mut self) {
        if self.rule.outputs.is_empty() {
            self.report(Part::Rule, What::NoOutput);
        }
        let mut seen = HashSet::new();
        for (index, output) in self.rule.outputs.iter().enumerate() {
            let part = Part::Output(index);
            if !seen.insert((&output.to, &output.name, output.source, output.source_port)) {
                self.report(part, What::OutputTwice);
            }
            if output.name.is_none() {
                self.destination(part, &output.to);
            } else if output.to.has_wildcard() {
                let interface = output.to.interface.clone().unwrap_or_default();
                self.report(part, What::OutputWildcard(interface));
            }
            self.fit(part, output);
            if let Some(what) = self.rule.demand_problem(output) {
                self.report(part, what.into());
            }
        }
        if let Some(what) = self.rule.silence_problem() {
            self.report(Part::Health, what.into());
        }
    }

    /// Finds inputs that share groups with those of another rule if what is listened to divides
    /// either rule.
    fn divided(&mut self) {
        if !self.rules.index().has_divided() {
            return;
        }
        for (index, input) in self.rule.inputs.iter().enumerate() {
            let reached = self.rules.index().reached_by(input).into_iter();
            let mut others = reached
                .filter(|other| other.rule != self.slot)
                .map(|other| (&self.rules[other.rule], other.input));
            let shared = others.find(|(other, _)| self.rule.is_divided() || other.is_divided());
            if let Some((other, number)) = shared.filter(|_| input.is_multicast()) {
                let what = DemandProblem::Overlaps {
                    input: other.inputs[number].to_string(),
                    owner: Owner::Rule(other.name.clone()),
                };
                self.report(Part::Input(index), what.into());
            }
        }
    }

    fn destination(&mut self, part: Part, to: &Endpoint) {
        if to.has_wildcard() {
            let interface = to.interface.clone().unwrap_or_default();
            self.report(part, What::OutputWildcard(interface));
        }
        let destination = to.destination;
        if to.is_multicast() {
            if to.interface.is_none() {
                self.report(part, What::InterfaceMissing(with_interface(to)));
            }
        } else if !destination.is_host() {
            self.report(part, What::UnicastRange(destination.to_string()));
        } else if !is_sendable(destination.address) {
            self.report(part, What::Unsendable(to.destination_text()));
        } else if (needs_interface(destination.address) || to.is_broadcast())
            && to.interface.is_none()
        {
            self.report(part, What::InterfaceMissing(with_interface(to)));
        }
    }

    /// Compares an output with the inputs; the first that does not fit is reported.
    fn fit(&mut self, part: Part, output: &OutputSpec) {
        let (to, rule) = (&output.to, self.rule);
        let groups = to.destination;
        let other_family = |input: &&Endpoint| input.is_ipv4() != to.is_ipv4();
        if let Some(input) = rule.inputs.iter().find(other_family) {
            let what = What::Family {
                input: input.to_string(),
                own: family(to),
                other: family(input),
            };
            return self.report(part, what);
        }
        if let SourceChoice::Address(address) = output.source
            && address.is_ipv4() != to.is_ipv4()
        {
            let what = OptionsProblem::SourceFamily(address, family(to));
            return self.report(part, OutputProblem::from(what).into());
        }
        let range = to.is_multicast() && !groups.is_host();
        let other_size = |input: &&Endpoint| !fits_groups(input, groups);
        if range && let Some(input) = rule.inputs.iter().find(other_size) {
            let what = What::GroupRange {
                own: groups.to_string(),
                input: input.to_string(),
                remedy: group_remedy(input),
            };
            self.report(part, what);
        }
        let other_count = |input: &&Endpoint| !fits_ports(input, to.ports);
        if !to.ports.is_single()
            && let Some(input) = rule.inputs.iter().find(other_count)
        {
            let what = What::PortRange {
                own: to.ports.to_string(),
                count: to.ports.count(),
                input: input.to_string(),
                remedy: port_remedy(to.ports, input),
            };
            self.report(part, what);
        }
    }

    /// Finds inputs that claim the same packets with equal precedence as an earlier input, or as an
    /// input of a rule that is not being checked.
    fn rivals(&mut self, checked: &[Slot]) {
        for (index, input) in self.rule.inputs.iter().enumerate() {
            let own = InputId {
                rule: self.slot,
                input: index,
            };
            let is_checked = |slot: &Slot| checked.binary_search(slot).is_ok();
            let counts = |rival: &InputId| {
                *rival < own || rival.rule != own.rule && !is_checked(&rival.rule)
            };
            let mut rivals = self.rules.index().rivals(input);
            rivals.retain(counts);
            rivals.sort();
            for rival in rivals {
                let owner = &self.rules[rival.rule];
                let other = &owner.inputs[rival.input];
                if !claim_the_same(input, other) {
                    continue;
                }
                let owner = if rival.rule == own.rule {
                    Owner::Same
                } else {
                    Owner::Rule(owner.name.clone())
                };
                let is_same = input.ports == other.ports && input.interface == other.interface;
                let reflects = |rule: &Rule| rule.reflect.is_some();
                let what = if input.destination != other.destination {
                    let input = other.to_string();
                    What::AddressTaken { input, owner }
                } else if is_same && reflects(self.rule) && reflects(&self.rules[rival.rule]) {
                    What::ReflectedTwice(owner)
                } else if is_same {
                    What::InputTaken(owner)
                } else {
                    let input = other.to_string();
                    What::InputAmbiguous { input, owner }
                };
                self.report(Part::Input(index), what);
                break;
            }
        }
    }
}

/// Returns whether two inputs that [`InputIndex::rivals`](super::index::InputIndex::rivals) pairs claim
/// the same packets with equal precedence.
fn claim_the_same(a: &Endpoint, b: &Endpoint) -> bool {
    same_senders(a, b) && a.ports.count() == b.ports.count()
}

/// Returns whether both listen to any sender, or to one in common.
fn same_senders(a: &Endpoint, b: &Endpoint) -> bool {
    a.sources.is_empty() && b.sources.is_empty()
        || a.sources.iter().any(|source| b.sources.contains(source))
}

/// RFC 5771 section 4 and RFC 4291 section 2.7: groups that stay on their link.
pub fn is_link_local(groups: Prefix) -> bool {
    let (base, length): (IpAddr, u8) = match groups.address {
        IpAddr::V4(_) => ([224, 0, 0, 0].into(), 24),
        IpAddr::V6(_) => ([0xff02, 0, 0, 0, 0, 0, 0, 0].into(), 16),
    };
    groups.overlaps(Prefix::new(base, length))
}

fn is_sendable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_unspecified(),
        IpAddr::V6(ipv6) => !ipv6.is_unspecified() && !is_mapped(address),
    }
}

/// Returns whether it is an IPv4-mapped IPv6 address, which no packet carries.
fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// Returns whether an output's range of groups fits an input: as many groups, or for an address of this
/// host as many ports. The ports of a group do not map to a range of groups: a fragment that arrived
/// before its port would have no group.
fn fits_groups(input: &Endpoint, groups: Prefix) -> bool {
    if input.is_multicast() {
        input.destination.length == groups.length
    } else {
        count(groups) == Some(input.ports.count())
    }
}

/// Returns whether an output's range of ports fits an input: as many ports, or as many groups if the
/// input has only one port.
fn fits_ports(input: &Endpoint, ports: Ports) -> bool {
    input.ports.count() == ports.count()
        || input.ports.is_single() && count(input.destination) == Some(ports.count())
}

/// Counts the addresses of a range, if they are not more than there can be ports.
fn count(range: Prefix) -> Option<u32> {
    1_u32.checked_shl(range.host_bits().into())
}

fn needs_interface(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn with_interface(endpoint: &Endpoint) -> String {
    let interface = Some("IFACE".to_owned());
    let endpoint = endpoint.clone();
    Endpoint {
        interface,
        ..endpoint
    }
    .to_string()
}

fn family(endpoint: &Endpoint) -> &'static str {
    if endpoint.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn group_remedy(input: &Endpoint) -> String {
    let input_groups = input.destination;
    if !input.is_multicast() {
        return match input.ports.count() {
            1 => "that has one port, so write one group".to_owned(),
            ports if ports.is_power_of_two() => {
                let length = input_groups.length - ports.ilog2() as u8;
                format!("make it a /{length}, a group for each port, or one single group")
            }
            ports => {
                format!("{ports} ports fit no range; give 2, 4, 8 … ports, or one single group")
            }
        };
    }
    if input_groups.is_host() {
        "that is one group, so write one".to_owned()
    } else {
        let length = input_groups.length;
        format!("make it a /{length} as well, or one single group")
    }
}

/// Proposes as many ports as `input` has, from the first of `output`, or lower if they would not fit.
fn port_remedy(output: Ports, input: &Endpoint) -> String {
    let groups =
        count(input.destination).filter(|groups| (2..=u32::from(u16::MAX)).contains(groups));
    let input = match groups.and_then(|groups| u16::try_from(groups - 1).ok()) {
        Some(last) if input.ports.is_single() => Ports { first: 0, last },
        _ => input.ports,
    };
    if input.is_single() {
        return format!("that has one port, so write one, as in {}", output.first);
    }
    let more = input.last - input.first;
    let first = output.first.min(u16::MAX - more);
    let fit = Ports {
        first,
        last: first + more,
    };
    format!(
        "give {} ports as well, as in {fit}, or one single port",
        input.count()
    )
}
