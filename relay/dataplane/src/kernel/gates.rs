//! The gate of each route.

use compile::table::Path;

use crate::gates::{self, Gates};

/// The gate of a share's routes, if it has one; routes without a share have none.
pub(super) fn wanted(gates: &Gates, share: Option<&str>) -> Option<u16> {
    share.map_or(Some(gates::NONE), |share| gates.find(Path::Kernel, share))
}

/// The gate of a route that an earlier process left; one without an owner is shut.
pub(super) fn adopted(gates: &Gates, gate: u16) -> u16 {
    if gate == gates::NONE || gates.is_owned(Path::Kernel, gate) {
        gate
    } else {
        gates::SHUT
    }
}
