//! Other instances that take the same packets: on the kernel path a packet is consumed by the program
//! that sees it first.

use std::path::Path;

use bpf::other_instances::neighbours;
use compile::overlap::overlapping;
use compile::table::RouteKey;

/// A key, a key of another instance that matches some of the same packets, and that instance's name.
pub type Rival = (RouteKey, RouteKey, String);

/// Lists those of `keys` whose packets other instances take too, with the first such key of each instance.
pub(crate) fn rivals(bpffs: &Path, instance: &str, keys: &[RouteKey]) -> Vec<Rival> {
    let others = neighbours(bpffs, instance).into_iter();
    let rivals = others.flat_map(|other| {
        let shared = overlapping(keys, &other.taken).into_iter();
        shared.map(move |(key, theirs)| (key, theirs, other.instance.clone()))
    });
    rivals.collect()
}
