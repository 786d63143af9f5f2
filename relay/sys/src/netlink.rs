//! Netlink, as far as filters and families of generic netlink need it: one request, its replies.

use std::io;
use std::os::fd::AsRawFd;

pub use nix::sys::socket::SockProtocol as Protocol;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socket};

/// The flag of a request with many replies.
pub const DUMP: u16 = libc::NLM_F_DUMP as u16;

const HEADER: usize = 16;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;
/// The most bytes of one reply; the kernel's dumps use 32 kB at most.
const BUFFER: usize = 65_536;

/// A request.
#[derive(Debug)]
pub struct Request {
    bytes: Vec<u8>,
    /// Bytes of the protocol's own header, in the request and in each reply.
    own_header: usize,
    dump: bool,
}

/// One attribute.
#[derive(Debug)]
pub struct Attribute {
    /// Its type, without the flags for nested attributes and byte order.
    pub kind: u16,
    /// Its value.
    pub value: Vec<u8>,
}

impl Request {
    /// Begins a request with the protocol's own header after that of netlink.
    pub fn new(kind: u16, flags: u16, own_header: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        let always = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | always).to_ne_bytes());
        bytes.extend(own_header);
        Self {
            bytes,
            own_header: own_header.len(),
            dump: flags & DUMP == DUMP,
        }
    }

    /// Adds an attribute.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        attribute(&mut self.bytes, kind, value);
    }

    /// Sends the request in the calling thread's network namespace and collects the attributes of each
    /// reply.
    ///
    /// # Errors
    /// The kernel's.
    pub fn exchange(mut self, protocol: Protocol) -> io::Result<Vec<Vec<Attribute>>> {
        let length = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        // An unconnected netlink socket sends to the kernel.
        send(socket.as_raw_fd(), &self.bytes, MsgFlags::empty())?;
        let mut replies = Vec::new();
        let mut buffer = vec![0; BUFFER];
        loop {
            let read = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            if self.take(&buffer[..read], &mut replies)? {
                return Ok(replies);
            }
        }
    }

    /// Takes the messages of one datagram; returns whether the conversation is over.
    fn take(&self, mut bytes: &[u8], replies: &mut Vec<Vec<Attribute>>) -> io::Result<bool> {
        while bytes.len() >= HEADER {
            let length = (word(bytes, 0) as usize).clamp(HEADER, bytes.len());
            let (message, rest) = bytes.split_at(length);
            let kind = u16::from_ne_bytes([message[4], message[5]]);
            if kind == ERROR || kind == DONE && self.dump {
                return match word(message, HEADER) as i32 {
                    0 => Ok(true),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
            }
            let attributes = message.get(HEADER + self.own_header..);
            replies.push(nested(attributes.unwrap_or_default()));
            let padding = length.next_multiple_of(4) - length;
            bytes = rest.get(padding..).unwrap_or_default();
        }
        Ok(false)
    }
}

/// Appends one attribute, padded.
pub fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The attributes in `bytes`.
pub fn nested(mut bytes: &[u8]) -> Vec<Attribute> {
    let mut attributes = Vec::new();
    while let Some([a, b, c, d]) = bytes.first_chunk() {
        let length = usize::from(u16::from_ne_bytes([*a, *b]));
        let Some(value) = bytes.get(4..length) else {
            break;
        };
        attributes.push(Attribute {
            kind: u16::from_ne_bytes([*c, *d]) & 0x3fff,
            value: value.to_vec(),
        });
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    attributes
}

/// The value of the first attribute of this type.
pub fn find(attributes: &[Attribute], kind: u16) -> Option<&[u8]> {
    let first = attributes.iter().find(|attribute| attribute.kind == kind);
    first.map(|attribute| &attribute.value[..])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.copied().map_or(0, u32::from_ne_bytes)
}
