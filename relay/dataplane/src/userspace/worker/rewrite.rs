//! Routes as the worker executes them. Everything that does not depend on the packet is computed when the
//! table changes: a copy is then the packet's rewritten headers (`headers`), followed by its payload.

use std::net::{IpAddr, SocketAddr};

use bpf::layout::{Failover, Limit};
use compile::table::{Egress, LinkHeader, Output, OutputState, RouteKey, Ttl};
use packet::datagram::Datagram;
use packet::ethernet;
use packet::rewrite::{LinkChange, Rewrite, TtlChange};
use packet::verdict::DropReason;
use rules::net::{Mac, Ports, Prefix};
use sys::packet_socket::VNET_HEADER;
use sys::routed_socket::SocketKind;
use sys::uring::{Head, To};

use super::health::Subject;
use crate::counters::Traffic;
use crate::down::drop_reason;
use crate::limits;
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::flows::FlowOwner;
use crate::userspace::shared::layout::{InputSlot, OutputSlot, RuleSlot};
use crate::userspace::shared::messages::{CountedRoute, MergeLeg, Turn, Way};
use crate::userspace::shared::requesters::{AnswerEnd, Requester};

/// A route, ready to execute.
#[derive(Clone, Debug)]
pub(super) struct CompiledRoute {
    /// Its rule's and its input's counters.
    pub counts: Counts,
    /// Cap on what the rule accepts.
    pub limit: Option<Limit>,
    /// How the rule fails over between its inputs, if it does.
    pub failover: Option<Failover>,
    /// Its leg, where its rule merges.
    pub merge: Option<MergeLeg>,
    /// The gate that its packets pass by.
    pub gate: Option<u16>,
    /// Which packets it takes, while it changes paths.
    pub turn: Option<Turn>,
    /// Whether packets may leave coalesced: not where outputs judge each of them.
    pub coalesce: bool,
    /// What is watched when packets are inspected for the stream's health.
    pub subject: Option<Subject>,
    /// Whether the budget applies to an output.
    pub unicast: bool,
    /// The owner of the flows that are counted; only for a range.
    pub flows: Option<FlowOwner>,
    /// Whether copies of some output are answered.
    pub answered: bool,
    /// Its outputs, in the rule's order.
    pub outputs: Box<[CompiledOutput]>,
}

/// The slots that packets are counted in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// The rule.
    pub rule: RuleSlot,
    /// The input, where the rule has several.
    pub input: Option<InputSlot>,
}

impl Counts {
    /// Counts datagrams that were received.
    #[inline]
    pub(super) fn received(self, counters: &SharedCounters, received: Traffic) {
        counters.rule_received(self.rule, received);
        if let Some(input) = self.input {
            counters.input_received(input, received);
        }
    }
}

/// One output.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompiledOutput {
    /// Its counters.
    pub slot: OutputSlot,
    /// Cap on what it sends.
    pub limit: Option<Limit>,
    /// How its copies are treated.
    pub action: Action,
}

/// How an output's copies are treated.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// They are dropped.
    Drop(DropReason),
    /// They are sent.
    Send(Sending),
}

/// How an output's copies are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    /// How they leave.
    pub way: Way,
    /// The interface's MTU in bytes.
    pub(super) mtu: usize,
    /// Whether copies above it are cut where that is allowed.
    pub(super) fragment: bool,
    /// Whether the budget applies.
    pub(super) unicast: bool,
    /// Whether answers to the copies are returned to the packets' senders.
    answers: bool,
    /// Whether answers to requesters there are sent by a socket.
    answers_by_socket: bool,
    /// The next hop of [`Way::Framed`], where it is not a group's address.
    neighbour: Option<Mac>,
    /// Interface that [`Way::Routed`] has to use; 0 for any.
    pub(super) by: u32,
    /// Whether it selects the source too.
    pub(super) finds_source: bool,
    change: Rewrite,
    /// For ranges: how each packet's own destination is computed.
    range: Option<Range>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    destination: Prefix,
    ports: Ports,
    /// The route's.
    from: (Prefix, Ports),
    group_mac: bool,
}

impl CompiledRoute {
    /// Computes what does not depend on packets.
    #[must_use]
    pub(super) fn compile(
        (index, key): (u32, &RouteKey),
        counted: &CountedRoute,
        coalesces: bool,
    ) -> Self {
        let route = &counted.route;
        let slots = route.outputs.iter().zip(&counted.outputs);
        let outputs = slots.map(|(output, slot)| CompiledOutput {
            slot: *slot,
            limit: output.limit.map(limits::new),
            action: compile_output(key, output),
        });
        Self {
            counts: Counts {
                rule: counted.rule,
                input: counted.input,
            },
            limit: route.limit.map(limits::new),
            failover: counted.failover(),
            merge: counted.leg,
            gate: counted.gate,
            turn: counted.turn,
            coalesce: coalesces && route.outputs.iter().all(takes_coalesced),
            subject: counted.inspect().map(|_| Subject::of(index, counted)),
            unicast: route.outputs.iter().any(is_unicast),
            flows: Some(counted.flows).filter(|_| is_range(key)),
            answered: route.is_answered(),
            outputs: outputs.collect(),
        }
    }
}

fn is_range(key: &RouteKey) -> bool {
    let is_one_sender = key.source.is_none_or(Prefix::is_host);
    !key.groups.is_host() || !key.ports.is_single() || !is_one_sender
}

fn takes_coalesced(output: &Output) -> bool {
    let cuts = matches!(&output.state, OutputState::Up(egress) if egress.fragment);
    output.limit.is_none() && !cuts
}

fn is_unicast(output: &Output) -> bool {
    matches!(&output.state, OutputState::Up(egress) if !egress.destination.address.is_multicast())
}

fn compile_output(key: &RouteKey, output: &Output) -> Action {
    match &output.state {
        OutputState::Down(reason) => Action::Drop(drop_reason(*reason)),
        OutputState::Up(egress) => Action::Send(Sending {
            way: Way::of(egress),
            mtu: egress.mtu as usize,
            fragment: egress.fragment,
            unicast: is_unicast(output),
            answers: egress.answers,
            answers_by_socket: egress.answers_by_socket,
            neighbour: match egress.link {
                LinkHeader::Neighbour { destination, .. } => Some(destination),
                _ => None,
            },
            by: match egress.link {
                LinkHeader::Routed { by, .. } => by.map_or(0, |link| link.0),
                _ => 0,
            },
            finds_source: matches!(
                egress.link,
                LinkHeader::Routed {
                    finds_source: true,
                    ..
                }
            ),
            change: Rewrite {
                source: egress.source,
                destination: egress.destination.address,
                source_port: egress.source_port,
                destination_port: egress.ports.first,
                ttl: match egress.ttl {
                    Ttl::Keep => TtlChange::Keep,
                    Ttl::Decrement => TtlChange::Decrement,
                    Ttl::Set(ttl) => TtlChange::Set(ttl),
                },
                dscp: egress.dscp,
                link: link_change(egress),
            },
            range: range(key, egress),
        }),
    }
}

fn link_change(egress: &Egress) -> LinkChange {
    let (source, destination) = match egress.link {
        LinkHeader::None | LinkHeader::Host | LinkHeader::Routed { .. } => {
            return LinkChange::None;
        }
        LinkHeader::Group { source } => (source, Mac::of_group(egress.destination.address)),
        LinkHeader::Neighbour {
            source,
            destination,
        } => (source, destination),
    };
    if egress.framed {
        return LinkChange::None;
    }
    LinkChange::Ethernet {
        source: source.0,
        destination: destination.0,
    }
}

fn range(key: &RouteKey, egress: &Egress) -> Option<Range> {
    let single = egress.destination.is_host() && egress.ports.is_single();
    (!single).then_some(Range {
        destination: egress.destination,
        ports: egress.ports,
        from: (key.groups, key.ports),
        group_mac: matches!(egress.link, LinkHeader::Group { .. }),
    })
}

impl Sending {
    /// Where answers to the copies of a packet from that port arrive, if they are taken.
    pub(super) fn answered_at(&self, port: u16) -> Option<AnswerEnd> {
        let interface = self.way.interface()?;
        let own = self.change.source.filter(|_| self.answers)?;
        let to = SocketAddr::new(own, port);
        Some(AnswerEnd { interface, to })
    }

    /// How an answer is sent to the requester, with its own source; `None` if the output does not lead there.
    pub(super) fn for_requester(&self, requester: &Requester) -> Option<Self> {
        if !self.answers || self.way.interface() != Some(requester.interface) {
            return None;
        }
        let mut answer = *self;
        answer.change.source = None;
        answer.change.destination = requester.from.ip();
        answer.change.destination_port = requester.from.port();
        if let LinkChange::Ethernet { destination, .. } = &mut answer.change.link {
            *destination = requester.mac;
        }
        answer.neighbour = Some(Mac(requester.mac));
        if self.answers_by_socket {
            (answer.way, answer.by) = (Way::Routed, requester.interface);
            answer.finds_source = false;
            answer.change.link = LinkChange::None;
        }
        Some(answer)
    }

    /// The rewrite of this packet's copy.
    #[inline]
    pub(super) fn change_for(&self, datagram: &Datagram) -> Rewrite {
        let Some(range) = &self.range else {
            return self.change;
        };
        let mut change = self.change;
        let (groups, ports) = range.from;
        let offset = datagram.destination_port.wrapping_sub(ports.first);
        change.destination = if groups.is_host() && !range.destination.is_host() {
            range.destination.nth(offset)
        } else {
            range.destination.carry(datagram.destination)
        };
        if !range.ports.is_single() {
            let offset = if ports.is_single() {
                groups.number_of(datagram.destination)
            } else {
                offset
            };
            change.destination_port = range.ports.first.wrapping_add(offset);
        }
        if let (true, LinkChange::Ethernet { destination, .. }) =
            (range.group_mac, &mut change.link)
        {
            *destination = Mac::of_group(change.destination).0;
        }
        change
    }

    /// Why no copy of the datagram, whose largest packet has `largest` bytes, may leave here, before anything
    /// is rewritten: TTL before size, as in `packet::reference`.
    #[inline]
    #[must_use]
    pub(super) fn refusal(&self, datagram: &Datagram, largest: usize) -> Option<DropReason> {
        if self.change.ttl == TtlChange::Decrement && datagram.ttl <= 1 {
            return Some(DropReason::TtlExpired);
        }
        (largest > self.mtu).then_some(DropReason::TooBig)
    }

    /// The socket that sends a datagram's copy, where this host's stack routes it.
    #[inline]
    pub(super) fn routed(&self, datagram: &Datagram) -> Option<SocketKind> {
        (self.way == Way::Routed).then(|| SocketKind {
            ipv4: self.change.destination.is_ipv4(),
            port: self.change.source_port.unwrap_or(datagram.source_port),
            cut: self.fragment && !datagram.dont_fragment,
        })
    }

    /// Returns whether the copies are sent by a socket that takes one datagram at a time, with its checksum
    /// complete and nothing in front.
    #[inline]
    #[must_use]
    pub(super) const fn is_to_host(&self) -> bool {
        !matches!(self.way, Way::Link(_))
    }

    /// The receiver of the datagram's copy.
    #[inline]
    #[must_use]
    pub(super) fn to(&self, datagram: &Datagram) -> To {
        let Some(interface) = self.way.interface() else {
            return To::Host(self.change_for(datagram).destination);
        };
        let receiver = self.is_to_host().then(|| {
            let group = || Mac::of_group(self.change_for(datagram).destination);
            self.neighbour.unwrap_or_else(group).0
        });
        To::Link {
            interface,
            receiver,
            protocol: match self.change.destination {
                IpAddr::V4(_) => ethernet::IPV4,
                IpAddr::V6(_) => ethernet::IPV6,
            },
        }
    }

    /// A copy's headers as its socket takes them: a socket to this host takes no vnet header.
    #[inline]
    #[must_use]
    pub(super) fn for_socket<'h, 'p>(&self, head: Head<'h, 'p>) -> Head<'h, 'p> {
        if !self.is_to_host() {
            return head;
        }
        let (front, extensions) = head.gap;
        Head {
            bytes: head.bytes.get(VNET_HEADER..).unwrap_or_default(),
            gap: (front.saturating_sub(VNET_HEADER), extensions),
        }
    }
}
