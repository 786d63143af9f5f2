//! `packet`'s reference as an executor of the table.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Instant;

use compile::table::{
    DownReason, Egress, LinkHeader, LocalDelivery, Output, OutputState, RateLimit, RateUnit, Route,
    RouteKey, Table, Ttl,
};
use packet::limit::Limit;
use packet::memory::Memory;
use packet::parse::Link;
use packet::reference as plain;
use packet::rewrite::TtlChange;
use packet::verdict::{DropReason, Verdict};
use rules::net::Ifindex;

use crate::case::{Expected, OPEN, Outlet, Packet};

/// One clock for all references, so that a memory can go from one to the next.
static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The reference with the names that its counters stand under.
pub(crate) struct Reference {
    table: plain::Reference,
    /// Per route.
    names: Vec<Names>,
    started: Instant,
}

/// Where a route's packets are counted.
struct Names {
    rule: String,
    input: Option<String>,
    /// The index of each output.
    outputs: Vec<u32>,
}

impl Reference {
    pub(crate) fn of(table: &Table) -> Self {
        Self::remembering(table, Memory::default())
    }

    /// The same, with what earlier first fragments said.
    pub(crate) fn remembering(table: &Table, memory: Memory) -> Self {
        let routes = table.routes.iter();
        Self {
            table: plain::Reference {
                routes: routes
                    .clone()
                    .map(|(key, route)| plain_route(key, route))
                    .collect(),
                own_addresses: table.own_addresses.clone(),
                fragments: memory,
                budget: table.budget.map(plain_limit),
                whole_for_host: false,
            },
            names: routes
                .map(|(_, route)| Names {
                    rule: route.rule.clone(),
                    input: route.input.clone(),
                    outputs: route.outputs.iter().map(|output| output.index).collect(),
                })
                .collect(),
            started: *STARTED,
        }
    }

    /// The same where what the host takes too is not cut, as on the kernel path.
    pub(crate) fn whole_for_host(mut self, whole: bool) -> Self {
        self.table.whole_for_host = whole;
        self
    }

    /// What first fragments said.
    pub(crate) fn into_memory(self) -> Memory {
        self.table.fragments
    }

    pub(crate) fn execute(
        &mut self,
        ingress: Ifindex,
        packet: &Packet,
        socket_bound: impl Fn(u16) -> bool,
    ) -> Expected {
        let outcome = self.table.execute(
            (ingress.0, Link::Ethernet),
            &packet.frame,
            packet.meta,
            socket_bound,
            u64::try_from(self.started.elapsed().as_nanos()).expect("not for centuries"),
        );
        let names = outcome.route.map(|route| &self.names[route]);
        let mut copies = outcome.copies.into_iter();
        let outlets = outcome.outputs.iter().map(|verdict| match verdict {
            Verdict::Dropped(reason) => Outlet::Dropped(*reason),
            _ => {
                let copy = copies.next().expect("a copy per forwarded output");
                if copy.packets < outcome.packets {
                    return Outlet::First {
                        interface: Ifindex(copy.interface),
                        frame: copy.frame,
                        packets: copy.packets,
                        bytes: copy.bytes,
                        rest: copy.rest,
                    };
                }
                Outlet::Sent {
                    interface: Ifindex(copy.interface),
                    frame: copy.frame,
                }
            }
        });
        let outputs: BTreeMap<u32, Outlet> = match names {
            Some(names) => names.outputs.iter().copied().zip(outlets).collect(),
            None => BTreeMap::new(),
        };
        Expected {
            verdict: outcome.verdict,
            rule: names.map(|names| names.rule.clone()),
            input: names.and_then(|names| names.input.clone()),
            passed_up: outcome.passed_up,
            packets: outcome.packets,
            bytes: outcome.bytes,
            limited: outcome.limited,
            outputs,
        }
    }
}

fn plain_route(key: &RouteKey, route: &Route) -> plain::Route {
    plain::Route {
        rule: route.rule.clone(),
        ingress: key.ingress.0,
        groups: (key.groups.address, key.groups.length),
        ports: (key.ports.first, key.ports.last),
        source: key.source.map(|source| (source.address, source.length)),
        local: match route.local {
            LocalDelivery::Auto => plain::Local::Auto,
            LocalDelivery::Yes => plain::Local::Yes,
            LocalDelivery::No => plain::Local::No,
        },
        // The first line is the active one from the start.
        stands_by: { route.failover.as_ref() }
            .is_some_and(|failover| failover.lines.first() != route.input.as_ref()),
        is_shut: route.share.as_deref().is_some_and(|share| share != OPEN),
        limit: route.limit.map(plain_limit),
        outputs: route.outputs.iter().map(plain_output).collect(),
    }
}

fn plain_output(output: &Output) -> plain::Output {
    match &output.state {
        OutputState::Up(egress) => plain::Output::Up(plain::Egress {
            limit: output.limit.map(plain_limit),
            ..plain_egress(egress)
        }),
        OutputState::Down(reason) => plain::Output::Down(match reason {
            DownReason::InterfaceMissing => DropReason::InterfaceMissing,
            DownReason::InterfaceDown => DropReason::InterfaceDown,
            DownReason::NoAddress => DropReason::NoAddress,
            DownReason::NoRoute => DropReason::NoRoute,
            DownReason::NoNeighbour => DropReason::NoNeighbour,
            DownReason::NotWanted => DropReason::NotWanted,
            DownReason::IpsecPolicy => DropReason::IpsecPolicy,
        }),
    }
}

fn plain_egress(egress: &Egress) -> plain::Egress {
    plain::Egress {
        interface: egress.interface.0,
        mtu: egress.mtu,
        destination: (egress.destination.address, egress.destination.length),
        ports: (egress.ports.first, egress.ports.last),
        source: egress.source,
        source_port: egress.source_port,
        ttl: match egress.ttl {
            Ttl::Keep => TtlChange::Keep,
            Ttl::Decrement => TtlChange::Decrement,
            Ttl::Set(ttl) => TtlChange::Set(ttl),
        },
        dscp: egress.dscp,
        link: match egress.link {
            LinkHeader::Group { source } => plain::LinkTo::Group { source: source.0 },
            LinkHeader::Neighbour {
                source,
                destination,
            } => plain::LinkTo::Neighbour {
                source: source.0,
                destination: destination.0,
            },
            LinkHeader::None | LinkHeader::Host | LinkHeader::Routed { .. } => plain::LinkTo::Bare,
        },
        limit: None,
    }
}

fn plain_limit(limit: RateLimit) -> plain::Bucket {
    plain::Bucket {
        limit: Limit::new(limit.rate, limit.burst),
        bits: limit.unit == RateUnit::Bits,
        due_ns: 0,
    }
}
