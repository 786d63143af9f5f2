//! What would become of a packet that arrived now: the reference over a snapshot of the state that decides
//! about packets. Nothing is sent, counted or booked.

use std::collections::BTreeSet;
use std::net::IpAddr;

use compile::table::{
    Egress, LinkHeader, LocalDelivery, Output, OutputState, Path, RateLimit, RateUnit, Route,
    RouteKey, Table, Ttl,
};
use packet::limit::Limit;
use packet::parse::{Link, Meta};
use packet::reference as plain;
use packet::rewrite::TtlChange;
use rules::net::Ifindex;

use crate::Dataplane;
use crate::clock::Clock;
use crate::control::{Control, Memory};
use crate::down::drop_reason;
use crate::limits::{self, Limiter};
use crate::owners::name::{Kind, Name};

/// What would become of a packet.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Its outcome.
    pub outcome: plain::Outcome,
    /// The route that it takes.
    pub route: Option<(RouteKey, Route)>,
    /// Whether the gate of the rule's share is open, where it has one.
    pub open: Option<bool>,
    /// Whether the input that it arrives by is relayed, where the rule fails over between inputs.
    pub active: Option<bool>,
}

/// The packet to explain.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Interface that it would arrive on.
    pub ingress: Ifindex,
    /// The packet, with an Ethernet header.
    pub frame: &'a [u8],
    /// What the kernel would report beside it.
    pub meta: Meta,
    /// Whether a UDP socket of this host is bound to its port.
    pub socket_bound: bool,
}

impl Dataplane {
    /// Explains what would become of a packet. `table` holds at least the routes that it might take, as they
    /// are executed. Merging is not judged: each packet of merged inputs counts as the first.
    #[must_use]
    pub fn explain(&self, table: &Table, asked: Asked<'_>) -> Explained {
        let routes = table.routes.iter();
        let mut reference = plain::Reference {
            routes: routes
                .map(|(key, route)| self.current_route(key, route))
                .collect(),
            own_addresses: plain_own(table),
            ..plain::Reference::default()
        };
        let execute = |reference: &mut plain::Reference, now_ns| {
            let from = (asked.ingress.0, Link::Ethernet);
            reference.execute(
                from,
                asked.frame,
                asked.meta,
                |_| asked.socket_bound,
                now_ns,
            )
        };
        // The route determines which path's clock and budget count.
        let matched = execute(&mut reference.clone(), u64::MAX).route;
        let route = matched.and_then(|index| table.routes.iter().nth(index));
        let mut now_ns = 0;
        if let Some((_, route)) = route {
            reference.budget = match (route.path, &self.kernel, &self.userspace) {
                (Path::Kernel, Some(kernel), _) => {
                    bucket(&kernel.control().memory, Limiter::Budget)
                }
                (Path::Userspace, _, Some(path)) => bucket(&path.control().memory, Limiter::Budget),
                _ => None,
            };
            reference.whole_for_host = route.path == Path::Kernel;
            now_ns = match route.path {
                Path::Kernel => Clock::Kernel.now_ns(),
                Path::Userspace => Clock::Process.now_ns(),
            };
        }
        let outcome = execute(&mut reference, now_ns);
        let taken = matched.map(|index| &reference.routes[index]);
        Explained {
            outcome,
            open: route
                .and_then(|(_, route)| route.share.as_ref().and(taken.map(|it| !it.is_shut))),
            active: route
                .and_then(|(_, route)| route.failover.as_ref().and(taken.map(|it| !it.stands_by))),
            route: route.map(|(key, route)| (*key, route.clone())),
        }
    }

    fn current_route(&self, key: &RouteKey, route: &Route) -> plain::Route {
        let until = route.share.as_deref().map(|share| self.gates.until(share));
        let is_shut = until.is_some_and(|until| until <= sys::clock::boottime_ns());
        let plain = plain_route(key, route, is_shut);
        match (route.path, &self.kernel, &self.userspace) {
            (Path::Kernel, Some(kernel), _) => with_state(kernel.control(), route, plain),
            (Path::Userspace, _, Some(path)) => with_state(path.control(), route, plain),
            _ => plain,
        }
    }
}

/// The route with what is booked on its limits, and with the input that is currently relayed.
fn with_state<M: Memory>(
    control: &Control<M>,
    route: &Route,
    mut plain: plain::Route,
) -> plain::Route {
    let slot = |name: Name<'_>| control.slot(name.kind(), &name.hash());
    let of_slot = |kind, slot: Option<u32>| bucket(&control.memory, Limiter::Slot(kind, slot?));
    let rule = slot(Name::Rule(&route.rule));
    plain.limit = of_slot(Kind::Rule, rule);
    for (output, plain) in route.outputs.iter().zip(&mut plain.outputs) {
        if let plain::Output::Up(egress) = plain {
            egress.limit = of_slot(Kind::Output, slot(Name::output(&route.rule, output)));
        }
    }
    let own = route.input.as_deref();
    let input = own.and_then(|at| slot(Name::Input(&route.rule, at)));
    if let (Some(rule), Some(input), Some(_)) = (rule, input, &route.failover) {
        plain.stands_by = !control.failovers.would_pass(rule, input);
    }
    plain
}

fn bucket(memory: &impl Memory, limiter: Limiter) -> Option<plain::Bucket> {
    let limit = memory.limit(limiter);
    (limit.per_token > 0).then(|| plain::Bucket {
        limit: limits::schedule(&limit),
        bits: limit.bits != 0,
        due_ns: limit.due_ns,
    })
}

/// The addresses that betray a loop, for each interface that packets arrive by.
#[must_use]
pub fn plain_own(table: &Table) -> BTreeSet<(u32, IpAddr)> {
    let mut own = BTreeSet::new();
    for key in table.routes.keys() {
        let addresses = table.own_addresses.addresses.iter().map(|(_, it)| *it);
        let betray = addresses.filter(|it| table.own_addresses.betray(key.ingress, *it));
        own.extend(betray.map(|address| (key.ingress.0, address)));
    }
    own
}

/// Converts a route for the reference: nothing is booked, and of failover inputs the first is relayed.
#[must_use]
pub fn plain_route(key: &RouteKey, route: &Route, is_shut: bool) -> plain::Route {
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
        stands_by: route
            .failover
            .as_ref()
            .is_some_and(|failover| failover.lines.first() != route.input.as_ref()),
        is_shut,
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
        OutputState::Down(reason) => plain::Output::Down(drop_reason(*reason)),
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

/// A limit without bookings.
#[must_use]
pub fn plain_limit(limit: RateLimit) -> plain::Bucket {
    plain::Bucket {
        limit: Limit::new(limit.rate, limit.burst),
        bits: limit.unit == RateUnit::Bits,
        due_ns: 0,
    }
}
