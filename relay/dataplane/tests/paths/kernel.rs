//! The kernel path as an executor: a dataplane of its own, pinned in a bpffs of its own.

use compile::table::Path;
use dataplane::features::Feature;
use dataplane::{Close, Dataplane, Options};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

use crate::bed::Bed;
use crate::relayed::Relay;

/// Runs `work` with a relay on the kernel path inside a bed; skips, with the reason, where that
/// cannot be had.
pub(crate) fn with_relay(label: &str, work: impl FnOnce(&mut Relay<'_>) + Send) {
    with_relay_without(label, &[], work);
}

/// The same, without some of what the kernel has.
pub(crate) fn with_relay_without(
    label: &str,
    without: &[Feature],
    work: impl FnOnce(&mut Relay<'_>) + Send,
) {
    with_relay_as(label, without, false, work);
}

/// The same, with packets that come as drivers hand them over, through the hook at XDP.
pub(crate) fn with_relay_at_xdp(label: &str, work: impl FnOnce(&mut Relay<'_>) + Send) {
    with_relay_as(label, &[], true, work);
}

fn with_relay_as(
    label: &str,
    without: &[Feature],
    at_xdp: bool,
    work: impl FnOnce(&mut Relay<'_>) + Send,
) {
    let Some(bed) = Bed::new(label) else { return };
    if let Err(reason) = bpf::probe::probe() {
        eprintln!("skipped: no kernel path: {reason}");
        return;
    }
    let bpffs = Bpffs::mount();
    let options = Options {
        instance: label.into(),
        bpffs: bpffs.0.path().into(),
        without: without.to_vec(),
        ..Options::default()
    };
    let ran = bed.relay.clone().run(|| {
        let dataplane = Dataplane::open(options).expect("the dataplane opens");
        if let (Err(reason), Some(false)) = (
            &dataplane.support().kernel,
            dataplane.features().found(Feature::BpfLoop),
        ) {
            eprintln!("skipped: {reason}");
            return;
        }
        assert_eq!(dataplane.support().kernel, Ok(()));
        let mut relay = Relay::new(&bed, Path::Kernel, dataplane);
        if at_xdp && let Err(reason) = relay.take_at_xdp() {
            eprintln!("skipped: {reason}");
            return;
        }
        work(&mut relay);
        relay.close(Close::Detach);
    });
    ran.expect("the namespace can be entered");
}

/// A bpffs that is gone, with all that is pinned in it, when it is dropped.
struct Bpffs(TempDir);

impl Bpffs {
    fn mount() -> Self {
        let directory = tempfile::tempdir().expect("a directory for bpffs");
        let (at, none) = (directory.path(), None::<&str>);
        mount(Some("bpf"), at, Some("bpf"), MsFlags::empty(), none).expect("bpffs is mounted");
        Self(directory)
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}
