//! The worker process: one pinned core, one thread, one io_uring, no capability, in a sandbox.
//!
//! Its loop: take a batch from a tap, look each packet up, send the copies, give the ring frames back;
//! between batches apply the supervisor's messages. Sends wait for their completion, so a slow egress
//! slows the receiving: packets then pile up in the rings, where the kernel counts what does not fit.

mod answer;
mod coalesce;
mod context;
mod copies;
mod execute;
mod fragment;
mod headers;
mod health;
mod latency;
mod ledger;
mod lookup;
mod merge;
mod receive;
mod rewrite;
mod routed;
mod segments;
mod send;
mod spin;
mod table;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use bpf::merge::Windows;
use packet::fragment_cache::FragmentCache;
use packet::parse::Link;
use sys::descriptor::Waiter;
use sys::packet_socket::VnetHeader;
use sys::shared_memory::Region;
use sys::socket_lookup::SocketLookup;

use crate::gates;
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::gates::SharedGates;
use crate::userspace::shared::layout::WorkerWord;
use crate::userspace::shared::messages::{self, Channel, FromWorker, Means, ToWorker, ring_size};
use crate::userspace::shared::state::SharedState;
use coalesce::Source;
use execute::{BatchCounts, Packet};
use health::Watches;
use latency::Samples;
use receive::{Arrival, LargeBuffers, Tap};
use send::Sender;
use spin::Spin;
use table::ActiveTable;

/// Batches after which the supervisor's messages are read even if packets never cease.
const LISTEN_EVERY: u32 = 16;

/// A hand-over that seems to be further ahead has no time yet.
const LONGEST_HANDOVER_NS: u64 = 1_000_000_000;

/// Why a worker ends.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The conversation with the supervisor failed.
    #[error(transparent)]
    Control(#[from] messages::Error),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The supervisor does not begin with hello, or sends it twice.
    #[error("control socket: hello is not where it belongs")]
    NoHello,
}

/// Runs a worker whose control socket is its standard input, until the supervisor closes it.
#[must_use]
pub fn main() -> ExitCode {
    match run() {
        Ok(()) | Err(Error::Control(messages::Error::Closed)) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    sys::capability::ignore_termination().map_err(system("ignoring signals"))?;
    let control = sys::descriptor::inherited(0).map_err(system("the control socket"))?;
    let mut channel = Channel::new(UnixStream::from(control), messages::MAX_MESSAGE);
    let ((cpu, means), counters) = expect(&mut channel, |message| match message {
        ToWorker::Hello { cpu, means, .. } => Some((cpu, means)),
        _ => None,
    })?;
    let counters = SharedCounters::map(counters.as_fd()).map_err(system("mapping the counters"))?;
    let ((), state) = expect(&mut channel, |message| {
        matches!(message, ToWorker::State).then_some(())
    })?;
    let state = SharedState::map(state.as_fd());
    let ((), merges) = expect(&mut channel, |message| {
        matches!(message, ToWorker::Merges).then_some(())
    })?;
    let merges = Windows::map(merges.as_fd());
    let ((), gates) = expect(&mut channel, |message| {
        matches!(message, ToWorker::Gates).then_some(())
    })?;
    let gates = SharedGates::map(gates.as_fd());
    let shared = Shared {
        relieved_before: counters.worker(WorkerWord::Relieved),
        counters,
        state: state.map_err(system("mapping the state"))?,
        merges: merges.map_err(system("mapping the merges"))?,
        gates: gates.map_err(system("mapping the gates"))?,
        sockets: SocketLookup::open()
            .inspect_err(|error| {
                tracing::warn!(
                    "worker: answers to what rules reflect end at this host, for the kernel does \
                     not tell which are for its own sockets: {error}"
                );
            })
            .ok(),
    };
    // The shift of the clock by a time namespace can only be read before the sandbox closes.
    let _ = sys::clock::kernel_boottime_ns();
    // A worker with less of its core is no reason not to forward.
    if let Err(error) = sys::capability::lead_session() {
        tracing::warn!("worker: cannot have a session of its own: {error}");
    }
    // A core that was taken away meanwhile is no reason not to forward.
    if let Err(error) = sys::capability::pin_to_cpu(cpu) {
        tracing::warn!("worker: cannot be pinned to core {cpu}: {error}");
    }
    let mut worker = Worker::new(channel, shared, means)?;
    sys::capability::renounce_all().map_err(system("giving up capabilities"))?;
    // A kernel without the means is no reason not to forward.
    if let Err(error) = sys::sandbox::close(means.landlock) {
        tracing::warn!("worker: cannot be fenced in: {error}");
    }
    worker.relay().inspect_err(|error| {
        if matches!(error, Error::Control(messages::Error::Closed)) {
            worker.stand_down();
        }
    })
}

/// Waits for the next message, which has to be the one that `wanted` accepts, and its descriptor.
fn expect<T>(
    channel: &mut Channel,
    wanted: impl Fn(ToWorker) -> Option<T>,
) -> Result<(T, OwnedFd), Error> {
    loop {
        if let Some(message) = channel.next()? {
            let value = wanted(message).ok_or(Error::NoHello)?;
            return Ok((value, channel.take_descriptor()?));
        }
        channel.fill()?;
    }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::System { what, source }
}

struct Worker {
    channel: Channel,
    shared: Shared,
    sender: Sender,
    taps: Vec<Tap>,
    large: LargeBuffers,
    table: ActiveTable,
    spin: Spin,
    waiter: Waiter,
    fragments: FragmentCache,
    watches: Watches,
    samples: Samples,
}

/// What is shared with the supervisor and, all but the counters, with the other workers; and the host.
struct Shared {
    counters: SharedCounters,
    /// [`WorkerWord::Relieved`] at the start.
    relieved_before: u64,
    state: SharedState,
    merges: Windows,
    gates: SharedGates,
    /// This worker's own: looks up this host's sockets, where the kernel allows it.
    sockets: Option<SocketLookup>,
}

impl Worker {
    fn new(channel: Channel, shared: Shared, means: Means) -> Result<Self, Error> {
        let nonblocking = channel.stream().set_nonblocking(true);
        nonblocking.map_err(system("the control socket"))?;
        Ok(Self {
            channel,
            shared,
            sender: Sender::new(means).map_err(system("io_uring"))?,
            taps: Vec::new(),
            large: LargeBuffers::default(),
            table: ActiveTable::new(means.super_packets),
            spin: Spin::default(),
            waiter: Waiter::default(),
            fragments: FragmentCache::default(),
            watches: Watches::default(),
            samples: Samples::default(),
        })
    }

    fn relay(&mut self) -> Result<(), Error> {
        loop {
            self.listen()?;
            for _ in 0..LISTEN_EVERY {
                self.shared.counters.add(WorkerWord::Heartbeat, 1);
                let mut taken = 0;
                for tap in 0..self.taps.len() {
                    taken += self.batch(tap).map_err(system("sending"))?;
                }
                if taken == 0 && self.wait()? {
                    break;
                }
            }
        }
    }

    /// Waits for packets or the supervisor; `true` if it is the supervisor.
    fn wait(&mut self) -> Result<bool, Error> {
        let clock = sys::clock::monotonic_ns;
        if self
            .spin
            .watch(clock, || self.taps.iter().any(Tap::has_arrival))
        {
            return Ok(false);
        }
        let begun_ns = clock();
        let control = self.channel.stream().as_fd();
        let taps = self.taps.iter().map(Tap::descriptor);
        let is_control = self.waiter.wait(control, taps, None);
        self.spin.slept(clock() - begun_ns);
        is_control.map_err(system("waiting for packets"))
    }

    /// Takes one batch from one tap and returns the number of frames.
    #[inline]
    fn batch(&mut self, tap: usize) -> io::Result<u32> {
        let Some(tap) = self.taps.get_mut(tap) else {
            return Ok(0);
        };
        let counters = &self.shared.counters;
        let now_ns = sys::clock::monotonic_ns();
        let mut frames = 0;
        let mut counts = BatchCounts::default();
        while frames < tap.batch() {
            let packet = match tap.arrival(frames, &mut self.large) {
                Arrival::Packet(slot, (link, meta), vnet) => Packet {
                    frame: frames,
                    slot,
                    link,
                    meta,
                    vnet,
                    whole_length: None,
                },
                Arrival::Truncated(slot, (link, meta), length) => Packet {
                    frame: frames,
                    slot,
                    link,
                    meta,
                    vnet: VnetHeader::default(),
                    whole_length: Some(length),
                },
                Arrival::Full | Arrival::Nothing => break,
            };
            let source = Source {
                tap,
                large: &self.large,
            };
            let context = self.table.context(source, &self.shared, now_ns);
            if packet.meta.gso.is_some() {
                counts.hidden += tap.hidden(frames);
            }
            self.table.execute(
                &mut self.sender,
                context,
                packet,
                (&mut self.fragments, &mut self.watches, &mut self.samples),
                &mut counts,
            )?;
            frames += 1;
        }
        if frames == 0 {
            return Ok(0);
        }
        let source = Source {
            tap,
            large: &self.large,
        };
        let context = self.table.context(source, &self.shared, now_ns);
        self.sender.flush(context)?;
        self.samples.record(counters);
        tap.release(frames, &mut self.large);
        self.watches.record(counters);
        // Before the frames: whoever sees all frames taken also sees all that they held.
        self.shared.counters.add(WorkerWord::Hidden, counts.hidden);
        self.shared
            .counters
            .add(WorkerWord::Frames, u64::from(frames));
        self.shared
            .counters
            .add(WorkerWord::Received, counts.received);
        self.shared
            .counters
            .add(WorkerWord::Matched, counts.matched);
        let not_matched = counts.received - counts.matched;
        self.shared
            .counters
            .add(WorkerWord::NotMatched, not_matched);
        self.shared
            .counters
            .add(WorkerWord::BufferExhausted, counts.lost);
        Ok(frames)
    }

    /// Lets nothing more in and forwards what is in the rings: the supervisor has ended this worker and has
    /// taken its taps already, or it was killed, whether or not another one takes over. One that does may have set
    /// a time shortly ahead: until then this worker goes on, and what arrives since is not its own.
    fn stand_down(&mut self) {
        let at_ns = self.shared.gates.since(gates::NONE);
        let ahead_ns = || at_ns.saturating_sub(sys::clock::realtime_ns());
        if ahead_ns() < LONGEST_HANDOVER_NS {
            while ahead_ns() > 0 {
                for tap in 0..self.taps.len() {
                    // What cannot be sent now cannot be sent later.
                    let _ = self.batch(tap);
                }
            }
        }
        for tap in &self.taps {
            tap.close();
        }
        for tap in 0..self.taps.len() {
            while self.batch(tap).is_ok_and(|taken| taken > 0) {}
        }
        let lost = self.taps.iter().map(Tap::lost).sum();
        let counters = &self.shared.counters;
        counters.add(WorkerWord::BufferExhausted, lost);
        counters.add(WorkerWord::StoodDown, 1);
    }

    /// Carries out the supervisor's messages so far.
    fn listen(&mut self) -> Result<(), Error> {
        while self.channel.fill()? {
            while let Some(message) = self.channel.next()? {
                self.carry_out(message)?;
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, message: ToWorker) -> Result<(), Error> {
        match message {
            ToWorker::Hello { .. } | ToWorker::State | ToWorker::Merges | ToWorker::Gates => {
                return Err(Error::NoHello);
            }
            ToWorker::Change(change) => {
                let watches = &mut self.watches;
                self.table.change(change, watches);
            }
            ToWorker::Egress(way) => {
                let socket = self.channel.take_descriptor()?;
                self.sender.add_socket(way, socket);
            }
            ToWorker::DropEgress(way) => self.sender.drop_socket(way),
            ToWorker::Tap {
                interface,
                ethernet,
                frames,
                frame_bytes,
            } => {
                let link = if ethernet { Link::Ethernet } else { Link::None };
                let size = ring_size(frames, frame_bytes);
                let tap = Tap::adopt(self.channel.take_descriptor()?, interface, link, size);
                self.taps.push(tap.map_err(system("mapping a tap's ring"))?);
            }
            ToWorker::DropTap { interface } => self.drop_tap(interface)?,
            ToWorker::Confirm(number) => self.channel.send(&FromWorker::Done(number), None)?,
        }
        Ok(())
    }

    /// Forwards what remains in the tap's ring and closes it.
    fn drop_tap(&mut self, interface: u32) -> Result<(), Error> {
        while let Some(at) = self.taps.iter().position(|tap| tap.interface == interface) {
            while self.batch(at).map_err(system("sending"))? > 0 {}
            self.taps.swap_remove(at);
        }
        Ok(())
    }
}
