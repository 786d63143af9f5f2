//! Atomic replacement of files: each is whole, either before or after the change, whatever happens meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces the content of a file by `bytes`, so that it survives a power failure; only its owner may read it.
///
/// # Errors
/// Why it is unchanged; the path is named.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let renamed = write(&new, bytes).and_then(|()| fs::rename(&new, path));
    let synced = renamed.and_then(|()| sync_directory(path));
    synced.map_err(|error| {
        // This error matters more than one of the removal.
        let _ = fs::remove_file(&new);
        named(path, &error)
    })
}

fn write(new: &Path, bytes: &[u8]) -> io::Result<()> {
    // Made anew, so that no other user can read it.
    let _ = fs::remove_file(new);
    let mut open = OpenOptions::new();
    let mut file = open.write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes a file for good; it need not exist.
///
/// # Errors
/// Why it still exists; the path is named.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| sync_directory(path)),
    };
    removed.map_err(|error| named(path, &error))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.json");
        fs::write(path.with_extension("new"), "what a process that died left").unwrap();
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(directory.path().read_dir().unwrap().count(), 1);
        fs::create_dir(path.with_extension("new")).unwrap();
        let refused = replace(&path, b"three").unwrap_err().to_string();
        assert!(refused.contains("kept.json"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"two");
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists());
    }
}
