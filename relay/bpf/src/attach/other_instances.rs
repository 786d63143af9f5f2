//! Other instances at interfaces of this network namespace, as far as their pins show.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use compile::table::RouteKey;
use rules::net::{Ifindex, Ports, Prefix};
use sys::memory::Array;

use super::clsact::Filter;
use super::{pin, pin_lock};
use crate::layout::{self, Candidate, Plain};
use crate::map::HashMap;
use crate::syscall;

/// Another instance with programs here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbour {
    /// Its name.
    pub instance: String,
    /// The process that runs it; `None` if its programs forward without a process.
    pub owner: Option<String>,
    /// The interfaces of this namespace that its programs are attached to.
    pub interfaces: BTreeSet<u32>,
    /// What it takes there. Empty for an instance of a version with another layout.
    pub taken: Vec<RouteKey>,
}

/// Lists the instances other than `instance` that have pins below `bpffs` and programs at interfaces
/// of the calling thread's network namespace. What cannot be read is skipped.
pub fn neighbours(bpffs: &Path, instance: &str) -> Vec<Neighbour> {
    let Ok(directories) = fs::read_dir(bpffs.join("mcr")) else {
        return Vec::new();
    };
    let names = directories.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let others = names.filter(|name| name != instance);
    let mut neighbours: Vec<Neighbour> = others
        .filter_map(|name| read(&bpffs.join("mcr").join(&name), name))
        .collect();
    neighbours.sort_by(|a, b| a.instance.cmp(&b.instance));
    neighbours
}

fn read(directory: &Path, instance: String) -> Option<Neighbour> {
    let attached = pin::links_in(directory).ok()?.into_iter();
    let filter = Filter::of(&instance);
    let here = attached.filter(|ifindex| {
        let link = syscall::open_pin(&directory.join(format!("link-{ifindex}")));
        match link.and_then(|link| syscall::link(link.as_fd())) {
            Ok(link) => link.is_at_tcx(*ifindex),
            Err(_) => filter.is_attached(*ifindex).unwrap_or(false),
        }
    });
    let interfaces: BTreeSet<u32> = here.collect();
    if interfaces.is_empty() {
        return None;
    }
    let maps = directory.join(format!("{}{}", pin::MAPS, layout::HASH));
    let exact = entries::<layout::RouteKey, u32>("routes", &maps);
    let exact6 = entries::<layout::RouteKey6, u32>("routes6", &maps);
    let mut taken: Vec<RouteKey> = exact
        .iter()
        .map(|(key, _)| of_v4(key))
        .chain(exact6.iter().map(|(key, _)| of_v6(key)))
        .chain(ranges(&maps))
        .collect();
    taken.retain(|key| interfaces.contains(&key.ingress.0));
    Some(Neighbour {
        owner: pin_lock::owner(directory),
        instance,
        interfaces,
        taken,
    })
}

fn of_v4(key: &layout::RouteKey) -> RouteKey {
    RouteKey {
        ingress: Ifindex(key.ifindex),
        groups: Prefix::host(key.group.into()),
        ports: Ports::single(u16::from_be_bytes(key.port)),
        source: (key.source != [0; 4]).then(|| Prefix::host(key.source.into())),
    }
}

fn of_v6(key: &layout::RouteKey6) -> RouteKey {
    RouteKey {
        ingress: Ifindex(key.ifindex),
        groups: Prefix::host(key.group.into()),
        ports: Ports::single(u16::from_be_bytes(key.port)),
        source: (key.source != [0; 16]).then(|| Prefix::host(key.source.into())),
    }
}

/// The routes for ranges. Another daemon may be changing them, so invalid entries are skipped.
fn ranges(maps: &Path) -> Vec<RouteKey> {
    let blocks = entries::<layout::RangeKey, layout::Range>("ranges", maps);
    let candidates = || -> Option<Array<Candidate>> {
        let map = syscall::open_pin(&maps.join("candidates")).ok()?;
        let info = syscall::map_info(map.as_fd()).ok()?;
        let is_ours = info.value_size as usize == size_of::<Candidate>();
        let mapped = is_ours.then(|| syscall::map_array(map.as_fd(), info.max_entries));
        mapped?.ok()
    };
    let Some(candidates) = (!blocks.is_empty()).then(candidates).flatten() else {
        return Vec::new();
    };
    let mut ranges = Vec::new();
    for (key, block) in blocks {
        let Some(length) = key.prefix.checked_sub(64).filter(|bits| *bits <= 128) else {
            continue;
        };
        let last = block.first.saturating_add(block.count);
        for slot in block.first..last.min(candidates.len()) {
            let candidate = candidates.read(slot);
            // A block also lists the routes of shorter prefixes.
            if candidate.prefix == length && candidate.first_port <= candidate.last_port {
                ranges.push(of_range(&key, length as u8, &candidate));
            }
        }
    }
    ranges
}

fn of_range(key: &layout::RangeKey, length: u8, candidate: &Candidate) -> RouteKey {
    let address = |bytes| layout::address_of(bytes, key.ipv6 != 0);
    RouteKey {
        ingress: Ifindex(key.ifindex),
        groups: Prefix::new(address(key.group), length),
        ports: Ports {
            first: candidate.first_port,
            last: candidate.last_port,
        },
        source: (candidate.specific != 0)
            .then(|| Prefix::new(address(candidate.source), candidate.specific.min(128) as u8)),
    }
}

/// The entries of a pinned map; none if the map has another shape.
fn entries<K: Plain, V: Plain>(name: &'static str, maps: &Path) -> Vec<(K, V)> {
    let Ok(map) = syscall::open_pin(&maps.join(name)) else {
        return Vec::new();
    };
    let Ok(info) = syscall::map_info(map.as_fd()) else {
        return Vec::new();
    };
    if info.key_size as usize != size_of::<K>() || info.value_size as usize != size_of::<V>() {
        return Vec::new();
    }
    let entries = HashMap::<K, V>::new(name, map, info.max_entries).entries();
    entries.unwrap_or_default()
}
