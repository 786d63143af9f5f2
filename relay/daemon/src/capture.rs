//! The process that captures for clients of the API (`mcr tap`, `mcr discover`), from both sides. It has no
//! capability: it is lent sockets that receive nothing, binds them, and enters the sandbox before it reads
//! from one. It ends with the daemon, whose end of its standard input closes then.

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

/// How much one captures at most, in bytes.
pub const BYTES_MAX: u64 = 64 << 20;
/// How many sockets one is lent, and what each may hold that is not read.
const SOCKETS_MAX: usize = 64;
const BUFFER: usize = 4 << 20;

/// Asks for a socket; the answer is the same byte, and the socket.
const SOCKET: u8 = b's';
/// Says that it captures, behind its fence.
const READY: u8 = b'r';

/// How processes that capture are started.
#[derive(Clone, Debug, Default)]
pub(crate) struct CaptureCommand {
    /// The program, which knows `tap` and `discover`; without one nothing is captured.
    pub(crate) program: Option<OsString>,
    /// The control socket, where it asks what it has to know.
    pub(crate) socket: PathBuf,
}

/// What the capturing process is lent its sockets by.
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

    /// Borrows a socket that is bound to nothing.
    ///
    /// # Errors
    /// The daemon lends no more, or is gone.
    pub fn socket(&self) -> io::Result<PacketSocket> {
        send_with(&self.0, &[SOCKET], &[])?;
        let mut lent = Vec::new();
        if receive_with(&self.0, &mut [0], &mut lent)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let none = || io::Error::other(format!("the daemon lends {SOCKETS_MAX} sockets at most"));
        lent.pop().map(PacketSocket::adopt).ok_or_else(none)
    }

    /// Shuts all doors but those that are open, for good, and says so.
    ///
    /// # Errors
    /// A door that stays open.
    pub fn close_doors(&self) -> io::Result<()> {
        sys::capability::renounce_all()?;
        sys::sandbox::close(true)?;
        send_with(&self.0, &[READY], &[]).map(drop)
    }

    /// Says whether the daemon wants it to end, or is gone.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        sys::wait::readable(self.0.as_fd(), Duration::ZERO).unwrap_or(true)
    }
}

/// The daemon's end, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lending(UnixStream);

impl Lending {
    /// Begins to lend sockets, on a thread of its own, to whoever has the descriptor; the receiver hears
    /// when the process is ready, or that it never will be.
    pub(crate) fn start() -> io::Result<(Self, OwnedFd, oneshot::Receiver<()>)> {
        let (here, there) = UnixStream::pair()?;
        let lending = Self(here.try_clone()?);
        let (ready, is_ready) = oneshot::channel();
        let serve = move || {
            if lend(&here).is_ok() {
                // Who waited may have gone away.
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
        let mut asked = [0];
        if receive_with(stream, &mut asked, &mut Vec::new())? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if asked[0] == READY {
            return Ok(());
        }
        lent += 1;
        let socket = (lent <= SOCKETS_MAX)
            .then(|| PacketSocket::capture(BUFFER))
            .transpose()?;
        let socket = socket.as_ref().map(AsFd::as_fd);
        send_with(stream, &asked, socket.as_slice())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_does_not_say_that_it_is_ready_is_not() {
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
