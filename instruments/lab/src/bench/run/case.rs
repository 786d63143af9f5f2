//! One case of a scenario, and the options of a run.

use super::relay::{Relay, Tools};
use super::shape::{Load, Shape};

/// Default trials of a case that a promise depends on.
pub(super) const TRIALS: u32 = 5;
/// The same in a quick run.
const QUICK_TRIALS: u32 = 3;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of the scenarios.
    pub scenarios: Vec<u8>,
    /// Trials of each case; `None` for as many as each case plans.
    pub trials: Option<u32>,
    /// Seconds of a trial whose length is not part of the scenario.
    pub seconds: f64,
    /// A subset for a few minutes: fewer points, shorter trials.
    pub quick: bool,
    /// Only the cases that a promise depends on.
    pub promises: bool,
    /// The relays to compare.
    pub relays: Vec<Relay>,
    /// Numbers of streams in scenario 3 instead of its own.
    pub streams: Vec<u16>,
    /// Rate of each stream in scenarios 3 and 5 instead of their own.
    pub rate_pps: Option<f64>,
    /// Packets of each stream in scenarios 3 and 5 instead of their own.
    pub packets: Option<u64>,
    /// Bytes of payload instead of 1024, where the size is not part of the scenario.
    pub size: Option<usize>,
    /// Settings of relays.
    pub tools: Tools,
}

/// One point of a scenario, measured with each relay in turn.
#[derive(Clone, Debug)]
pub struct Case {
    /// Number of its scenario.
    pub scenario: u8,
    /// What is varied, for the report.
    pub parameters: Vec<(&'static str, String)>,
    /// What it is measured on. Consecutive cases of one shape share beds and relays.
    pub shape: Shape,
    /// The offered load; for [`Offer::Share`] without its rate, for [`Offer::ZeroLoss`] with the
    /// highest one.
    pub load: Load,
    /// How it is offered.
    pub offer: Offer,
    /// Every trial starts the relay on a new bed: the cost of starting is a figure.
    pub fresh: bool,
    /// Trials planned for MCR and for its peers.
    pub trials: (u32, u32),
    /// Replaces `trials` where a promise depends on the case; `None` if none does.
    pub promised: Option<(u32, u32)>,
    /// Which relays.
    pub relays: Vec<Relay>,
}

impl Case {
    /// How many trials a relay gets.
    pub fn trials(&self, relay: &Relay, options: &Options) -> u32 {
        let (own, peers) = self.promised.unwrap_or(self.trials);
        let most = if options.quick {
            QUICK_TRIALS
        } else {
            u32::MAX
        };
        let planned = if relay.is_own() { own } else { peers };
        options.trials.unwrap_or(planned.min(most))
    }
}

/// How a load is offered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offer {
    /// As it is.
    Once,
    /// At many rates, to find the highest without loss; later cases may use it as the capacity.
    ZeroLoss,
    /// At this share of the same relay's capacity by a search.
    Share(f64),
}
