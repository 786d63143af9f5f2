//! The sign of a capture: packet sockets see nothing of what XDP takes or hands over, so a capturing process shows
//! where, and the daemon of the network namespace leaves those packets to tc meanwhile. It is the name of a
//! socket, which ends with its process.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The name of a sign, followed by the interface's index and a number.
const NAME: &str = "mcr/capture/";

/// Shows that an interface is being captured, until it is dropped.
#[derive(Debug)]
pub struct CaptureSign {
    _socket: UnixDatagram,
}

impl CaptureSign {
    /// Shows it in the calling thread's network namespace.
    ///
    /// # Errors
    /// The system call's.
    pub fn show(interface: u32) -> io::Result<Self> {
        let mut number = 0_u32;
        loop {
            let name = SocketAddr::from_abstract_name(format!("{NAME}{interface}/{number}"))?;
            match UnixDatagram::bind_addr(&name) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => number += 1,
                bound => return bound.map(|socket| Self { _socket: socket }),
            }
        }
    }
}

/// The interfaces that any process of the calling thread's network namespace captures.
pub fn captured() -> BTreeSet<u32> {
    let sockets = fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    let signs = sockets
        .lines()
        .filter_map(|line| line.rsplit_once(" @")?.1.strip_prefix(NAME));
    signs
        .filter_map(|rest| rest.split('/').next()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_seen_until_the_last_of_an_interface_goes() {
        const INTERFACE: u32 = 4_000_001;
        let signs = [INTERFACE, INTERFACE].map(|index| CaptureSign::show(index).unwrap());
        assert!(captured().contains(&INTERFACE));
        let [first, second] = signs;
        drop(first);
        assert!(captured().contains(&INTERFACE));
        drop(second);
        assert!(!captured().contains(&INTERFACE));
    }
}
