//! The sign that a daemon manages the kernel path's programs: a socket whose abstract name has the number of
//! the programs' settings. Every process of the network namespace sees it, whatever its bpffs or process
//! namespace, and it ends with the daemon, however that ends. A daemon that is idle, stopped or late still
//! shows it.
//!
//! Any process that may make sockets there can show it, too: then abandoned programs are not removed.

use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::syscall;

/// Name of the map that identifies a program.
pub(super) const SETTINGS: &str = "settings";

/// How long a killed process may still show it: its files are closed one by one, and the lock of its pins may
/// be released before.
const LET_GO: Duration = Duration::from_millis(500);

/// The sign; it is shown until it is dropped.
#[derive(Debug)]
pub(super) struct Sign {
    _socket: UnixDatagram,
}

impl Sign {
    /// Shows it for the programs whose maps are pinned in this directory, in the network namespace of
    /// the calling thread.
    ///
    /// # Errors
    /// The kernel's; `AddrInUse` where another process shows it already.
    pub(super) fn show(maps: &Path) -> io::Result<Self> {
        let settings = syscall::open_pin(&maps.join(SETTINGS))?;
        let name = name(syscall::map_info(settings.as_fd())?.id)?;
        let deadline = Instant::now() + LET_GO;
        loop {
            match UnixDatagram::bind_addr(&name) {
                Ok(socket) => return Ok(Self { _socket: socket }),
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline =>
                {
                    thread::sleep(LET_GO / 50);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether the sign is shown for the settings of this number.
pub(super) fn is_shown(settings: u32) -> bool {
    let connect = || UnixDatagram::unbound()?.connect_addr(&name(settings)?);
    connect().is_ok()
}

fn name(settings: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("mcr/settings/{settings}"))
}
