//! Estimates a run's duration before it starts: its loads, and the overhead of each trial.

use traffic::search;

use super::case::{Case, Offer, Options};
use super::shape::Measure;

/// Seconds to make and take down the stages of one shape, all relays side by side.
const STAGES: f64 = 5.0;
/// Seconds to make and take down one stage for a single trial.
const FRESH: f64 = 3.0;
/// Seconds that each stream adds there, over all relays.
const FRESH_STREAM: f64 = 0.0006;
/// Trials of a search before the one that confirms.
const PROBES: f64 = 20.0;
/// Overhead of an offered load in seconds: generator, counters, the wait for late arrivals.
const AROUND: f64 = 0.25;
/// The same for `mcr receive`.
const RECEIVER: f64 = 0.2;

/// The estimate of a run.
#[derive(Clone, Debug, Default)]
pub struct Estimate {
    /// Scenario, trials, seconds.
    scenarios: Vec<(u8, usize, f64)>,
}

impl Estimate {
    /// Estimates a run.
    pub fn of(cases: &[Case], options: &Options) -> Self {
        let mut estimate = Self::default();
        let mut last = None;
        for case in cases {
            let plan = case.shape.plan;
            let supported = case.relays.iter().filter(|relay| {
                let bed = relay.bed_for(case.shape.bed, plan);
                relay.cannot(bed, plan).is_none()
            });
            let trials = supported.map(|relay| case.trials(relay, options) as usize);
            let all = case
                .relays
                .iter()
                .map(|relay| case.trials(relay, options) as usize);
            let mut seconds = trials.sum::<usize>() as f64 * seconds_of_trial(case);
            if !case.fresh && last != Some(case.shape) {
                seconds += STAGES;
            }
            last = (!case.fresh).then_some(case.shape);
            estimate.add(case.scenario, all.sum(), seconds);
        }
        estimate.scenarios.sort_by_key(|(number, ..)| *number);
        estimate
    }

    fn add(&mut self, scenario: u8, trials: usize, seconds: f64) {
        let mut all = self.scenarios.iter_mut();
        match all.find(|(number, ..)| *number == scenario) {
            Some(entry) => {
                entry.1 += trials;
                entry.2 += seconds;
            }
            None => self.scenarios.push((scenario, trials, seconds)),
        }
    }

    /// Each scenario's number, trials and seconds.
    pub fn scenarios(&self) -> &[(u8, usize, f64)] {
        &self.scenarios
    }

    /// Trials in all.
    pub fn trials(&self) -> usize {
        self.scenarios.iter().map(|(_, trials, _)| trials).sum()
    }

    /// Seconds in all.
    pub fn seconds(&self) -> f64 {
        self.scenarios.iter().map(|(_, _, seconds)| seconds).sum()
    }
}

/// Estimates the seconds of one trial.
pub fn seconds_of_trial(case: &Case) -> f64 {
    let receiver = match case.shape.measure {
        Measure::Count => 0.0,
        Measure::Receive => RECEIVER,
    };
    let once = case.load.length() + AROUND + receiver;
    let attempts = match case.offer {
        Offer::Once | Offer::Share(_) => once,
        Offer::ZeroLoss => {
            let probe = search::PROBE_SECONDS.min(case.load.seconds);
            once + PROBES * (probe + AROUND + receiver)
        }
    };
    if case.fresh {
        attempts + FRESH + FRESH_STREAM * f64::from(case.shape.plan.streams)
    } else {
        attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::run::engine;
    use crate::bench::run::relay::Relay;

    fn minutes(options: Options) -> f64 {
        assert_eq!(options.relays, Relay::ALL);
        let estimate = Estimate::of(&engine::cases(&options), &options);
        for (scenario, trials, seconds) in estimate.scenarios() {
            println!("{scenario:2} {trials:4} {seconds:6.0} s");
        }
        estimate.seconds() / 60.0
    }

    #[test]
    fn the_plans_stay_within_their_time() {
        let full = minutes(Options::default());
        let promises = minutes(Options {
            promises: true,
            ..Options::default()
        });
        let quick = minutes(Options {
            quick: true,
            seconds: 1.0,
            ..Options::default()
        });
        println!("{full:.1} {promises:.1} {quick:.1} minutes");
        assert!(full < 42.0, "{full}");
        assert!(promises < 26.0, "{promises}");
        assert!(quick < 5.0, "{quick}");
    }
}
