//! Sends a batch's copies and counts what became of them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use packet::verdict::DropReason;
use sys::packet_socket::PacketSocket;
use sys::uring::{Batch, Destination, Uring};

use super::ledger::Ledger;
use super::limits::{Cost, SharedLimits};
use super::rewrite::{Action, CompiledOutput, CompiledRoute, Head, Sending};
use super::runs::{Matched, Payloads, Runs, Source};
use super::shared::{OutputSlot, SharedCounters};

/// Messages of one submission.
const MESSAGES: usize = 256;

/// Collects runs and sends their copies.
pub(super) struct Sender {
    uring: Uring,
    sockets: Vec<(u32, PacketSocket)>,
    runs: Runs,
    ledger: Ledger,
}

/// What a batch is executed against.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// Where the batch came from.
    pub(super) source: Source<'a>,
    /// The routes by index.
    pub(super) routes: &'a [Option<CompiledRoute>],
    /// Where it is counted.
    pub(super) counters: &'a SharedCounters,
    /// The rate limits' state.
    pub(super) limits: &'a SharedLimits,
    /// Monotonic clock at the start of the batch.
    pub(super) now_ns: u64,
}

/// The part of a run that one output sends.
struct Copies<'h, 'p> {
    output: OutputSlot,
    head: &'h Head,
    payloads: Payloads<'p>,
    packets: u32,
    bytes: u32,
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
            runs: Runs::new(),
            ledger: Ledger::new(MESSAGES),
        })
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

    /// Adds a packet to the batch.
    #[inline]
    pub(super) fn stage(&mut self, packet: &Matched<'_>, context: Context<'_>) {
        if !self.runs.add(packet, context.source) {
            self.refuse(packet, context);
        }
    }

    /// Sends the copies of all staged packets and counts what became of them.
    ///
    /// # Errors
    /// The io_uring's own failure; the worker has to end then.
    #[inline]
    pub(super) fn flush(&mut self, context: Context<'_>) -> io::Result<()> {
        let Self {
            uring,
            sockets,
            runs,
            ledger,
        } = self;
        runs.seal();
        let mut batch = uring.batch();
        for run in runs.iter() {
            let Some(route) = route(context.routes, run.route) else {
                continue;
            };
            ledger.received(route.rule, run.packets, run.payload_bytes);
            for output in &route.outputs {
                let sending = match &output.action {
                    Action::Send(sending) => sending,
                    Action::Drop(reason) => {
                        ledger.dropped(output.slot, *reason, run.packets);
                        continue;
                    }
                };
                let whole = Copies {
                    output: output.slot,
                    head: &run.head,
                    payloads: runs.payloads(run, context.source, 0),
                    packets: run.packets,
                    bytes: run.payload_bytes,
                };
                let last;
                let copies = match sending.refusal(&run.head.datagram) {
                    None => whole,
                    Some(DropReason::TooBig)
                        if let Some(fits) = run.last_that_fits(sending.mtu) =>
                    {
                        ledger.dropped(output.slot, DropReason::TooBig, run.packets - 1);
                        last = fits.head;
                        Copies {
                            head: &last,
                            payloads: runs.payloads(run, context.source, fits.skip),
                            packets: 1,
                            bytes: fits.bytes,
                            ..whole
                        }
                    }
                    Some(reason) => {
                        ledger.dropped(output.slot, reason, run.packets);
                        continue;
                    }
                };
                if context.is_over_limit(output, &copies) {
                    ledger.dropped(output.slot, DropReason::RateLimited, copies.packets);
                    continue;
                }
                if batch.is_full(copies.payloads.len() + 1) {
                    ledger.commit(batch.submit()?, context.counters);
                    batch = uring.batch();
                }
                push(&mut batch, ledger, sockets, copies, sending);
            }
        }
        ledger.commit(batch.submit()?, context.counters);
        runs.clear();
        Ok(())
    }

    /// Counts a packet whose headers are longer than a [`Head`]: no output can send it.
    fn refuse(&mut self, packet: &Matched<'_>, context: Context<'_>) {
        let Some(route) = route(context.routes, packet.route) else {
            return;
        };
        let packets = packet.datagram.packets();
        let bytes = packet.datagram.payload_bytes() as u32;
        self.ledger.received(route.rule, packets, bytes);
        for output in &route.outputs {
            self.ledger
                .dropped(output.slot, DropReason::EgressError, packets);
        }
    }
}

impl Context<'_> {
    #[inline]
    fn is_over_limit(&self, output: &CompiledOutput, copies: &Copies<'_, '_>) -> bool {
        let Some(limit) = &output.limit else {
            return false;
        };
        let cost = Cost {
            packets: copies.packets,
            bytes: copies.bytes,
        };
        !self
            .limits
            .admit_to_output(output.slot, limit, self.now_ns, cost)
    }
}

/// Adds one output's copies to a batch that has room for them.
#[inline]
fn push<'p>(
    batch: &mut Batch<'_, 'p>,
    ledger: &mut Ledger,
    sockets: &'p [(u32, PacketSocket)],
    copies: Copies<'_, 'p>,
    sending: &Sending,
) {
    let head = match copies.head.copy_for(sending) {
        Ok(head) => head,
        Err(reason) => return ledger.dropped(copies.output, reason, copies.packets),
    };
    let socket = sockets
        .iter()
        .find(|(other, _)| *other == sending.interface);
    let Some((_, socket)) = socket else {
        let reason = DropReason::InterfaceMissing;
        return ledger.dropped(copies.output, reason, copies.packets);
    };
    let destination = Destination {
        socket: socket.as_fd(),
        interface: sending.interface,
        protocol: sending.protocol(),
    };
    match batch.push(destination, head.bytes(), copies.payloads) {
        Ok(()) => ledger.pending(copies.output, copies.packets, copies.bytes),
        Err(_) => ledger.dropped(copies.output, DropReason::EgressError, copies.packets),
    }
}

#[inline]
fn route(routes: &[Option<CompiledRoute>], index: u32) -> Option<&CompiledRoute> {
    routes.get(index as usize)?.as_ref()
}
