//! What captures are made with, and what they wait for: packet sockets see nothing of what XDP takes, so
//! the daemon leaves it to tc where a capture shows its sign.

use std::io;
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use daemon::capture::Lender;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rules::printable::printable;
use sys::packet_socket::PacketSocket;

use crate::failure::{Failure, OrFail, Status};

/// Where a capture has its sockets from.
#[derive(Debug)]
pub(crate) enum Sockets {
    /// It opens them itself.
    Own,
    /// The daemon that started it lends them.
    Lent(Lender),
}

impl Sockets {
    /// What this process captures with; the daemon says so where it is one that it started.
    pub(crate) fn of_this_process(is_lent: bool) -> Result<Self, Failure> {
        if !is_lent {
            return Ok(Self::Own);
        }
        daemon::unblock_signals();
        // Whoever looks from elsewhere must not keep packets waiting.
        sys::capability::stand_back();
        let lender = Lender::inherited().or_fail(CLOSING, Status::Unavailable)?;
        Ok(Self::Lent(lender))
    }

    pub(crate) const fn are_lent(&self) -> bool {
        matches!(self, Self::Lent(_))
    }

    /// A socket that may hold so many bytes, if it is not the daemon that decides that.
    pub(crate) fn open(&self, bytes: usize) -> io::Result<PacketSocket> {
        match self {
            Self::Own => PacketSocket::capture(bytes),
            Self::Lent(lender) => lender.socket(),
        }
    }

    /// Enters the sandbox, where the sockets are lent: no further one is had.
    pub(crate) fn close_doors(&self) -> Result<(), Failure> {
        match self {
            Self::Own => Ok(()),
            Self::Lent(lender) => lender.close_doors().or_fail(CLOSING, Status::Unavailable),
        }
    }

    /// Says whether the daemon that lends them wants an end, or is gone.
    pub(crate) fn have_ended(&self) -> bool {
        matches!(self, Self::Lent(lender) if lender.has_ended())
    }
}

/// Says what was said of a capture elsewhere.
pub(crate) fn pass_on(command: &str, said: &str) {
    for line in said.lines() {
        eprintln!("mcr {command}: {}", printable(line));
    }
}

const CLOSING: &str = "cannot capture behind a fence";

/// Why a capture cannot begin or go on.
pub(crate) fn refused(what: &str, error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::PermissionDenied {
        let message = format!("{what}: needs CAP_NET_RAW; use sudo");
        return Failure::new(Status::Privilege, message);
    }
    Failure::new(Status::Unavailable, format!("{what}: {error}"))
}

/// Waits until packets are there, for so long at most. A signal ends it.
pub(crate) fn wait<'a>(sockets: impl Iterator<Item = BorrowedFd<'a>>, at_most: Duration) {
    let sockets = sockets.map(|socket| PollFd::new(socket, PollFlags::POLLIN));
    let mut sockets: Vec<PollFd<'_>> = sockets.collect();
    let at_most = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::ZERO);
    let _ = poll(&mut sockets, at_most);
}

/// A daemon looks for signs every second; a busy one later.
const PATIENCE: Duration = Duration::from_secs(3);
const TURN: Duration = Duration::from_millis(50);

/// Waits until that is so; `false`: it is not, in all the time that a daemon may take.
pub(crate) fn wait_for_tc(
    mut is_so: impl FnMut() -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        if is_so()? {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        thread::sleep(TURN);
    }
}
