//! The core's proposal: a step from the running rules to others. Reading it changes nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::reply::{Change, RulePlacement};
use compile::budget::Spenders;
use compile::diff::TableDiff;
use compile::host::Host;
use compile::{Amendment, InputView, RuleView};
use config::Settings;
use observe::stats::path_name;
use rules::demand::Listening;
use rules::rule::Rule;
use rules::ruleset::{RuleChanges, RuleSet};
use sys::membership::Membership;

use crate::memberships::WantedDiff;

/// A step to other rules, other settings or another state of the host.
#[derive(Debug)]
pub(crate) struct Step {
    pub(super) rules: Arc<RuleSet>,
    pub(super) settings: Arc<Settings>,
    pub(super) host: Arc<Host>,
    pub(super) listening: Arc<Listening>,
    /// The rules that were compiled for it, and those that they replace.
    pub(crate) recompiled: Recompiled,
    /// The diff to apply first: it removes routes on links that were replaced.
    pub(crate) cleared: TableDiff,
    pub(super) amendment: Amendment,
    /// The users of the budget after the step.
    pub(super) spenders: Spenders,
    pub(super) wanted: WantedDiff,
    pub(super) joined: Arc<[InputView]>,
    /// The change as reported to clients.
    pub(crate) change: Change,
}

/// Which rules are compiled.
#[derive(Clone, Debug)]
pub(crate) enum Recompiled {
    /// Only those that differ: nothing changed that the others depend on.
    Some(RuleChanges),
    /// All of them.
    All(RuleChanges),
}

impl Recompiled {
    pub(super) const fn changes(&self) -> &RuleChanges {
        match self {
            Self::Some(changes) | Self::All(changes) => changes,
        }
    }

    /// The changes, if all other rules are unaffected.
    pub(crate) const fn some(&self) -> Option<&RuleChanges> {
        match self {
            Self::Some(changes) => Some(changes),
            Self::All(_) => None,
        }
    }
}

impl Step {
    /// The diff to apply after `cleared`.
    pub(crate) const fn diff(&self) -> &TableDiff {
        &self.amendment.diff
    }

    /// The placements of the rules that differ from the running ones.
    pub(crate) fn placements(&self) -> Vec<RulePlacement> {
        let new: BTreeSet<&String> = differing(&self.change).collect();
        let views = self.amendment.rules.values();
        let enabled = views.filter(|view| view.enabled && new.contains(&view.name));
        let placed = enabled.map(|view| RulePlacement {
            rule: view.name.clone(),
            path: if view.placement.serves {
                path_name(view.placement.path).to_owned()
            } else {
                "none".to_owned()
            },
            reason: view.placement.reason.to_string(),
        });
        placed.collect()
    }

    /// The rules that differ from the running ones, with the compiled view of each.
    pub(crate) fn differing(&self) -> impl Iterator<Item = (&Rule, &RuleView)> {
        let differing: BTreeSet<&String> = differing(&self.change).collect();
        let compiled = self.recompiled.changes().added.iter();
        compiled
            .filter(move |(_, rule)| differing.contains(&rule.name))
            .filter_map(|(position, rule)| {
                let view = self.amendment.rules.get(position)?;
                Some((rule.as_ref(), view.as_ref()))
            })
    }

    /// The state of the host it is for.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The listening hosts it was compiled for.
    pub(crate) fn into_listening(self) -> Listening {
        Arc::unwrap_or_clone(self.listening)
    }

    /// The rules and settings after it.
    pub(crate) fn rules_and_settings(&self) -> (&RuleSet, &Settings) {
        (&self.rules, &self.settings)
    }

    /// The memberships to leave after it; `None` if all of them have to be compared.
    pub(crate) fn leaves(&self) -> Option<&BTreeSet<Membership>> {
        self.recompiled.some().map(|_| &self.wanted.leave)
    }
}

/// The names of the rules that are new or changed.
pub(super) fn differing(change: &Change) -> impl Iterator<Item = &String> {
    change.added.iter().chain(&change.changed)
}
