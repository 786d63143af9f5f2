//! The published state of the daemon: one value, made anew with every change, so that no reader waits for
//! the supervisor.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::reply::{By, State};
use compile::hook::{AtTc, Hook};
use compile::host::Host;
use compile::{Down, InputView, RuleView};
use config::Settings;
use rules::ruleset::{RuleSet, Slot};
use rules::shared_map::SharedMap;

/// The running rules and the state of each.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Changes with every change of the rules.
    pub generation: u64,
    /// The running rules.
    pub rules: Arc<RuleSet>,
    /// The settings.
    pub settings: Arc<Settings>,
    /// In the order of the rules.
    pub states: SharedMap<Slot, Arc<RuleState>>,
    /// The host that they were compiled for.
    pub host: Arc<Host>,
    /// The state of the joins that the settings request, in their order.
    pub joins: Arc<[InputState]>,
    /// Why the running rules are not saved, while they are not.
    pub unsaved: Option<Arc<str>>,
    /// The change that awaits confirmation, or was undone.
    pub pending: Option<Pending>,
}

/// A change that undoes itself unless somebody confirms it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The generation of the rules after it.
    pub generation: u64,
    /// Who made it.
    pub by: By,
    /// Their message, if they gave one.
    pub message: Option<String>,
    /// When it is undone, by `CLOCK_BOOTTIME`.
    pub deadline_ns: u64,
    /// Whether it was undone, so that other rules run than those in the files.
    pub undone: bool,
}

/// The state of a rule, without its counters. There may be ten thousand, so the core's data is shared, not
/// copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleState {
    /// The rule as compiled for this host.
    pub rule: Arc<RuleView>,
    /// Whether it works.
    pub state: State,
    /// Why it does not work, or only partly.
    pub reason: Option<Box<str>>,
    /// In the order of the rule's inputs.
    pub inputs: Box<[InputState]>,
}

/// The state of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputState {
    /// Whether it is joined, or needs no membership.
    pub joined: bool,
    /// Why it is not joined, or why nothing arrives nevertheless.
    pub reason: Option<Box<str>>,
    /// What its interfaces do about GRO.
    pub merging: Option<Box<str>>,
    /// Where the kernel path takes its packets, and why at tc if it does so there.
    pub hook: Option<(Hook, Option<AtTc>)>,
}

impl RuleState {
    /// The rule's name.
    pub fn name(&self) -> &str {
        &self.rule.name
    }

    /// Its inputs in their order, each with its endpoint.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = (&str, &InputState)> {
        let inputs = self.rule.inputs.iter().zip(&self.inputs);
        inputs.map(|(input, state)| (input.at.as_str(), state))
    }

    /// Whether all outputs are on demand and nobody listens.
    pub fn is_idle(&self) -> bool {
        let outputs = &self.rule.outputs;
        !outputs.is_empty() && outputs.iter().all(|output| output.wanted == Some(0))
    }

    /// Its outputs; one to all addresses of a name is listed once for each copy.
    pub fn ends(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.rule.outputs.iter().flat_map(|output| {
            let copies = output.copies.iter().flat_map(|copies| &copies.all);
            let mut ends: Vec<_> = copies.map(|copy| text_of(&copy.down)).collect();
            if ends.is_empty() {
                ends.push(text_of(&output.down));
            }
            ends.into_iter().map(|down| (output.to.as_str(), down))
        })
    }

    /// Its outputs in their order: where each sends, and why it is down, if it is.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = (&str, Option<&str>)> {
        let outputs = self.rule.outputs.iter();
        outputs.map(|output| (output.to.as_str(), text_of(&output.down)))
    }
}

fn text_of(down: &Option<Down>) -> Option<&str> {
    down.as_ref().map(|down| down.text.as_str())
}

/// Who besides sockets gets the original packets of an input.
pub fn passed_to(view: &InputView) -> Option<String> {
    let unique: BTreeSet<&str> = view.shared.iter().map(|(_, text)| text.as_str()).collect();
    let texts: Vec<&str> = unique.into_iter().collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}
