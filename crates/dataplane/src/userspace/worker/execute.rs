//! Executes the table for the packets of a batch: finds each one's route, decides what becomes of it,
//! and stages its copies or counts why there are none.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::diff::BudgetChange;
use model::table::RouteKey;
use packet::datagram::Datagram;
use packet::fragment::{Attribution, Fragment};
use packet::memory::Memory;
use packet::parse::{Meta, Parsed, parse};
use packet::verdict::{DropReason, Verdict};
use sys::packet_socket::VnetHeader;

use super::coalesce::{Matched, Source};
use super::context::Context;
use super::health::Watches;
use super::latency::Samples;
use super::lookup::{Lookup, RouteIndex};
use super::receive::Place;
use super::rewrite::{CompiledRoute, Counts};
use super::send::Sender;
use crate::counters::Traffic;
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::flows::FlowOwner;
use crate::userspace::shared::layout::RuleSlot;
use crate::userspace::shared::limits::{CompiledLimit, Cost, Limiter};
use crate::userspace::shared::messages::TableChange;
use crate::userspace::shared::state::SharedState;

/// Where the kernel path's routes lead to among those of [`ActiveTable`].
const ELSEWHERE: RouteIndex = RouteIndex(u32::MAX);

/// The table as it is executed.
#[derive(Default)]
pub(super) struct ActiveTable {
    indices: BTreeMap<RouteKey, RouteIndex>,
    /// The routes by index.
    pub(super) routes: Vec<Option<CompiledRoute>>,
    free: Vec<u32>,
    lookup: Lookup,
    /// The same without regard to ports, and with the kernel path's, for fragments.
    groups: Lookup,
    /// Keys of the kernel path that take packets of these groups too.
    elsewhere: BTreeSet<RouteKey>,
    own: Vec<IpAddr>,
    /// Cap on what all unicast outputs send together.
    pub(super) budget: Option<CompiledLimit>,
    /// Packets that wait together may leave as one.
    coalesces: bool,
}

/// A packet to execute the table for.
pub(super) struct Packet {
    /// Its frame, so many behind the head.
    pub(super) frame: u32,
    /// Where it lies.
    pub(super) place: Place,
    /// What the kernel says of it.
    pub(super) meta: Meta,
    /// The same, as it says it.
    pub(super) vnet: VnetHeader,
    /// Bytes of the packet of which only the beginning is there.
    pub(super) whole_length: Option<usize>,
}

/// What a batch came to, beside what its rules count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BatchCounts {
    /// Datagrams seen.
    pub(super) received: u64,
    /// Datagrams that took a route.
    pub(super) matched: u64,
    /// Of those, datagrams whose end there was no room for.
    pub(super) lost: u64,
    /// Datagrams beyond the first of each packet.
    pub(super) hidden: u64,
}

impl ActiveTable {
    /// An empty table.
    pub(super) fn new(coalesces: bool) -> Self {
        Self {
            coalesces,
            ..Self::default()
        }
    }

    /// What packets of `source` are executed in.
    #[inline]
    pub(super) fn context<'a>(
        &'a self,
        source: Source<'a>,
        (counters, state): (&'a SharedCounters, &'a SharedState),
        now_ns: u64,
    ) -> Context<'a> {
        Context {
            source,
            routes: &self.routes,
            counters,
            state,
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
        (fragments, watches, samples): (&mut Memory, &mut Watches, &mut Samples),
        counts: &mut BatchCounts,
    ) {
        let Source { tap, large } = context.source;
        let bytes = tap.bytes(large, packet.place);
        let (mut datagram, found, several) = match parse(bytes, tap.link(), packet.meta) {
            Parsed::Udp(datagram) => (datagram, self.find(tap.interface, &datagram), false),
            Parsed::Fragment(fragment) => {
                let attributed = self.attribute(&fragment, tap.interface, fragments);
                let Some((datagram, found, several)) = attributed else {
                    counts.received += 1;
                    return;
                };
                (datagram, found, several)
            }
            Parsed::NotOurs(_) => {
                counts.received += 1;
                return;
            }
        };
        if let Some(length) = packet.whole_length {
            datagram.present = length;
        }
        let packets = u64::from(datagram.packets());
        counts.received += packets;
        let Some((index, route)) = found.and_then(|index| {
            let route = self.routes.get(index.0 as usize)?.as_ref()?;
            Some((index, route))
        }) else {
            return;
        };
        counts.matched += packets;
        if let Some(owner) = route.flows {
            count_flow(context.counters, owner, &datagram);
        }
        let verdict = if datagram.defect(bytes).is_some() {
            Verdict::Dropped(DropReason::Malformed)
        } else if self.own.contains(&datagram.source) {
            Verdict::Dropped(DropReason::OwnSource)
        } else if several {
            Verdict::Dropped(DropReason::FragmentUnknown)
        } else if packet.whole_length.is_some() {
            counts.lost += packets;
            Verdict::Dropped(DropReason::BufferExhausted)
        } else if route.stands_by(context) {
            Verdict::Dropped(DropReason::Standby)
        } else if route.is_over_limit(&datagram, context) {
            Verdict::Dropped(DropReason::RateLimited)
        } else {
            Verdict::Forwarded
        };
        if route.is_watched {
            watches.observe(index.0, (&datagram, bytes), verdict, context.now_ns);
        }
        match verdict {
            Verdict::Forwarded | Verdict::Passed => {
                if samples.is_due() {
                    samples.pick(route.counts.rule, tap.received_ns(packet.frame));
                }
                sender.stage(
                    &Matched {
                        route: index.0,
                        coalesce: route.coalesce && !(route.unicast && self.budget.is_some()),
                        place: packet.place,
                        bytes,
                        datagram: &datagram,
                        vnet: packet.vnet,
                    },
                    context,
                );
            }
            Verdict::Dropped(reason) => {
                let bytes = datagram.payload_bytes() as u64;
                drop_packet(context, route.counts, reason, (packets, bytes));
            }
        }
    }

    #[inline]
    fn find(&self, interface: u32, datagram: &Datagram) -> Option<RouteIndex> {
        let (group, port) = (datagram.destination, datagram.destination_port);
        self.lookup.find(interface, group, port, datagram.source)
    }

    /// Finds a fragment's route: by its datagram's ports where they are known, else by its group;
    /// `true` with one that another rule might take as well, on either path. `None` if no rule has
    /// the group; one that the kernel path judges leads to no route.
    #[cold]
    fn attribute(
        &self,
        fragment: &Fragment,
        interface: u32,
        memory: &mut Memory,
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
        let (index, _) = first.filter(|_| mine)?;
        match fragment.attribute(memory, interface, sys::clock::monotonic_ns())? {
            Attribution::Known(datagram) => {
                Some((datagram, self.find(interface, &datagram), false))
            }
            Attribution::Orphan(datagram) => Some((datagram, Some(index), several)),
        }
    }

    /// Applies a change. Not hot: it allocates, and rebuilds the lookup.
    pub(super) fn change(&mut self, change: TableChange, watches: &mut Watches) {
        for key in &change.removed {
            if let Some(index) = self.indices.get(key) {
                watches.end(index.0);
            }
            self.remove(key);
        }
        for (key, counted) in &change.set {
            let route = CompiledRoute::compile(key, counted, self.coalesces);
            let index = self.insert(*key, route);
            watches.begin(index, key, counted);
        }
        self.own
            .retain(|address| !change.own_removed.contains(address));
        self.own.extend(change.own_added);
        let keys = self.indices.iter().map(|(key, index)| (*index, key));
        self.lookup = Lookup::build(keys.clone());
        for key in &change.elsewhere_removed {
            self.elsewhere.remove(key);
        }
        self.elsewhere.extend(change.elsewhere_added);
        let elsewhere = self.elsewhere.iter().map(|key| (ELSEWHERE, key));
        self.groups = Lookup::build_groups(keys.chain(elsewhere));
        if let Some(BudgetChange(budget)) = change.budget {
            self.budget = budget.as_ref().map(CompiledLimit::compile);
        }
    }

    fn insert(&mut self, key: RouteKey, route: CompiledRoute) -> u32 {
        let index = *self.indices.entry(key).or_insert_with(|| {
            let index = self.free.pop().unwrap_or_else(|| {
                self.routes.push(None);
                self.routes.len() as u32 - 1
            });
            RouteIndex(index)
        });
        self.routes[index.0 as usize] = Some(route);
        index.0
    }

    fn remove(&mut self, key: &RouteKey) {
        if let Some(index) = self.indices.remove(key) {
            self.routes[index.0 as usize] = None;
            self.free.push(index.0);
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

    #[inline]
    fn is_over_limit(&self, datagram: &Datagram, context: Context<'_>) -> bool {
        let Some(limit) = &self.limit else {
            return false;
        };
        let cost = Cost {
            packets: datagram.packets(),
            bytes: datagram.payload_bytes() as u32,
        };
        let limiter = Limiter::Rule(self.counts.rule);
        !context.state.admit(limiter, limit, context.now_ns, cost)
    }
}

/// A fragment whose port is not known belongs to no flow.
#[cold]
fn count_flow(counters: &SharedCounters, owner: FlowOwner, datagram: &Datagram) {
    let (group, port) = (datagram.destination, datagram.destination_port);
    if port != 0 {
        let bytes = datagram.payload_bytes() as u64;
        let received = Traffic::new(datagram.packets().into(), bytes);
        counters.record_flow(owner, (group, port), received);
    }
}

fn drop_packet(
    context: Context<'_>,
    counts: Counts,
    reason: DropReason,
    (packets, bytes): (u64, u64),
) {
    counts.received(context.counters, context.passed(packets, bytes));
    context.counters.rule_dropped(counts.rule, reason, packets);
    if let (DropReason::Standby, Some(input)) = (reason, counts.input) {
        context.counters.input_dropped(input, reason, packets);
    }
}
