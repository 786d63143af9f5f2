//! Inputs by interface, groups and ports, so that checks of 10,000 rules need no comparison of each
//! with each.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use crate::endpoint::{Endpoint, is_wildcard};
use crate::net::{Ports, Prefix};
use crate::rule::Rule;
use crate::wildcard;

/// An input's place: the rule's number and, within it, the input's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InputPlace {
    pub(crate) rule: usize,
    pub(crate) input: usize,
}

/// Every input of some rules. Inputs without an interface are not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct InputIndex {
    interfaces: BTreeMap<String, Groups>,
}

#[derive(Clone, Debug, Default)]
struct Groups {
    by_prefix: BTreeMap<Prefix, PortList>,
    /// How many prefixes there are of each length.
    lengths: BTreeMap<u8, usize>,
}

/// Inputs of one interface and prefix, by first port.
#[derive(Clone, Debug, Default)]
struct PortList {
    inputs: Vec<(Ports, InputPlace)>,
    /// Ports of the widest range, so that a search knows how far back to begin.
    widest: u32,
}

impl InputIndex {
    /// Indexes `rules`, each under its position.
    pub(crate) fn new<R: Borrow<Rule>>(rules: &[R]) -> Self {
        let mut index = Self::default();
        for (number, rule) in rules.iter().enumerate() {
            index.each_list(number, rule.borrow(), |list, ports, place| {
                list.inputs.push((ports, place));
                list.widest = list.widest.max(ports.count());
            });
        }
        let lists = index.interfaces.values_mut();
        for list in lists.flat_map(|groups| groups.by_prefix.values_mut()) {
            list.inputs.sort();
        }
        index
    }

    /// Puts one more rule in, under a number of its own.
    pub(crate) fn insert(&mut self, number: usize, rule: &Rule) {
        self.each_list(number, rule, |list, ports, place| {
            let at = list.inputs.partition_point(|known| *known < (ports, place));
            list.inputs.insert(at, (ports, place));
            list.widest = list.widest.max(ports.count());
        });
    }

    fn each_list(
        &mut self,
        number: usize,
        rule: &Rule,
        mut act: impl FnMut(&mut PortList, Ports, InputPlace),
    ) {
        for (input, endpoint) in rule.inputs.iter().enumerate() {
            let Some(interface) = &endpoint.interface else {
                continue;
            };
            if !self.interfaces.contains_key(interface) {
                self.interfaces.insert(interface.clone(), Groups::default());
            }
            let Some(groups) = self.interfaces.get_mut(interface) else {
                continue;
            };
            let place = InputPlace {
                rule: number,
                input,
            };
            act(groups.list(endpoint.destination), endpoint.ports, place);
        }
    }

    /// Takes a rule out that was put in under `number`.
    pub(crate) fn remove(&mut self, number: usize, rule: &Rule) {
        for (input, endpoint) in rule.inputs.iter().enumerate() {
            let Some(interface) = &endpoint.interface else {
                continue;
            };
            let Some(groups) = self.interfaces.get_mut(interface) else {
                continue;
            };
            let place = InputPlace {
                rule: number,
                input,
            };
            groups.remove(endpoint.destination, endpoint.ports, place);
            if groups.by_prefix.is_empty() {
                self.interfaces.remove(interface);
            }
        }
    }

    /// Says whether some input names its interface by a wildcard.
    pub(crate) fn has_wildcards(&self) -> bool {
        self.interfaces.keys().any(|known| is_wildcard(known))
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
            *known != interface && is_wildcard(known) && wildcard::matches(known, interface)
        });
        exact.into_iter().chain(patterns.map(|(_, groups)| groups))
    }
}

impl Groups {
    fn list(&mut self, prefix: Prefix) -> &mut PortList {
        self.by_prefix.entry(prefix).or_insert_with(|| {
            *self.lengths.entry(prefix.length).or_default() += 1;
            PortList::default()
        })
    }

    fn remove(&mut self, prefix: Prefix, ports: Ports, place: InputPlace) {
        let Some(list) = self.by_prefix.get_mut(&prefix) else {
            return;
        };
        if let Ok(at) = list.inputs.binary_search(&(ports, place)) {
            list.inputs.remove(at);
        }
        if list.inputs.is_empty() {
            self.by_prefix.remove(&prefix);
            if let Some(count) = self.lengths.get_mut(&prefix.length) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&prefix.length);
                }
            }
        } else if ports.count() == list.widest {
            let widths = list.inputs.iter().map(|(ports, _)| ports.count());
            list.widest = widths.max().unwrap_or_default();
        }
    }

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
            .map(move |(length, _)| Prefix::new(range.address, *length))
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
