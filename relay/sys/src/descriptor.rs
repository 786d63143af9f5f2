//! Descriptors handed from one process to another (`SCM_RIGHTS`), and processes held by one
//! (pidfd).

#![expect(unsafe_code, reason = "received descriptors arrive as plain numbers")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::sockopt::{PeerCredentials, SocketError};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sendmsg,
};

/// Descriptors one message may carry (`SCM_MAX_FD` is 253).
pub const MAX_DESCRIPTORS: usize = 64;

/// Writes `bytes` to `stream`, with `descriptors` attached to the first of them, and returns how many bytes were
/// written; the descriptors were sent if that is at least 1.
///
/// # Errors
/// The system call's; `EAGAIN` where a non-blocking stream is full.
pub fn send_with(
    stream: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let parts = [IoSlice::new(bytes)];
    let flags = MsgFlags::MSG_NOSIGNAL;
    Ok(sendmsg::<()>(
        stream.as_raw_fd(),
        &parts,
        control,
        flags,
        None,
    )?)
}

/// Reads some bytes from `stream` into `buffer`, appends the descriptors attached to them to
/// `descriptors`, and returns how many bytes were read: 0 at the end of the stream.
///
/// # Errors
/// The system call's; `EAGAIN` where a non-blocking stream is empty.
pub fn receive_with(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut control = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = part {
            // SAFETY: the kernel made these descriptors for this process with this message, so
            // nobody else owns them.
            let owned = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
            descriptors.extend(received.into_iter().map(owned));
        }
    }
    Ok(message.bytes)
}

/// Takes over a descriptor that this process inherited under a number agreed upon with its parent.
///
/// # Errors
/// `EBADF` if no such descriptor is open.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD takes no pointer and changes nothing.
    Errno::result(unsafe { libc::fcntl(number, libc::F_GETFD) })?;
    // SAFETY: the descriptor is open, and the agreement between parent and child is that the
    // child's start-up code alone takes it, once.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    set_inheritable(fd.as_fd(), false)?;
    Ok(fd)
}

/// Returns whether a child process started from now on inherits `fd`.
///
/// # Errors
/// The system call's.
pub fn set_inheritable(fd: BorrowedFd<'_>, inheritable: bool) -> io::Result<()> {
    let mut flags = FdFlag::empty();
    flags.set(FdFlag::FD_CLOEXEC, !inheritable);
    fcntl(fd, FcntlArg::F_SETFD(flags))?;
    Ok(())
}

/// Waits for descriptors without holding on to them in between.
#[derive(Debug, Default)]
pub struct Waiter {
    polled: Vec<libc::pollfd>,
}

impl Waiter {
    /// Waits until `first` or one of `others` is readable or has an error, or `timeout` is over if there is one, and
    /// returns whether it was `first`. A signal ends the wait.
    ///
    /// Errors of sockets (`ENETDOWN` when a tap's interface goes down) are cleared: one that stayed would end every
    /// later wait at once.
    ///
    /// # Errors
    /// The system call's.
    pub fn wait<'f>(
        &mut self,
        first: BorrowedFd<'f>,
        others: impl Iterator<Item = BorrowedFd<'f>>,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        self.polled.clear();
        let descriptors = std::iter::once(first).chain(others);
        self.polled.extend(descriptors.map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }));
        let milliseconds = timeout.map_or(-1, |timeout| {
            libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX)
        });
        let count = self.polled.len() as libc::nfds_t;
        // SAFETY: the array holds `count` elements and lives during the call.
        let ready = unsafe { libc::poll(self.polled.as_mut_ptr(), count, milliseconds) };
        let error = io::Error::last_os_error();
        if ready < 0 && error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        let failed = self
            .polled
            .iter()
            .filter(|polled| polled.revents & libc::POLLERR != 0);
        for polled in failed {
            take_socket_error(polled.fd);
        }
        Ok(ready > 0
            && self
                .polled
                .first()
                .is_some_and(|polled| polled.revents != 0))
    }
}

/// Clears the pending error of a socket; does nothing for other descriptors.
fn take_socket_error(fd: RawFd) {
    // SAFETY: the descriptor is used for one call, which refuses it if it is closed or no socket.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let _ = getsockopt(&fd, SocketError);
}

/// A process, which cannot be confused with another one that gets its number later.
#[derive(Debug)]
pub struct ProcessHandle {
    fd: OwnedFd,
}

impl ProcessHandle {
    /// Opens process `pid`, a child that has not been waited for, or one known to be there.
    ///
    /// # Errors
    /// `ESRCH` if there is no such process.
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: plain system call without pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        let fd = Errno::result(fd)?;
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        Ok(Self { fd })
    }

    /// Opens the process that listens at the other end of a connection.
    ///
    /// # Errors
    /// `NotFound` where it is in a process namespace that this one does not see, or has ended.
    pub fn behind(stream: &UnixStream) -> io::Result<Self> {
        let peer = getsockopt(stream, PeerCredentials)?;
        let pid = u32::try_from(peer.pid()).unwrap_or(0);
        if pid == 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        let process = Self::open(pid)?;
        // Its number is not reused as long as the connection exists.
        if crate::wait::readable(stream.as_fd(), Duration::ZERO)? {
            Err(io::ErrorKind::NotFound.into())
        } else {
            Ok(process)
        }
    }

    /// Kills the process.
    ///
    /// # Errors
    /// `ESRCH` if it has ended.
    pub fn kill(&self) -> io::Result<()> {
        self.send(libc::SIGKILL)
    }

    /// Asks the process to end, by SIGTERM.
    ///
    /// # Errors
    /// `ESRCH` if it has ended, `EPERM` if it is another user's.
    pub fn terminate(&self) -> io::Result<()> {
        self.send(libc::SIGTERM)
    }

    fn send(&self, signal: libc::c_int) -> io::Result<()> {
        // SAFETY: the siginfo pointer may be null, the other arguments are integers.
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.fd.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        Errno::result(result)?;
        Ok(())
    }
}

impl From<OwnedFd> for ProcessHandle {
    /// Takes over a pidfd that another process opened.
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for ProcessHandle {
    /// Becomes readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn an_error_of_a_socket_ends_one_wait_only() {
        let closed = UdpSocket::bind(("127.0.0.1", 0)).unwrap().local_addr();
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        socket.connect(closed.unwrap()).unwrap();
        socket.send(b"nobody listens").unwrap();
        let (control, _other) = UnixStream::pair().unwrap();
        let mut waiter = Waiter::default();
        let mut wait = |timeout| {
            let others = std::iter::once(socket.as_fd());
            let is_control = waiter.wait(control.as_fd(), others, Some(timeout)).unwrap();
            assert!(!is_control);
            waiter.polled[1].revents & libc::POLLERR != 0
        };
        assert!(wait(Duration::from_secs(10)), "the port answered");
        assert!(!wait(Duration::ZERO), "the error stayed");
    }

    #[test]
    fn a_descriptor_rides_along_with_its_bytes() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut own, given) = UnixStream::pair().unwrap();
        send_with(&here, b"take it", &[given.as_fd()]).unwrap();
        drop(given);

        let mut buffer = [0; 32];
        let mut descriptors = Vec::new();
        let read = receive_with(&there, &mut buffer, &mut descriptors).unwrap();
        assert_eq!(&buffer[..read], b"take it");
        let mut received = UnixStream::from(descriptors.remove(0));
        received.write_all(b"hello").unwrap();
        let mut hello = [0; 5];
        own.read_exact(&mut hello).unwrap();
        assert_eq!(&hello, b"hello");
    }
}
