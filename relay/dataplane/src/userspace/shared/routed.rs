//! How workers get sockets of [`sys::routed_socket`]: a worker may open and bind nothing, but only it knows
//! which source ports occur. A thread of the supervisor opens what it requests.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use sys::descriptor::{receive_with, send_with};
use sys::routed_socket::{self, SocketKind};

/// How long a worker waits for sockets while they arrive one after the other. One is opened within a fraction of
/// a millisecond, all that are kept within 50; where processors are scarce it takes several times as long.
/// Meanwhile its other packets wait in its rings.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);
/// How long it waits for one: on a busy host the thread that opens them may have to wait itself. Less than
/// a worker may be silent.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

type Request = [u8; 4];

/// Starts to supply a worker with sockets, until it closes the returned end, by which it requests them.
///
/// # Errors
/// The system calls', or that no thread can be started.
pub(crate) fn supply(buffer_bytes: usize) -> io::Result<OwnedFd> {
    supply_by(move |kind| routed_socket::open(kind, buffer_bytes))
}

/// Starts to supply with what `open` opens.
pub(crate) fn supply_by(
    open: impl Fn(SocketKind) -> io::Result<OwnedFd> + Send + 'static,
) -> io::Result<OwnedFd> {
    let (here, there) = UnixStream::pair()?;
    there.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let serve = move || {
        let mut request: Request = [0; 4];
        while let Ok(read) = receive_with(&here, &mut request, &mut Vec::new()) {
            if read != request.len() {
                return;
            }
            let opened = open(kind(request)).inspect_err(|error| {
                let port = kind(request).port;
                tracing::warn!("cannot open a socket to send from port {port} with: {error}");
            });
            let socket = opened.as_ref().ok().map(AsFd::as_fd);
            // The request identifies the reply.
            if send_with(&here, &request, socket.as_slice()).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("mcr-sockets".to_owned())
        .spawn(serve)?;
    Ok(there.into())
}

/// Requests sockets.
///
/// # Errors
/// The system call's.
pub(crate) fn request(supply: &UnixStream, wanted: &[SocketKind]) -> io::Result<()> {
    let bytes: Vec<u8> = wanted.iter().flat_map(|kind| encode(*kind)).collect();
    match send_with(supply, &bytes, &[])? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}

/// Waits for one of the requested sockets; `None` where it could not be opened.
///
/// # Errors
/// `WouldBlock` where there is no reply in time.
pub(crate) fn receive(supply: &UnixStream) -> io::Result<(SocketKind, Option<OwnedFd>)> {
    let (mut reply, mut sockets): (Request, _) = ([0; 4], Vec::new());
    if receive_with(supply, &mut reply, &mut sockets)? != reply.len() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok((kind(reply), sockets.pop()))
}

fn encode(kind: SocketKind) -> Request {
    let [high, low] = kind.port.to_be_bytes();
    [kind.ipv4.into(), kind.cut.into(), high, low]
}

fn kind([ipv4, cut, high, low]: Request) -> SocketKind {
    SocketKind {
        ipv4: ipv4 != 0,
        port: u16::from_be_bytes([high, low]),
        cut: cut != 0,
    }
}
