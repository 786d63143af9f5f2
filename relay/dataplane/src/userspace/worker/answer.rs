//! Unicast answers to what a rule reflects: its copies come from this host's address, and so the
//! answers come there. The host keeps what nobody asked for, what one of its sockets waits for, and
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
    /// The route that questions take which come by its interface.
    pub(super) index: RouteIndex,
    /// The same.
    pub(super) route: &'a CompiledRoute,
    /// The one of its outputs that leads to whoever asked.
    pub(super) output: CompiledOutput,
}

impl ActiveTable {
    /// Says what becomes of a packet that takes no route, if it is an answer.
    #[cold]
    pub(super) fn answer(&self, datagram: &Datagram, context: Context<'_>) -> Option<Answer<'_>> {
        if datagram.destination.is_multicast() || datagram.part != Part::Whole {
            return None;
        }
        let interface = context.source.tap.interface;
        let to = SocketAddr::new(datagram.destination, datagram.destination_port);
        let asker = context
            .state
            .asker(AnswerEnd { interface, to }, context.now_ns)?;
        let index = self.find_to(interface, asker.group, datagram.source)?;
        let route = self.route(index)?;
        let output = route.outputs.iter().find_map(|output| {
            let Action::Send(sending) = &output.action else {
                return None;
            };
            let action = Action::Send(sending.for_requester(&asker)?);
            Some(CompiledOutput { action, ..*output })
        })?;
        let from = SocketAddr::new(datagram.source, datagram.source_port);
        // Where the host cannot be asked, nothing may be taken that might be its own.
        let is_own = context.sockets?.finds(from, to, interface).unwrap_or(true);
        (!is_own).then_some(Answer {
            index,
            route,
            output,
        })
    }
}

/// Remembers who asks by each output whose copies are answered.
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
    let asker = Requester {
        interface: tap.interface,
        from: SocketAddr::new(datagram.source, datagram.source_port),
        mac,
        group: SocketAddr::new(datagram.destination, datagram.destination_port),
    };
    for output in &route.outputs {
        if let Action::Send(sending) = &output.action
            && let Some(end) = sending.answered_at(datagram.source_port)
        {
            context.state.note_requester(end, &asker, context.now_ns);
        }
    }
}
