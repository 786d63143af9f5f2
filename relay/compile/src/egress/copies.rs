//! An output to all addresses of a name: a copy to each, and what is said of them together.

use std::net::SocketAddr;

use rules::rule::OutputSpec;

use super::{Way, down, state};
use crate::table::{DownReason, LinkHeader, Output, OutputState};
use crate::view::{Copies, CopyView, OutputView};

impl Way<'_> {
    /// An output to all addresses of its name. Where there are none, it is idle.
    pub(super) fn each(&self, spec: &OutputSpec, number: u64, all: &mut Vec<Output>) -> OutputView {
        let to = spec.target();
        let known = self.host.all.get(&spec.destination());
        let (mut link, mut leaving, mut routed, mut copies) = (None, None, None, Vec::new());
        for place in known.iter().flat_map(|known| &known.used) {
            let copy = spec.copy(*place);
            let stands = self.standing(&copy);
            let address = match place {
                (address, None) => address.to_string(),
                (address, Some(port)) => SocketAddr::new(*address, *port).to_string(),
            };
            let egress = stands.egress.and_then(|egress| match egress.link {
                LinkHeader::Host => Err(down(
                    DownReason::NoRoute,
                    format!("{address} is this host; an output with all sends to others alone"),
                )),
                _ => Ok(egress),
            });
            let egress = self.broadcast(Some(place.0)).map_or(egress, Err);
            let (state, how, down) = state(egress, stands.via);
            leaving = leaving.or(how);
            let index = Output::copy_index(number, &address);
            all.push(Output {
                index,
                to: format!("{to}={address}"),
                state,
                limit: spec.limit,
            });
            link = link.or(stands.link);
            routed = routed.or(stands.routed);
            copies.push(CopyView {
                index,
                address,
                down,
            });
        }
        let why = match known {
            None => Some(format!("{} is being looked up", spec.destination())),
            Some(known) => {
                let problem = known.problem.as_ref();
                problem.map(|why| format!("{} cannot be looked up: {why}", spec.destination()))
            }
        };
        let unknown = why.map(|why| down(DownReason::NoAddress, why));
        let down = match copies.iter().find_map(|copy| copy.down.as_ref()) {
            _ if copies.is_empty() => unknown,
            Some(first) if copies.iter().all(|copy| copy.down.is_some()) => Some(first.clone()),
            _ => None,
        };
        if copies.is_empty() {
            let reason = down
                .as_ref()
                .map_or(DownReason::NotWanted, |down| down.reason);
            all.push(Output {
                index: number,
                to: to.clone(),
                state: OutputState::Down(reason),
                limit: spec.limit,
            });
        }
        OutputView {
            to,
            address: None,
            name_error: known.and_then(|known| known.problem.clone()),
            link,
            leaving,
            wanted: down.is_none().then_some(copies.len() as u32),
            down,
            routed,
            unanswered: None,
            copies: Some(Box::new(Copies {
                all: copies,
                left_out: known.map_or(0, |known| known.left_out),
            })),
        }
    }
}
