//! Executes the table for the packets of a batch: finds each one's route, decides on its verdict, and stages
//! its copies or counts why there are none.

use std::io;
use std::net::{IpAddr, SocketAddr};

use packet::datagram::Datagram;
use packet::fragment::{Attribution, Fragment};
use packet::fragment_cache::FragmentCache;
use packet::parse::{Link, Meta, Parsed, parse};
use packet::verdict::{DropReason, Verdict};
use sys::packet_socket::VnetHeader;

use super::Shared;
use super::answer::{self, Answer};
use super::coalesce::{Matched, Source};
use super::context::{Clock, Context};
use super::health::Watches;
use super::latency::Samples;
use super::lookup::RouteIndex;
use super::merge::{self, Judge};
use super::receive::BufferSlot;
use super::rewrite::{CompiledRoute, Counts};
use super::segments::Segments;
use super::send::Sender;
use super::table::ActiveTable;
use crate::counters::Traffic;
use crate::limits::Limiter;
use crate::owners::name::Kind;
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::flows::FlowOwner;
use crate::userspace::shared::layout::RuleSlot;
use crate::userspace::shared::limits::Cost;

/// A packet to execute the table for.
pub(super) struct Packet {
    /// Its frame, counted from the head.
    pub(super) frame: u32,
    /// Its buffer.
    pub(super) slot: BufferSlot,
    /// Its link header.
    pub(super) link: Link,
    /// What the kernel reports of it.
    pub(super) meta: Meta,
    /// The same, as the kernel encodes it.
    pub(super) vnet: VnetHeader,
    /// Length of the whole packet, where only its beginning is present.
    pub(super) whole_length: Option<usize>,
}

/// A parsed packet.
struct Read {
    datagram: Datagram,
    /// The route that takes it.
    route: Option<RouteIndex>,
    /// Whether it is a fragment that another rule might take as well.
    is_unknown: bool,
    /// Which fragment it is, and of which interface.
    piece: Option<(u32, Fragment)>,
}

/// A super-packet of a merged rule, its route and its judge.
type SuperPacket<'a> = (
    &'a Packet,
    (&'a Datagram, &'a [u8]),
    (RouteIndex, &'a CompiledRoute, Judge<'a>),
);

/// The counts of a batch, beside what its rules count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BatchCounts {
    /// Datagrams seen.
    pub(super) received: u64,
    /// Datagrams that took a route.
    pub(super) matched: u64,
    /// Of those, datagrams that there was no room to receive whole.
    pub(super) lost: u64,
    /// Datagrams beyond the first of each packet.
    pub(super) hidden: u64,
    /// When the first packet of a share was judged, by the clock of gates.
    pub(super) clock: Clock,
    /// The same for merged rules, by the clock of merges.
    pub(super) merging: Clock,
}

impl ActiveTable {
    /// The context in which packets of `source` are executed.
    #[inline]
    pub(super) fn context<'a>(
        &'a self,
        source: Source<'a>,
        shared: &'a Shared,
        now_ns: u64,
    ) -> Context<'a> {
        Context {
            source,
            routes: &self.routes,
            counters: &shared.counters,
            relieved_before: shared.relieved_before,
            state: &shared.state,
            merges: &shared.merges,
            gates: &shared.gates,
            sockets: shared.sockets.as_ref(),
            budget: self.budget.as_ref(),
            now_ns,
        }
    }

    /// Executes the table for one packet.
    #[inline]
    pub(super) fn execute(
        &self,
        sender: &mut Sender,
        context: Context<'_>,
        packet: Packet,
        (fragments, watches, samples): (&mut FragmentCache, &mut Watches, &mut Samples),
        counts: &mut BatchCounts,
    ) -> io::Result<()> {
        let Source { tap, large } = context.source;
        let bytes = tap.bytes(large, packet.slot);
        let Some(read) = self.read(bytes, (&packet, tap.interface), fragments, counts) else {
            return Ok(());
        };
        let datagram = read.datagram;
        let packets = u64::from(datagram.packets());
        let mut matched = read
            .route
            .and_then(|index| Some((index, self.route(index)?)));
        let mut answer = None;
        if matched.is_none() && self.answered {
            answer = self.answer(&datagram, context);
            matched = answer.as_ref().map(|answer| (answer.index, answer.route));
        }
        let Some((index, route)) = matched.filter(|it| context.takes(it.1, packet.frame)) else {
            return Ok(());
        };
        counts.matched += packets;
        if let Some(owner) = route.flows {
            count_flow(context.counters, owner, &datagram);
        }
        let verdict = if datagram.defect(bytes).is_some() {
            Verdict::Dropped(DropReason::Malformed)
        } else if self.betrays(tap.interface, datagram.source) && !packet.link.is_looped(bytes) {
            Verdict::Dropped(DropReason::OwnSource)
        } else if read.is_unknown {
            Verdict::Dropped(DropReason::FragmentUnknown)
        } else if packet.whole_length.is_some() {
            counts.lost += packets;
            Verdict::Dropped(DropReason::BufferExhausted)
        } else if route.stands_by(context) {
            Verdict::Dropped(DropReason::Standby)
        } else if let Some(line) = route.merge.filter(|_| answer.is_none()) {
            let arrived_ns = context.arrived_ns(packet.frame, &mut counts.merging);
            let line = Judge::of(line, context.merges, arrived_ns);
            if datagram.gso.is_some() {
                let taken = (&packet, (&datagram, bytes), (index, route, line));
                let clock = &mut counts.clock;
                return self.execute_segments(sender, context, taken, (watches, samples, clock));
            }
            let whole = (&datagram, packet.vnet, bytes);
            line.verdict(whole, (fragments, read.piece))
        } else {
            Verdict::Forwarded
        };
        let bytes_in = datagram.payload_bytes();
        let cost = || Cost {
            packets: datagram.packets(),
            bytes: bytes_in as u32,
            size: datagram.segment_bytes() as u32,
        };
        let is_shut = verdict == Verdict::Forwarded
            && context.is_shut(route, packet.frame, &mut counts.clock);
        let (verdict, passed) = route.limited((verdict, is_shut), cost, context);
        if let Some(subject) = route.subject {
            let payload = merge::payload(&datagram, bytes);
            watches.observe(subject, (&datagram, payload), verdict, context.now_ns);
        }
        match standing_by(verdict, is_shut) {
            Verdict::Forwarded | Verdict::Passed => {
                if samples.is_due() {
                    samples.pick(route.counts.rule, tap.received_ns(packet.frame));
                }
                let matched = self.matched((index, route), &packet, (&datagram, bytes));
                return forward(sender, &matched, route, (answer.as_ref(), passed), context);
            }
            Verdict::Dropped(reason) => {
                context.drop_packet(route.counts, reason, (packets, bytes_in as u64));
            }
        }
        Ok(())
    }

    /// Parses a packet and finds the route that takes it; `None` if no rule is concerned.
    #[inline]
    fn read(
        &self,
        bytes: &[u8],
        (packet, interface): (&Packet, u32),
        fragments: &mut FragmentCache,
        counts: &mut BatchCounts,
    ) -> Option<Read> {
        let mut piece = None;
        let (mut datagram, route, is_unknown) = match parse(bytes, packet.link, packet.meta) {
            Parsed::Udp(datagram) => (datagram, self.find(interface, &datagram), false),
            Parsed::Fragment(fragment) => {
                let Some(attributed) = self.attribute(&fragment, interface, fragments) else {
                    counts.received += 1;
                    return None;
                };
                piece = Some((interface, fragment));
                attributed
            }
            Parsed::NotOurs(_) => {
                counts.received += 1;
                return None;
            }
        };
        if let Some(length) = packet.whole_length {
            datagram.present = length;
        }
        counts.received += u64::from(datagram.packets());
        Some(Read {
            datagram,
            route,
            is_unknown,
            piece,
        })
    }

    /// Executes the table for the segments of a super-packet of a merged rule, each by itself. If all pass,
    /// they leave together.
    #[cold]
    fn execute_segments(
        &self,
        sender: &mut Sender,
        context: Context<'_>,
        (packet, (datagram, bytes), (index, route, line)): SuperPacket<'_>,
        (watches, samples, clock): (&mut Watches, &mut Samples, &mut Clock),
    ) -> io::Result<()> {
        let is_shut = context.is_shut(route, packet.frame, clock);
        let payload = merge::payload(datagram, bytes);
        let size = datagram.segment_bytes();
        let matched = self.matched((index, route), packet, (datagram, bytes));
        line.each_run((datagram, payload, size), |part, verdict| {
            let cost = || Cost {
                packets: part.count,
                bytes: part.bytes as u32,
                size: size as u32,
            };
            let is_shut = is_shut && verdict == Verdict::Forwarded;
            let (verdict, passed) = route.limited((verdict, is_shut), cost, context);
            if let Some(subject) = route.subject {
                let payload = payload.get(part.offset..part.offset + part.bytes);
                let payload = payload.unwrap_or_default();
                watches.observe(subject, (datagram, payload), verdict, context.now_ns);
            }
            if let Verdict::Dropped(reason) = standing_by(verdict, is_shut) {
                let dropped = (u64::from(part.count), part.bytes as u64);
                context.drop_packet(route.counts, reason, dropped);
                return Ok(());
            }
            if samples.is_due() {
                let received_ns = context.source.tap.received_ns(packet.frame);
                samples.pick(route.counts.rule, received_ns);
            }
            let mut part = part;
            if let Some(passed) = passed {
                let (first, rest) = part.split(passed, size);
                drop_segments(context, route.counts, rest);
                part = first;
            }
            if part.count == datagram.packets() {
                sender.stage(&matched, context);
                return Ok(());
            }
            sender.stage_part(&matched, part, context)
        })
    }

    #[inline]
    fn matched<'p>(
        &self,
        (index, route): (RouteIndex, &CompiledRoute),
        packet: &Packet,
        (datagram, bytes): (&'p Datagram, &'p [u8]),
    ) -> Matched<'p> {
        Matched {
            route: index.0,
            coalesce: route.coalesce && !(route.unicast && self.budget.is_some()),
            slot: packet.slot,
            bytes,
            datagram,
            vnet: packet.vnet,
        }
    }

    #[inline]
    pub(super) fn route(&self, index: RouteIndex) -> Option<&CompiledRoute> {
        self.routes.get(index.0 as usize)?.as_ref()
    }

    /// Finds the route of what is sent to a group or an address and port.
    #[inline]
    pub(super) fn find_to(
        &self,
        interface: u32,
        to: SocketAddr,
        source: IpAddr,
    ) -> Option<RouteIndex> {
        self.lookup.find(interface, to.ip(), to.port(), source)
    }

    #[inline]
    fn find(&self, interface: u32, datagram: &Datagram) -> Option<RouteIndex> {
        let to = SocketAddr::new(datagram.destination, datagram.destination_port);
        self.find_to(interface, to, datagram.source)
    }

    /// Finds a fragment's route: by its datagram's ports where they are known, else by its group; `true` if
    /// another rule might take it as well, on either path. `None` if no rule has the group; a fragment that
    /// the kernel path judges has no route here.
    #[cold]
    fn attribute(
        &self,
        fragment: &Fragment,
        interface: u32,
        memory: &mut FragmentCache,
    ) -> Option<(Datagram, Option<RouteIndex>, bool)> {
        let mut first: Option<(RouteIndex, Option<RuleSlot>)> = None;
        let (mut mine, mut several) = (false, false);
        let addresses = (fragment.key.destination, fragment.key.source);
        self.groups.by_group(interface, addresses, |index| {
            let route = self.routes.get(index.0 as usize).and_then(Option::as_ref);
            let own = route.map(|route| route.counts.rule);
            let (_, rule) = *first.get_or_insert((index, own));
            mine |= own.is_some();
            several |= rule != own;
        });
        // Other ports of this host's addresses belong to no rule here.
        several |= !fragment.key.destination.is_multicast();
        let (index, _) = first.filter(|_| mine)?;
        match fragment.attribute(memory, interface, sys::clock::monotonic_ns())? {
            Attribution::Known(datagram) => {
                Some((datagram, self.find(interface, &datagram), false))
            }
            Attribution::Orphan(datagram) => Some((datagram, Some(index), several)),
        }
    }
}

impl CompiledRoute {
    #[inline]
    fn stands_by(&self, context: Context<'_>) -> bool {
        let (Some(failover), Some(input)) = (&self.failover, self.counts.input) else {
            return false;
        };
        let line = (self.counts.rule, input);
        !context.state.passes(line, failover, context.now_ns)
    }

    /// Applies the rule's limit to packets that would pass, unless their gate is shut; returns the verdict, and
    /// how many pass of a super-packet that does not pass whole.
    #[inline]
    fn limited(
        &self,
        (verdict, is_shut): (Verdict, bool),
        cost: impl FnOnce() -> Cost,
        context: Context<'_>,
    ) -> (Verdict, Option<u32>) {
        let (Some(limit), Verdict::Forwarded, false) = (&self.limit, verdict, is_shut) else {
            return (verdict, None);
        };
        let limiter = Limiter::Slot(Kind::Rule, self.counts.rule.0);
        let cost = cost();
        match context.state.admit(limiter, limit, context.now_ns, cost) {
            0 => (Verdict::Dropped(DropReason::RateLimited), None),
            passed => (verdict, (passed < cost.packets).then_some(passed)),
        }
    }
}

/// Stages the copies of a packet that passes; of a super-packet only the first `passed`, where a limit
/// applies.
#[inline]
fn forward(
    sender: &mut Sender,
    matched: &Matched<'_>,
    route: &CompiledRoute,
    (answer, passed): (Option<&Answer<'_>>, Option<u32>),
    context: Context<'_>,
) -> io::Result<()> {
    if let Some(answer) = answer {
        return sender.send_answer(matched, &answer.output, context);
    }
    let datagram = matched.datagram;
    if let Some(passed) = passed {
        let all = Segments {
            count: datagram.packets(),
            bytes: datagram.payload_bytes(),
            ..Segments::default()
        };
        let (first, rest) = all.split(passed, datagram.segment_bytes());
        drop_segments(context, route.counts, rest);
        return sender.stage_part(matched, first, context);
    }
    if route.answered {
        answer::note_question(route, matched, context);
    }
    sender.stage(matched, context);
    Ok(())
}

/// The verdict on packets that would pass but for their gate: inspection of the stream continues.
#[inline]
const fn standing_by(verdict: Verdict, is_shut: bool) -> Verdict {
    if is_shut {
        Verdict::Dropped(DropReason::Standby)
    } else {
        verdict
    }
}

/// Counts a packet for its flow; a fragment whose port is unknown belongs to none.
#[cold]
fn count_flow(counters: &SharedCounters, owner: FlowOwner, datagram: &Datagram) {
    let (group, port) = (datagram.destination, datagram.destination_port);
    if port != 0 {
        let bytes = datagram.payload_bytes() as u64;
        let received = Traffic::new(datagram.packets().into(), bytes);
        counters.record_flow(owner, (group, port), received);
    }
}

/// Counts the segments of a super-packet that a rule's limit refuses.
#[cold]
fn drop_segments(context: Context<'_>, counts: Counts, rest: Segments) {
    let dropped = (rest.count.into(), rest.bytes as u64);
    context.drop_packet(counts, DropReason::RateLimited, dropped);
}
