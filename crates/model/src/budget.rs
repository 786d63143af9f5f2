//! The budget: what all unicast outputs may send together, a guard against amplification. One packet
//! to a group may become thousands to hosts that did not ask for them; whatever rules say, no more
//! than this leaves.

use crate::table::{OutputState, Path, RateLimit, Route, Table};

/// What each path may send of `whole`: all of it, or half where both have unicast outputs, as they
/// count apart.
#[must_use]
pub fn share(whole: RateLimit, table: &Table) -> RateLimit {
    let spends = |path: Path| {
        let mut routes = table.routes.values();
        routes.any(|route| route.path == path && has_unicast(route))
    };
    if !(spends(Path::Kernel) && spends(Path::Userspace)) {
        return whole;
    }
    RateLimit {
        rate: (whole.rate / 2).max(1),
        burst: (whole.burst / 2).max(1),
        ..whole
    }
}

fn has_unicast(route: &Route) -> bool {
    let unicast = |state: &OutputState| match state {
        OutputState::Up(egress) => !egress.destination.address.is_multicast(),
        OutputState::Down(_) => false,
    };
    route.outputs.iter().any(|output| unicast(&output.state))
}
