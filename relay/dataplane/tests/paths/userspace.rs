//! The userspace path as an executor: one worker, which is this very test binary run again.

use std::ffi::OsString;

use compile::table::Path;
use dataplane::features::Feature;
use dataplane::{Close, Dataplane, Options};

use crate::bed::Bed;
use crate::relayed::Relay;

/// Runs `work` with a relay on the userspace path inside a bed; skips, with the reason, where that
/// cannot be had. One worker, so that the sentinel comes after the packets before it.
pub(crate) fn with_relay(label: &str, work: impl FnOnce(&mut Relay<'_>) + Send) {
    with_relay_without(label, &[], work);
}

/// The same, without some of what the kernel has.
pub(crate) fn with_relay_without(
    label: &str,
    without: &[Feature],
    work: impl FnOnce(&mut Relay<'_>) + Send,
) {
    let Some(bed) = Bed::new(label) else { return };
    let options = Options {
        instance: label.into(),
        kernel: false,
        workers: 1,
        worker_command: worker_command(),
        without: without.to_vec(),
        ..Options::default()
    };
    let ran = bed.relay.clone().run(|| {
        let dataplane = Dataplane::open(options).expect("the dataplane opens");
        assert_eq!(dataplane.support().userspace, Ok(()));
        let mut relay = Relay::new(&bed, Path::Userspace, dataplane);
        work(&mut relay);
        relay.close(Close::Detach);
    });
    ran.expect("the namespace can be entered");
}

fn worker_command() -> Vec<OsString> {
    let binary = std::env::current_exe().expect("this test has a path");
    let arguments = ["worker_process", "--exact", "--ignored", "--nocapture"];
    let arguments = arguments.map(OsString::from);
    [binary.into_os_string()]
        .into_iter()
        .chain(arguments)
        .collect()
}
