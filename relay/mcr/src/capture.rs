//! The sockets of captures. Packet sockets do not see packets that XDP takes, so the daemon leaves those to
//! tc where a capture announces itself.

use std::io;
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use daemon::capture::Lender;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rules::printable::printable;
use sys::packet_socket::PacketSocket;

use crate::failure::{Failure, OrFail, Status, unavailable};

/// The source of a capture's sockets.
#[derive(Debug)]
pub(crate) enum Sockets {
    /// It opens them itself.
    Own,
    /// The daemon that started it lends them.
    Lent(Lender),
}

impl Sockets {
    /// The sockets of this process: lent ones if the daemon started it.
    pub(crate) fn of_this_process(is_lent: bool) -> Result<Self, Failure> {
        if !is_lent {
            return Ok(Self::Own);
        }
        daemon::unblock_signals();
        // A remote capture must not delay packets.
        sys::capability::stand_back();
        let lender = Lender::inherited().or_fail(CLOSING, Status::Unavailable)?;
        Ok(Self::Lent(lender))
    }

    pub(crate) const fn are_lent(&self) -> bool {
        matches!(self, Self::Lent(_))
    }

    /// Opens a socket with a buffer of this many bytes; the daemon decides the size of lent ones.
    pub(crate) fn open(&self, bytes: usize) -> io::Result<PacketSocket> {
        match self {
            Self::Own => PacketSocket::capture(bytes),
            Self::Lent(lender) => lender.socket(),
        }
    }

    /// Enters the sandbox if the sockets are lent: no further ones can be opened.
    pub(crate) fn enter_sandbox(&self) -> Result<(), Failure> {
        match self {
            Self::Own => Ok(()),
            Self::Lent(lender) => lender.enter_sandbox().or_fail(CLOSING, Status::Unavailable),
        }
    }

    /// Whether the daemon that lends them requests the end, or has ended.
    pub(crate) fn have_ended(&self) -> bool {
        matches!(self, Self::Lent(lender) if lender.has_ended())
    }
}

/// Prints the messages of a remote capture.
pub(crate) fn pass_on(command: &str, messages: &str) {
    for line in messages.lines() {
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
    unavailable(format!("{what}: {error}"))
}

/// Waits until packets are available, at most for that time. A signal ends it.
pub(crate) fn wait<'a>(sockets: impl Iterator<Item = BorrowedFd<'a>>, at_most: Duration) {
    let fds = sockets.map(|socket| PollFd::new(socket, PollFlags::POLLIN));
    let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::ZERO);
    let _ = poll(&mut fds.collect::<Vec<PollFd<'_>>>(), timeout);
}

/// A daemon checks for captures every second; a busy one later.
const PATIENCE: Duration = Duration::from_secs(3);
const TURN: Duration = Duration::from_millis(50);

/// Waits until packets are left to tc; `false` if they are not within the time that a daemon may take.
pub(crate) fn wait_for_tc(
    mut is_at_tc: impl FnMut() -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        if is_at_tc()? {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        thread::sleep(TURN);
    }
}
