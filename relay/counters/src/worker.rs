//! What a worker counts of itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::counters;

/// One worker of the userspace path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerStats {
    /// Number, from 0.
    pub id: u32,
    /// Core it is pinned to.
    pub cpu: u32,
    /// Process id, 0 while it is not running.
    pub pid: u32,
    /// `running`, or `backoff` while it is not.
    pub state: String,
    /// Times it was started again.
    pub restarts: u64,
    /// Those of them that are this process's doing, not an earlier one's.
    #[serde(skip)]
    pub restarts_here: u64,
    /// Packets read from its tap.
    pub received: u64,
    /// Packets that took a route.
    pub matched: u64,
    /// Packets that took none.
    pub not_matched: u64,
    /// Copies handed to egress devices.
    pub forwarded: u64,
    /// Packets lost for want of a buffer, including those the kernel dropped at a full ring.
    pub buffer_exhausted: u64,
    /// Failed receives.
    pub receive_errors: u64,
    /// Failed sends.
    pub transmit_errors: u64,
}

counters! { WorkerStats {
    restarts: "mcr_worker_restarts_total", "Times the worker was started again.", "{} restart{s}";
    received: "mcr_worker_received_packets_total", "Packets read from the taps.", "received {}";
    matched: "mcr_worker_matched_packets_total", "Packets that took a route.", "matched {}";
    not_matched: "mcr_worker_not_matched_packets_total", "Packets that took none.";
    forwarded: "mcr_worker_forwarded_packets_total", "Copies handed to egress devices.",
        "forwarded {}";
    buffer_exhausted: "mcr_worker_buffer_exhausted_packets_total",
        "Packets lost for want of a buffer or at a full ring.", "lost for want of a buffer {}";
    receive_errors: "mcr_worker_receive_errors_total", "Failed receives.";
    transmit_errors: "mcr_worker_transmit_errors_total", "Failed sends.";
} }
