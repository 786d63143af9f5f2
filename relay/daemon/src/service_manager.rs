//! The service manager (`sd_notify(3)`): it is notified that the daemon is ready, reloading, stopping or
//! alive, and holds descriptors. Without a manager nothing is sent. Nothing waits for a busy manager: it is
//! notified later.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use rules::printable::things;

/// The number of the first descriptor that a manager passes (sd_listen_fds(3)).
const FIRST_STORED: i32 = 3;

/// The state that the manager has not accepted yet.
static PENDING: Mutex<Option<String>> = Mutex::new(None);

/// Rules are live and joined.
pub(crate) fn ready(rules: usize) {
    let rules = things(rules as u64, "rule");
    report(format!("READY=1\nSTATUS=Relaying by {rules}"));
}

/// The configuration is being read again; [`ready`] follows.
pub(crate) fn reloading() {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    let now_us = now.map_or(0, |now| now.tv_sec() * 1_000_000 + now.tv_nsec() / 1000);
    report(format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
}

/// The supervisor's loop is running.
pub(crate) fn alive() {
    let state = PENDING.lock().take();
    if let Some(state) = state {
        report(state);
    }
    notify("WATCHDOG=1");
}

/// The daemon is stopping.
pub(crate) fn stopping() {
    report("STOPPING=1".to_owned());
}

/// Returns whether a manager holds descriptors for this process: children of a service, such as a shell,
/// inherit `NOTIFY_SOCKET`, but the manager holds nothing for them.
pub(crate) fn has_store() -> bool {
    let started = std::env::var("SYSTEMD_EXEC_PID").ok();
    let is_service = std::env::var_os("INVOCATION_ID").is_some();
    std::env::var_os("NOTIFY_SOCKET").is_some()
        && is_managed(std::process::id(), started.as_deref(), is_service)
}

/// Since version 248 the manager passes the pid of the process it started; before, only that it started one.
fn is_managed(process: u32, started: Option<&str>, is_service: bool) -> bool {
    match started {
        Some(started) => started == process.to_string(),
        None => is_service,
    }
}

/// Stores a duplicate of `fd` in the manager under `label` until the service is stopped.
///
/// # Errors
/// The socket's.
pub(crate) fn store(label: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
    let socket = std::env::var_os("NOTIFY_SOCKET").ok_or(io::ErrorKind::NotConnected)?;
    let state = format!("FDSTORE=1\nFDNAME={label}");
    send(socket.as_bytes(), &state, Some(fd))
}

/// Releases the descriptor that the manager holds under `label`.
pub(crate) fn release(label: &str) {
    notify(&format!("FDSTOREREMOVE=1\nFDNAME={label}"));
}

/// The descriptors that the manager held for this service, with their labels; to be called once.
pub(crate) fn stored() -> Vec<(String, OwnedFd)> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    if variable("LISTEN_PID") != std::process::id().to_string() {
        return Vec::new();
    }
    let count: i32 = variable("LISTEN_FDS").parse().unwrap_or(0);
    let names = variable("LISTEN_FDNAMES");
    let numbers = FIRST_STORED..FIRST_STORED + count;
    let named = numbers.zip(names.split(':'));
    let taken = named.filter_map(|(number, name)| {
        let fd = sys::descriptor::inherited(number).ok()?;
        Some((name.to_owned(), fd))
    });
    taken.collect()
}

/// Reports a state, or stores it to be reported later: only the last one counts.
fn report(state: String) {
    *PENDING.lock() = (!notify(&state)).then_some(state);
}

/// Returns `false` if the state has to be sent again.
fn notify(state: &str) -> bool {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return true;
    };
    let sent = send(socket.as_bytes(), state, None);
    if let Err(error) = &sent {
        tracing::debug!(%error, "cannot tell the service manager");
    }
    !sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn send(path: &[u8], state: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let address = match path.split_first() {
        Some((b'@', name)) => UnixAddr::new_abstract(name)?,
        _ => UnixAddr::new(Path::new(OsStr::from_bytes(path)))?,
    };
    let socket = UnixDatagram::unbound()?;
    let fds = fd.map(|fd| [fd.as_raw_fd()]);
    let rights = fds.as_ref().map(|fds| ControlMessage::ScmRights(fds));
    let bytes = [IoSlice::new(state.as_bytes())];
    // A stopped or busy manager delays nothing.
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    sendmsg(
        socket.as_raw_fd(),
        &bytes,
        rights.as_slice(),
        flags,
        Some(&address),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;

    use super::*;

    #[test]
    fn reaches_a_socket_in_the_file_system_and_an_abstract_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let file = UnixDatagram::bind(&path).unwrap();
        let name = format!("mcr-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let abstracted = UnixDatagram::bind_addr(&address).unwrap();
        for (socket, at) in [
            (file, path.as_os_str().as_bytes()),
            (abstracted, format!("@{name}").as_bytes()),
        ] {
            send(at, "READY=1", None).unwrap();
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
    }

    #[test]
    fn hands_a_descriptor_to_the_store() {
        use nix::sys::socket::{ControlMessageOwned, recvmsg};

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let stored = UnixDatagram::unbound().unwrap();
        let at = path.as_os_str().as_bytes();
        send(at, "FDSTORE=1\nFDNAME=membership-1", Some(stored.as_fd())).unwrap();
        let mut bytes = [0; 64];
        let mut room = nix::cmsg_space!([i32; 4]);
        let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::empty();
        let fd = manager.as_raw_fd();
        let message = recvmsg::<UnixAddr>(fd, &mut slices, Some(&mut room), flags).unwrap();
        let received = message.cmsgs().unwrap().any(
            |message| matches!(message, ControlMessageOwned::ScmRights(fds) if fds.len() == 1),
        );
        assert!(received);
        let length = message.bytes;
        assert_eq!(&bytes[..length], b"FDSTORE=1\nFDNAME=membership-1");
    }

    #[test]
    fn a_manager_that_does_not_read_is_an_error_without_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let _unread = UnixDatagram::bind(&path).unwrap();
        let mut sent = (0..10_000).map(|_| send(path.as_os_str().as_bytes(), "WATCHDOG=1", None));
        let error = sent.find_map(Result::err).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_manager_holds_nothing_for_a_process_that_it_did_not_start() {
        assert!(is_managed(7, Some("7"), true));
        assert!(!is_managed(7, Some("1234"), true), "a shell of a service");
        assert!(is_managed(7, None, true), "before systemd 248");
        assert!(!is_managed(7, None, false), "somebody set the variable");
    }

    #[test]
    fn a_missing_manager_is_an_error_without_panic() {
        assert!(send(b"/nonexistent/notify", "READY=1", None).is_err());
        assert!(send(b"", "READY=1", None).is_err());
    }
}
