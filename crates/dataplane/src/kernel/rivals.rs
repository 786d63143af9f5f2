//! Other instances that take the same packets: on the kernel path a packet is consumed by the program
//! that sees it first.

use std::collections::HashSet;
use std::path::Path;

use bpf::neighbour::{Neighbour, neighbours};
use model::table::RouteKey;

use crate::kernel::encode;
use crate::kernel::key::Key;

/// Lists which of `keys` other instances have too, each with the name of that instance. A key of a
/// range is not compared.
pub(crate) fn rivals(bpffs: &Path, instance: &str, keys: &[RouteKey]) -> Vec<(RouteKey, String)> {
    let others = neighbours(bpffs, instance);
    let others: Vec<(String, HashSet<Key>)> = others.into_iter().map(taken).collect();
    let mut rivals = Vec::new();
    for key in keys {
        let Ok(here) = encode::route_key(key) else {
            continue;
        };
        let have = others.iter().filter(|(_, taken)| taken.contains(&here));
        rivals.extend(have.map(|(other, _)| (*key, other.clone())));
    }
    rivals
}

fn taken(other: Neighbour) -> (String, HashSet<Key>) {
    let v4 = other.routes.into_iter().map(Key::V4);
    let v6 = other.routes6.into_iter().map(Key::V6);
    (other.instance, v4.chain(v6).collect())
}
