//! Processes that a killed daemon leaves running on purpose: its keeper and its workers. They are in the
//! test's own namespace, run the binary under test and have lost their parent.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::namespace::Namespace;
use crate::{binary, wait};

const GRACE: Duration = Duration::from_secs(2);

/// Ends the orphans of one instance, by SIGTERM first.
pub(super) fn end(namespace: &Namespace, instance: &str) {
    let orphans = find(namespace, instance);
    for orphan in &orphans {
        let _ = kill(*orphan, Signal::SIGTERM);
    }
    let ended = wait::until_within(GRACE, "orphans end", || {
        orphans.iter().all(|orphan| kill(*orphan, None).is_err())
    });
    if ended.is_err() {
        for orphan in find(namespace, instance) {
            let _ = kill(orphan, Signal::SIGKILL);
        }
    }
}

fn find(namespace: &Namespace, instance: &str) -> Vec<Pid> {
    let Ok(binary) = binary::mcr() else {
        return Vec::new();
    };
    let listed = namespace.processes();
    let orphans = listed.into_iter().filter(|process| {
        let directory = PathBuf::from(format!("/proc/{process}"));
        let read = |file| fs::read_to_string(directory.join(file)).unwrap_or_default();
        let is_orphan = read("status").lines().any(|line| line == "PPid:\t1");
        let words = read("cmdline");
        let is_of_other_instance = words.contains("keeper") && !words.contains(instance);
        runs(&directory, binary) && is_orphan && !is_of_other_instance
    });
    orphans.map(Pid::from_raw).collect()
}

/// Whether the process runs the binary, which shows as deleted if it was rebuilt since.
fn runs(process: &Path, binary: &Path) -> bool {
    let exe = fs::read_link(process.join("exe")).unwrap_or_default();
    exe.to_string_lossy().trim_end_matches(" (deleted)") == binary.to_string_lossy()
}
