//! Runs cases: relays in turn within each trial, so that drift of the machine meets all of them
//! alike.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::machine::Machine;
use super::relay::Relay;
use super::results::{CaseResult, Results, Trial};
use super::scenario::{Case, Offer, Options, SCENARIOS};
use super::search;
use super::trial::{self, Load, Setup, Stage};

/// What a run tells while it goes on.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Trials done.
    pub done: usize,
    /// Trials in all.
    pub total: usize,
    /// The trial that starts now.
    pub now: &'a str,
}

/// Runs scenarios and hands back every trial. A relay that fails in a case is recorded there with
/// its error and stops nothing else.
///
/// # Errors
/// None but that of `watch`, which is called before every trial and may end the run.
pub fn run(
    options: &Options,
    command: &str,
    watch: &mut dyn FnMut(Progress<'_>) -> Result<()>,
) -> Result<Results> {
    let chosen = SCENARIOS
        .iter()
        .filter(|scenario| options.scenarios.contains(&scenario.number));
    let cases: Vec<Case> = chosen
        .flat_map(|scenario| scenario.cases(options))
        .collect();
    let relays: usize = cases.iter().map(|case| case.relays.len()).sum();
    let mut run = Run {
        options,
        watch,
        done: 0,
        total: relays * options.trials as usize,
        capacities: BTreeMap::new(),
    };
    let mut results = Results {
        machine: Machine::describe(),
        command: command.to_owned(),
        cases: Vec::new(),
    };
    for case in &cases {
        results.cases.extend(run.case(case)?);
    }
    Ok(results)
}

struct Run<'a> {
    options: &'a Options,
    watch: &'a mut dyn FnMut(Progress<'_>) -> Result<()>,
    done: usize,
    total: usize,
    /// Zero-loss rates that searches found, by relay.
    capacities: BTreeMap<String, f64>,
}

impl Run<'_> {
    fn case(&mut self, case: &Case) -> Result<Vec<CaseResult>> {
        let mut results: Vec<CaseResult> =
            case.relays.iter().map(|relay| empty(case, relay)).collect();
        for number in 0..self.options.trials {
            for (relay, result) in case.relays.iter().zip(&mut results) {
                let now = format!("{relay}, {}", describe(case));
                (self.watch)(Progress {
                    done: self.done,
                    total: self.total,
                    now: &now,
                })?;
                self.done += 1;
                if result.skipped.is_some() {
                    continue;
                }
                match self.trial(case, relay) {
                    Ok(trial) => result.trials.push(trial),
                    Err(error) => {
                        result.skipped = Some(format!("trial {number}: {error:#}"));
                    }
                }
            }
        }
        if case.offer == Offer::ZeroLoss {
            for result in &results {
                let rate = result.spread(|trial| trial.zero_loss_pps.unwrap_or(0.0));
                if let Some(rate) = rate {
                    self.capacities.insert(result.relay.clone(), rate.median);
                }
            }
        }
        Ok(results)
    }

    fn trial(&self, case: &Case, relay: &Relay) -> Result<Trial> {
        let setup = Setup {
            relay,
            bed: case.bed,
            plan: case.plan,
            load: case.load,
            measure: case.measure,
            tools: &self.options.tools,
        };
        match case.offer {
            Offer::Once => trial::run(&setup),
            Offer::Share(share) => {
                let capacity = self.capacities.get(&relay.to_string());
                let capacity = capacity.filter(|rate| **rate > 0.0);
                let capacity = capacity.context("its zero-loss rate is not known")?;
                let rate_pps = Some(capacity * share);
                let load = Load {
                    rate_pps,
                    ..case.load
                };
                trial::run(&Setup { load, ..setup })
            }
            Offer::ZeroLoss => {
                let stage = Stage::prepare(&setup)?;
                let highest = case
                    .load
                    .rate_pps
                    .context("a search needs a highest rate")?;
                search::zero_loss(highest, |rate| {
                    stage.offer(Load {
                        rate_pps: Some(rate),
                        ..case.load
                    })
                })
            }
        }
    }
}

fn empty(case: &Case, relay: &Relay) -> CaseResult {
    let bed = relay.bed_for(case.bed, case.plan);
    let parameters = case.parameters.iter();
    CaseResult {
        scenario: case.scenario,
        parameters: parameters
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        relay: relay.to_string(),
        skipped: relay.cannot(bed, case.plan),
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
