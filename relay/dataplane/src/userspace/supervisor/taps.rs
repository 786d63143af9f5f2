//! The supervisor's duplicates of a worker's taps.
//!
//! It needs them to open and filter the taps and to read the kernel's statistics. The price: a dead
//! worker's tap would stay in its `packet_fanout` group and swallow its share, so whoever detects the
//! worker's end must call [`Taps::close`] at once.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use bpf::socket_filter::HiddenDatagrams;
use packet::ethernet;
use sys::packet_socket::{PacketSocket, RingSize};

use super::filter::{filter, share};
use super::worker_spec::Listening;
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::layout::WorkerWord;

/// Ring memory that the taps of all workers may take together, in bytes, within the bounds of one
/// worker's.
const RINGS_TOGETHER: usize = 192 << 20;
/// The least and the most ring memory of one worker's taps, in bytes, before rings are made smaller.
const RINGS_OF_A_WORKER: (usize, usize) = (32 << 20, 48 << 20);
/// The smallest ring, in bytes.
const SMALLEST_RING: usize = 1 << 20;
/// Bytes of a ring frame: a packet of a 1500-byte MTU and what the kernel puts in front. Larger
/// packets take the socket's queue.
const FRAME_BYTES: usize = 2048;
/// Bytes of the socket's queue, for packets that are larger than a frame; kernel memory.
const QUEUE_BYTES: usize = 16 << 20;

/// Packets that would have waited longer than this for their worker are not waited for.
const LONGEST_WAIT_NS: u64 = 10_000_000_000;

/// A worker's taps.
#[derive(Debug)]
pub(super) struct Taps {
    taps: Vec<TapHandle>,
    counters: Arc<SharedCounters>,
    ring_budget: usize,
    frames_before: u64,
    packets: u64,
    drops: u64,
    judged: Judged,
    hidden: Hidden,
    closed: bool,
}

/// Until when all packets that arrived have been taken and judged.
#[derive(Debug, Default)]
struct Judged {
    until_ns: u64,
    /// A time, and how many frames had arrived by then.
    next: (u64, u64),
}

impl Judged {
    fn note(&mut self, now_ns: u64, total: u64, taken: u64) {
        if taken >= self.next.1 {
            self.until_ns = if taken >= total { now_ns } else { self.next.0 };
            self.next = (now_ns, total);
        }
    }
}

/// Datagrams in super-packets beyond the first of each, which the kernel's statistics do not show.
#[derive(Debug, Default)]
struct Hidden {
    /// What the worker had taken before these taps.
    before: u64,
    /// What dropped taps let in.
    dropped_taps: u64,
    /// Losses, as of the last time nothing was in flight.
    unaccounted: Option<u64>,
    /// Losses counted so far.
    lost: u64,
}

/// `packet_fanout` groups by interface.
pub(super) type Fanouts = BTreeMap<u32, Option<u16>>;

/// One tap.
#[derive(Debug)]
pub(super) struct TapHandle {
    /// The interface it listens on.
    pub interface: u32,
    /// Its socket, shared with the worker.
    pub socket: PacketSocket,
    /// Size of its ring.
    pub size: RingSize,
    /// Whether packets carry an Ethernet header there.
    pub ethernet: bool,
    joined: bool,
    /// Counts what its filter lets in, where BPF is allowed.
    hidden: Option<HiddenDatagrams>,
}

impl TapHandle {
    /// Joins the tap to its interface's `packet_fanout` group in `groups`, where `None` becomes a new
    /// one; to none at all if the worker has no peers to share with. It stays closed.
    ///
    /// # Errors
    /// The system call's.
    pub(super) fn join(&mut self, peers: Option<&mut Fanouts>) -> io::Result<()> {
        if let Some(groups) = peers {
            let group = groups.entry(self.interface).or_default();
            *group = Some(self.socket.join_fanout(*group, &share())?);
        }
        self.joined = true;
        Ok(())
    }

    fn hidden(&self) -> u64 {
        self.hidden.as_ref().map_or(0, HiddenDatagrams::read)
    }

    /// Lets in what is listened to, and as little else as it can.
    fn open(&self, listening: &Listening) -> io::Result<()> {
        let filter = filter(listening, self.ethernet);
        let counting = self.hidden.as_ref();
        let ip_offset = if self.ethernet { ethernet::HEADER } else { 0 };
        match counting.map(|hidden| hidden.program(&filter, ip_offset as u32)) {
            Some(Ok(program)) => self.socket.attach_program(program.as_fd()),
            // A super-packet that is lost will count as one packet.
            Some(Err(_)) | None => self.socket.attach_filter(&filter),
        }
    }
}

impl Taps {
    /// Starts without taps for one of `workers`; it will count on from what `counters` show.
    #[must_use]
    pub(super) fn new(counters: Arc<SharedCounters>, workers: usize) -> Self {
        Self {
            taps: Vec::new(),
            ring_budget: ring_budget(workers),
            frames_before: counters.worker(WorkerWord::Frames),
            hidden: Hidden {
                before: counters.worker(WorkerWord::Hidden),
                ..Hidden::default()
            },
            counters,
            packets: 0,
            drops: 0,
            judged: Judged::default(),
            closed: false,
        }
    }

    /// Makes a tap for `interface`, bound but not open yet, and keeps it.
    ///
    /// # Errors
    /// `ENODEV` if there is no such interface, `EPERM` without `CAP_NET_RAW`.
    pub(super) fn prepare(&mut self, interface: u32) -> io::Result<&TapHandle> {
        let used: usize = self.taps.iter().map(|tap| ring_bytes(tap.size)).sum();
        let size = next_ring(self.ring_budget.saturating_sub(used));
        let socket = PacketSocket::tap(size, QUEUE_BYTES)?;
        socket.bind(interface)?;
        let ethernet = socket.is_ethernet()?;
        self.taps.push(TapHandle {
            interface,
            socket,
            size,
            ethernet,
            joined: false,
            hidden: HiddenDatagrams::new().ok(),
        });
        self.taps.last().ok_or(io::ErrorKind::NotFound.into())
    }

    /// Taps that have not joined yet.
    pub(super) fn fresh(&mut self) -> impl Iterator<Item = &mut TapHandle> {
        self.taps.iter_mut().filter(|tap| !tap.joined)
    }

    /// Opens a tap that has joined and whose worker is ready, or changes an open one's filter.
    ///
    /// # Errors
    /// The system call's.
    pub(super) fn open(&self, interface: u32, listening: &Listening) -> io::Result<()> {
        let tap = self.taps.iter().find(|tap| tap.interface == interface);
        // Open without its group it would take what others take too.
        let Some(tap) = tap.filter(|tap| tap.joined) else {
            return Ok(());
        };
        tap.open(listening)
    }

    /// Interfaces that have a tap.
    pub(super) fn interfaces(&self) -> impl Iterator<Item = u32> + '_ {
        self.taps.iter().map(|tap| tap.interface)
    }

    /// Interfaces that were removed and added again without their tap, which has to be made anew.
    pub(super) fn orphaned(&self) -> impl Iterator<Item = u32> + '_ {
        let orphan = |tap: &&TapHandle| tap.socket.is_left_behind(tap.interface).unwrap_or(false);
        self.taps.iter().filter(orphan).map(|tap| tap.interface)
    }

    /// Lets nothing more into a tap and reads its last statistics, then drops the supervisor's
    /// copy; the worker still has its own.
    pub(super) fn drop_tap(&mut self, interface: u32) {
        for tap in self.taps.iter().filter(|tap| tap.interface == interface) {
            // A removed interface takes the filter as well as any other.
            let _ = tap.socket.close_filter();
        }
        self.read_statistics();
        let dropped = self.taps.iter().filter(|tap| tap.interface == interface);
        self.hidden.dropped_taps += dropped.map(TapHandle::hidden).sum::<u64>();
        self.taps.retain(|tap| tap.interface != interface);
    }

    /// Reads what was dropped at full rings and adds it to the worker's counters: a super-packet
    /// as one at first, its other datagrams once the worker has taken all that is not lost.
    pub(super) fn read_statistics(&mut self) {
        self.read_drops();
        let let_in = self.hidden_let_in();
        let (taken, lost) = (self.taken(), self.hidden_losses());
        self.read_drops();
        let is_quiet = taken + self.drops == self.packets && let_in == self.hidden_let_in();
        if !is_quiet {
            return;
        }
        // The same value twice: otherwise a packet between filter and ring would count as lost.
        if self.hidden.unaccounted.replace(lost) == Some(lost) {
            self.counters.add(WorkerWord::Lost, lost - self.hidden.lost);
            self.hidden.lost = lost;
        }
    }

    /// Returns whether the rings held packets that the worker had not taken when they were last read.
    pub(super) fn has_waiting(&self) -> bool {
        self.packets.saturating_sub(self.drops) > self.taken()
    }

    /// Until when all packets that arrived have been judged, at most [`LONGEST_WAIT_NS`] ago.
    pub(super) fn judged_ns(&mut self) -> u64 {
        let now_ns = sys::clock::monotonic_ns();
        self.read_drops();
        let arrived = self.packets.saturating_sub(self.drops);
        self.judged.note(now_ns, arrived, self.taken());
        self.judged
            .until_ns
            .max(now_ns.saturating_sub(LONGEST_WAIT_NS))
    }

    /// Frames that the worker has taken from these taps.
    fn taken(&self) -> u64 {
        let frames = self.counters.worker(WorkerWord::Frames);
        // A faulty worker may write anything.
        frames.saturating_sub(self.frames_before)
    }

    fn hidden_let_in(&self) -> u64 {
        self.hidden.dropped_taps + self.taps.iter().map(TapHandle::hidden).sum::<u64>()
    }

    /// Hidden datagrams let in that the worker has not taken, or those counted as lost if they are
    /// more.
    fn hidden_losses(&self) -> u64 {
        let hidden = self.counters.worker(WorkerWord::Hidden);
        let taken = hidden.saturating_sub(self.hidden.before);
        let lost = self.hidden_let_in().saturating_sub(taken);
        lost.max(self.hidden.lost)
    }

    fn read_drops(&mut self) {
        let mut drops = 0;
        for tap in &self.taps {
            if let Ok(statistics) = tap.socket.statistics() {
                self.packets += statistics.packets;
                drops += statistics.drops;
            }
        }
        self.drops += drops;
        self.counters.add(WorkerWord::Lost, drops);
    }

    /// Closes the taps of a worker that has ended, and counts what it had not yet taken out of its
    /// rings as lost. A second call does nothing.
    pub(super) fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        // Nothing in between: what a tap is given after this reading goes uncounted.
        self.read_drops();
        let hidden = self.hidden_losses() - self.hidden.lost;
        self.taps.clear();
        let waiting = (self.packets.saturating_sub(self.drops)).saturating_sub(self.taken());
        self.counters.add(WorkerWord::Lost, waiting + hidden);
    }
}

/// Ring memory for the taps of one of `workers`, in bytes.
fn ring_budget(workers: usize) -> usize {
    let (least, most) = RINGS_OF_A_WORKER;
    (RINGS_TOGETHER / workers.max(1)).clamp(least, most)
}

/// Most of the free memory, since most workers have one busy tap; a power of two, since positions in
/// the ring are masked.
fn next_ring(free_bytes: usize) -> RingSize {
    let bytes = (free_bytes / 3 * 2).max(SMALLEST_RING);
    RingSize {
        frames: 1 << (bytes / FRAME_BYTES).ilog2(),
        frame_bytes: FRAME_BYTES,
    }
}

const fn ring_bytes(size: RingSize) -> usize {
    size.frames * size.frame_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MiB of the rings of a worker's first taps.
    fn rings(workers: usize, taps: usize) -> Vec<usize> {
        let mut free = ring_budget(workers);
        let mut sizes = Vec::new();
        for _ in 0..taps {
            let bytes = ring_bytes(next_ring(free));
            free = free.saturating_sub(bytes);
            sizes.push(bytes >> 20);
        }
        sizes
    }

    #[test]
    fn the_first_tap_gets_most_and_none_gets_nothing() {
        assert_eq!(rings(1, 6), [32, 8, 4, 2, 1, 1]);
    }

    #[test]
    fn arrived_packets_are_judged_once_as_many_were_taken() {
        let mut judged = Judged::default();
        let seen = [
            (10, 5, 5),
            (20, 9, 7),
            (30, 12, 8),
            (40, 15, 9),
            (50, 16, 16),
        ];
        let until_ns = seen.map(|(now_ns, arrived, taken)| {
            judged.note(now_ns, arrived, taken);
            judged.until_ns
        });
        assert_eq!(until_ns, [10, 10, 10, 20, 50]);
    }

    #[test]
    fn many_workers_have_smaller_rings() {
        assert_eq!(rings(4, 2), [32, 8]);
        assert_eq!(rings(64, 3), [16, 8, 4]);
    }
}
