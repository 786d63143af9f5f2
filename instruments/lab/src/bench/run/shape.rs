//! The parts of a trial: bed and streams, the load, and the measurement.

use super::bed::BedKind;
use super::plan::Plan;

/// What is offered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Datagrams per second of each stream; `None` for as fast as the generator can.
    pub rate_pps: Option<f64>,
    /// Datagrams of each stream; without it the trial lasts `seconds`.
    pub count: Option<u64>,
    /// Seconds to send.
    pub seconds: f64,
    /// Bytes of UDP payload.
    pub size: usize,
}

impl Load {
    /// Seconds that it takes to offer.
    pub fn length(&self) -> f64 {
        match (self.count, self.rate_pps) {
            (Some(count), Some(rate)) => count as f64 / rate,
            _ => self.seconds,
        }
    }
}

/// What is measured beside the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Nothing: datagrams are dropped as soon as they are counted.
    Count,
    /// Sequence numbers, latency and skew, by `mcr receive` at the first sink.
    Receive,
}

/// What a stage is built for. Trials of one shape can share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The bed.
    pub bed: BedKind,
    /// Streams and copies that the relay is set up for.
    pub plan: Plan,
    /// Streams with load, the first ones; at most as many as the plan has.
    pub streams: u16,
    /// What is measured.
    pub measure: Measure,
}
