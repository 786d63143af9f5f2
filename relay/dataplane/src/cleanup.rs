//! Ends what earlier daemons left forwarding on the kernel path.

use std::path::Path;

use bpf::link::Link;
use bpf::orphans;
use bpf::pin::Pins;

use crate::error::Error;

/// Removes, at these interfaces of the calling thread's network namespace, what daemons left that no pins
/// here hold; returns where that was, and where programs are still in use, by a daemon with a bpffs of its
/// own.
///
/// # Errors
/// When a program cannot be removed.
pub fn end_strays(bpffs: &Path, interfaces: &[u32]) -> Result<(Vec<u32>, Vec<u32>), Error> {
    let (abandoned, running) = orphans::abandoned(orphans::strays(bpffs, interfaces));
    for stray in &abandoned {
        stray.detach()?;
    }
    let ifindices = |strays: Vec<orphans::Stray>| strays.iter().map(|it| it.ifindex).collect();
    Ok((ifindices(abandoned), ifindices(running)))
}

/// Removes all that an instance has pinned or attached, which must not be running; returns the interfaces
/// where that was.
///
/// # Errors
/// When the instance is running, or something cannot be removed.
pub fn end(bpffs: &Path, instance: &str, interfaces: &[u32]) -> Result<Vec<u32>, Error> {
    let mut ended = Vec::new();
    if bpffs.join("mcr").join(instance).exists() {
        let pins = Pins::open(bpffs, instance)?;
        ended.extend(pins.links()?);
        Link::remove_all(&pins)?;
    }
    for ifindex in interfaces {
        if orphans::detach_filter(instance, *ifindex)? {
            ended.push(*ifindex);
        }
    }
    ended.extend(end_strays(bpffs, interfaces)?.0);
    ended.sort_unstable();
    ended.dedup();
    Ok(ended)
}
