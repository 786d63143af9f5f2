//! The drop reasons of copies to an output that cannot send.

use compile::table::DownReason;
use packet::verdict::DropReason;

/// The drop reason of an output that is down for that reason.
pub(crate) const fn drop_reason(reason: DownReason) -> DropReason {
    match reason {
        DownReason::InterfaceMissing => DropReason::InterfaceMissing,
        DownReason::InterfaceDown => DropReason::InterfaceDown,
        DownReason::NoAddress => DropReason::NoAddress,
        DownReason::NoRoute => DropReason::NoRoute,
        DownReason::NoNeighbour => DropReason::NoNeighbour,
        DownReason::NotWanted => DropReason::NotWanted,
        DownReason::IpsecPolicy => DropReason::IpsecPolicy,
    }
}
