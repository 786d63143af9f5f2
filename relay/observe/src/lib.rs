//! Observability of a relay: samples its counters, combines them into statistics, judges them for alarms,
//! and writes events, metrics and history.
//!
//! It changes nothing. The owner of the dataplane reads the counters and passes them in; everything else
//! that is shown is a [`view::View`], made anew with every change.

mod alarms;
pub mod compressed_body;
pub mod events;
pub mod notify;
pub mod stats;
pub mod view;

pub use alarms::silence;
