//! Datagrams waiting to leave together: one buffer, grouped into messages by stream and size.

use std::ops::Range;

use super::option::{Error, LARGEST_BYTES, Options};
use super::socket::Sockets;
use crate::payload::{self, HEADER_BYTES, Stamp};
use crate::report::Volume;

/// Bytes gathered before a flush: two segmented sends. More would leave the processor's cache.
const BUFFER_BYTES: usize = 128 * 1024;
/// Messages gathered before a flush.
pub(super) const BATCH: usize = 64;

/// Datagrams of one stream and one size, back to back.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The stream they belong to.
    pub(super) stream: usize,
    /// Where they lie in the buffer.
    pub(super) bytes: Range<usize>,
    /// Size of each.
    pub(super) size: usize,
}

/// Gathers datagrams and sends them.
pub(super) struct Outbox {
    sockets: Sockets,
    buffer: Vec<u8>,
    filled: usize,
    groups: Vec<Group>,
    group_bytes: usize,
    group_datagrams: usize,
    size: usize,
    body_checksum: u32,
}

impl Outbox {
    pub(super) fn open(options: &Options) -> Result<Self, Error> {
        let size = options.sizes.largest();
        let gso = options.uses_gso();
        let body = body(size - HEADER_BYTES);
        let buffer: Vec<u8> = [vec![0; HEADER_BYTES], body.clone()]
            .concat()
            .repeat((BUFFER_BYTES / size).max(1));
        Ok(Self {
            sockets: Sockets::open(options)?,
            buffer,
            filled: 0,
            groups: Vec::with_capacity(BATCH),
            group_bytes: if gso { LARGEST_BYTES } else { size },
            group_datagrams: if gso { options.segments_per_send() } else { 1 },
            size,
            body_checksum: payload::body_checksum(&body),
        })
    }

    /// Writes one datagram; says `false`, with nothing written, when the outbox is full.
    pub(super) fn push(&mut self, stamp: &Stamp) -> bool {
        let Some(bytes) = self.reserve(stamp.stream as usize, self.size) else {
            return false;
        };
        payload::write(&mut self.buffer[bytes], stamp, self.body_checksum);
        true
    }

    /// Sends everything gathered.
    pub(super) fn flush(&mut self) {
        self.sockets.send(&self.buffer, &self.groups);
        self.groups.clear();
        self.filled = 0;
    }

    /// What the kernel has taken so far.
    pub(super) fn sent(&self) -> Volume {
        self.sockets.sent
    }

    /// Datagrams the kernel has refused so far.
    pub(super) fn errors(&self) -> u64 {
        self.sockets.errors
    }

    fn reserve(&mut self, stream: usize, size: usize) -> Option<Range<usize>> {
        let bytes = self.filled..self.filled + size;
        if bytes.end > self.buffer.len() {
            return None;
        }
        let full = self.groups.len() == BATCH;
        match self.groups.last_mut() {
            Some(group)
                if group.stream == stream
                    && group.size == size
                    && group.bytes.len() + size <= self.group_bytes
                    && group.bytes.len() < size * self.group_datagrams =>
            {
                group.bytes.end = bytes.end;
            }
            _ if full => return None,
            _ => self.groups.push(Group {
                stream,
                bytes: bytes.clone(),
                size,
            }),
        }
        self.filled = bytes.end;
        Some(bytes)
    }
}

/// The bytes behind the header: counting up, so that a hex dump shows where it was cut.
fn body(length: usize) -> Vec<u8> {
    (0..length).map(|index| index as u8).collect()
}
