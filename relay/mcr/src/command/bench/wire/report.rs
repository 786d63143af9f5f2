//! The result of a measurement, as `--json` prints it.

use serde::Serialize;
use traffic::search::Probe;
use traffic::wire::host::Host;
use traffic::wire::trial::Trial;

/// A whole measurement.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Version of this format.
    pub(super) version: u32,
    /// The host that sent.
    pub(super) generator: Host,
    /// The host that counted.
    pub(super) verifier: Host,
    /// Whether both have one clock: if not, latencies are right up to each trial's `clock`.
    pub(super) one_clock: bool,
    /// Streams sent.
    pub(super) streams: usize,
    /// Copies of each packet that arrive.
    pub(super) copies: u64,
    /// The highest rate tried, packets per second.
    pub(super) highest_pps: f64,
    /// Seconds of a trial that confirms a rate.
    pub(super) seconds: f64,
    /// By size (RFC 2544, section 26.1).
    pub(super) throughput: Vec<Throughput>,
    /// By number of groups (RFC 3918, section 7.1); empty with one stream.
    pub(super) groups: Vec<Groups>,
    /// The most groups that were forwarded without loss, with every smaller number; absent with one
    /// stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) group_capacity: Option<usize>,
}

/// The rates of one size.
#[derive(Debug, Serialize)]
pub(super) struct Throughput {
    /// Bytes of UDP payload.
    pub(super) payload_bytes: usize,
    /// Bytes of the Ethernet frame with its check sequence.
    pub(super) frame_bytes: usize,
    /// The highest rate without loss, packets per second; 0 if every rate lost something.
    pub(super) zero_loss_pps: f64,
    /// The highest that lost at most half a percent.
    pub(super) partial_drop_pps: f64,
    /// What keeps it from more.
    pub(super) limits: Vec<String>,
    /// The trial that confirmed the rate, or the last.
    pub(super) trial: Trial,
    /// The trial of the lowest higher rate that lost something; absent if none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lossy: Option<Trial>,
    /// Every rate tried, and its loss.
    pub(super) probes: Vec<Probe>,
}

/// One number of groups.
#[derive(Debug, Serialize)]
pub(super) struct Groups {
    /// Number of groups.
    pub(super) groups: usize,
    /// Where missing copies went.
    pub(super) limits: Vec<String>,
    /// The trial.
    pub(super) trial: Trial,
}
