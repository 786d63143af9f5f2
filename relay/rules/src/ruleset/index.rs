//! Inputs by interface, groups and ports, so that checking 10,000 rules does not compare each with
//! each. Copies share what they have in common.

use std::collections::BTreeMap;
use std::iter::successors;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::endpoint::{Endpoint, is_wildcard};
use crate::net::LOOPBACK;
use crate::net::{Ports, Prefix};
use crate::rule::Rule;
use crate::shared_map::SharedMap;
use crate::wildcard;

use super::slot::Slot;

/// Identifies an input: its rule's slot and its index within the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InputId {
    pub(crate) rule: Slot,
    pub(crate) input: usize,
}

impl InputId {
    const FIRST: Self = Self {
        rule: Slot::FIRST,
        input: 0,
    };
}

/// Every input of some rules. Inputs without an interface, and those of rules that are disabled, are
/// not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InputIndex {
    interfaces: SharedMap<String, Arc<Groups>>,
    /// Those that are no groups but addresses of this host, whatever their interfaces.
    addresses: Arc<Groups>,
    /// How many rules have their inputs divided by what is listened to.
    divided: usize,
}

type Input = (Prefix, Ports, InputId);

/// Inputs of one interface, by prefix and first port. One flat list: there may be ten thousand
/// prefixes of one input each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Groups {
    inputs: SharedMap<Input, ()>,
    /// How many inputs there are of each length of prefix.
    lengths: BTreeMap<u8, usize>,
    /// Ports of each prefix's widest range, so that a search knows how far back to start; prefixes
    /// that are absent have single ports only.
    widest: SharedMap<Prefix, u32>,
}

impl InputIndex {
    /// Adds a rule.
    pub(crate) fn insert(&mut self, slot: Slot, rule: &Rule) {
        self.divided += usize::from(rule.enabled && rule.is_divided());
        for (interface, input) in inputs(slot, rule) {
            if !input.0.address.is_multicast() {
                Arc::make_mut(&mut self.addresses).insert(input);
            }
            match self.interfaces.get_mut(interface) {
                Some(groups) => Arc::make_mut(groups).insert(input),
                None => {
                    let mut groups = Groups::default();
                    groups.insert(input);
                    let interface = interface.to_owned();
                    self.interfaces.insert(interface, Arc::new(groups));
                }
            }
        }
    }

    /// Removes the rule that was added at `slot`.
    pub(crate) fn remove(&mut self, slot: Slot, rule: &Rule) {
        self.divided -= usize::from(rule.enabled && rule.is_divided());
        for (interface, input) in inputs(slot, rule) {
            if !input.0.address.is_multicast() {
                Arc::make_mut(&mut self.addresses).remove(input);
            }
            let Some(groups) = self.interfaces.get_mut(interface) else {
                continue;
            };
            let groups = Arc::make_mut(groups);
            groups.remove(input);
            if groups.inputs.is_empty() {
                self.interfaces.remove(interface);
            }
        }
    }

    /// Returns whether what is listened to divides some rule's inputs.
    pub(crate) const fn has_divided(&self) -> bool {
        self.divided > 0
    }

    /// Returns whether some input takes packets that others do not name exactly: its interface is a
    /// wildcard, or it is every address of an interface where another input may have one of them.
    pub(crate) fn has_wildcards(&self) -> bool {
        let mut interfaces = self.interfaces.iter();
        interfaces.any(|(name, groups)| is_wildcard(name) || groups.is_shared())
    }

    /// Inputs that a packet to one of `output`'s groups or to its address, and to one of its ports,
    /// may reach: on its interface, or as an address of this host wherever that is.
    pub(crate) fn reached_by(&self, output: &Endpoint) -> Vec<InputId> {
        if !output.is_multicast() {
            return self.reached_at(output);
        }
        let Some(interface) = output.interface.as_deref() else {
            return Vec::new();
        };
        let mut reached = Vec::new();
        for groups in self.of_interface(interface) {
            for prefix in groups.overlapping(output.destination) {
                reached.extend(groups.on(prefix, output.ports));
            }
        }
        reached
    }

    /// The same for an output to an address. The addresses of interfaces are unknown here, except
    /// those of the loopback interface.
    fn reached_at(&self, output: &Endpoint) -> Vec<InputId> {
        let address = output.destination;
        let mut reached: Vec<_> = self.addresses.on(address, output.ports).collect();
        let loopback = self.interfaces.get(LOOPBACK);
        if let Some(inputs) = loopback.filter(|_| address.address.is_loopback()) {
            reached.extend(inputs.on(every_address(address), output.ports));
        }
        reached
    }

    /// Inputs that rival `input`, including itself: interfaces of the same kind (both exact or both
    /// patterns), the same groups, ports in common; also every address of an interface and one that
    /// is certainly among them.
    pub(crate) fn rivals(&self, input: &Endpoint) -> Vec<InputId> {
        let Some(interface) = input.interface.as_deref() else {
            return Vec::new();
        };
        let same_kind: Vec<&Groups> = if is_wildcard(interface) {
            self.interfaces
                .iter()
                .filter(|(name, _)| is_wildcard(name) && wildcard::overlap(name, interface))
                .map(|(_, groups)| &**groups)
                .collect()
        } else {
            let groups = self.interfaces.get(interface).map(AsRef::as_ref);
            groups.into_iter().collect()
        };
        let mut rivals = Vec::new();
        for groups in same_kind {
            rivals.extend(groups.on(input.destination, input.ports));
            if input.is_every_address() {
                for address in groups.addresses(input.destination).filter(is_one_of_a_host) {
                    rivals.extend(groups.on(address, input.ports));
                }
            } else if is_one_of_a_host(&input.destination) {
                rivals.extend(groups.on(every_address(input.destination), input.ports));
            }
        }
        rivals
    }

    fn of_interface(&self, interface: &str) -> impl Iterator<Item = &Groups> {
        let exact = self.interfaces.get(interface);
        let patterns = self.interfaces.iter().filter(move |(name, _)| {
            name != interface && is_wildcard(name) && wildcard::matches(name, interface)
        });
        let groups = exact.into_iter().chain(patterns.map(|(_, groups)| groups));
        groups.map(AsRef::as_ref)
    }
}

/// A rule's inputs as they are indexed, each with its interface.
fn inputs(slot: Slot, rule: &Rule) -> impl Iterator<Item = (&str, Input)> {
    let inputs = rule.inputs.iter().filter(|_| rule.enabled).enumerate();
    inputs.filter_map(move |(input, endpoint)| {
        let id = InputId { rule: slot, input };
        let interface = endpoint.interface.as_deref()?;
        Some((interface, (endpoint.destination, endpoint.ports, id)))
    })
}

impl Groups {
    fn insert(&mut self, input: Input) {
        let (prefix, ports, _) = input;
        if self.inputs.insert(input, ()).is_some() {
            return;
        }
        *self.lengths.entry(prefix.length).or_default() += 1;
        let widest = self.widest.get(&prefix).copied().unwrap_or(1);
        if ports.count() > widest {
            self.widest.insert(prefix, ports.count());
        }
    }

    fn remove(&mut self, input: Input) {
        let (prefix, ports, _) = input;
        if self.inputs.remove(&input).is_none() {
            return;
        }
        if let Some(count) = self.lengths.get_mut(&prefix.length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.length);
            }
        }
        if self.widest.get(&prefix) != Some(&ports.count()) {
            return;
        }
        let widest = self
            .inputs_from(from(prefix, 0))
            .take_while(|(other, ..)| *other == prefix)
            .map(|(_, ports, _)| ports.count())
            .max();
        match widest.filter(|ports| *ports > 1) {
            Some(ports) => self.widest.insert(prefix, ports),
            None => self.widest.remove(&prefix),
        };
    }

    fn inputs_from(&self, first: Input) -> impl Iterator<Item = &Input> {
        self.inputs.iter_from(&first).map(|(input, ())| input)
    }

    /// The prefixes that overlap `range`. Prefixes nest, so they begin in it or contain it.
    fn overlapping(&self, range: Prefix) -> impl Iterator<Item = Prefix> {
        let last = range.last();
        let next = move |from: Input| {
            let (prefix, ..) = self.inputs_from(from).next()?;
            (prefix.address <= last).then_some(*prefix)
        };
        let first = next(from(Prefix { length: 0, ..range }, 0));
        let within = successors(first, move |prefix| next(after(*prefix)));
        let shorter = self.lengths.range(..range.length);
        let containing = shorter
            .map(move |(length, _)| Prefix::new(range.address, *length))
            .filter(move |prefix| prefix.address != range.address);
        within.chain(containing)
    }

    /// The addresses among them that are not groups, of the family of `every`, which is omitted.
    fn addresses(&self, every: Prefix) -> impl Iterator<Item = Prefix> {
        let next = move |from: Input| {
            let (prefix, ..) = self.inputs_from(from).next()?;
            let is_one = prefix.address.is_ipv4() == every.address.is_ipv4()
                && !prefix.address.is_multicast();
            is_one.then_some(*prefix)
        };
        successors(next(after(every)), move |prefix| next(after(*prefix)))
    }

    /// Returns whether one input takes every address of the interface and another one an address that
    /// may or may not be among them.
    fn is_shared(&self) -> bool {
        let every = every_address(Prefix::host(Ipv4Addr::BROADCAST.into()));
        let has_every = self.inputs_from(from(every, 0)).next();
        has_every.is_some_and(|(prefix, ..)| *prefix == every)
            && self
                .addresses(every)
                .any(|address| !is_one_of_a_host(&address))
    }

    /// The inputs of a prefix with some of these ports.
    fn on(&self, prefix: Prefix, ports: Ports) -> impl Iterator<Item = InputId> {
        let widest = self.widest.get(&prefix).copied().unwrap_or(1);
        let earliest = u32::from(ports.first).saturating_sub(widest - 1);
        let inputs = self.inputs_from(from(prefix, earliest as u16));
        inputs
            .take_while(move |(other, own, _)| *other == prefix && own.first <= ports.last)
            .filter(move |(_, own, _)| own.overlaps(ports))
            .map(|(.., id)| *id)
    }
}

/// The prefix that stands for every address of an interface, of the family of `address`.
const fn every_address(address: Prefix) -> Prefix {
    Prefix::host(match address.address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    })
}

/// Returns whether an address that is not a group is certainly a host's: a broadcast address ends in
/// two bits that are set, however large its network.
fn is_one_of_a_host(address: &Prefix) -> bool {
    match address.address {
        IpAddr::V4(address) => !address.is_multicast() && address.to_bits() & 3 != 3,
        IpAddr::V6(address) => !address.is_multicast(),
    }
}

/// Sorts before every input of a prefix whose ports begin at `first` or later.
const fn from(prefix: Prefix, first: u16) -> Input {
    (prefix, Ports { first, last: 0 }, InputId::FIRST)
}

/// Sorts after every input of a prefix.
const fn after(prefix: Prefix) -> Input {
    let ports = Ports {
        first: u16::MAX,
        last: u16::MAX,
    };
    let id = InputId {
        rule: Slot::LAST,
        input: usize::MAX,
    };
    (prefix, ports, id)
}
