//! What earlier daemons left forwarding on the kernel path, and its end.

use std::path::Path;

use bpf::link::Link;
use bpf::orphans;
use bpf::pin::Pins;

use crate::error::Error;

/// Takes away, at these interfaces of the calling thread's network namespace, what daemons left that
/// no pins here hold; hands back where that was, and where a program is that somebody still looks
/// after: a daemon with a bpffs of its own.
///
/// # Errors
/// When a program cannot be taken away.
pub fn end_strays(bpffs: &Path, interfaces: &[u32]) -> Result<(Vec<u32>, Vec<u32>), Error> {
    let (left, running) = orphans::abandoned(orphans::strays(bpffs, interfaces));
    for stray in &left {
        stray.detach()?;
    }
    let where_of = |strays: Vec<orphans::Stray>| strays.iter().map(|stray| stray.ifindex).collect();
    Ok((where_of(left), where_of(running)))
}

/// Takes away all that an instance has pinned or attached, which nobody may run; hands back at which
/// interfaces that was.
///
/// # Errors
/// When somebody runs it, or something cannot be taken away.
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
