//! Sends a batch's copies and counts the results.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use packet::verdict::DropReason;
use sys::routed_socket::SocketKind;
use sys::uring::{Batch, Destination, Uring};

use super::coalesce::{Matched, Run, Runs};
use super::context::{Clock, Context};
use super::copies::Copies;
use super::fragment;
use super::headers::{CopyHeaders, Headers};
use super::ledger::Ledger;
use super::receive::BATCH;
use super::rewrite::{Action, CompiledOutput, CompiledRoute, Sending};
use super::routed::{self, RoutedSockets};
use super::segments::Segments;
use crate::limits::Limiter;
use crate::owners::name::Kind;
use crate::userspace::shared::messages::{Means, Way};

/// Messages of one submission.
const MESSAGES: usize = 256;

/// Collects runs and sends their copies.
pub(super) struct Sender {
    uring: Uring,
    sockets: Vec<(Way, OwnedFd)>,
    routed: RoutedSockets,
    runs: Runs,
    ledger: Ledger,
    super_packets: bool,
}

impl Sender {
    /// Makes a sender without sockets.
    ///
    /// # Errors
    /// The io_uring's.
    pub(super) fn new(means: Means) -> io::Result<Self> {
        Ok(Self {
            uring: Uring::new(MESSAGES, means.io_uring)?,
            sockets: Vec::new(),
            routed: RoutedSockets::default(),
            runs: Runs::new(),
            ledger: Ledger::new(2 * BATCH, MESSAGES),
            super_packets: means.super_packets,
        })
    }

    /// Takes over an egress socket.
    pub(super) fn add_socket(&mut self, way: Way, socket: OwnedFd) {
        self.drop_socket(way);
        match way {
            Way::Routed => self.routed.supply(socket),
            _ => self.sockets.push((way, socket)),
        }
    }

    /// Closes an egress socket.
    pub(super) fn drop_socket(&mut self, way: Way) {
        if way == Way::Routed {
            self.routed.close();
        }
        self.sockets.retain(|(other, _)| *other != way);
    }

    /// Adds a packet to the batch.
    #[inline]
    pub(super) fn stage(&mut self, packet: &Matched<'_>, context: Context<'_>) {
        if !self.runs.add(packet, context.source) {
            let datagram = packet.datagram;
            let refused = (datagram.packets(), datagram.payload_bytes() as u32);
            self.refuse(packet.route, refused, context);
        }
    }

    /// Adds some segments of a super-packet to the batch; when there is no room, after sending what was
    /// staged so far.
    ///
    /// # Errors
    /// As [`Sender::flush`].
    pub(super) fn stage_part(
        &mut self,
        packet: &Matched<'_>,
        part: Segments,
        context: Context<'_>,
    ) -> io::Result<()> {
        if self.runs.is_full() {
            self.flush(context)?;
        }
        if !self.runs.add_part(packet, part) {
            self.refuse(packet.route, (part.count, part.bytes as u32), context);
        }
        Ok(())
    }

    /// Sends the copies of all staged packets and counts the results.
    ///
    /// # Errors
    /// The io_uring's own failure; the worker has to end then.
    #[inline]
    pub(super) fn flush(&mut self, context: Context<'_>) -> io::Result<()> {
        self.flush_by(None, context)
    }

    /// Sends an answer by the one output that leads to the requester, after what was staged before.
    ///
    /// # Errors
    /// As [`Sender::flush`].
    #[cold]
    pub(super) fn send_answer(
        &mut self,
        packet: &Matched<'_>,
        output: &CompiledOutput,
        context: Context<'_>,
    ) -> io::Result<()> {
        self.flush(context)?;
        if self.runs.add(packet, context.source) {
            return self.flush_by(Some(output), context);
        }
        if let Some(route) = route(context.routes, packet.route) {
            let datagram = packet.datagram;
            let packets = datagram.packets();
            let bytes = datagram.payload_bytes() as u32;
            self.ledger.received(route.counts, packets, bytes);
            context
                .counters
                .rule_answered(route.counts.rule, packets.into());
            self.ledger
                .dropped(output.slot, DropReason::EgressError, packets);
        }
        Ok(())
    }

    /// Sends the copies of all staged packets: those of an answer's one output, or of all.
    #[inline]
    fn flush_by(
        &mut self,
        answer: Option<&CompiledOutput>,
        context: Context<'_>,
    ) -> io::Result<()> {
        self.runs.seal();
        let mut from = 0;
        loop {
            let mut upto = self.runs.len();
            if self.routed.is_used() {
                upto = self.open_routed(answer, context, from).min(upto);
            }
            self.send_runs(from..upto, answer, context)?;
            from = upto;
            if from == self.runs.len() {
                break;
            }
        }
        self.runs.clear();
        Ok(())
    }

    /// Sends the copies of some of the staged packets.
    #[inline]
    fn send_runs(
        &mut self,
        range: Range<usize>,
        answer: Option<&CompiledOutput>,
        context: Context<'_>,
    ) -> io::Result<()> {
        let mut outgoing = Outgoing {
            batch: self.uring.batch(),
            ledger: &mut self.ledger,
            sockets: &self.sockets,
            routed: &self.routed,
            runs: &self.runs,
            context,
            clock: Clock::default(),
            super_packets: self.super_packets,
        };
        for run in self.runs.iter().take(range.end).skip(range.start) {
            let Some(route) = route(context.routes, run.route) else {
                continue;
            };
            // Checked again: the worker may have been stopped since the batch began.
            if context.is_past(route, &mut outgoing.clock) {
                let dropped = (run.packets.into(), run.payload_bytes.into());
                context.drop_packet(route.counts, DropReason::Standby, dropped);
                continue;
            }
            outgoing
                .ledger
                .received(route.counts, run.packets, run.payload_bytes);
            if answer.is_some() {
                let packets = run.packets.into();
                context.counters.rule_answered(route.counts.rule, packets);
            }
            for output in answer.map_or(&*route.outputs, std::slice::from_ref) {
                match &output.action {
                    Action::Send(sending) => outgoing.send(run, output, sending)?,
                    Action::Drop(reason) => outgoing.dropped(output, *reason, run.packets),
                }
            }
        }
        outgoing.submit()
    }

    /// Opens the sockets that send copies of the staged packets, from one packet on; returns the next packet
    /// that has to wait until these have left, for want of room.
    #[cold]
    fn open_routed(
        &mut self,
        answer: Option<&CompiledOutput>,
        context: Context<'_>,
        from: usize,
    ) -> usize {
        let wanted = self.runs.iter().skip(from).map(|run| {
            let route = route(context.routes, run.route);
            let all = route.map_or(&[][..], |route| &*route.outputs);
            let outputs = answer.map_or(all, std::slice::from_ref);
            outputs.iter().filter_map(|output| match &output.action {
                Action::Send(sending) => sending.routed(&run.head.datagram),
                Action::Drop(_) => None,
            })
        });
        let upto = self.routed.reserve(wanted, context.now_ns);
        self.routed.open(context.now_ns);
        from.saturating_add(upto)
    }

    /// Counts a packet whose headers cannot be extracted: no output can send it.
    fn refuse(&mut self, index: u32, (packets, bytes): (u32, u32), context: Context<'_>) {
        let Some(route) = route(context.routes, index) else {
            return;
        };
        self.ledger.received(route.counts, packets, bytes);
        for output in &route.outputs {
            self.ledger
                .dropped(output.slot, DropReason::EgressError, packets);
        }
    }
}

/// Copies on their way out.
struct Outgoing<'u, 'p> {
    batch: Batch<'u, 'p>,
    ledger: &'u mut Ledger,
    sockets: &'p [(Way, OwnedFd)],
    routed: &'p RoutedSockets,
    runs: &'p Runs,
    context: Context<'p>,
    /// When the first packet of a share was pushed since the last submission.
    clock: Clock,
    super_packets: bool,
}

impl<'p> Outgoing<'_, 'p> {
    /// Sends one output's copies of a run, or counts why not.
    #[inline]
    fn send(&mut self, run: &Run, output: &CompiledOutput, sending: &Sending) -> io::Result<()> {
        let whole = Copies {
            output,
            head: &run.head,
            extensions: self.runs.extensions(run, self.context.source),
            payloads: self.runs.payloads(run, self.context.source, 0),
            packets: run.packets,
            bytes: run.payload_bytes,
        };
        match sending.refusal(&run.head.datagram, run.head.largest_packet()) {
            None => self.send_whole(whole, sending),
            Some(DropReason::TooBig) => self.send_too_big(run, whole, sending),
            Some(reason) => {
                self.dropped(output, reason, run.packets);
                Ok(())
            }
        }
    }

    /// Sends what an MTU allows of copies that are above it.
    #[cold]
    fn send_too_big(
        &mut self,
        run: &Run,
        whole: Copies<'_, 'p>,
        sending: &Sending,
    ) -> io::Result<()> {
        if sending.fragment && fragment::is_allowed(&run.head.datagram) {
            return self.send_pieces(whole, sending);
        }
        let Some(last) = run.last_that_fits(sending.mtu) else {
            self.dropped(whole.output, DropReason::TooBig, run.packets);
            return Ok(());
        };
        self.dropped(whole.output, DropReason::TooBig, run.packets - 1);
        let copies = Copies {
            head: &last.head,
            payloads: self.runs.payloads(run, self.context.source, last.skip),
            packets: 1,
            bytes: last.bytes,
            ..whole
        };
        self.send_whole(copies, sending)
    }

    #[inline]
    fn send_whole(&mut self, copies: Copies<'_, 'p>, sending: &Sending) -> io::Result<()> {
        let output = copies.output;
        let passed = self.admit(&copies, copies.head, sending);
        if passed == 0 {
            return Ok(());
        }
        let leaves_whole = self.super_packets && passed == copies.packets;
        if sending.is_to_host() || copies.head.datagram.gso.is_some() && !leaves_whole {
            return self.send_datagrams(copies, sending, passed);
        }
        let (head, destination) = match self.address(copies.head, sending) {
            Ok(prepared) => prepared,
            Err(reason) => {
                self.dropped(output, reason, copies.packets);
                return Ok(());
            }
        };
        let head = head.head(copies.extensions);
        self.make_room(copies.payloads.len() + head.parts())?;
        match self.batch.push(destination, head, copies.payloads) {
            Ok(()) => self
                .ledger
                .pending(output.slot, copies.packets, copies.bytes),
            Err(_) => self.dropped(output, DropReason::EgressError, copies.packets),
        }
        Ok(())
    }

    /// Sends the first `count` datagrams of a packet or of a run one by one.
    #[cold]
    fn send_datagrams(
        &mut self,
        copies: Copies<'_, 'p>,
        sending: &Sending,
        count: u32,
    ) -> io::Result<()> {
        let output = copies.output;
        let datagrams = fragment::datagrams(copies.head, copies.payloads.clone());
        for (head, payload) in datagrams.take(count as usize) {
            self.make_room(4)?;
            let pushed = match sending.routed(&head.datagram) {
                Some(kind) => self.push_routed((&head, payload), sending, kind),
                None => self.push_datagram((&head, payload), sending, copies.extensions),
            };
            match pushed {
                Ok(()) => {
                    let bytes = copies.cost(&head).bytes;
                    self.ledger.pending(output.slot, 1, bytes);
                }
                Err(reason) => self.dropped(output, reason, 1),
            }
        }
        Ok(())
    }

    fn push_datagram(
        &mut self,
        (head, payload): (&Headers, &'p [u8]),
        sending: &Sending,
        extensions: &'p [u8],
    ) -> Result<(), DropReason> {
        let (mut copy, destination) = self.address(head, sending)?;
        if sending.is_to_host() {
            fragment::finish(&mut copy, &head.datagram, payload);
        }
        let part = std::iter::once(payload);
        let head = sending.for_socket(copy.head(extensions));
        let pushed = self.batch.push(destination, head, part);
        pushed.map_err(|_| DropReason::EgressError)
    }

    fn push_routed(
        &mut self,
        (head, payload): (&Headers, &'p [u8]),
        sending: &Sending,
        kind: SocketKind,
    ) -> Result<(), DropReason> {
        let copy = head.copy_for(sending)?;
        let (headers, payload) =
            routed::for_socket(&head.datagram, copy.ip_and_udp(), payload, sending)?;
        let routed = self.routed;
        let socket = routed.get(kind).ok_or(DropReason::EgressError)?;
        let pushed = self.batch.push_routed(socket, &headers, payload);
        pushed.map_err(|_| DropReason::EgressError)
    }

    /// Sends each datagram of a copy in pieces.
    fn send_pieces(&mut self, copies: Copies<'_, 'p>, sending: &Sending) -> io::Result<()> {
        for (head, payload) in fragment::datagrams(copies.head, copies.payloads.clone()) {
            if self.admit(&copies, &head, sending) == 0 {
                continue;
            }
            let (copy, destination) = match self.address(&head, sending) {
                Ok(prepared) => prepared,
                Err(reason) => {
                    self.dropped(copies.output, reason, 1);
                    continue;
                }
            };
            for piece in fragment::pieces(&copy, &head.datagram, payload, sending.mtu) {
                self.make_room(2)?;
                let part = std::iter::once(piece.payload);
                let front = sending.for_socket(piece.head().into());
                if self.batch.push(destination, front, part).is_err() {
                    self.dropped(copies.output, DropReason::EgressError, 1);
                } else if piece.more {
                    self.ledger.pending_piece(copies.output.slot);
                } else {
                    let bytes = copies.cost(&head).bytes;
                    self.ledger.pending(copies.output.slot, 1, bytes);
                }
            }
        }
        Ok(())
    }

    /// Asks the output's limit and the budget how many of the datagrams of `head` pass, and counts the
    /// others.
    #[inline]
    fn admit(&mut self, copies: &Copies<'_, 'p>, head: &Headers, sending: &Sending) -> u32 {
        let CompiledOutput { slot, limit, .. } = copies.output;
        let budget = self.context.budget.filter(|_| sending.unicast);
        if limit.is_none() && budget.is_none() {
            return copies.packets;
        }
        let limiter = Limiter::Slot(Kind::Output, slot.0);
        let limit = limit
            .as_ref()
            .map(|it| (limiter, it, DropReason::RateLimited));
        let budget = budget.map(|it| (Limiter::Budget, it, DropReason::OverBudget));
        let Context { state, now_ns, .. } = self.context;
        let mut cost = copies.cost(head);
        for (limiter, limit, reason) in limit.into_iter().chain(budget) {
            let passed = state.admit(limiter, limit, now_ns, cost);
            if passed < cost.packets {
                self.dropped(copies.output, reason, cost.packets - passed);
                cost = cost.first(passed);
            }
        }
        cost.packets
    }

    /// Makes a copy's headers and finds its socket.
    #[inline]
    fn address(
        &self,
        head: &Headers,
        sending: &Sending,
    ) -> Result<(CopyHeaders, Destination<'p>), DropReason> {
        let to = sending.to(&head.datagram);
        let head = head.copy_for(sending)?;
        let sockets = self.sockets;
        let socket = sockets.iter().find(|(other, _)| *other == sending.way);
        let (_, socket) = socket.ok_or(DropReason::InterfaceMissing)?;
        let destination = Destination {
            socket: socket.as_fd(),
            to,
        };
        Ok((head, destination))
    }

    #[inline]
    fn dropped(&mut self, output: &CompiledOutput, reason: DropReason, packets: u32) {
        self.ledger.dropped(output.slot, reason, packets);
    }

    #[inline]
    fn make_room(&mut self, parts: usize) -> io::Result<()> {
        if self.batch.is_full(parts) {
            return self.submit();
        }
        Ok(())
    }

    #[inline]
    fn submit(&mut self) -> io::Result<()> {
        let results = self.batch.submit()?;
        self.ledger.commit(results, self.context);
        self.clock = Clock::default();
        Ok(())
    }
}

#[inline]
fn route(routes: &[Option<CompiledRoute>], index: u32) -> Option<&CompiledRoute> {
    routes.get(index as usize)?.as_ref()
}
