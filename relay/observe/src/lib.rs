//! What is told of a relay: its counters sampled, put together into statistics, judged for alarms,
//! written as events, metrics and history.
//!
//! It changes nothing. Who owns the dataplane reads it and hands over what was counted; what else is
//! shown is a [`view::View`], made anew with every change.

mod alarms;
pub mod compressed_body;
pub mod events;
pub mod notify;
pub mod stats;
pub mod view;

pub use alarms::silence;
