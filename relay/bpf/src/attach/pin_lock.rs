//! The owner of an instance's pins: a lock on their directory, which ends with the process, and a link in it
//! that names the owner, for processes that are refused. Containers may share a bpffs and nothing else.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;

/// Name of the link; bpffs has no files of text.
const OWNER: &str = "owner";

/// How long the lock of a killed process may last: a child that it was starting has a copy until it is
/// executed.
const LET_GO: Duration = Duration::from_millis(500);

/// Makes the directory unless it exists, and claims it for as long as the returned file is open.
pub(super) fn claim(directory: &Path) -> Result<File, Error> {
    let deadline = Instant::now() + LET_GO;
    loop {
        let made = fs::create_dir_all(directory);
        made.map_err(|error| failed(directory, "create the directory", error))?;
        let opened = File::open(directory).map_err(|error| failed(directory, "open", error))?;
        match opened.try_lock() {
            // A former owner may have removed it between the opening and the locking.
            Ok(()) if is_the_same(&opened, directory) => {
                sign(directory);
                return Ok(opened);
            }
            Ok(()) => {}
            Err(TryLockError::WouldBlock) if deadline <= Instant::now() => {
                return Err(Error::Claimed {
                    directory: directory.to_owned(),
                    owner: signature(directory),
                });
            }
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
            Err(TryLockError::Error(error)) => return Err(failed(directory, "lock", error)),
        }
    }
}

/// Returns the owner of the directory, if a process has claimed it.
pub(super) fn owner(directory: &Path) -> Option<String> {
    let opened = File::open(directory).ok()?;
    let locked = matches!(opened.try_lock_shared(), Err(TryLockError::WouldBlock));
    locked.then(|| signature(directory))
}

fn is_the_same(opened: &File, directory: &Path) -> bool {
    let inode = |metadata: io::Result<fs::Metadata>| metadata.map(|it| (it.dev(), it.ino())).ok();
    inode(opened.metadata()) == inode(fs::metadata(directory))
}

/// Names this process as the owner. If that fails, a refused process only learns less.
fn sign(directory: &Path) {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let namespace = fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
    let text = format!(
        "process {} on {}, network namespace {}",
        std::process::id(),
        host.trim(),
        namespace.display()
    );
    let link = directory.join(OWNER);
    let _ = fs::remove_file(&link);
    let _ = symlink(text, link);
}

fn signature(directory: &Path) -> String {
    let text = fs::read_link(directory.join(OWNER));
    text.map_or_else(
        |_| "a process that did not say".to_owned(),
        |text| text.to_string_lossy().into_owned(),
    )
}

/// The error of an operation on a pin.
pub(crate) fn failed(path: &Path, operation: &'static str, error: io::Error) -> Error {
    Error::Pin {
        path: path.to_owned(),
        operation,
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_has_a_directory_and_the_next_learns_which() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("default");
        assert_eq!(owner(&directory), None);
        let first = claim(&directory).unwrap();
        let own = format!("process {} on ", std::process::id());
        assert!(owner(&directory).unwrap().starts_with(&own));
        let refused = claim(&directory).unwrap_err().to_string();
        assert!(refused.contains(&own), "{refused}");
        drop(first);
        assert_eq!(owner(&directory), None);
        claim(&directory).unwrap();
    }

    #[test]
    fn a_directory_that_was_removed_meanwhile_is_made_anew() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("default");
        let first = claim(&directory).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        assert!(!is_the_same(&first, &directory));
        let second = claim(&directory).unwrap();
        assert!(is_the_same(&second, &directory));
    }
}
