//! What other instances have at interfaces of this network namespace, as far as their pins tell.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use super::clsact::Filter;
use super::{claim, pin};
use crate::layout::{self, Plain, RouteKey, RouteKey6};
use crate::map::HashMap;
use crate::syscall;

/// Another instance with programs here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbour {
    /// Its name.
    pub instance: String,
    /// Who runs it; `None` for one whose programs forward without a process.
    pub owner: Option<String>,
    /// The interfaces of this namespace that its programs are at.
    pub interfaces: BTreeSet<u32>,
    /// What it takes there, IPv4. Empty for an instance of a version with another layout.
    pub routes: Vec<RouteKey>,
    /// The same, IPv6.
    pub routes6: Vec<RouteKey6>,
}

/// Lists the instances other than `instance` that have pins below `bpffs` and programs at interfaces
/// of the calling thread's network namespace. What may not be read is left out.
#[must_use]
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
        match link.and_then(|link| syscall::tcx_link(link.as_fd())) {
            Ok((id, at)) => {
                let there = syscall::tcx_ingress(*ifindex).unwrap_or_default();
                at == *ifindex && there.iter().any(|(link, _)| *link == id)
            }
            Err(_) => filter.is_attached(*ifindex).unwrap_or(false),
        }
    });
    let interfaces: BTreeSet<u32> = here.collect();
    if interfaces.is_empty() {
        return None;
    }
    let maps = directory.join(format!("{}{}", pin::MAPS, layout::HASH));
    let mut routes: Vec<RouteKey> = keys("routes", &maps);
    routes.retain(|key| interfaces.contains(&key.ifindex));
    let mut routes6: Vec<RouteKey6> = keys("routes6", &maps);
    routes6.retain(|key| interfaces.contains(&key.ifindex));
    Some(Neighbour {
        owner: claim::owner(directory),
        instance,
        interfaces,
        routes,
        routes6,
    })
}

/// The keys of a pinned map of indices; none of a map of another shape.
fn keys<K: Plain>(name: &'static str, maps: &Path) -> Vec<K> {
    let Ok(map) = syscall::open_pin(&maps.join(name)) else {
        return Vec::new();
    };
    let Ok(info) = syscall::map_info(map.as_fd()) else {
        return Vec::new();
    };
    if info.key_size as usize != size_of::<K>() || info.value_size != 4 {
        return Vec::new();
    }
    let entries = HashMap::<K, u32>::new(name, map, info.max_entries).entries();
    let entries = entries.unwrap_or_default().into_iter();
    entries.map(|(key, _)| key).collect()
}
