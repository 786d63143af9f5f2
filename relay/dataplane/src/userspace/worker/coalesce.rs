//! Coalesces packets of one flow that wait together into runs, each of which leaves as one GSO send
//! per output.
//!
//! Coalescing must not show in the bytes: only datagrams whose headers the kernel's segmentation
//! restores exactly are coalesced (consecutive IP IDs, equal lengths but the last, a UDP checksum
//! that is present and known to be right).

use packet::checksum;
use packet::datagram::{Datagram, Part};
use packet::ipv6;
use packet::parse::ChecksumState;
use packet::udp;
use sys::packet_socket::VnetHeader;

use super::headers::{Headers, IP_AT};
use super::receive::{BATCH, BufferSlot, LargeBuffers, Tap};
use super::segments::Segments;

/// Datagrams of one GSO send.
const MAX_SEGMENTS: u16 = 128;
/// The IP length field's limit.
const MAX_IP_BYTES: usize = 65_535;
/// Open runs that can be looked up by flow; a collision only costs one more send.
const OPEN_RUNS: usize = 4 * BATCH;

/// A batch's packets, sorted into runs.
#[derive(Debug)]
pub(super) struct Runs {
    entries: Vec<Entry>,
    runs: Vec<Run>,
    /// Index + 1 of the run that a flow's next packet may join, by the flow's hash.
    open: Box<[u16; OPEN_RUNS]>,
}

/// The buffers of the batch's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    /// The tap they arrived at.
    pub(super) tap: &'a Tap,
    /// The large ones.
    pub(super) large: &'a LargeBuffers,
}

/// A packet that takes a route.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matched<'a> {
    /// Index of the route.
    pub(super) route: u32,
    /// Whether it may leave in one send with others.
    pub(super) coalesce: bool,
    /// The packet's buffer.
    pub(super) slot: BufferSlot,
    /// Its bytes.
    pub(super) bytes: &'a [u8],
    /// Its headers.
    pub(super) datagram: &'a Datagram,
    /// What the kernel reports of it.
    pub(super) vnet: VnetHeader,
}

/// One packet of a run.
#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: BufferSlot,
    payload_start: u32,
    payload_end: u32,
    /// Index of the run's next entry; its own at the end.
    next: u32,
}

/// Packets that leave together.
#[derive(Debug)]
pub(super) struct Run {
    /// Index of their route.
    pub(super) route: u32,
    /// Their headers.
    pub(super) head: Headers,
    /// Datagrams in it.
    pub(super) packets: u32,
    /// UDP payload bytes.
    pub(super) payload_bytes: u32,
    /// Payload bytes of its first packet that it omits.
    skipped: u32,
    /// The entry of `open` that may refer to it.
    flow: u16,
    first: u32,
    last: u32,
    entries: u16,
    /// IP bytes of a super-packet, or of the one packet.
    ip_bytes: usize,
    /// Payload bytes of each datagram but the last; 0 if nothing may join it.
    size: u16,
    last_size: u16,
    has_known_checksum: bool,
}

/// A run's last datagram, without the others.
pub(super) struct LastAlone {
    /// Its headers.
    pub(super) head: Headers,
    /// Payloads to skip.
    pub(super) skip: u16,
    /// Its UDP payload bytes.
    pub(super) bytes: u32,
}

impl Runs {
    /// Makes room for a batch.
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::with_capacity(2 * BATCH),
            runs: Vec::with_capacity(2 * BATCH),
            open: Box::new([0; OPEN_RUNS]),
        }
    }

    /// Adds a packet to the run of its flow, or starts one; `false` if its headers are missing, so that it
    /// cannot be sent. A batch of packets fits beside the parts of others.
    #[inline]
    pub(super) fn add(&mut self, packet: &Matched<'_>, source: Source<'_>) -> bool {
        let datagram = packet.datagram;
        let index = self.entries.len() as u32;
        let entry = Entry {
            slot: packet.slot,
            payload_start: datagram.payload_offset() as u32,
            payload_end: datagram.end() as u32,
            next: index,
        };
        let flow = flow_hash(packet.route, datagram);
        let open = usize::from(self.open[usize::from(flow)]).checked_sub(1);
        if let Some(run) = open.and_then(|open| self.runs.get_mut(open))
            && run.takes(packet, &self.entries, source)
        {
            self.entries[run.last as usize].next = index;
            run.append(index, datagram);
        } else {
            let Some(run) = Run::start(index, flow, packet) else {
                return false;
            };
            self.runs.push(run);
            self.open[usize::from(flow)] = self.runs.len() as u16;
        }
        self.entries.push(entry);
        true
    }

    /// Returns whether there is just room for a batch of whole packets.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= BATCH
    }

    /// Adds some segments of a super-packet as a run of their own; `false` as of [`Runs::add`]. Only
    /// while it is not full.
    pub(super) fn add_part(&mut self, packet: &Matched<'_>, part: Segments) -> bool {
        let index = self.entries.len() as u32;
        let flow = flow_hash(packet.route, packet.datagram);
        let Some(whole) = Run::start(index, flow, packet) else {
            return false;
        };
        let head = whole.head.part(part.first as u16, part.bytes as u16);
        let start = packet.datagram.payload_offset() + part.offset;
        self.runs.push(Run {
            ip_bytes: head.datagram.ip_length,
            head,
            packets: part.count,
            payload_bytes: part.bytes as u32,
            skipped: part.offset as u32,
            ..whole
        });
        // Nothing joins it, nor the run before it.
        self.open[usize::from(flow)] = self.runs.len() as u16;
        self.entries.push(Entry {
            slot: packet.slot,
            payload_start: start as u32,
            payload_end: (start + part.bytes) as u32,
            next: index,
        });
        true
    }

    /// Makes the heads of longer runs those of super-packets. To be called once, before they are
    /// sent.
    pub(super) fn seal(&mut self) {
        for run in self.runs.iter_mut().filter(|run| run.entries > 1) {
            run.head.enlarge(run.ip_bytes, run.size);
        }
    }

    /// How many runs there are.
    pub(super) const fn len(&self) -> usize {
        self.runs.len()
    }

    /// The runs, in the order of their first packets.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter()
    }

    /// The payloads of a run, in order, without the first `skip`.
    #[inline]
    pub(super) fn payloads<'a>(&'a self, run: &Run, source: Source<'a>, skip: u16) -> Payloads<'a> {
        let next = if skip == 0 { run.first } else { run.last };
        Payloads {
            entries: &self.entries,
            next,
            remaining: usize::from(run.entries - skip),
            source,
        }
    }

    /// The extension headers of a run's packet that its head omits; most omit none.
    #[inline]
    pub(super) fn extensions<'a>(&self, run: &Run, source: Source<'a>) -> &'a [u8] {
        if run.head.omitted == 0 {
            return &[];
        }
        let Some(entry) = self.entries.get(run.first as usize) else {
            return &[];
        };
        let datagram = &run.head.datagram;
        let udp = datagram.payload_offset() - datagram.udp_offset;
        let end = (entry.payload_start - run.skipped) as usize - udp;
        let bytes = source.tap.bytes(source.large, entry.slot);
        bytes.get(end - run.head.omitted..end).unwrap_or_default()
    }

    /// Clears everything, for the next batch.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        for run in self.runs.drain(..) {
            self.open[usize::from(run.flow)] = 0;
        }
    }
}

/// The payloads of a run, in order.
#[derive(Clone, Debug)]
pub(super) struct Payloads<'a> {
    entries: &'a [Entry],
    next: u32,
    remaining: usize,
    source: Source<'a>,
}

impl<'a> Iterator for Payloads<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.remaining = self.remaining.checked_sub(1)?;
        let entry = self.entries.get(self.next as usize)?;
        self.next = entry.next;
        let bytes = self.source.tap.bytes(self.source.large, entry.slot);
        bytes.get(entry.payload_start as usize..entry.payload_end as usize)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl ExactSizeIterator for Payloads<'_> {}

impl Run {
    #[inline]
    fn start(entry: u32, flow: u16, packet: &Matched<'_>) -> Option<Self> {
        let datagram = packet.datagram;
        let payload = datagram.payload_bytes();
        let open = packet.coalesce && may_coalesce(datagram);
        let size = if open { payload } else { 0 };
        Some(Self {
            route: packet.route,
            head: Headers::of(packet.bytes, datagram)?,
            packets: datagram.packets(),
            payload_bytes: payload as u32,
            skipped: 0,
            flow,
            first: entry,
            last: entry,
            entries: 1,
            ip_bytes: datagram.ip_length,
            size: size as u16,
            last_size: size as u16,
            has_known_checksum: has_known_checksum(datagram, packet.vnet),
        })
    }

    /// For a run that is too big for an MTU: its last datagram alone, if that is shorter and
    /// fits.
    pub(super) fn last_that_fits(&self, mtu: usize) -> Option<LastAlone> {
        if self.last_size >= self.size {
            return None;
        }
        let head = self.head.segment(self.entries - 1, self.last_size);
        (head.datagram.ip_length <= mtu).then_some(LastAlone {
            head,
            skip: self.entries - 1,
            bytes: self.last_size.into(),
        })
    }

    /// Returns whether `packet` may join the run.
    #[inline]
    fn takes(&mut self, packet: &Matched<'_>, entries: &[Entry], source: Source<'_>) -> bool {
        let datagram = packet.datagram;
        let payload = datagram.payload_bytes();
        // Only the last datagram of a super-packet may be shorter.
        let fits = self.last_size == self.size
            && self.route == packet.route
            && self.entries < MAX_SEGMENTS
            && (1..=usize::from(self.size)).contains(&payload)
            && self.ip_bytes + payload <= MAX_IP_BYTES
            && may_coalesce(datagram)
            && datagram.checksum == self.head.datagram.checksum
            && same_flow(&self.head, packet, self.entries);
        if !fits {
            return false;
        }
        if !is_intact(datagram, packet.vnet, packet.bytes) {
            return false;
        }
        self.has_known_checksum =
            self.has_known_checksum || self.first_checksum_holds(entries, source);
        self.has_known_checksum
    }

    fn first_checksum_holds(&self, entries: &[Entry], source: Source<'_>) -> bool {
        let Some(entry) = entries.get(self.first as usize) else {
            return false;
        };
        let bytes = source.tap.bytes(source.large, entry.slot);
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
        self.last_size = payload as u16;
    }
}

/// A flow's index among the open runs.
#[inline]
fn flow_hash(route: u32, datagram: &Datagram) -> u16 {
    let route = route.wrapping_mul(0x9e37_79b1);
    let port = u32::from(datagram.source_port).wrapping_mul(0x85eb_ca6b);
    ((route ^ port) >> 16) as u16 % OPEN_RUNS as u16
}

/// Returns whether nothing in the datagram itself prevents coalescing. IPv6 extension headers do: the kernel
/// does not segment behind headers that it does not know (`ipv6_gso_pull_exthdrs`: not behind an atomic
/// fragment's), and which those are differs from kernel to kernel.
#[inline]
fn may_coalesce(datagram: &Datagram) -> bool {
    let headers = datagram.udp_offset - datagram.ip_offset;
    (datagram.source.is_ipv4() || headers == ipv6::HEADER)
        && datagram.gso.is_none()
        && datagram.part == Part::Whole
        && datagram.udp_checksum != 0
        && usize::from(datagram.udp_length) > udp::HEADER
        && headers + usize::from(datagram.udp_length) == datagram.ip_length
}

/// Returns whether the UDP checksum of a whole datagram holds, or has been judged or is left to a device.
#[inline]
pub(super) fn is_intact(datagram: &Datagram, vnet: VnetHeader, packet: &[u8]) -> bool {
    has_known_checksum(datagram, vnet) || checksum_holds(datagram, packet)
}

#[inline]
fn has_known_checksum(datagram: &Datagram, vnet: VnetHeader) -> bool {
    datagram.checksum == ChecksumState::Partial || vnet.flags & VnetHeader::CHECKSUM_VALID != 0
}

fn checksum_holds(datagram: &Datagram, packet: &[u8]) -> bool {
    let end = datagram.udp_offset + usize::from(datagram.udp_length);
    packet
        .get(datagram.udp_offset..end)
        .is_some_and(|bytes| checksum::udp_is_valid(datagram.source, datagram.destination, bytes))
}

/// Returns whether the headers differ only in what segmentation restores: lengths, checksums, and an
/// IPv4 ID that counts up by one.
#[inline]
fn same_flow(head: &Headers, packet: &Matched<'_>, position: u16) -> bool {
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
