//! Datagrams waiting to leave together: one buffer, grouped into messages by stream and size.

use super::error::Error;
use super::group::{BATCH, Group};
use super::option::{LARGEST_BYTES, Options};
use super::outcome::Outcome;
use super::raw::{self, Raw};
use super::socket::Sockets;

/// Bytes gathered before a flush: two segmented sends. More would not fit the processor's cache.
const BUFFER_BYTES: usize = 128 * 1024;

/// Gathers datagrams and sends them.
pub(super) struct Outbox {
    exit: Exit,
    buffer: Vec<u8>,
    filled: usize,
    groups: Vec<Group>,
    /// Most bytes in a group.
    group_bytes: usize,
    /// Most datagrams in a group.
    group_datagrams: usize,
    /// Bytes reserved in front of each payload.
    headroom: usize,
    largest_slot: usize,
}

/// How datagrams leave.
enum Exit {
    Sockets(Sockets),
    Raw(Raw),
}

impl Outbox {
    /// Opens the sockets. With `prefill`, every slot holds that payload from the start.
    pub(super) fn open(options: &Options, prefill: Option<Vec<u8>>) -> Result<Self, Error> {
        let exit = if raw::is_needed(options)? {
            Exit::Raw(Raw::open(options)?)
        } else {
            Exit::Sockets(Sockets::open(options)?)
        };
        let headroom = match exit {
            Exit::Sockets(_) => 0,
            Exit::Raw(_) => raw::HEADROOM,
        };
        let is_segmented = options.uses_gso() && matches!(exit, Exit::Sockets(_));
        let largest_slot = headroom + options.largest_payload().max(1);
        let mut buffer = vec![0; BUFFER_BYTES.max(8 * largest_slot)];
        if let Some(payload) = prefill {
            for slot in buffer.chunks_exact_mut(largest_slot) {
                slot[headroom..].copy_from_slice(&payload);
            }
        }
        Ok(Self {
            exit,
            buffer,
            filled: 0,
            groups: Vec::with_capacity(BATCH),
            group_bytes: if is_segmented { LARGEST_BYTES } else { 0 },
            group_datagrams: if is_segmented {
                options.segments_per_send()
            } else {
                1
            },
            headroom,
            largest_slot,
        })
    }

    /// Reserves room for one datagram and returns it; `None` when the outbox is full.
    pub(super) fn reserve(&mut self, stream: usize, size: usize) -> Option<&mut [u8]> {
        let slot = self.headroom + size;
        let bytes = self.filled..self.filled + slot;
        if bytes.end > self.buffer.len() {
            return None;
        }
        if self.extends_last(stream, slot) {
            self.groups.last_mut()?.bytes.end = bytes.end;
        } else if self.groups.len() < BATCH {
            self.groups.push(Group {
                stream,
                bytes: bytes.clone(),
                slot,
            });
        } else {
            return None;
        }
        self.filled = bytes.end;
        self.buffer.get_mut(bytes.start + self.headroom..bytes.end)
    }

    /// Returns whether `count` datagrams of any size surely fit.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.filled + count * self.largest_slot <= self.buffer.len()
            && self.groups.len() + count <= BATCH
    }

    /// Sends everything gathered.
    pub(super) fn flush(&mut self) {
        match &mut self.exit {
            Exit::Sockets(sockets) => sockets.send(&self.buffer, &self.groups),
            Exit::Raw(raw) => raw.send(&mut self.buffer, &self.groups),
        }
        self.groups.clear();
        self.filled = 0;
    }

    /// The outcome of the datagrams so far.
    pub(super) fn outcome(&self) -> &Outcome {
        match &self.exit {
            Exit::Sockets(sockets) => &sockets.outcome,
            Exit::Raw(raw) => &raw.outcome,
        }
    }

    fn extends_last(&self, stream: usize, slot: usize) -> bool {
        self.groups.last().is_some_and(|group| {
            group.stream == stream
                && group.slot == slot
                && slot > 0
                && group.bytes.len() + slot <= self.group_bytes
                && group.bytes.len() < slot * self.group_datagrams
        })
    }
}
