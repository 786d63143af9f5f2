//! The process that captures for clients of the API (`mcr tap`, `mcr discover`), from both sides. It has no
//! capability: the daemon lends it sockets that receive nothing; it binds them, and enters the sandbox before
//! it reads from one. It ends with the daemon, whose end of its standard input closes then.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use sys::descriptor::{receive_with, send_with};
use sys::packet_socket::PacketSocket;
use tokio::sync::oneshot;

/// The most bytes that a process captures.
pub const BYTES_MAX: u64 = 64 << 20;
/// The most sockets that a process is lent, and the buffer of each in bytes.
const SOCKETS_MAX: usize = 64;
const BUFFER: usize = 4 << 20;

/// Requests a socket; the reply is the same byte with the socket.
const SOCKET: u8 = b's';
/// Reports that it captures, inside its sandbox.
const READY: u8 = b'r';

/// How capturing processes are started.
#[derive(Clone, Debug, Default)]
pub(crate) struct CaptureCommand {
    /// The program, which has the commands `tap` and `discover`; `None` disables captures.
    pub(crate) program: Option<OsString>,
    /// The control socket, which it queries.
    pub(crate) socket: PathBuf,
}

/// The capturing process's end, from which it borrows sockets.
#[derive(Debug)]
pub struct Lender(UnixStream);

impl Lender {
    /// Takes over the standard input of a process that the daemon started.
    ///
    /// # Errors
    /// The system call's.
    pub fn inherited() -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self(input.into()))
    }

    /// Borrows an unbound socket.
    ///
    /// # Errors
    /// The daemon lends no more, or has ended.
    pub fn socket(&self) -> io::Result<PacketSocket> {
        send_with(&self.0, &[SOCKET], &[])?;
        let mut lent = Vec::new();
        if receive_with(&self.0, &mut [0], &mut lent)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let none = || io::Error::other(format!("the daemon lends {SOCKETS_MAX} sockets at most"));
        lent.pop().map(PacketSocket::adopt).ok_or_else(none)
    }

    /// Renounces all capabilities, enters the sandbox for good, and reports ready.
    ///
    /// # Errors
    /// A step that failed.
    pub fn enter_sandbox(&self) -> io::Result<()> {
        sys::capability::renounce_all()?;
        sys::sandbox::close(true)?;
        send_with(&self.0, &[READY], &[]).map(drop)
    }

    /// Returns whether the daemon wants it to end, or has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        sys::wait::readable(self.0.as_fd(), Duration::ZERO).unwrap_or(true)
    }
}

/// The daemon's end, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lending(UnixStream);

impl Lending {
    /// Begins to lend sockets, on a thread of its own, to the holder of the descriptor; the receiver
    /// resolves when the process is ready, or fails if it never will be.
    pub(crate) fn start() -> io::Result<(Self, OwnedFd, oneshot::Receiver<()>)> {
        let (here, there) = UnixStream::pair()?;
        let lending = Self(here.try_clone()?);
        let (ready, is_ready) = oneshot::channel();
        let serve = move || {
            if lend(&here).is_ok() {
                // The receiver may have been dropped.
                let _ = ready.send(());
            }
        };
        std::thread::Builder::new()
            .name("mcr-lender".to_owned())
            .spawn(serve)?;
        Ok((lending, there.into(), is_ready))
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Lends sockets until the process is ready.
fn lend(stream: &UnixStream) -> io::Result<()> {
    let mut lent = 0;
    loop {
        let mut request = [0];
        if receive_with(stream, &mut request, &mut Vec::new())? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if request[0] == READY {
            return Ok(());
        }
        lent += 1;
        let socket = (lent <= SOCKETS_MAX)
            .then(|| PacketSocket::capture(BUFFER))
            .transpose()?;
        let descriptor = socket.as_ref().map(AsFd::as_fd);
        send_with(stream, &request, descriptor.as_slice())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_does_not_report_ready_is_not() {
        let (lending, there, mut ready) = Lending::start().unwrap();
        let lender = Lender(there.into());
        assert!(!lender.has_ended());
        drop(lending);
        assert!(lender.has_ended());
        drop(lender);
        while ready.try_recv() == Err(oneshot::error::TryRecvError::Empty) {}
        assert!(ready.try_recv().is_err());
    }
}
