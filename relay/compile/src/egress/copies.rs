//! An output to all addresses of a name: a copy to each, and one view of all.

use std::net::SocketAddr;

use rules::rule::OutputSpec;

use super::{EgressContext, down, state};
use crate::table::{DownReason, LinkHeader, Output, OutputState};
use crate::view::{Copies, CopyView, OutputView};

impl EgressContext<'_> {
    /// An output to all addresses of its name. Without addresses it is idle.
    pub(super) fn each(&self, spec: &OutputSpec, number: u64, all: &mut Vec<Output>) -> OutputView {
        let to = spec.target();
        let addresses = self.host.all.get(&spec.destination());
        let (mut link, mut leaving, mut routed, mut copies) = (None, None, None, Vec::new());
        for target in addresses.iter().flat_map(|addresses| &addresses.used) {
            let assessment = self.assess(&spec.copy(*target));
            let address = match target {
                (address, None) => address.to_string(),
                (address, Some(port)) => SocketAddr::new(*address, *port).to_string(),
            };
            let egress = assessment.egress.and_then(|egress| match egress.link {
                LinkHeader::Host => Err(down(
                    DownReason::NoRoute,
                    format!("{address} is this host; an output with all sends to others alone"),
                )),
                _ => Ok(egress),
            });
            let egress = self.broadcast(Some(target.0)).map_or(egress, Err);
            let (state, copy_leaving, down) = state(egress, assessment.via);
            leaving = leaving.or(copy_leaving);
            let index = Output::copy_index(number, &address);
            all.push(Output {
                index,
                to: format!("{to}={address}"),
                state,
                limit: spec.limit,
            });
            link = link.or(assessment.link);
            routed = routed.or(assessment.routed);
            copies.push(CopyView {
                index,
                address,
                down,
            });
        }
        let why = match addresses {
            None => Some(format!("{} is being looked up", spec.destination())),
            Some(addresses) => {
                let problem = addresses.problem.as_ref();
                problem.map(|why| format!("{} cannot be looked up: {why}", spec.destination()))
            }
        };
        let unresolved = why.map(|why| down(DownReason::NoAddress, why));
        let down = match copies.iter().find_map(|copy| copy.down.as_ref()) {
            _ if copies.is_empty() => unresolved,
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
            name_error: addresses.and_then(|addresses| addresses.problem.clone()),
            link,
            leaving,
            wanted: down.is_none().then_some(copies.len() as u32),
            down,
            routed,
            unanswered: None,
            copies: Some(Box::new(Copies {
                all: copies,
                left_out: addresses.map_or(0, |addresses| addresses.left_out),
            })),
        }
    }
}
