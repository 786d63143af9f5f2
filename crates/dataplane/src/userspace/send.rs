//! Sends a batch's copies: packets of one flow that wait together leave together, as one GSO send
//! per output, in the order they came and without any timer.
//!
//! Merging must not show in the bytes: only datagrams whose headers the kernel's segmentation
//! restores exactly are merged (consecutive IP IDs, equal lengths but the last, a UDP checksum that
//! is present and known to be right).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use packet::checksum;
use packet::datagram::Datagram;
use packet::parse::ChecksumState;
use packet::udp;
use packet::verdict::DropReason;
use sys::packet_socket::{PacketSocket, VnetHeader};
use sys::uring::{Batch, Destination, Uring};

use super::receive::{LargeBuffers, Place, Tap};
use super::rewrite::{Action, CompiledOutput, CompiledRoute, Head, IP_AT, Sending};
use super::shared::{OutputSlot, SharedCounters, WorkerWord};

/// Packets of one batch.
pub(super) const BATCH: usize = 256;
/// Messages of one submission.
const MESSAGES: usize = 256;
/// Datagrams of one GSO send.
const MAX_SEGMENTS: u16 = 128;
/// The IP length field's limit.
const MAX_IP_BYTES: usize = 65_535;
/// Open runs that are found again, by flow; a collision only costs a merge.
const OPEN_RUNS: usize = 256;

/// Collects runs and sends their copies.
pub(super) struct Sender {
    uring: Uring,
    sockets: Vec<(u32, PacketSocket)>,
    entries: Vec<Entry>,
    runs: Vec<Run>,
    open: [u16; OPEN_RUNS],
    pending: Vec<Pending>,
}

/// One packet of a run.
#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    payload_start: u32,
    payload_end: u32,
    /// Index of the run's next entry; its own at the end.
    next: u32,
}

/// Packets that leave together.
struct Run {
    route: u32,
    head: Head,
    first: u32,
    last: u32,
    entries: u16,
    packets: u32,
    payload_bytes: u32,
    /// IP bytes of a merged packet, or of the one packet.
    ip_bytes: usize,
    /// Payload bytes of each datagram but the last; 0 if nothing may be merged with it.
    size: u16,
    checksum_known: bool,
    closed: bool,
}

/// A message on its way.
#[derive(Clone, Copy, Debug)]
struct Pending {
    output: OutputSlot,
    packets: u32,
    bytes: u32,
}

/// A packet that takes a route.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matched<'a> {
    /// Index of the route.
    pub route: u32,
    /// Where the packet lies.
    pub place: Place,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Its headers.
    pub datagram: &'a Datagram,
    /// What the kernel says of it.
    pub vnet: VnetHeader,
}

/// What a batch is executed against.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// Where the batch came from.
    pub tap: &'a Tap,
    /// Its large packets.
    pub large: &'a LargeBuffers,
    /// The routes by index.
    pub routes: &'a [Option<CompiledRoute>],
    /// Where it is counted.
    pub counters: &'a SharedCounters,
}

impl Sender {
    /// Makes a sender without sockets.
    ///
    /// # Errors
    /// The io_uring's.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            uring: Uring::new(MESSAGES)?,
            sockets: Vec::new(),
            entries: Vec::with_capacity(BATCH),
            runs: Vec::with_capacity(BATCH),
            open: [0; OPEN_RUNS],
            pending: Vec::with_capacity(MESSAGES),
        })
    }

    /// The ring, to wait with.
    pub(super) const fn uring(&mut self) -> &mut Uring {
        &mut self.uring
    }

    /// Takes over an egress socket.
    pub(super) fn add_socket(&mut self, interface: u32, fd: OwnedFd) {
        self.drop_socket(interface);
        self.sockets.push((interface, PacketSocket::adopt(fd)));
    }

    /// Closes an egress socket.
    pub(super) fn drop_socket(&mut self, interface: u32) {
        self.sockets.retain(|(other, _)| *other != interface);
    }

    /// Adds a packet to the run of its flow, or starts one. At most [`BATCH`] packets fit before
    /// [`Sender::flush`].
    #[inline]
    pub(super) fn stage(&mut self, packet: Matched<'_>, context: Context<'_>) {
        let datagram = packet.datagram;
        let index = self.entries.len() as u32;
        self.entries.push(Entry {
            place: packet.place,
            payload_start: datagram.payload_offset() as u32,
            payload_end: datagram.end() as u32,
            next: index,
        });
        let flow = flow_hash(packet.route, datagram) % OPEN_RUNS;
        let open = usize::from(self.open[flow]).checked_sub(1);
        if let Some(run) = open.and_then(|open| self.runs.get_mut(open))
            && run.takes(&packet, &self.entries, context)
        {
            self.entries[run.last as usize].next = index;
            run.append(index, datagram);
            return;
        }
        let Some(run) = Run::start(index, &packet) else {
            self.entries.pop();
            refuse(&packet, context);
            return;
        };
        self.runs.push(run);
        self.open[flow] = self.runs.len() as u16;
    }

    /// Sends the copies of all staged packets and counts what became of them.
    ///
    /// # Errors
    /// The io_uring's own failure; the worker has to end then.
    pub(super) fn flush(&mut self, context: Context<'_>) -> io::Result<()> {
        let Self {
            uring,
            sockets,
            entries,
            runs,
            pending,
            ..
        } = self;
        let mut batch = uring.batch();
        for run in runs.iter_mut() {
            let Some(route) = route(context.routes, run.route) else {
                continue;
            };
            let bytes = u64::from(run.payload_bytes);
            context
                .counters
                .rule_received(route.rule, u64::from(run.packets), bytes);
            run.seal();
            for output in &route.outputs {
                let sending = match &output.action {
                    Action::Drop(reason) => {
                        drop_copies(context, output, *reason, run.packets);
                        continue;
                    }
                    Action::Send(sending) => sending,
                };
                if let Some(reason) = sending.refusal(&run.head.datagram) {
                    drop_copies(context, output, reason, run.packets);
                    continue;
                }
                let copies = Copies {
                    head: &run.head,
                    entries,
                    first: run.first,
                    count: usize::from(run.entries),
                    packets: run.packets,
                    bytes: run.payload_bytes,
                };
                while push(
                    &mut batch, pending, sockets, &copies, output, sending, context,
                ) {
                    settle(batch.submit()?, pending, context.counters);
                    batch = uring.batch();
                }
            }
        }
        settle(batch.submit()?, pending, context.counters);
        runs.clear();
        entries.clear();
        self.open = [0; OPEN_RUNS];
        Ok(())
    }
}

impl Run {
    #[inline]
    fn start(entry: u32, packet: &Matched<'_>) -> Option<Self> {
        let datagram = packet.datagram;
        let gso_size = datagram.gso.map_or(0, |gso| gso.size);
        let payload = datagram.payload_bytes();
        Some(Self {
            route: packet.route,
            head: Head::of(packet.bytes, datagram, gso_size)?,
            first: entry,
            last: entry,
            entries: 1,
            packets: datagram.packets(),
            payload_bytes: payload as u32,
            ip_bytes: datagram.ip_length,
            size: if is_mergeable(datagram) {
                payload as u16
            } else {
                0
            },
            checksum_known: checksum_known(datagram, packet.vnet),
            closed: false,
        })
    }

    /// Says whether `packet` may join the run.
    #[inline]
    fn takes(&mut self, packet: &Matched<'_>, entries: &[Entry], context: Context<'_>) -> bool {
        let datagram = packet.datagram;
        let payload = datagram.payload_bytes();
        let fits = !self.closed
            && self.route == packet.route
            && self.entries < MAX_SEGMENTS
            && (1..=usize::from(self.size)).contains(&payload)
            && self.ip_bytes + payload <= MAX_IP_BYTES
            && is_mergeable(datagram)
            && datagram.checksum == self.head.datagram.checksum
            && same_flow(&self.head, packet, self.entries);
        if !fits {
            return false;
        }
        if !checksum_known(datagram, packet.vnet) && !checksum_holds(datagram, packet.bytes) {
            return false;
        }
        self.checksum_known = self.checksum_known || self.first_checksum_holds(entries, context);
        self.checksum_known
    }

    fn first_checksum_holds(&self, entries: &[Entry], context: Context<'_>) -> bool {
        let Some(entry) = entries.get(self.first as usize) else {
            return false;
        };
        let bytes = context.tap.bytes(context.large, entry.place);
        let headers = self.head.datagram.payload_offset() - IP_AT;
        let ip_offset = entry.payload_start as usize - headers;
        checksum_holds(&self.head.datagram.moved(ip_offset), bytes)
    }

    #[inline]
    fn append(&mut self, entry: u32, datagram: &Datagram) {
        let payload = datagram.payload_bytes();
        self.last = entry;
        self.entries += 1;
        self.packets += 1;
        self.payload_bytes += payload as u32;
        self.ip_bytes += payload;
        // Only the last datagram of a super-packet may be shorter.
        self.closed = payload < usize::from(self.size);
    }

    /// Makes the head of a merged run that of a super-packet: lengths, and checksums to match.
    fn seal(&mut self) {
        if self.entries > 1 {
            self.head.gso_size = self.size;
            self.head.extend_to(self.ip_bytes);
        }
    }
}

/// The part of a run that one output sends.
struct Copies<'a> {
    head: &'a Head,
    entries: &'a [Entry],
    first: u32,
    count: usize,
    packets: u32,
    bytes: u32,
}

/// Adds one output's copies to the batch; `true` if the batch has to be submitted first.
#[inline]
fn push<'p>(
    batch: &mut Batch<'_, 'p>,
    pending: &mut Vec<Pending>,
    sockets: &'p [(u32, PacketSocket)],
    copies: &Copies<'p>,
    output: &CompiledOutput,
    sending: &Sending,
    context: Context<'p>,
) -> bool {
    let head = match copies.head.copy_for(sending) {
        Ok(head) => head,
        Err(reason) => {
            drop_copies(context, output, reason, copies.packets);
            return false;
        }
    };
    let Some((_, socket)) = sockets
        .iter()
        .find(|(other, _)| *other == sending.interface)
    else {
        drop_copies(
            context,
            output,
            DropReason::InterfaceMissing,
            copies.packets,
        );
        return false;
    };
    let destination = Destination {
        socket: socket.as_fd(),
        interface: sending.interface,
        protocol: sending.protocol(),
    };
    let payload = Payload {
        entries: copies.entries,
        next: copies.first,
        left: copies.count,
        context,
    };
    if batch.push(destination, head.bytes(), payload).is_ok() {
        pending.push(Pending {
            output: output.slot,
            packets: copies.packets,
            bytes: copies.bytes,
        });
        return false;
    }
    if batch.is_empty() {
        // Cannot happen with the sizes above; never loop on it.
        drop_copies(context, output, DropReason::EgressError, copies.packets);
    }
    !batch.is_empty()
}

/// The payloads of a run, in order.
struct Payload<'p> {
    entries: &'p [Entry],
    next: u32,
    left: usize,
    context: Context<'p>,
}

impl<'p> Iterator for Payload<'p> {
    type Item = &'p [u8];

    #[inline]
    fn next(&mut self) -> Option<&'p [u8]> {
        self.left = self.left.checked_sub(1)?;
        let entry = self.entries.get(self.next as usize)?;
        self.next = entry.next;
        let bytes = self.context.tap.bytes(self.context.large, entry.place);
        bytes.get(entry.payload_start as usize..entry.payload_end as usize)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Payload<'_> {}

/// Counts what became of the messages, in their order.
#[inline]
fn settle(results: &[i32], pending: &mut Vec<Pending>, counters: &SharedCounters) {
    let mut sent = 0;
    let mut failed = 0;
    for (result, message) in results.iter().zip(pending.iter()) {
        let packets = u64::from(message.packets);
        if *result >= 0 {
            counters.output_sent(message.output, packets, u64::from(message.bytes));
            sent += packets;
        } else {
            counters.output_dropped(message.output, drop_reason(-result), packets);
            failed += packets;
        }
    }
    pending.clear();
    counters.add(WorkerWord::Forwarded, sent);
    counters.add(WorkerWord::TransmitErrors, failed);
}

fn drop_reason(error: i32) -> DropReason {
    match error {
        libc::ENOBUFS | libc::EAGAIN | libc::ENOMEM => DropReason::EgressFull,
        libc::ENETDOWN => DropReason::InterfaceDown,
        libc::ENXIO | libc::ENODEV => DropReason::InterfaceMissing,
        libc::EMSGSIZE => DropReason::TooBig,
        _ => DropReason::EgressError,
    }
}

fn drop_copies(context: Context<'_>, output: &CompiledOutput, reason: DropReason, packets: u32) {
    context
        .counters
        .output_dropped(output.slot, reason, u64::from(packets));
}

/// Counts a packet whose headers are longer than a [`Head`]: no output can send it.
fn refuse(packet: &Matched<'_>, context: Context<'_>) {
    let Some(route) = route(context.routes, packet.route) else {
        return;
    };
    let packets = packet.datagram.packets();
    let bytes = packet.datagram.payload_bytes() as u64;
    context
        .counters
        .rule_received(route.rule, u64::from(packets), bytes);
    for output in &route.outputs {
        drop_copies(context, output, DropReason::EgressError, packets);
    }
}

#[inline]
fn route(routes: &[Option<CompiledRoute>], index: u32) -> Option<&CompiledRoute> {
    routes.get(index as usize)?.as_ref()
}

#[inline]
fn flow_hash(route: u32, datagram: &Datagram) -> usize {
    let route = route.wrapping_mul(0x9e37_79b1);
    let port = u32::from(datagram.source_port).wrapping_mul(0x85eb_ca6b);
    ((route ^ port) >> 20) as usize
}

/// Says whether nothing in the datagram itself speaks against merging.
#[inline]
fn is_mergeable(datagram: &Datagram) -> bool {
    let headers = datagram.udp_offset - datagram.ip_offset;
    datagram.gso.is_none()
        && datagram.udp_checksum != 0
        && usize::from(datagram.udp_length) > udp::HEADER
        && headers + usize::from(datagram.udp_length) == datagram.ip_length
}

#[inline]
fn checksum_known(datagram: &Datagram, vnet: VnetHeader) -> bool {
    datagram.checksum == ChecksumState::Partial || vnet.flags & VnetHeader::CHECKSUM_VALID != 0
}

fn checksum_holds(datagram: &Datagram, packet: &[u8]) -> bool {
    let end = datagram.udp_offset + usize::from(datagram.udp_length);
    packet
        .get(datagram.udp_offset..end)
        .is_some_and(|bytes| checksum::udp_is_valid(datagram.source, datagram.destination, bytes))
}

/// Says whether the headers differ only in what segmentation restores: lengths, checksums, and an
/// IPv4 ID that counts up by one.
#[inline]
fn same_flow(head: &Head, packet: &Matched<'_>, position: u16) -> bool {
    let datagram = packet.datagram;
    let length = head.datagram.payload_offset() - IP_AT;
    let Some(first) = head.bytes.get(IP_AT..IP_AT + length) else {
        return false;
    };
    let range = datagram.ip_offset..datagram.payload_offset();
    let Some(other) = packet
        .bytes
        .get(range)
        .filter(|other| other.len() == length)
    else {
        return false;
    };
    let upper = length - udp::HEADER;
    let ports = first[upper..upper + 4] == other[upper..upper + 4];
    if datagram.source.is_ipv4() {
        let id = |header: &[u8]| u16::from_be_bytes([header[4], header[5]]);
        ports
            && first[0..2] == other[0..2]
            && first[6..10] == other[6..10]
            && first[12..upper] == other[12..upper]
            && id(other) == id(first).wrapping_add(position)
    } else {
        ports && first[0..4] == other[0..4] && first[6..upper] == other[6..upper]
    }
}
