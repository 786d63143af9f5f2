//! Keys of the route maps, of either family.

use std::net::IpAddr;

use bpf::Error;
use bpf::Maps;
use bpf::layout::{RouteKey, RouteKey6};
use bpf::map::HashMap;
use rules::net::{Ports, Prefix};

/// Key of `routes` or `routes6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Key {
    V4(RouteKey),
    V6(RouteKey6),
    /// In the trie of ranges instead of a hash map.
    Range(RangeRoute),
}

/// A route for a range of groups, ports or senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RangeRoute {
    pub(super) ifindex: u32,
    pub(super) groups: Prefix,
    pub(super) ports: Ports,
    pub(super) source: Option<Prefix>,
}

impl Key {
    /// Makes a key; `None` if the source is of the other family.
    pub(super) fn new(
        ifindex: u32,
        group: IpAddr,
        port: u16,
        source: Option<IpAddr>,
    ) -> Option<Self> {
        let port = port.to_be_bytes();
        match (group, source) {
            (IpAddr::V4(group), None | Some(IpAddr::V4(_))) => Some(Self::V4(RouteKey {
                ifindex,
                group: group.octets(),
                source: match source {
                    Some(IpAddr::V4(source)) => source.octets(),
                    _ => [0; 4],
                },
                port,
                pad: 0,
            })),
            (IpAddr::V6(group), None | Some(IpAddr::V6(_))) => Some(Self::V6(RouteKey6 {
                ifindex,
                port,
                pad: 0,
                group: group.octets(),
                source: match source {
                    Some(IpAddr::V6(source)) => source.octets(),
                    _ => [0; 16],
                },
            })),
            _ => None,
        }
    }

    /// The (*,G) key of an (S,G) key.
    pub(super) fn any_source(self) -> Self {
        match self {
            Self::V4(key) => Self::V4(RouteKey {
                source: [0; 4],
                ..key
            }),
            Self::V6(key) => Self::V6(RouteKey6 {
                source: [0; 16],
                ..key
            }),
            Self::Range(_) => self,
        }
    }

    /// Returns whether this is an (S,G) key of a hash map.
    pub(super) fn is_specific(self) -> bool {
        self != self.any_source()
    }

    pub(super) fn ifindex(self) -> u32 {
        match self {
            Self::V4(key) => key.ifindex,
            Self::V6(key) => key.ifindex,
            Self::Range(key) => key.ifindex,
        }
    }

    /// Interface, (first) group and (first) port.
    pub(super) fn target(self) -> (u32, IpAddr, u16) {
        match self {
            Self::V4(key) => (key.ifindex, key.group.into(), u16::from_be_bytes(key.port)),
            Self::V6(key) => (key.ifindex, key.group.into(), u16::from_be_bytes(key.port)),
            Self::Range(key) => (key.ifindex, key.groups.address, key.ports.first),
        }
    }

    /// Returns whether it is for an address of this host, not for groups.
    pub(super) fn is_address(self) -> bool {
        let (_, destination, _) = self.target();
        !destination.is_multicast()
    }

    pub(super) fn is_range(self) -> bool {
        matches!(self, Self::Range(_))
    }
}

/// The maps from exact keys to indices in `route_table`.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) v4: HashMap<RouteKey, u32>,
    v6: HashMap<RouteKey6, u32>,
}

impl Keys {
    pub(super) fn over(maps: &Maps) -> Self {
        Self {
            v4: maps.routes.clone(),
            v6: maps.routes6.clone(),
        }
    }

    /// All elements of both.
    pub(super) fn read(&self) -> Result<Vec<(Key, u32)>, Error> {
        let (v4, v6) = (self.v4.entries()?, self.v6.entries()?);
        let mut elements = Vec::with_capacity(v4.len() + v6.len());
        elements.extend(v4.into_iter().map(|(key, index)| (Key::V4(key), index)));
        elements.extend(v6.into_iter().map(|(key, index)| (Key::V6(key), index)));
        Ok(elements)
    }

    /// Inserts elements, except those of ranges.
    pub(super) fn insert(&mut self, elements: &[(Key, u32)]) -> Result<(), Error> {
        let (v4, v6) = split(elements);
        self.v4.insert(&v4.0, &v4.1)?;
        self.v6.insert(&v6.0, &v6.1)
    }

    /// Removes elements.
    pub(super) fn remove(&mut self, keys: &[Key]) -> Result<(), Error> {
        let elements: Vec<(Key, u32)> = keys.iter().map(|key| (*key, 0)).collect();
        let (v4, v6) = split(&elements);
        self.v4.remove(&v4.0)?;
        self.v6.remove(&v6.0)
    }
}

type Elements<K> = (Vec<K>, Vec<u32>);

fn split(elements: &[(Key, u32)]) -> (Elements<RouteKey>, Elements<RouteKey6>) {
    let mut v4 = (Vec::new(), Vec::new());
    let mut v6 = (Vec::new(), Vec::new());
    for (key, index) in elements {
        match key {
            Key::V4(key) => {
                v4.0.push(*key);
                v4.1.push(*index);
            }
            Key::V6(key) => {
                v6.0.push(*key);
                v6.1.push(*index);
            }
            Key::Range(_) => {}
        }
    }
    (v4, v6)
}
