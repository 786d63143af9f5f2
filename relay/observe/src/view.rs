//! What everybody may see of the daemon: one value, made anew with every change, so that no reader
//! waits for the supervisor.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::reply::{By, State};
use compile::hook::{AtTc, Hook};
use compile::host::Host;
use compile::{Down, InputView, RuleView};
use config::Settings;
use rules::ruleset::{Place, RuleSet};
use rules::shared_map::SharedMap;

/// The running rules and how each of them does.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Another number with every change of the rules.
    pub generation: u64,
    /// The rules that run.
    pub rules: Arc<RuleSet>,
    /// The settings.
    pub settings: Arc<Settings>,
    /// In the order of the rules.
    pub states: SharedMap<Place, Arc<RuleState>>,
    /// The host that they were compiled for.
    pub host: Arc<Host>,
    /// How what is joined whatever the rules say does, in the order of the settings.
    pub joins: Arc<[InputState]>,
    /// Why what runs is not written down, while it is not.
    pub unsaved: Option<Arc<str>>,
    /// The change that is to be confirmed, or was undone.
    pub pending: Option<Pending>,
}

/// A change that undoes itself unless somebody confirms it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Of the rules after it.
    pub generation: u64,
    /// Who made it.
    pub by: By,
    /// Why, as they said.
    pub message: Option<String>,
    /// Until when it waits, by `CLOCK_BOOTTIME`.
    pub deadline_ns: u64,
    /// Whether it was undone and other rules run than the files say.
    pub undone: bool,
}

/// How a rule does, without its counters. There may be ten thousand, so what the core knows is not
/// copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleState {
    /// What it comes to on this host.
    pub rule: Arc<RuleView>,
    /// Whether it works.
    pub state: State,
    /// Why it does not, or only in part.
    pub reason: Option<Box<str>>,
    /// In the order of the rule's.
    pub inputs: Box<[InputState]>,
}

/// How an input does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputState {
    /// Whether it is joined, or needs no membership.
    pub joined: bool,
    /// Why it is not, or why nothing arrives all the same.
    pub reason: Option<Box<str>>,
    /// What its interfaces do about merging.
    pub merging: Option<Box<str>>,
    /// Where the kernel path takes its packets, and why at tc.
    pub hook: Option<(Hook, Option<AtTc>)>,
}

impl RuleState {
    /// The rule's name.
    pub fn name(&self) -> &str {
        &self.rule.name
    }

    /// Its inputs in their order, each with where it listens.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = (&str, &InputState)> {
        let inputs = self.rule.inputs.iter().zip(&self.inputs);
        inputs.map(|(input, state)| (input.at.as_str(), state))
    }

    /// Whether all outputs are on demand, and nobody listens.
    pub fn is_idle(&self) -> bool {
        let outputs = &self.rule.outputs;
        !outputs.is_empty() && outputs.iter().all(|output| output.wanted == Some(0))
    }

    /// Its outputs, of a name with all its addresses each copy.
    pub fn ends(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.rule.outputs.iter().flat_map(|output| {
            let copies = output.copies.iter().flat_map(|copies| &copies.all);
            let copies: Vec<_> = copies.map(|copy| text_of(&copy.down)).collect();
            let ends = if copies.is_empty() {
                vec![text_of(&output.down)]
            } else {
                copies
            };
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

/// Who besides sockets gets the original of what an input takes.
pub fn passed_to(view: &InputView) -> Option<String> {
    let texts: BTreeSet<&str> = view.shared.iter().map(|(_, text)| text.as_str()).collect();
    let texts: Vec<&str> = texts.into_iter().collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}
