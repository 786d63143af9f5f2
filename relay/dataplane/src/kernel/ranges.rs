//! Routes for ranges of groups, ports or senders: a trie of group prefixes, each with the list of routes that
//! a packet of that prefix may take, most specific first. A list holds the routes of all shorter
//! prefixes too, so that one trie lookup and one walk decide.

use std::collections::{BTreeMap, HashMap};

use bpf::Maps;
use bpf::layout::{Candidate, Range, RangeKey, Settings, address_bytes, address_of};
use bpf::map;
use rules::net::Prefix;
use sys::field;
use sys::memory::Array;

use crate::allocator::Blocks;
use crate::error::Error;
use crate::kernel::entry::Entry;
use crate::kernel::key::{Key, RangeRoute};

/// Interface and group prefix.
type Node = (u32, Prefix);

/// What is in the trie.
#[derive(Debug)]
pub(super) struct Ranges {
    trie: map::HashMap<RangeKey, Range>,
    candidates: Array<Candidate>,
    settings: Array<Settings>,
    nodes: BTreeMap<Node, Range>,
    blocks: Blocks,
    /// The source-specific range routes.
    specific: Vec<RangeRoute>,
}

impl Ranges {
    pub(super) fn over(maps: &Maps) -> Self {
        Self {
            trie: maps.ranges.clone(),
            candidates: maps.candidates.clone(),
            settings: maps.settings.clone(),
            nodes: BTreeMap::new(),
            blocks: Blocks::new(maps.candidates.len()),
            specific: Vec::new(),
        }
    }

    /// Reads the content of the maps; returns every route with its index. Invalid entries are removed.
    pub(super) fn adopt(&mut self) -> Result<Vec<(Key, u32)>, Error> {
        let mut routes = Vec::new();
        for (key, range) in self.trie.entries()? {
            let node = (key.ifindex, prefix_of(&key));
            let most = if key.ipv6 == 0 { 32 } else { 128 };
            let is_sound = node.1.length <= most && key_of(node) == key;
            if !is_sound || !self.blocks.occupy_free(range.first, range.count) {
                self.trie.remove(&[key])?;
                continue;
            }
            for slot in range.first..range.first + range.count {
                let candidate = self.candidates.read(slot);
                let is_own = candidate.prefix == u32::from(node.1.length);
                if is_own && candidate.first_port <= candidate.last_port {
                    routes.push((Key::Range(route_of(node, &candidate)), candidate.route));
                }
            }
            self.nodes.insert(node, range);
        }
        Ok(routes)
    }

    /// How many candidates the range routes among `keys` need.
    pub(super) fn candidates(keys: impl Iterator<Item = Key>) -> usize {
        let lists = lists(keys.map(|key| (key, 0)));
        lists.values().map(Vec::len).sum()
    }

    /// Free candidates.
    pub(super) fn room(&self) -> usize {
        self.blocks.room()
    }

    pub(super) fn grace_period_passed(&mut self) {
        self.blocks.grace_period_passed();
    }

    /// Returns whether there are source-specific ranges at all.
    pub(super) fn has_specific(&self) -> bool {
        !self.specific.is_empty()
    }

    /// Returns whether a source-specific range covers an exact key, and so takes precedence.
    pub(super) fn go_before(&self, key: Key) -> bool {
        let (ifindex, group, port) = key.target();
        self.specific.iter().any(|range| {
            range.ifindex == ifindex && range.groups.contains(group) && range.ports.contains(port)
        })
    }

    /// Updates trie and lists to match `entries`; changes only what differs, and each prefix in one step.
    pub(super) fn publish(&mut self, entries: &HashMap<Key, Entry>) -> Result<(), Error> {
        let routes = entries.iter().map(|(key, entry)| (*key, entry.index));
        let lists = lists(routes);
        let specific = entries.keys().filter_map(|key| match key {
            Key::Range(range) if range.source.is_some() => Some(*range),
            _ => None,
        });
        self.specific = specific.collect();
        let mut stale: Vec<Node> = self.nodes.keys().copied().collect();
        stale.retain(|node| !lists.contains_key(node));
        for (node, list) in lists {
            self.publish_node(node, &list)?;
        }
        for node in stale {
            self.trie.remove(&[key_of(node)])?;
            if let Some(range) = self.nodes.remove(&node) {
                self.blocks.release(range.first, range.count);
            }
        }
        let any = u64::from(!self.nodes.is_empty());
        let offset = field!(Settings, ranges);
        self.settings.store(0, offset, any);
        Ok(())
    }

    fn publish_node(&mut self, node: Node, list: &[Candidate]) -> Result<(), Error> {
        let old = self.nodes.get(&node).copied();
        if let Some(old) = old
            && (old.first..old.first + old.count)
                .map(|slot| self.candidates.read(slot))
                .eq(list.iter().copied())
        {
            return Ok(());
        }
        let count = list.len() as u32;
        let first = self.blocks.take(count).ok_or(Error::Capacity {
            what: "contiguous range candidates",
            wanted: list.len(),
            limit: self.blocks.room(),
        })?;
        for (slot, candidate) in (first..).zip(list) {
            self.candidates.write(slot, candidate);
        }
        let range = Range { first, count };
        self.trie.insert(&[key_of(node)], &[range])?;
        self.nodes.insert(node, range);
        if let Some(old) = old {
            self.blocks.release(old.first, old.count);
        }
        Ok(())
    }
}

/// For each prefix that a route names, the routes a packet of it may take, most specific first.
fn lists(routes: impl Iterator<Item = (Key, u32)>) -> BTreeMap<Node, Vec<Candidate>> {
    let mut own: BTreeMap<Node, Vec<(RangeRoute, u32)>> = BTreeMap::new();
    for (key, index) in routes {
        if let Key::Range(range) = key {
            let routes = own.entry((range.ifindex, range.groups)).or_default();
            routes.push((range, index));
        }
    }
    let mut lists = BTreeMap::new();
    for (ifindex, groups) in own.keys() {
        let mut list: Vec<(RangeRoute, u32)> = (0..=groups.length)
            .filter_map(|length| own.get(&(*ifindex, Prefix::new(groups.address, length))))
            .flatten()
            .copied()
            .collect();
        list.sort_by_key(|(range, _)| {
            let wider = u8::MAX - range.groups.length;
            let senders = range.source.map_or(u8::MAX, Prefix::host_bits);
            (senders, wider, range.ports.count(), *range)
        });
        let candidates = list.iter().map(candidate).collect();
        lists.insert((*ifindex, *groups), candidates);
    }
    lists
}

fn candidate((range, index): &(RangeRoute, u32)) -> Candidate {
    Candidate {
        source: range
            .source
            .map_or([0; 16], |source| address_bytes(source.address)),
        first_port: range.ports.first,
        last_port: range.ports.last,
        route: *index,
        specific: range.source.map_or(0, |source| source.length.into()),
        prefix: u32::from(range.groups.length),
    }
}

fn route_of((ifindex, groups): Node, candidate: &Candidate) -> RangeRoute {
    let source = address_of(candidate.source, groups.address.is_ipv6());
    let length = candidate.specific.min(128) as u8;
    RangeRoute {
        ifindex,
        groups,
        ports: rules::net::Ports {
            first: candidate.first_port,
            last: candidate.last_port,
        },
        source: (length != 0).then(|| Prefix::new(source, length)),
    }
}

fn key_of((ifindex, groups): Node) -> RangeKey {
    RangeKey {
        prefix: 64 + u32::from(groups.length),
        ifindex,
        ipv6: u32::from(groups.address.is_ipv6()),
        group: address_bytes(groups.address),
    }
}

fn prefix_of(key: &RangeKey) -> Prefix {
    Prefix {
        address: address_of(key.group, key.ipv6 != 0),
        length: key.prefix.saturating_sub(64) as u8,
    }
}
