//! Waiting for a descriptor, with a deadline.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Waits until `fd` is readable (or has an error or hang-up, which a read will report) and returns whether it
/// became so within `limit`. Signals do not end the wait.
///
/// # Errors
/// The system call's.
pub fn readable(fd: BorrowedFd<'_>, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(remaining).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) if deadline <= Instant::now() => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}
