//! Inputs by interface, groups and ports, so that checks of 10,000 rules need no comparison of each
//! with each.

use std::collections::{BTreeMap, BTreeSet};

use crate::endpoint::{Endpoint, is_wildcard};
use crate::net::{Ports, Prefix};
use crate::rule::Rule;
use crate::wildcard;

/// An input's place: the rule's and, within it, the input's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InputPlace {
    pub(crate) rule: usize,
    pub(crate) input: usize,
}

/// Every input of some rules. Inputs without an interface are not in it.
pub(crate) struct InputIndex<'a> {
    interfaces: BTreeMap<&'a str, Groups>,
}

#[derive(Default)]
struct Groups {
    by_prefix: BTreeMap<Prefix, PortList>,
    lengths: BTreeSet<u8>,
}

/// Inputs of one interface and prefix, by first port.
#[derive(Default)]
struct PortList {
    inputs: Vec<(Ports, InputPlace)>,
    /// Ports of the widest range, so that a search knows how far back to begin.
    widest: u32,
}

impl<'a> InputIndex<'a> {
    pub(crate) fn new(rules: &'a [Rule]) -> Self {
        let mut interfaces: BTreeMap<&str, Groups> = BTreeMap::new();
        for (rule_place, rule) in rules.iter().enumerate() {
            for (place, input) in rule.inputs.iter().enumerate() {
                let Some(interface) = &input.interface else {
                    continue;
                };
                let groups = interfaces.entry(interface).or_default();
                groups.lengths.insert(input.destination.length);
                let list = groups.by_prefix.entry(input.destination).or_default();
                let place = InputPlace {
                    rule: rule_place,
                    input: place,
                };
                list.inputs.push((input.ports, place));
                list.widest = list.widest.max(input.ports.count());
            }
        }
        let lists = interfaces.values_mut();
        for list in lists.flat_map(|groups| groups.by_prefix.values_mut()) {
            list.inputs.sort();
        }
        Self { interfaces }
    }

    /// Inputs that a packet on `output`'s interface, to one of its groups and ports, may reach.
    pub(crate) fn reached_by(&self, output: &Endpoint) -> Vec<InputPlace> {
        let Some(interface) = output.interface.as_deref() else {
            return Vec::new();
        };
        let mut reached = Vec::new();
        for groups in self.of_interface(interface) {
            for list in groups.overlapping(output.destination) {
                reached.extend(list.overlapping(output.ports));
            }
        }
        reached
    }

    /// Inputs that rival `input`, itself among them: interfaces of the same kind (both exact or
    /// both patterns), the same groups, ports in common.
    pub(crate) fn rivals(&self, input: &Endpoint) -> Vec<InputPlace> {
        let Some(interface) = input.interface.as_deref() else {
            return Vec::new();
        };
        let same_kind: Vec<&Groups> = if is_wildcard(interface) {
            let known = self.interfaces.iter();
            known
                .filter(|(known, _)| is_wildcard(known) && wildcard::overlap(known, interface))
                .map(|(_, groups)| groups)
                .collect()
        } else {
            self.interfaces.get(interface).into_iter().collect()
        };
        let lists = same_kind
            .into_iter()
            .filter_map(|groups| groups.by_prefix.get(&input.destination));
        lists
            .flat_map(|list| list.overlapping(input.ports))
            .collect()
    }

    fn of_interface(&self, interface: &str) -> impl Iterator<Item = &Groups> {
        let exact = self.interfaces.get(interface);
        let patterns = self.interfaces.iter().filter(move |(known, _)| {
            **known != interface && is_wildcard(known) && wildcard::matches(known, interface)
        });
        exact.into_iter().chain(patterns.map(|(_, groups)| groups))
    }
}

impl Groups {
    /// Prefixes nest, so those that overlap `range` begin in it or contain it.
    fn overlapping(&self, range: Prefix) -> impl Iterator<Item = &PortList> {
        let first = Prefix {
            address: range.address,
            length: 0,
        };
        let last = Prefix {
            address: range.last(),
            length: u8::MAX,
        };
        let within = self.by_prefix.range(first..=last).map(|(_, list)| list);
        let shorter = self.lengths.range(..range.length);
        let containing = shorter
            .map(move |length| Prefix::new(range.address, *length))
            .filter(move |prefix| prefix.address != range.address)
            .filter_map(|prefix| self.by_prefix.get(&prefix));
        within.chain(containing)
    }
}

impl PortList {
    fn overlapping(&self, ports: Ports) -> impl Iterator<Item = InputPlace> {
        let earliest = u32::from(ports.first).saturating_sub(self.widest - 1);
        let start = self
            .inputs
            .partition_point(|(known, _)| u32::from(known.first) < earliest);
        self.inputs[start..]
            .iter()
            .take_while(move |(known, _)| known.first <= ports.last)
            .filter(move |(known, _)| known.overlaps(ports))
            .map(|(_, place)| *place)
    }
}
