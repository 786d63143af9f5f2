//! The process that holds descriptors (`mcr keeper`), and its protocol with the daemon. It does nothing
//! else, so that memberships outlive the daemon and a snooping switch never sees a leave, and so that
//! workers do not notice the daemon's end.
//!
//! The daemon stores duplicates under labels and requests them back after it was killed. The holder
//! interprets nothing, forwards nothing and ends on request, or when no client has connected within a
//! deadline after the daemon ended.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sys::descriptor::{ProcessHandle, receive_with, send_with};

/// Longest label in bytes.
const LABEL_MAX: usize = 200;

/// Descriptors that a holder needs for itself.
const OWN: usize = 64;

/// How long a holder may take to accept connections after it was started.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a holder may take to end: the kernel leaves thousands of groups one by one.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a client may take for one message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// The type of a message; its first byte on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    /// Hold the attached descriptor, replacing any other of that label.
    Store = 1,
    /// Release a label's descriptor.
    Release = 2,
    /// Send all held descriptors.
    Recall = 3,
    /// End.
    Quit = 4,
    /// Reply: one held descriptor.
    Held = 5,
    /// Reply: done.
    Done = 6,
    /// Reply: no room.
    Full = 7,
}

impl Verb {
    fn from_byte(byte: u8) -> io::Result<Self> {
        let all = [
            Self::Store,
            Self::Release,
            Self::Recall,
            Self::Quit,
            Self::Held,
            Self::Done,
            Self::Full,
        ];
        all.into_iter()
            .find(|verb| *verb as u8 == byte)
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "unknown keeper message"))
    }
}

/// How many descriptors a process may hold for others. To be called before it enters the sandbox.
#[must_use]
pub fn room() -> usize {
    sys::capability::descriptor_limit().saturating_sub(OWN)
}

/// Holds at most `most` descriptors for the clients of `listener` until one asks it to end or nobody
/// has connected for `deadline` after the last client disconnected.
///
/// # Errors
/// The listener's.
pub fn serve(listener: &UnixListener, deadline: Duration, most: usize) -> io::Result<()> {
    let mut held = Stored::default();
    while sys::wait::readable(listener.as_fd(), deadline)? {
        let (mut client, _) = listener.accept()?;
        match attend(&mut client, &mut held.0, most) {
            Ok(After::Quit) => return Ok(()),
            Ok(After::Continue) => {}
            Err(error) => tracing::debug!(%error, "keeper: client left"),
        }
    }
    Ok(())
}

/// Serves a client that has sent all its messages, and drops what it stores. For fuzzers and tests.
#[cfg(feature = "rehearsal")]
pub(crate) fn attend_once(client: &mut UnixStream) {
    // An invalid message ends only the connection.
    let _ = attend(client, &mut BTreeMap::new(), OWN);
}

/// The held descriptors by label.
#[derive(Debug, Default)]
struct Stored(BTreeMap<String, OwnedFd>);

impl Drop for Stored {
    /// Last stored first: the kernel leaves the groups of many sockets 20 times as fast in that order.
    fn drop(&mut self) {
        let mut all: Vec<OwnedFd> = std::mem::take(&mut self.0).into_values().collect();
        all.sort_by_key(AsRawFd::as_raw_fd);
        while all.pop().is_some() {}
    }
}

enum After {
    Continue,
    Quit,
}

/// Serves a client, holding at most `most` descriptors.
fn attend(
    client: &mut UnixStream,
    held: &mut BTreeMap<String, OwnedFd>,
    most: usize,
) -> io::Result<After> {
    loop {
        // The daemon stays connected without sending for as long as it runs.
        client.set_read_timeout(None)?;
        let mut descriptors = Vec::new();
        let mut first = [0];
        if receive_with(client, &mut first, &mut descriptors)? == 0 {
            return Ok(After::Continue);
        }
        client.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
        let label = read_label(client)?;
        let reply = match Verb::from_byte(first[0])? {
            Verb::Store => store(held, most, label, descriptors.pop()),
            Verb::Release => {
                held.remove(&label);
                Verb::Done
            }
            Verb::Recall => {
                for (label, fd) in &*held {
                    write_message(client, Verb::Held, label, Some(fd.as_fd()))?;
                }
                Verb::Done
            }
            Verb::Quit => {
                write_message(client, Verb::Done, "", None)?;
                return Ok(After::Quit);
            }
            Verb::Held | Verb::Done | Verb::Full => return Ok(After::Continue),
        };
        write_message(client, reply, "", None)?;
    }
}

fn store(
    held: &mut BTreeMap<String, OwnedFd>,
    most: usize,
    label: String,
    fd: Option<OwnedFd>,
) -> Verb {
    let Some(fd) = fd else { return Verb::Full };
    if held.len() >= most && !held.contains_key(&label) {
        return Verb::Full;
    }
    held.insert(label, fd);
    Verb::Done
}

fn write_message(
    stream: &mut UnixStream,
    verb: Verb,
    label: &str,
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let length = u8::try_from(label.len())
        .ok()
        .filter(|n| usize::from(*n) <= LABEL_MAX)
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "label too long"))?;
    let descriptors: Vec<_> = fd.into_iter().collect();
    if send_with(stream, &[verb as u8], &descriptors)? != 1 {
        return Err(ErrorKind::WriteZero.into());
    }
    stream.write_all(&[length])?;
    stream.write_all(label.as_bytes())
}

fn read_label(stream: &mut UnixStream) -> io::Result<String> {
    let mut length = [0];
    stream.read_exact(&mut length)?;
    let mut label = vec![0; usize::from(length[0])];
    stream.read_exact(&mut label)?;
    String::from_utf8(label).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// The daemon's end. It stays connected while the daemon runs, by which the holder notices its end.
#[derive(Debug)]
pub(super) struct FdHolder {
    stream: UnixStream,
}

impl FdHolder {
    /// Starts a process that outlives this one and connects to it. The path of its socket is the last
    /// argument of `command`.
    pub(super) fn start(command: &[OsString], socket: &Path) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(ErrorKind::NotFound)?;
        // A group of its own: Ctrl-C in a terminal is not meant for it.
        let mut child = Command::new(program)
            .args(arguments)
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match Self::connect(socket) {
                Ok(holder) => {
                    // Waits for its end, so that it leaves no zombie while this process runs.
                    thread::spawn(move || child.wait());
                    return Ok(holder);
                }
                Err(error) if deadline <= Instant::now() => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(error);
                }
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Connects to the holder behind the socket at `path`.
    ///
    /// # Errors
    /// `NotFound` or `ConnectionRefused` if none runs.
    pub(super) fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
        stream.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
        Ok(Self { stream })
    }

    /// Stores a duplicate of `fd` in the holder under `label`, at most [`LABEL_MAX`] bytes.
    ///
    /// # Errors
    /// `OutOfMemory` if the holder is full; the stream's.
    pub(super) fn store(&mut self, label: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        write_message(&mut self.stream, Verb::Store, label, Some(fd))?;
        match self.read_reply()?.0 {
            Verb::Done => Ok(()),
            _ => {
                let full = "it holds as many descriptors as it may (ulimit -n)";
                Err(io::Error::new(ErrorKind::OutOfMemory, full))
            }
        }
    }

    /// Releases the descriptor that the holder has under `label`.
    ///
    /// # Errors
    /// The stream's.
    pub(super) fn release(&mut self, label: &str) -> io::Result<()> {
        write_message(&mut self.stream, Verb::Release, label, None)?;
        self.read_reply().map(drop)
    }

    /// Fetches all held descriptors; the holder continues to hold them.
    ///
    /// # Errors
    /// The stream's.
    pub(super) fn recall(&mut self) -> io::Result<Vec<(String, OwnedFd)>> {
        write_message(&mut self.stream, Verb::Recall, "", None)?;
        let mut held = Vec::new();
        loop {
            match self.read_reply()? {
                (Verb::Held, label, Some(fd)) => held.push((label, fd)),
                _ => return Ok(held),
            }
        }
    }

    /// Returns whether the holder has ended.
    pub(super) fn has_ended(&self) -> bool {
        // It sends only replies: readable means the end of the stream.
        sys::wait::readable(self.stream.as_fd(), Duration::ZERO).unwrap_or(true)
    }

    /// Ends the holder; descriptors that only it held are closed, memberships with them.
    ///
    /// # Errors
    /// The stream's.
    pub(super) fn quit(mut self) -> io::Result<()> {
        write_message(&mut self.stream, Verb::Quit, "", None)?;
        self.read_reply().map(drop)
    }

    /// Ends the holder and waits for the end of its process.
    ///
    /// # Errors
    /// The stream's; `TimedOut` if it does not end.
    pub(super) fn end(self) -> io::Result<()> {
        let process = ProcessHandle::behind(&self.stream)?;
        self.quit()?;
        if sys::wait::readable(process.as_fd(), END_TIMEOUT)? {
            Ok(())
        } else {
            Err(ErrorKind::TimedOut.into())
        }
    }

    fn read_reply(&mut self) -> io::Result<(Verb, String, Option<OwnedFd>)> {
        let mut descriptors = Vec::new();
        let mut first = [0];
        if receive_with(&self.stream, &mut first, &mut descriptors)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let label = read_label(&mut self.stream)?;
        Ok((Verb::from_byte(first[0])?, label, descriptors.pop()))
    }
}

/// Opens the holder's socket, accessible only to its owner; a stale one is replaced.
///
/// # Errors
/// `AddrInUse` if a holder listens on it; the file system's.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        return Err(ErrorKind::AddrInUse.into());
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    struct Running {
        _directory: tempfile::TempDir,
        path: std::path::PathBuf,
        thread: thread::JoinHandle<io::Result<()>>,
    }

    fn run(deadline: Duration) -> Running {
        run_with(deadline, room())
    }

    fn run_with(deadline: Duration, most: usize) -> Running {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keeper.sock");
        let listener = listen(&path).unwrap();
        let thread = thread::spawn(move || serve(&listener, deadline, most));
        Running {
            _directory: directory,
            path,
            thread,
        }
    }

    #[test]
    fn descriptors_outlive_the_client_that_stored_them() {
        let running = run(Duration::from_secs(10));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let mut first = FdHolder::connect(&running.path).unwrap();
        first.store("eth0 239.1.1.1", socket.as_fd()).unwrap();
        drop((first, socket));
        assert!(
            UdpSocket::bind(address).is_err(),
            "the holder holds the port"
        );

        let mut second = FdHolder::connect(&running.path).unwrap();
        let held = second.recall().unwrap();
        assert_eq!(held.len(), 1);
        assert_eq!(held[0].0, "eth0 239.1.1.1");
        drop(held);
        second.release("eth0 239.1.1.1").unwrap();
        assert!(second.recall().unwrap().is_empty());
        // A program that another test starts at this moment has a copy until its exec.
        let deadline = Instant::now() + Duration::from_secs(10);
        while UdpSocket::bind(address).is_err() {
            assert!(Instant::now() < deadline, "the port stays taken");
            std::thread::yield_now();
        }
        second.quit().unwrap();
        running.thread.join().unwrap().unwrap();
    }

    #[test]
    fn a_full_holder_refuses_and_continues_to_hold() {
        let running = run_with(Duration::from_secs(10), 2);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut client = FdHolder::connect(&running.path).unwrap();
        client.store("a", socket.as_fd()).unwrap();
        client.store("b", socket.as_fd()).unwrap();
        let full = client.store("c", socket.as_fd()).unwrap_err();
        assert!(full.to_string().contains("ulimit -n"), "{full}");
        client.store("b", socket.as_fd()).unwrap();
        client.release("a").unwrap();
        client.store("c", socket.as_fd()).unwrap();
        assert_eq!(client.recall().unwrap().len(), 2);
        client.quit().unwrap();
        running.thread.join().unwrap().unwrap();
    }

    #[test]
    fn ends_by_itself_when_nobody_reconnects() {
        let running = run(Duration::from_millis(50));
        drop(FdHolder::connect(&running.path).unwrap());
        running.thread.join().unwrap().unwrap();
    }

    #[test]
    fn nonsense_ends_only_its_own_connection() {
        let running = run(Duration::from_secs(10));
        let mut nonsense = UnixStream::connect(&running.path).unwrap();
        nonsense.write_all(&[99, 0]).unwrap();
        let mut end = Vec::new();
        nonsense.read_to_end(&mut end).unwrap();
        assert!(end.is_empty());
        FdHolder::connect(&running.path).unwrap().quit().unwrap();
        running.thread.join().unwrap().unwrap();
    }
}
