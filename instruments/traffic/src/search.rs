//! The highest offered rate without loss, by bisection as in RFC 2544 section 26.1. Section 24
//! lets trials that only search for the rate be short and asks for 60 seconds in the one that
//! confirms it; here that one lasts as long as every other trial (`--seconds`).
//!
//! Before that it searches for the highest rate with hardly any loss, FD.io's partial drop rate: on a
//! machine that stalls for a moment now and then the rate without loss measures the stalls, and the
//! partial drop rate the relay.

use serde::{Deserialize, Serialize};

use crate::trial::Outcome;

/// One step of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Datagrams offered per second.
    pub offered_pps: f64,
    /// Loss in percent.
    pub loss_percent: f64,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct SearchResult<T> {
    /// The trial that confirmed the rate, or the last one if every rate lost something.
    pub trial: T,
    /// The highest offered rate without loss, datagrams per second; 0 if every rate lost something.
    pub zero_loss_pps: f64,
    /// The highest offered rate that lost at most [`PARTIAL_PERCENT`].
    pub partial_drop_pps: f64,
    /// Every trial's offered rate and loss, in order.
    pub probes: Vec<Probe>,
}

/// The search ends when the bounds are this close to each other.
const PRECISION: f64 = 0.03;
/// Below this share of the highest rate it gives up.
const LOWEST: f64 = 0.005;
/// Seconds of a trial that only searches for the rate.
pub const PROBE_SECONDS: f64 = 0.5;
/// A rate that is not confirmed is multiplied by this and tried again.
const STEP_DOWN: f64 = 0.95;
/// Trials with loss below this, in percent, are repeated once, and the better one counts: the search
/// measures the relay, not disturbances of the machine (binary search with loss
/// verification, ETSI GS NFV-TST 009 section 12.3.3).
const DISTURBANCE_PERCENT: f64 = 1.0;

/// Loss that the partial drop rate may have, in percent, as in FD.io CSIT.
pub const PARTIAL_PERCENT: f64 = 0.5;

/// Searches between 0 and `highest` datagrams per second. `attempt` offers a rate for a
/// number of seconds and returns the trial; a trial of `seconds` confirms the resulting rate.
///
/// # Errors
/// What `attempt` returns.
pub fn zero_loss<T: Outcome, E>(
    highest: f64,
    seconds: f64,
    attempt: impl FnMut(f64, f64) -> Result<T, E>,
) -> Result<SearchResult<T>, E> {
    let mut search = Search {
        attempt,
        probes: Vec::new(),
    };
    let short = PROBE_SECONDS.min(seconds);
    let (_, partial) = search.bisect(highest, short, PARTIAL_PERCENT)?;
    let (trial, rate) = search.run(highest, seconds)?;
    Ok(SearchResult {
        trial,
        zero_loss_pps: rate,
        partial_drop_pps: partial.max(rate),
        probes: search.probes,
    })
}

struct Search<A> {
    attempt: A,
    probes: Vec<Probe>,
}

impl<T: Outcome, E, A: FnMut(f64, f64) -> Result<T, E>> Search<A> {
    /// Searches for the rate, then confirms it.
    fn run(&mut self, highest: f64, seconds: f64) -> Result<(T, f64), E> {
        let (mut rate, _) = self.bisect(highest, PROBE_SECONDS.min(seconds), 0.0)?;
        while rate > LOWEST * highest {
            let trial = self.measure(rate, seconds, 0.0)?;
            if trial.missing() <= 0 {
                // A generator that could not keep up offered less than it should.
                let offered = trial.offered_pps().min(rate);
                return Ok((trial, offered));
            }
            rate *= STEP_DOWN;
        }
        Ok((self.measure_once(LOWEST * highest, seconds)?, 0.0))
    }

    /// Bisects to where loss of more than `percent` begins: returns the requested rate and the highest
    /// rate offered below it. Both are 0 if every rate loses.
    fn bisect(&mut self, highest: f64, seconds: f64, percent: f64) -> Result<(f64, f64), E> {
        let (mut low, mut high, mut offered) = (0.0, highest, 0.0_f64);
        let mut rate = highest;
        loop {
            let trial = self.measure(rate, seconds, percent)?;
            if trial.loss_percent() > percent {
                high = rate;
            } else {
                low = rate;
                offered = offered.max(trial.offered_pps().min(rate));
            }
            if high - low <= PRECISION * high || high <= LOWEST * highest {
                return Ok((low, offered));
            }
            rate = f64::midpoint(low, high);
        }
    }

    /// Offers a rate, and offers it again if the loss was above `percent` yet small.
    fn measure(&mut self, rate: f64, seconds: f64, percent: f64) -> Result<T, E> {
        undisturbed(percent, || self.measure_once(rate, seconds))
    }

    fn measure_once(&mut self, rate: f64, seconds: f64) -> Result<T, E> {
        let trial = (self.attempt)(rate, seconds)?;
        self.probes.push(Probe {
            offered_pps: trial.offered_pps(),
            loss_percent: trial.loss_percent(),
        });
        Ok(trial)
    }
}

/// Measures, and measures again if the loss was above `percent` yet small.
///
/// # Errors
/// What `measure` returns.
pub fn undisturbed<T: Outcome, E>(
    percent: f64,
    mut measure: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let trial = measure()?;
    let lost = trial.loss_percent();
    if lost > percent && lost < DISTURBANCE_PERCENT {
        return measure();
    }
    Ok(trial)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::trial::Volume;

    type Result<T> = std::result::Result<T, Infallible>;

    #[derive(Default)]
    struct Trial {
        sent: u64,
        seconds: f64,
        expected: u64,
        delivered: u64,
    }

    impl Outcome for Trial {
        fn volume(&self) -> Volume {
            Volume {
                sent: self.sent,
                seconds: self.seconds,
                expected: self.expected,
                delivered: self.delivered,
            }
        }
    }

    fn loses_above(limit: f64) -> impl FnMut(f64, f64) -> Result<Trial> {
        move |rate, seconds| {
            let sent = (rate * seconds) as u64;
            Ok(Trial {
                sent,
                seconds,
                expected: sent,
                delivered: sent.min((limit * seconds) as u64),
            })
        }
    }

    #[test]
    fn returns_the_rate_where_loss_begins() {
        let result = zero_loss(1e6, 2.0, loses_above(400_000.0)).unwrap();
        let rate = result.zero_loss_pps;
        assert!((380_000.0..=400_000.0).contains(&rate), "{rate}");
        assert!(
            (result.trial.seconds - 2.0).abs() < 1e-9,
            "{}",
            result.trial.seconds
        );
    }

    #[test]
    fn a_relay_that_never_loses_gets_the_highest_rate() {
        let result = zero_loss(1e6, 1.0, loses_above(2e6)).unwrap();
        assert_eq!(result.zero_loss_pps, 1e6);
    }

    #[test]
    fn a_generator_that_was_delayed_once_is_measured_again() {
        let mut calm = loses_above(2e6);
        let mut count = 0;
        let result = zero_loss(1e6, 2.0, |rate, seconds| {
            count += 1;
            let is_delayed = count <= 2;
            calm(if is_delayed { rate / 100.0 } else { rate }, seconds)
        });
        assert_eq!(result.unwrap().zero_loss_pps, 1e6);
    }

    #[test]
    fn a_relay_that_always_loses_gets_zero() {
        let result = zero_loss(1e6, 1.0, loses_above(-1.0)).unwrap();
        assert_eq!(result.zero_loss_pps, 0.0);
    }

    #[test]
    fn a_machine_that_hiccups_still_has_a_partial_drop_rate() {
        let mut calm = loses_above(400_000.0);
        let result = zero_loss(1e6, 2.0, |rate, seconds| {
            let mut trial = calm(rate, seconds)?;
            // Above 50,000 per second some are lost each time.
            if rate > 50_000.0 {
                trial.delivered = trial.delivered.saturating_sub(20);
            }
            Result::Ok(trial)
        });
        let result = result.unwrap();
        let (partial, lossless) = (result.partial_drop_pps, result.zero_loss_pps);
        assert!((380_000.0..=410_000.0).contains(&partial), "{partial}");
        assert!((45_000.0..=50_000.0).contains(&lossless), "{lossless}");
    }

    #[test]
    fn one_disturbed_trial_does_not_end_the_search() {
        let mut calm = loses_above(400_000.0);
        let mut count = 0;
        let result = zero_loss(1e6, 1.0, |rate, seconds| {
            count += 1;
            let mut trial = calm(rate, seconds)?;
            if count % 4 == 3 {
                trial.delivered = trial.delivered.saturating_sub(5);
            }
            Result::Ok(trial)
        });
        let rate = result.unwrap().zero_loss_pps;
        assert!((380_000.0..=400_000.0).contains(&rate), "{rate}");
    }

    #[test]
    fn a_rate_that_only_holds_for_a_moment_is_not_the_answer() {
        let attempt = |rate, seconds| {
            let limit = if seconds < 1.0 { 400_000.0 } else { 300_000.0 };
            loses_above(limit)(rate, seconds)
        };
        let rate = zero_loss(1e6, 2.0, attempt).unwrap().zero_loss_pps;
        assert!((270_000.0..=300_000.0).contains(&rate), "{rate}");
    }
}
