//! Unicast answers to what a rule reflects: its copies are sent from this host's address, and so the
//! answers arrive there. The host keeps unsolicited packets, those that one of its sockets waits for, and
//! fragments.

use std::net::SocketAddr;

use packet::answer::is_question;
use packet::datagram::{Datagram, Part};

use super::coalesce::Matched;
use super::context::Context;
use super::lookup::RouteIndex;
use super::rewrite::{Action, CompiledOutput, CompiledRoute};
use super::table::ActiveTable;
use crate::userspace::shared::requesters::{AnswerEnd, Requester};

/// What becomes of an answer.
pub(super) struct Answer<'a> {
    /// The route taken by questions that arrive by its interface.
    pub(super) index: RouteIndex,
    /// The same.
    pub(super) route: &'a CompiledRoute,
    /// The one of its outputs that leads to the requester.
    pub(super) output: CompiledOutput,
}

impl ActiveTable {
    /// Decides about a packet that takes no route, if it is an answer.
    #[cold]
    pub(super) fn answer(&self, datagram: &Datagram, context: Context<'_>) -> Option<Answer<'_>> {
        if datagram.destination.is_multicast() || datagram.part != Part::Whole {
            return None;
        }
        let interface = context.source.tap.interface;
        let to = SocketAddr::new(datagram.destination, datagram.destination_port);
        let requester = context
            .state
            .requester(AnswerEnd { interface, to }, context.now_ns)?;
        let index = self.find_to(interface, requester.group, datagram.source)?;
        let route = self.route(index)?;
        let output = route.outputs.iter().find_map(|output| {
            let Action::Send(sending) = &output.action else {
                return None;
            };
            let action = Action::Send(sending.for_requester(&requester)?);
            Some(CompiledOutput { action, ..*output })
        })?;
        let from = SocketAddr::new(datagram.source, datagram.source_port);
        // Where the host's sockets cannot be queried, nothing may be taken that might be its own.
        let is_own = context.sockets?.finds(from, to, interface).unwrap_or(true);
        (!is_own).then_some(Answer {
            index,
            route,
            output,
        })
    }
}

/// Records the requester for each output whose copies are answered.
#[cold]
pub(super) fn note_question(route: &CompiledRoute, packet: &Matched<'_>, context: Context<'_>) {
    let datagram = packet.datagram;
    let tap = context.source.tap;
    let mac = match datagram.ip_offset {
        0 => Some([0; 6]),
        _ => packet.bytes.get(6..12).and_then(|mac| mac.try_into().ok()),
    };
    let Some(mac) = mac.filter(|mac| is_question(datagram, *mac)) else {
        return;
    };
    let requester = Requester {
        interface: tap.interface,
        from: SocketAddr::new(datagram.source, datagram.source_port),
        mac,
        group: SocketAddr::new(datagram.destination, datagram.destination_port),
    };
    for output in &route.outputs {
        if let Action::Send(sending) = &output.action
            && let Some(end) = sending.answered_at(datagram.source_port)
        {
            context
                .state
                .note_requester(end, &requester, context.now_ns);
        }
    }
}
