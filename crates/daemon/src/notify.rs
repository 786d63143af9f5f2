//! Tells the service manager how the daemon is (`sd_notify(3)`): ready, reloading, stopping, alive.
//! Without a manager nothing is said.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use nix::time::{ClockId, clock_gettime};

/// Rules are live and joined.
pub(crate) fn ready(rules: usize) {
    let plural = if rules == 1 { "" } else { "s" };
    tell(&format!("READY=1\nSTATUS=Relaying by {rules} rule{plural}"));
}

/// The configuration is being read again; [`ready`] follows.
pub(crate) fn reloading() {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    let now = now.map_or(0, |now| now.tv_sec() * 1_000_000 + now.tv_nsec() / 1000);
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={now}"));
}

/// The supervisor's loop turns.
pub(crate) fn alive() {
    tell("WATCHDOG=1");
}

/// The daemon ends.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(socket.as_bytes(), state) {
        tracing::debug!(%error, "cannot tell the service manager");
    }
}

fn send(socket: &[u8], state: &str) -> io::Result<()> {
    let address = match socket.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(Path::new(std::ffi::OsStr::from_bytes(socket)))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
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
            send(at, "READY=1").unwrap();
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
    }

    #[test]
    fn a_manager_that_is_gone_is_an_error_and_no_panic() {
        assert!(send(b"/nonexistent/notify", "READY=1").is_err());
        assert!(send(b"", "READY=1").is_err());
    }
}
