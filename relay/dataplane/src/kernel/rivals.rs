//! Other instances that take the same packets: on the kernel path a packet is consumed by the program
//! that sees it first.

use std::path::Path;

use bpf::other_instances::neighbours;
use compile::overlap::overlapping;
use compile::table::RouteKey;

/// A key, one of another instance's that some packet fits as well, and that instance's name.
pub type Rival = (RouteKey, RouteKey, String);

/// Lists which of `keys` other instances take packets of too; of each instance the first key.
pub(crate) fn rivals(bpffs: &Path, instance: &str, keys: &[RouteKey]) -> Vec<Rival> {
    let others = neighbours(bpffs, instance).into_iter();
    let rivals = others.flat_map(|other| {
        let shared = overlapping(keys, &other.taken).into_iter();
        shared.map(move |(key, theirs)| (key, theirs, other.instance.clone()))
    });
    rivals.collect()
}
