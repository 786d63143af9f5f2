//! What happens to copies after MCR has sent them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use counters::counters;

/// A device that outputs leave by: what it and its queue did not send of all that anybody on the
/// host handed to them, since the device is there. As the kernel counts it, read once a second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressStats {
    /// Name of the interface.
    pub interface: String,
    /// Packets that the device dropped.
    pub device_dropped: u64,
    /// Packets that the device could not send.
    pub device_errors: u64,
    /// Packets that its queueing discipline dropped.
    pub queue_dropped: u64,
}

impl EgressStats {
    /// Whether anything was not sent.
    pub const fn any(&self) -> bool {
        self.device_dropped + self.device_errors + self.queue_dropped > 0
    }
}

counters! { EgressStats {
    device_dropped: "mcr_egress_device_dropped_packets_total",
        "Packets that the device dropped behind MCR, of anybody's.", "{} dropped by the device";
    device_errors: "mcr_egress_device_errors_total",
        "Packets that the device could not send, of anybody's.", "{} error{s} of the device";
    queue_dropped: "mcr_egress_queue_dropped_packets_total",
        "Packets that the device's queueing discipline dropped, of anybody's.",
        "{} dropped by its queue";
} }
