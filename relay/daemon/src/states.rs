//! The states of rules and inputs on this host, from their compilation and the memberships.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::reply::State;
use compile::hook::Hooks;
use compile::{InputView, RuleView};
use observe::view::{InputState, RuleState};
use rules::net::Ifindex;
use rules::ruleset::{RuleChanges, Slot};
use rules::shared_map::SharedMap;

use crate::memberships::{Joined, of_join};

/// The state of GRO on interfaces, and the inputs received at XDP.
pub(crate) type LinkFacts<'a> = (&'a BTreeMap<Ifindex, String>, &'a Hooks);

/// Computes the state of each rule. With `previous` states and the changes since, only the states of
/// changed rules are computed.
pub(crate) fn states(
    rules: &SharedMap<Slot, Arc<RuleView>>,
    joined: &Joined,
    (merging, hooks): LinkFacts<'_>,
    previous: Option<(&SharedMap<Slot, Arc<RuleState>>, &RuleChanges)>,
) -> SharedMap<Slot, Arc<RuleState>> {
    let state = |rule: &Arc<RuleView>| Arc::new(rule_state(rule, joined, (merging, hooks)));
    let Some((previous, changes)) = previous else {
        let states = rules.iter();
        return states
            .map(|(position, rule)| (*position, state(rule)))
            .collect();
    };
    let mut states = previous.clone();
    for (position, _) in &changes.removed {
        states.remove(position);
    }
    for (position, _) in &changes.added {
        if let Some(rule) = rules.get(position) {
            states.insert(*position, state(rule));
        }
    }
    states
}

/// The states of static joins.
pub(crate) fn joins(inputs: &[InputView], joined: &Joined) -> Arc<[InputState]> {
    let states = inputs
        .iter()
        .map(|view| input(view, false, joined, &BTreeMap::new()));
    states.collect()
}

fn rule_state(rule: &Arc<RuleView>, joined: &Joined, (merging, hooks): LinkFacts<'_>) -> RuleState {
    let is_on_demand = !rule.outputs.is_empty()
        && rule
            .outputs
            .iter()
            .all(|o| o.wanted.is_some() && o.copies.is_none());
    let inputs = rule.inputs.iter().map(|view| InputState {
        hook: hooks.of(rule, view),
        ..input(view, is_on_demand, joined, merging)
    });
    let mut made = RuleState {
        rule: Arc::clone(rule),
        state: State::Up,
        reason: None,
        inputs: inputs.collect(),
    };
    if !rule.enabled {
        made.state = State::Disabled;
        let remedy = format!("forwards nothing until `mcr enable {}`", rule.name);
        made.reason = Some(remedy.into());
    } else if rule.placement.serves {
        (made.state, made.reason) = judge(made.inputs(), made.ends());
    } else {
        made.state = State::Down;
        made.reason = Some((*rule.placement.reason).into());
    }
    made
}

fn input(
    view: &InputView,
    is_on_demand: bool,
    joined: &Joined,
    merging: &BTreeMap<Ifindex, String>,
) -> InputState {
    let memberships = || view.joins.iter().flat_map(of_join);
    // An address of this host needs no membership, it only has to exist; an input without listeners needs
    // none either.
    let needs_none = !view.addresses.is_empty() || is_on_demand;
    let held = (needs_none || !view.joins.is_empty()) && memberships().all(|m| joined.holds(&m));
    // The kernel keeps memberships on links where nothing can arrive: down, or with IPv6 disabled.
    let all = held && view.pending.is_none();
    let failures: BTreeSet<&str> = if held {
        BTreeSet::new()
    } else {
        memberships().filter_map(|m| joined.failure(&m)).collect()
    };
    let reason = view
        .pending
        .as_deref()
        .or_else(|| failures.first().copied());
    InputState {
        joined: all,
        reason: reason.map(Into::into),
        merging: merging_of(view, merging),
        hook: None,
    }
}

/// The state of GRO on the interfaces of an input, equal ones once.
fn merging_of(view: &InputView, merging: &BTreeMap<Ifindex, String>) -> Option<Box<str>> {
    let texts = view.interfaces.iter().filter_map(|link| merging.get(link));
    let distinct: BTreeSet<&str> = texts.map(String::as_str).collect();
    let listed: Vec<&str> = distinct.into_iter().collect();
    (!listed.is_empty()).then(|| listed.join("; ").into())
}

/// A rule is up if all its parts are, down if no input or no output works.
fn judge<'a>(
    inputs: impl Iterator<Item = (&'a str, &'a InputState)>,
    outputs: impl Iterator<Item = (&'a str, Option<&'a str>)>,
) -> (State, Option<Box<str>>) {
    let (mut no_input, mut no_output) = (true, true);
    let mut reason: Option<Box<str>> = None;
    for (at, input) in inputs {
        match &input.reason {
            Some(why) => reason = reason.or_else(|| Some(format!("input {at}: {why}").into())),
            None => no_input = false,
        }
    }
    for (to, down) in outputs {
        match down {
            Some(why) => reason = reason.or_else(|| Some(format!("output {to}: {why}").into())),
            None => no_output = false,
        }
    }
    let state = match reason {
        None => State::Up,
        Some(_) if no_input || no_output => State::Down,
        Some(_) => State::Degraded,
    };
    (state, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: &str = "239.10.1.1%eth1:6001";

    fn judged(input: Option<&str>, outputs: &[Option<&str>]) -> (State, Option<Box<str>>) {
        let input = InputState {
            joined: input.is_none(),
            reason: input.map(Into::into),
            merging: None,
            hook: None,
        };
        let inputs = [("239.1.1.1%eth0:5001", &input)];
        let outputs = outputs.iter().map(|down| (TO, *down));
        judge(inputs.into_iter(), outputs)
    }

    #[test]
    fn a_rule_is_degraded_while_something_of_it_still_works() {
        assert_eq!(judged(None, &[None]), (State::Up, None));
        let (state, reason) = judged(None, &[None, Some("is down")]);
        assert_eq!(state, State::Degraded);
        assert_eq!(
            reason.as_deref(),
            Some("output 239.10.1.1%eth1:6001: is down")
        );
        assert_eq!(judged(Some("x"), &[None]).0, State::Down);
        assert_eq!(judged(None, &[Some("x")]).0, State::Down);
    }
}
