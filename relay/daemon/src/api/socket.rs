//! The control socket: never taken from a running daemon, and removed at the end.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use nix::unistd::{Gid, Group, chown, geteuid};

use crate::error::DaemonError;
use crate::instance::OwnFile;

/// The group that may use the socket besides its owner.
const GROUP: &str = "mcr";

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The bound control socket; its file is removed on drop.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Binds the socket, with mode 0660 and group `mcr` if it exists; 0600 for an ordinary user outside
    /// the group. Its directory has to exist. A socket without a listener is replaced; anything else at
    /// the path is left alone.
    pub(crate) fn bind(path: &Path) -> Result<Self, DaemonError> {
        let failed = |problem: String| DaemonError::Socket {
            path: path.to_owned(),
            problem,
        };
        refuse_taken(path).map_err(failed)?;
        // Created under another name and renamed: it never appears with the wrong owner.
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let temporary = PathBuf::from(name);
        let bound = make(&temporary).and_then(|listener| {
            fs::rename(&temporary, path)?;
            let inode = fs::symlink_metadata(path)?.ino();
            Ok((listener, inode))
        });
        let (listener, inode) = bound.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            failed(format!("cannot make it: {error}"))
        })?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            inode,
        })
    }

    /// The socket's file, for the watch over it.
    pub(crate) fn file(&self) -> OwnFile {
        OwnFile::new(&self.path, "no client reaches this daemon any more")
    }

    /// The listening end.
    pub(crate) fn listener(&self) -> io::Result<UnixListener> {
        let listener = self.listener.try_clone()?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let is_own = |metadata: fs::Metadata| metadata.ino() == self.inode;
        if fs::symlink_metadata(&self.path).is_ok_and(is_own) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn refuse_taken(path: &Path) -> Result<(), String> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return require_directory(path),
        Err(error) => return Err(format!("cannot look at it: {error}")),
    };
    if !metadata.file_type().is_socket() {
        return Err("is there and is no socket; remove it or choose another with --socket".into());
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(
            "another daemon listens on it; stop that one or choose another socket \
                      with --socket"
                .into(),
        ),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(format!("cannot tell whether it is in use: {error}")),
    }
}

/// Refuses a path whose directory does not exist: it is more likely mistyped than to be created.
fn require_directory(path: &Path) -> Result<(), String> {
    let directory = path.parent().unwrap_or(Path::new(""));
    if directory.as_os_str().is_empty() || directory.is_dir() {
        return Ok(());
    }
    let directory = directory.display();
    Err(format!(
        "there is no directory {directory}; make it, or choose another socket with --socket"
    ))
}

fn make(path: &Path) -> io::Result<UnixListener> {
    let socket = bound(path)?;
    nix::sys::socket::listen(&socket, nix::sys::socket::Backlog::new(BACKLOG)?)?;
    Ok(socket.into())
}

/// A socket with its name, owner and mode that does not listen yet: until it does it refuses every
/// client, whatever mode the file was created with.
fn bound(path: &Path) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let mode = match group_id(GROUP) {
        Some(group) => match chown(path, None, Some(group)) {
            Ok(()) => 0o660,
            // Neither root nor a member of the group.
            Err(Errno::EPERM) => 0o600,
            Err(error) => return Err(error.into()),
        },
        // Root's own group is root; an ordinary user's may be anybody's.
        _ if geteuid().is_root() => 0o660,
        _ => 0o600,
    };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(socket)
}

/// Looks up a group. A static binary reads only `/etc/group`: it must not load the C library's name
/// service modules, which are built for another copy of that library and crash it.
fn group_id(name: &str) -> Option<Gid> {
    if cfg!(target_feature = "crt-static") {
        return group_in(&fs::read_to_string("/etc/group").ok()?, name);
    }
    Some(Group::from_name(name).ok()??.gid)
}

/// Finds a group in the text of a group(5) file.
fn group_in(text: &str, name: &str) -> Option<Gid> {
    let mut lines = text.lines().map(|line| line.split(':'));
    let mut fields =
        lines.find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    Some(Gid::from_raw(fields.nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_group_by_its_whole_name() {
        let text = "root:x:0:\nmcrx:x:7:\nmcr:x:977:eve,adam\nbroken\n";
        assert_eq!(group_in(text, "mcr"), Some(Gid::from_raw(977)));
        assert_eq!(group_in(text, "broken"), None);
        assert_eq!(group_in(text, "none"), None);
    }

    #[test]
    fn binds_with_owner_and_group_only_and_removes_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mcr.sock");
        let listener = Listener::bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn answers_nobody_until_it_has_its_owner_and_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mcr.sock");
        let socket = bound(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let refused = UnixStream::connect(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        drop(socket);
    }

    #[test]
    fn makes_no_directory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("typo/x.sock");
        let error = Listener::bind(&path).unwrap_err().to_string();
        assert!(error.contains("there is no directory"), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn replaces_a_stale_socket_but_never_one_in_use() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mcr.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "stale");
        let first = Listener::bind(&path).unwrap();
        let error = Listener::bind(&path).unwrap_err();
        assert!(error.to_string().contains("another daemon listens on it"));
        assert_eq!(error.exit_code(), 69);
        drop(first);
    }

    #[test]
    fn leaves_a_file_alone_that_is_no_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mcr.sock");
        fs::write(&path, "precious").unwrap();
        assert!(Listener::bind(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
