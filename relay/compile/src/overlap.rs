//! Pairs of keys of which some packet matches both: what two relays on one host would both take.

use std::collections::HashMap;
use std::fmt;

use rules::net::{Ports, Prefix};

use crate::table::RouteKey;

impl RouteKey {
    /// Returns whether some packet matches both keys.
    pub fn overlaps(&self, other: &Self) -> bool {
        let has_sender = match (self.source, other.source) {
            (Some(one), Some(other)) => one.overlaps(other),
            _ => true,
        };
        has_sender
            && self.ingress == other.ingress
            && self.groups.overlaps(other.groups)
            && self.ports.overlaps(other.ports)
    }

    fn is_single(&self) -> bool {
        self.groups.is_host() && self.ports.is_single()
    }

    /// The key for any sender.
    const fn without_source(&self) -> (u32, Prefix, Ports) {
        (self.ingress.0, self.groups, self.ports)
    }
}

impl fmt::Display for RouteKey {
    /// Without the interface: `group 239.1.1.0/24 port 5001 from 10.0.0.5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.groups.address.is_multicast() {
            "group"
        } else {
            "address"
        };
        write!(f, "{what} {} port {}", self.groups, self.ports)?;
        match self.source {
            Some(source) => write!(f, " from {source}"),
            None => Ok(()),
        }
    }
}

/// Each key of `ours` that overlaps one of `theirs`, with the latter: an equal key, if there is one.
pub fn overlapping<'a>(
    ours: impl IntoIterator<Item = &'a RouteKey>,
    theirs: &[RouteKey],
) -> Vec<(RouteKey, RouteKey)> {
    // Of ten thousand keys on both sides most are single, and are looked up without their source.
    let mut single: HashMap<_, Vec<&RouteKey>> = HashMap::new();
    let mut ranges = Vec::new();
    for key in theirs {
        if key.is_single() {
            single.entry(key.without_source()).or_default().push(key)
        } else {
            ranges.push(key)
        }
    }
    let find = |key: &RouteKey| {
        let (near, all) = if key.is_single() {
            let near = single.get(&key.without_source());
            (near.map_or(&[][..], Vec::as_slice), &[][..])
        } else {
            (&[][..], theirs)
        };
        let candidates = near.iter().chain(&ranges).copied().chain(all);
        let mut others = candidates.filter(|other| key.overlaps(other));
        let first = others.next()?;
        let equal = std::iter::once(first)
            .chain(others)
            .find(|other| *other == key);
        Some((*key, *equal.unwrap_or(first)))
    };
    ours.into_iter().filter_map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::net::Ifindex;

    fn key(ingress: u32, groups: &str, ports: (u16, u16), source: Option<&str>) -> RouteKey {
        let prefix = |text: &str| {
            let (address, length) = text.split_once('/').unwrap_or((text, "32"));
            Prefix::new(address.parse().unwrap(), length.parse().unwrap())
        };
        RouteKey {
            ingress: Ifindex(ingress),
            groups: prefix(groups),
            ports: Ports {
                first: ports.0,
                last: ports.1,
            },
            source: source.map(prefix),
        }
    }

    #[test]
    fn finds_what_a_packet_could_take_on_either_side() {
        let exact = key(2, "239.1.1.1", (5001, 5001), None);
        let from = |source| key(2, "239.1.1.1", (5001, 5001), Some(source));
        let groups = key(2, "239.1.1.0/24", (5001, 5001), None);
        let ports = key(2, "239.1.1.1", (5000, 5009), None);
        let overlap = |one: RouteKey, other: RouteKey| {
            let there = overlapping([&one], &[other]);
            let back = overlapping([&other], &[one]);
            assert_eq!(there.is_empty(), back.is_empty(), "{one:?} {other:?}");
            !there.is_empty()
        };
        for (one, other) in [
            (exact, exact),
            (exact, from("10.0.0.5")),
            (exact, groups),
            (exact, ports),
            (groups, ports),
            (groups, from("10.0.0.5")),
            (from("10.0.0.5"), from("10.0.0.5")),
            (from("10.0.0.5"), from("10.0.0.0/24")),
        ] {
            assert!(overlap(one, other), "{one:?} {other:?}");
        }
        for (one, other) in [
            (from("10.0.0.5"), from("10.0.0.6")),
            (from("10.0.1.5"), from("10.0.0.0/24")),
            (exact, key(3, "239.1.1.1", (5001, 5001), None)),
            (exact, key(2, "239.1.1.1", (5002, 5002), None)),
            (groups, key(2, "239.1.2.1", (5001, 5001), None)),
            (ports, key(2, "239.1.1.1", (5010, 5011), None)),
        ] {
            assert!(!overlap(one, other), "{one:?} {other:?}");
        }
        let pairs = overlapping([&exact], &[groups, from("10.0.0.5"), exact]);
        assert_eq!(pairs, [(exact, exact)], "the same first");
    }
}
