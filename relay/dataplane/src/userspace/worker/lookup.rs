//! The worker's table: from (interface, group, port, source) to a route, without allocation.
//!
//! A flat open-addressing table, sized when the table changes and at most half full. Ranges are
//! looked up by their shape: each combination of prefix lengths (of source, of group) in use costs one
//! probe, most specific first, so the cost grows with the kinds of rules and not with their number.

use std::net::IpAddr;

use compile::table::RouteKey;
use rules::net::Prefix;

/// Index of a route in the worker's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RouteIndex(pub u32);

/// The table.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    shapes: Vec<Shape>,
    buckets: Vec<Bucket>,
    ranges: Vec<PortRange>,
}

/// The common shape of a set of keys; the order is that of the lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    /// 128 minus the prefix length of the sender on mapped addresses; 128 for any sender.
    source_bits: u8,
    /// The same for the destination.
    host_bits: u8,
    any_port: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key {
    group: u128,
    source: u128,
    interface: u32,
    port: u16,
    shape: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    key: Key,
    /// Route index + 1, or 0 for an empty bucket; for port ranges an index into `ranges`.
    value: u32,
}

#[derive(Clone, Copy, Debug)]
struct PortRange {
    first: u16,
    last: u16,
    route: u32,
    /// Index + 1 of the next wider range of the same key, 0 at the end.
    next: u32,
}

impl Lookup {
    /// Builds the table from keys and the indices of their routes.
    #[must_use]
    pub(super) fn build<'a>(keys: impl Iterator<Item = (RouteIndex, &'a RouteKey)>) -> Self {
        Self::build_with(keys, Shape::of)
    }

    /// Builds a table for [`Lookup::by_group`], which ignores ports.
    #[must_use]
    pub(super) fn build_groups<'a>(keys: impl Iterator<Item = (RouteIndex, &'a RouteKey)>) -> Self {
        Self::build_with(keys, |key| Shape {
            any_port: true,
            ..Shape::of(key)
        })
    }

    fn build_with<'a>(
        keys: impl Iterator<Item = (RouteIndex, &'a RouteKey)>,
        shape: impl Fn(&RouteKey) -> Shape,
    ) -> Self {
        let mut keys: Vec<_> = keys.collect();
        // Wider port ranges first, so that narrower ones end up at the front of their chain, and of equal ones
        // the lower.
        keys.sort_by_key(|(_, key)| std::cmp::Reverse((key.ports.count(), key.ports.first)));
        let mut shapes: Vec<Shape> = keys.iter().map(|(_, key)| shape(key)).collect();
        shapes.sort_unstable();
        shapes.dedup();
        shapes.truncate(usize::from(u8::MAX));
        let size = (keys.len() * 2).next_power_of_two().max(16);
        let mut table = Self {
            shapes,
            buckets: vec![Bucket::default(); size],
            ranges: Vec::new(),
        };
        for (route, key) in keys {
            table.insert(route, key, shape(key));
        }
        table
    }

    /// Finds the most specific route.
    #[inline]
    #[must_use]
    pub(super) fn find(
        &self,
        interface: u32,
        group: IpAddr,
        port: u16,
        source: IpAddr,
    ) -> Option<RouteIndex> {
        let (group, source) = (bits(group), bits(source));
        self.shapes.iter().enumerate().find_map(|(index, shape)| {
            let key = Key {
                group: network(group, shape.host_bits),
                source: network(source, shape.source_bits),
                interface,
                port: if shape.any_port { 0 } else { port },
                shape: index as u8,
            };
            let value = self.get(&key)?;
            if shape.any_port {
                self.in_range(value, port)
            } else {
                Some(RouteIndex(value - 1))
            }
        })
    }

    /// Calls `each` with the routes that take a group and a sender, whatever the port, the most specific first.
    /// For tables that [`Lookup::build_groups`] made.
    pub(super) fn by_group(
        &self,
        interface: u32,
        (group, source): (IpAddr, IpAddr),
        mut each: impl FnMut(RouteIndex),
    ) {
        let (group, source) = (bits(group), bits(source));
        for (index, shape) in self.shapes.iter().enumerate() {
            let key = Key {
                group: network(group, shape.host_bits),
                source: network(source, shape.source_bits),
                interface,
                port: 0,
                shape: index as u8,
            };
            let mut value = self.get(&key).unwrap_or(0);
            while let Some(range) = (value as usize)
                .checked_sub(1)
                .and_then(|at| self.ranges.get(at))
            {
                each(RouteIndex(range.route));
                value = range.next;
            }
        }
    }

    fn insert(&mut self, route: RouteIndex, key: &RouteKey, shape: Shape) {
        let Ok(index) = self.shapes.binary_search(&shape) else {
            return;
        };
        let flat = Key {
            group: network(bits(key.groups.address), shape.host_bits),
            source: key.source.map_or(0, |source| bits(source.address)),
            interface: key.ingress.0,
            port: if shape.any_port { 0 } else { key.ports.first },
            shape: index as u8,
        };
        let at = self.slot(&flat);
        let value = if shape.any_port {
            self.ranges.push(PortRange {
                first: key.ports.first,
                last: key.ports.last,
                route: route.0,
                next: self.buckets[at].value,
            });
            self.ranges.len() as u32
        } else {
            route.0 + 1
        };
        self.buckets[at] = Bucket { key: flat, value };
    }

    #[inline]
    fn get(&self, key: &Key) -> Option<u32> {
        let value = self.buckets[self.slot(key)].value;
        (value != 0).then_some(value)
    }

    /// The bucket of `key`, or the empty one where it belongs. Ends because half are empty.
    #[inline]
    fn slot(&self, key: &Key) -> usize {
        let mask = self.buckets.len() - 1;
        let mut at = hash(key) as usize & mask;
        while self.buckets[at].value != 0 && self.buckets[at].key != *key {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline]
    fn in_range(&self, mut value: u32, port: u16) -> Option<RouteIndex> {
        while let Some(range) = self.ranges.get((value as usize).checked_sub(1)?) {
            if (range.first..=range.last).contains(&port) {
                return Some(RouteIndex(range.route));
            }
            value = range.next;
        }
        None
    }
}

impl Shape {
    fn of(key: &RouteKey) -> Self {
        Self {
            source_bits: key.source.map_or(128, Prefix::host_bits),
            host_bits: key.groups.host_bits(),
            any_port: !key.ports.is_single(),
        }
    }
}

/// An address without its last bits.
#[inline]
fn network(address: u128, host_bits: u8) -> u128 {
    let mask = u128::MAX.checked_shl(u32::from(host_bits)).unwrap_or(0);
    address & mask
}

#[inline]
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => 0xffff_0000_0000 | u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Multiply and fold, as in wyhash: fast, fixed, and good enough where rules choose the keys.
#[inline]
fn hash(key: &Key) -> u64 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        (product >> 64) as u64 ^ product as u64
    };
    let numbers = u64::from(key.interface) << 32 | u64::from(key.port) << 8 | u64::from(key.shape);
    let group = fold(
        key.group as u64 ^ 0x9e37_79b9_7f4a_7c15,
        (key.group >> 64) as u64 ^ 0xe703_7ed1_a0b4_28db,
    );
    let source = fold(
        key.source as u64 ^ 0x8ebc_6af0_9c88_c6e3,
        (key.source >> 64) as u64 ^ 0x5899_65cc_7537_4cc3,
    );
    fold(group ^ numbers, source ^ 0x1d8e_4e27_c47d_124f)
}

#[cfg(test)]
mod tests {
    use rules::net::{Ifindex, Ports};

    use super::*;

    fn key(group: &str, length: u8, ports: (u16, u16), source: Option<&str>) -> RouteKey {
        RouteKey {
            ingress: Ifindex(2),
            groups: Prefix {
                address: group.parse().unwrap(),
                length,
            },
            ports: Ports {
                first: ports.0,
                last: ports.1,
            },
            source: source.map(|source| {
                let (address, length) = source.split_once('/').unwrap_or((source, "32"));
                Prefix::new(address.parse().unwrap(), length.parse().unwrap())
            }),
        }
    }

    fn build(keys: &[RouteKey]) -> Lookup {
        Lookup::build((0..).map(RouteIndex).zip(keys))
    }

    fn find(table: &Lookup, group: &str, port: u16, source: &str) -> Option<u32> {
        table
            .find(2, group.parse().unwrap(), port, source.parse().unwrap())
            .map(|route| route.0)
    }

    #[test]
    fn the_most_specific_route_wins() {
        let table = build(&[
            key("239.0.0.0", 8, (5000, 6000), None),
            key("239.1.1.0", 24, (5000, 6000), None),
            key("239.1.1.0", 24, (5000, 5010), None),
            key("239.1.1.1", 32, (5001, 5001), None),
            key("239.1.1.1", 32, (5001, 5001), Some("10.0.0.1")),
            key("ff3e::1", 128, (5001, 5001), None),
        ]);
        assert_eq!(find(&table, "239.1.1.1", 5001, "10.0.0.1"), Some(4));
        assert_eq!(find(&table, "239.1.1.1", 5001, "10.0.0.2"), Some(3));
        assert_eq!(find(&table, "239.1.1.1", 5002, "10.0.0.1"), Some(2));
        assert_eq!(find(&table, "239.1.1.1", 5011, "10.0.0.1"), Some(1));
        assert_eq!(find(&table, "239.9.9.9", 5011, "10.0.0.1"), Some(0));
        assert_eq!(find(&table, "239.9.9.9", 6001, "10.0.0.1"), None);
        assert_eq!(find(&table, "238.9.9.9", 5011, "10.0.0.1"), None);
        assert_eq!(find(&table, "ff3e::1", 5001, "2001:db8::1"), Some(5));
    }

    #[test]
    fn the_fewest_senders_win() {
        let table = build(&[
            key("10.0.0.2", 32, (7000, 7000), None),
            key("10.0.0.2", 32, (7000, 7000), Some("10.9.0.0/16")),
            key("10.0.0.2", 32, (7000, 7255), Some("10.9.9.0/24")),
            key("10.0.0.2", 32, (7000, 7000), Some("10.9.9.9")),
        ]);
        assert_eq!(find(&table, "10.0.0.2", 7000, "10.9.9.9"), Some(3));
        assert_eq!(find(&table, "10.0.0.2", 7000, "10.9.9.8"), Some(2));
        assert_eq!(find(&table, "10.0.0.2", 7000, "10.9.8.8"), Some(1));
        assert_eq!(find(&table, "10.0.0.2", 7000, "10.8.8.8"), Some(0));
        assert_eq!(find(&table, "10.0.0.2", 7001, "10.8.8.8"), None);
    }

    #[test]
    fn another_interface_finds_nothing() {
        let table = build(&[key("239.1.1.1", 32, (5001, 5001), None)]);
        let group = "239.1.1.1".parse().unwrap();
        let source = "10.0.0.1".parse().unwrap();
        assert_eq!(table.find(3, group, 5001, source), None);
    }

    #[test]
    fn an_empty_table_finds_nothing() {
        assert_eq!(find(&build(&[]), "239.1.1.1", 5001, "10.0.0.1"), None);
        assert_eq!(
            find(&Lookup::default(), "239.1.1.1", 5001, "10.0.0.1"),
            None
        );
    }

    #[test]
    fn ten_thousand_routes_are_all_found() {
        let keys: Vec<_> = (0..10_000u32)
            .map(|n| {
                let group = std::net::Ipv4Addr::from_bits(0xef01_0000 + n % 100).to_string();
                let port = (5000 + n / 100) as u16;
                key(&group, 32, (port, port), None)
            })
            .collect();
        let table = build(&keys);
        for (n, key) in keys.iter().enumerate() {
            let group = key.groups.address.to_string();
            assert_eq!(
                find(&table, &group, key.ports.first, "10.0.0.1"),
                Some(n as u32)
            );
        }
    }
}
