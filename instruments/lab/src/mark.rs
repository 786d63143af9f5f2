//! The marks of a lab process's resources: its process id, in the names of namespaces, instances and
//! directories. They let its guard distinguish them from everything else on the machine.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

/// The prefix of namespaces' names, before the process id.
pub(crate) const PREFIX: &str = "mcrlab";

/// A name for a namespace of this process, unlike all others; it ends in `label`.
pub(crate) fn namespace(label: &str) -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}-{}-{number}-{label}", std::process::id())
}

/// The prefix of a process's temporary directories.
pub(crate) fn directories_of(process: u32) -> String {
    format!("{PREFIX}-{process}-")
}

/// The prefix of a process's daemon instances.
pub(crate) fn instances_of(process: u32) -> String {
    format!("lab{process}-")
}

/// Makes a directory for temporary files of this process. Dropping the value removes it.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn directory() -> io::Result<TempDir> {
    let prefix = directories_of(std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir()
}

/// Where files are kept in memory.
pub(crate) const MEMORY: &str = "/dev/shm";

/// As [`directory`], but in memory, independent of the machine's disk and its other users.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn directory_in_memory() -> io::Result<TempDir> {
    let prefix = directories_of(std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir_in(MEMORY)
}
