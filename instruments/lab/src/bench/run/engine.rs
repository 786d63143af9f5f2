//! Runs cases: relays in turn within each trial, so that drift of the machine affects all of them
//! equally. Relays of cases of one shape stay on their beds from trial to trial, idle during the others'
//! turns.

mod pool;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result};
use traffic::search;

use self::pool::Pool;
use super::estimate::{self, Estimate};
use super::relay::Relay;
use super::scenario::{self, Case, Offer, Options, SCENARIOS};
use super::trial::{Load, Stage};
use crate::bench::results::machine::Machine;
use crate::bench::results::{CaseResult, Results, Trial};
use crate::guard::Guard;

/// Seconds of full load that are not counted, before the first load that is.
const WARM_UP_SECONDS: f64 = 0.3;

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Trials done.
    pub done: usize,
    /// Trials in all.
    pub total: usize,
    /// Remaining seconds, as estimated and corrected by the run's pace so far.
    pub seconds_left: f64,
    /// The trial that starts now.
    pub now: &'a str,
}

/// Observes a run.
pub trait Watch {
    /// Called before every trial.
    ///
    /// # Errors
    /// To end the run.
    fn trial(&mut self, progress: Progress<'_>) -> Result<()>;

    /// Called after every case with all results so far, and when the run ends early.
    ///
    /// # Errors
    /// To end the run.
    fn keep(&mut self, results: &Results) -> Result<()>;
}

/// Lists the cases of a run, in the order they run: those that a promise depends on first, so that a run
/// which ends early has them.
pub fn cases(options: &Options) -> Vec<Case> {
    let chosen = SCENARIOS
        .iter()
        .filter(|it| options.scenarios.contains(&it.number));
    let mut cases: Vec<Case> = chosen
        .flat_map(|scenario| scenario.cases(options))
        .collect();
    cases.sort_by_key(|case| case.promised.is_none());
    cases
}

/// Runs scenarios and returns every trial. A relay that fails in a case is recorded there with its error
/// and does not stop the others.
///
/// # Errors
/// Those of `watch`, and when the guard does not start.
pub fn run(options: &Options, command: &str, watch: &mut dyn Watch) -> Result<Results> {
    let cases = cases(options);
    let estimate = Estimate::of(&cases, options);
    // Before the machine is described: the report shows the setting in force.
    let _guard = Guard::start_with_backlog()?;
    let mut run = Run {
        options,
        watch,
        done: 0,
        done_seconds: 0.0,
        estimate,
        start: Instant::now(),
        capacities: BTreeMap::new(),
        pool: Pool::default(),
        results: Results {
            machine: Machine::describe(),
            command: command.to_owned(),
            cases: Vec::new(),
        },
    };
    for case in &cases {
        let outcome = run.case(case);
        run.watch.keep(&run.results)?;
        outcome?;
    }
    Ok(run.results)
}

struct Run<'a> {
    options: &'a Options,
    watch: &'a mut dyn Watch,
    done: usize,
    /// Of the seconds estimated, those of the trials done.
    done_seconds: f64,
    estimate: Estimate,
    start: Instant,
    /// Zero-loss rates of searches, by relay.
    capacities: BTreeMap<String, f64>,
    pool: Pool,
    results: Results,
}

impl Run<'_> {
    fn case(&mut self, case: &Case) -> Result<()> {
        let first = self.results.cases.len();
        let empty = case.relays.iter().map(|relay| empty(case, relay));
        self.results.cases.extend(empty);
        let rounds = case
            .relays
            .iter()
            .map(|relay| case.trials(relay, self.options));
        for round in 0..rounds.max().unwrap_or(0) {
            for (at, relay) in case.relays.iter().enumerate() {
                if round >= case.trials(relay, self.options) {
                    continue;
                }
                self.announce(case, relay)?;
                if self.results.cases[first + at].skipped.is_none() {
                    let trial = self.trial(case, relay, first);
                    let result = &mut self.results.cases[first + at];
                    match trial {
                        Ok(trial) => result.trials.push(trial),
                        Err(error) => {
                            result.skipped = Some(format!("trial {}: {error:#}", round + 1));
                        }
                    }
                }
                self.done += 1;
                if self.results.cases[first + at].skipped.is_none() {
                    self.done_seconds += estimate::seconds_of_trial(case);
                }
            }
        }
        if case.offer == Offer::ZeroLoss {
            for result in &self.results.cases[first..] {
                let rate = result.spread(|trial| trial.zero_loss_pps.unwrap_or(0.0));
                if let Some(rate) = rate {
                    self.capacities.insert(result.relay.clone(), rate.median);
                }
            }
        }
        Ok(())
    }

    fn announce(&mut self, case: &Case, relay: &Relay) -> Result<()> {
        let elapsed = self.start.elapsed().as_secs_f64();
        // The estimate is corrected only once a part of the run is done.
        let pace = if self.done_seconds > 20.0 {
            elapsed / self.done_seconds
        } else {
            1.0
        };
        self.watch.trial(Progress {
            done: self.done,
            total: self.estimate.trials(),
            seconds_left: (self.estimate.seconds() - self.done_seconds).max(0.0) * pace,
            now: &format!("{relay}, {}", describe(case)),
        })
    }

    /// Runs one trial; `first` is the index of the case's first result.
    fn trial(&mut self, case: &Case, relay: &Relay, first: usize) -> Result<Trial> {
        let tools = &self.options.tools;
        if case.fresh {
            self.pool.clear();
            let mut stage = Stage::prepare(relay, case.shape, tools)?;
            return attempt(case, &mut stage, &self.capacities);
        }
        let results = case.relays.iter().zip(&self.results.cases[first..]);
        let measured: Vec<&Relay> = results
            .filter(|(_, result)| result.skipped.is_none())
            .map(|(relay, _)| relay)
            .collect();
        let stage = self.pool.stage(relay, case.shape, &measured, tools)?;
        let outcome = attempt(case, stage, &self.capacities);
        if outcome.is_err() {
            self.pool.discard(relay);
        }
        outcome
    }
}

fn attempt(case: &Case, stage: &mut Stage, capacities: &BTreeMap<String, f64>) -> Result<Trial> {
    let load = case.load;
    if load.rate_pps.is_none() && stage.is_cold() && case.offer == Offer::Once {
        let seconds = WARM_UP_SECONDS;
        stage.warm_up(Load { seconds, ..load })?;
    }
    match case.offer {
        Offer::Once => stage.offer(load),
        Offer::Share(share) => {
            let capacity = capacities
                .get(&stage.relay().to_string())
                .filter(|rate| **rate > 0.0)
                .context("its zero-loss rate is not known")?;
            let rate_pps = Some(capacity * share);
            stage.offer(Load { rate_pps, ..load })
        }
        Offer::ZeroLoss => {
            let highest = load.rate_pps.context("a search needs a highest rate")?;
            let result = search::zero_loss(highest, load.seconds, |rate, seconds| {
                let rate_pps = Some(rate);
                stage.offer(Load {
                    rate_pps,
                    seconds,
                    ..load
                })
            })?;
            Ok(Trial::of_search(result))
        }
    }
}

fn empty(case: &Case, relay: &Relay) -> CaseResult {
    let plan = case.shape.plan;
    let bed = relay.bed_for(case.shape.bed, plan);
    CaseResult {
        scenario: case.scenario,
        parameters: scenario::named(case.parameters.clone()),
        relay: relay.to_string(),
        skipped: relay.cannot(bed, plan),
        trials: Vec::new(),
    }
}

fn describe(case: &Case) -> String {
    let parameters = case.parameters.iter();
    let shown: Vec<String> = parameters
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    format!("scenario {}, {}", case.scenario, shown.join(", "))
}
