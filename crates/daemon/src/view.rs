//! What everybody may see of the daemon: one value, made anew with every change, so that no reader
//! waits for the supervisor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::reply::{InputStats, State};
use model::compile::{InputView, RuleView};
use model::config::Settings;
use model::host::Host;
use model::net::Ifindex;
use model::ruleset::RuleSet;
use model::table::Path;

use crate::memberships::{Joined, of_join};

/// The running rules and how each of them does.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) generation: u64,
    pub(crate) rules: Arc<RuleSet>,
    pub(crate) settings: Arc<Settings>,
    /// In the order of the rules.
    pub(crate) states: Vec<Arc<RuleState>>,
    pub(crate) host: Arc<Host>,
}

/// How a rule does, without its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleState {
    pub(crate) name: String,
    pub(crate) path: Path,
    pub(crate) path_reason: String,
    pub(crate) state: State,
    pub(crate) reason: Option<String>,
    pub(crate) inputs: Vec<InputStats>,
    pub(crate) outputs: Vec<OutputState>,
}

/// How an output does, without its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputState {
    pub(crate) to: String,
    /// Why it is down; `None`: it is up.
    pub(crate) down: Option<String>,
}

/// Says how each rule does. `known` has the states of rules that do as they did.
pub(crate) fn states(
    rules: &[Arc<RuleView>],
    joined: &Joined,
    merging: &BTreeMap<Ifindex, String>,
    known: impl Fn(usize) -> Option<Arc<RuleState>>,
) -> Vec<Arc<RuleState>> {
    let state = |(place, rule): (usize, &Arc<RuleView>)| {
        known(place).unwrap_or_else(|| Arc::new(rule_state(rule, joined, merging)))
    };
    rules.iter().enumerate().map(state).collect()
}

fn rule_state(rule: &RuleView, joined: &Joined, merging: &BTreeMap<Ifindex, String>) -> RuleState {
    let inputs = rule.inputs.iter().map(|i| input(i, joined, merging));
    let inputs: Vec<InputStats> = inputs.collect();
    let outputs: Vec<OutputState> = rule
        .outputs
        .iter()
        .map(|output| OutputState {
            to: output.to.clone(),
            down: output.down.as_ref().map(|down| down.text.clone()),
        })
        .collect();
    let (state, reason) = if rule.placement.serves {
        judge(&inputs, &outputs)
    } else {
        (State::Down, Some(rule.placement.reason.clone()))
    };
    RuleState {
        name: rule.name.clone(),
        path: rule.placement.path,
        path_reason: rule.placement.reason.clone(),
        state,
        reason,
        inputs,
        outputs,
    }
}

fn input(view: &InputView, joined: &Joined, merging: &BTreeMap<Ifindex, String>) -> InputStats {
    let memberships = || view.joins.iter().flat_map(of_join);
    let all = !view.joins.is_empty() && memberships().all(|m| joined.holds(&m));
    let failures: BTreeSet<&str> = match all {
        true => BTreeSet::new(),
        false => memberships().filter_map(|m| joined.failure(&m)).collect(),
    };
    let reason = view.pending.clone();
    let reason = reason.or_else(|| failures.first().map(ToString::to_string));
    InputStats {
        at: view.at.clone(),
        joined: all,
        reason,
        merging: merges(view, merging),
    }
}

/// What the interfaces of an input do about merging, those that do the same together.
fn merges(view: &InputView, merging: &BTreeMap<Ifindex, String>) -> Option<String> {
    let said = view.interfaces.iter().filter_map(|link| merging.get(link));
    let said: BTreeSet<&str> = said.map(String::as_str).collect();
    let said: Vec<&str> = said.into_iter().collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// A rule is up if everything is, down if no input or no output works.
fn judge(inputs: &[InputStats], outputs: &[OutputState]) -> (State, Option<String>) {
    let reasons: Vec<String> =
        inputs
            .iter()
            .filter_map(|input| Some(format!("input {}: {}", input.at, input.reason.as_ref()?)))
            .chain(outputs.iter().filter_map(|output| {
                Some(format!("output {}: {}", output.to, output.down.as_ref()?))
            }))
            .collect();
    let no_input = inputs.iter().all(|input| input.reason.is_some());
    let no_output = outputs.iter().all(|output| output.down.is_some());
    let state = match reasons.is_empty() {
        true => State::Up,
        false if no_input || no_output => State::Down,
        false => State::Degraded,
    };
    (state, reasons.into_iter().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(reason: Option<&str>) -> InputStats {
        InputStats {
            at: "239.1.1.1%eth0:5001".to_owned(),
            joined: reason.is_none(),
            reason: reason.map(str::to_owned),
            merging: None,
        }
    }

    fn output(down: Option<&str>) -> OutputState {
        OutputState {
            to: "239.10.1.1%eth1:6001".to_owned(),
            down: down.map(str::to_owned),
        }
    }

    #[test]
    fn a_rule_is_degraded_while_something_of_it_still_works() {
        let up = judge(&[input(None)], &[output(None)]);
        assert_eq!(up, (State::Up, None));
        let (state, reason) = judge(&[input(None)], &[output(None), output(Some("is down"))]);
        assert_eq!(state, State::Degraded);
        assert_eq!(
            reason.as_deref(),
            Some("output 239.10.1.1%eth1:6001: is down")
        );
        assert_eq!(judge(&[input(Some("x"))], &[output(None)]).0, State::Down);
        assert_eq!(judge(&[input(None)], &[output(Some("x"))]).0, State::Down);
    }
}
