//! As much of rtnetlink as filters need: one request, its answers.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Flags of a request.
pub(crate) const DUMP: u16 = libc::NLM_F_DUMP as u16;
pub(crate) const CREATE: u16 = libc::NLM_F_CREATE as u16;
pub(crate) const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
pub(crate) const REPLACE: u16 = libc::NLM_F_REPLACE as u16;

const HEADER: usize = 16;
const TC_MESSAGE: usize = 20;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;
/// What one answer may hold; the kernel's dumps use 32 kB at most.
const BUFFER: usize = 65_536;

/// A request about queueing disciplines or filters.
#[derive(Debug)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    dump: bool,
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Message {
    /// What stands behind its `tcmsg`.
    pub(crate) attributes: Vec<Attribute>,
}

/// One attribute.
#[derive(Debug)]
pub(crate) struct Attribute {
    pub(crate) kind: u16,
    pub(crate) value: Vec<u8>,
}

impl Request {
    pub(crate) fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER];
        let always = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | always as u16).to_ne_bytes());
        Self {
            bytes,
            dump: flags & DUMP == DUMP,
        }
    }

    /// Adds `struct tcmsg`.
    pub(crate) fn tc(&mut self, ifindex: u32, handle: u32, parent: u32, info: u32) {
        for word in [0, ifindex, handle, parent, info] {
            self.bytes.extend(word.to_ne_bytes());
        }
    }

    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) {
        attribute(&mut self.bytes, kind, value);
    }

    /// Sends the request in the calling thread's network namespace and collects the answers.
    pub(crate) fn exchange(mut self) -> io::Result<Vec<Message>> {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        let socket = socket()?;
        // SAFETY: `bytes` is valid for its length. An unconnected netlink socket sends to the kernel.
        let sent = unsafe {
            libc::send(
                socket.as_raw_fd(),
                self.bytes.as_ptr().cast(),
                self.bytes.len(),
                0,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut answers = Vec::new();
        let mut buffer = vec![0; BUFFER];
        loop {
            // SAFETY: `buffer` is valid for its length.
            let read = unsafe {
                libc::recv(
                    socket.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    0,
                )
            };
            let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
            if self.take(buffer.get(..read).unwrap_or_default(), &mut answers)? {
                return Ok(answers);
            }
        }
    }

    /// Takes the messages of one datagram; says whether the conversation is over.
    fn take(&self, mut bytes: &[u8], answers: &mut Vec<Message>) -> io::Result<bool> {
        while bytes.len() >= HEADER {
            let length = (word(bytes, 0) as usize).clamp(HEADER, bytes.len());
            let (message, rest) = bytes.split_at(length);
            match u16::from_ne_bytes([message[4], message[5]]) {
                ERROR => {
                    let error = word(message, HEADER) as i32;
                    if error != 0 {
                        return Err(io::Error::from_raw_os_error(-error));
                    }
                    return Ok(true);
                }
                DONE if self.dump => return Ok(true),
                _ => answers.push(Message {
                    attributes: nested(message.get(HEADER + TC_MESSAGE..).unwrap_or_default()),
                }),
            }
            let padding = (4 - length % 4) % 4;
            bytes = rest.get(padding..).unwrap_or_default();
        }
        Ok(false)
    }
}

/// Appends one attribute, padded.
pub(crate) fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The attributes in `bytes`.
pub(crate) fn nested(mut bytes: &[u8]) -> Vec<Attribute> {
    let mut attributes = Vec::new();
    while let Some([a, b, c, d]) = bytes.first_chunk() {
        let length = usize::from(u16::from_ne_bytes([*a, *b]));
        let Some(value) = bytes.get(4..length) else {
            break;
        };
        attributes.push(Attribute {
            // Without the flags for nested attributes and byte order.
            kind: u16::from_ne_bytes([*c, *d]) & 0x3fff,
            value: value.to_vec(),
        });
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    attributes
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.copied().map_or(0, u32::from_ne_bytes)
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: socket() takes no pointers.
    let socket = unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::NETLINK_ROUTE,
        )
    };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}
