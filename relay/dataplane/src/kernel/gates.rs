//! Which routes pass by which gate.

use compile::table::Path;

use crate::gates::{self, Gates};

/// The gate of a share's routes, if it has one; those of no share pass by none.
pub(super) fn wanted(gates: &Gates, share: Option<&str>) -> Option<u16> {
    share.map_or(Some(gates::NONE), |share| gates.find(Path::Kernel, share))
}

/// A gate that a route was found with; nothing passes by one that is nobody's.
pub(super) fn found(gates: &Gates, gate: u16) -> u16 {
    if gate == gates::NONE || gates.is_owned(Path::Kernel, gate) {
        gate
    } else {
        gates::SHUT
    }
}
