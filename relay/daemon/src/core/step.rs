//! What the core proposes: a step from what runs to something else. Reading it changes nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::reply::{Change, RulePlacement};
use compile::budget::Spenders;
use compile::diff::TableDiff;
use compile::host::Host;
use compile::placement::Placement;
use compile::{Amendment, InputView, RuleView};
use config::Settings;
use rules::demand::Listening;
use rules::path::Path;
use rules::rule::Rule;
use rules::ruleset::{RuleChanges, RuleSet};
use sys::membership::Membership;

use crate::memberships::WantedDiff;

/// What has to be done to get to other rules, other settings or another host.
#[derive(Debug)]
pub(crate) struct Step {
    pub(super) rules: Arc<RuleSet>,
    pub(super) settings: Arc<Settings>,
    pub(super) host: Arc<Host>,
    pub(super) listening: Arc<Listening>,
    /// The rules that were compiled for it, and those that they replace.
    pub(crate) recompiled: Recompiled,
    /// What the dataplane has to do first: remove routes on links that were replaced.
    pub(crate) cleared: TableDiff,
    pub(super) amendment: Amendment,
    /// Who draws on the budget then.
    pub(super) spenders: Spenders,
    pub(super) wanted: WantedDiff,
    pub(super) joined: Arc<[InputView]>,
    /// What clients are told about it.
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

    /// The changes, if every rule that is not among them is what it was.
    pub(crate) const fn some(&self) -> Option<&RuleChanges> {
        match self {
            Self::Some(changes) => Some(changes),
            Self::All(_) => None,
        }
    }
}

impl Step {
    /// What the dataplane has to do after that.
    pub(crate) const fn diff(&self) -> &TableDiff {
        &self.amendment.diff
    }

    /// Where the rules that differ from those of before would run.
    pub(crate) fn placements(&self) -> Vec<RulePlacement> {
        let new: BTreeSet<&String> = differing(&self.change).collect();
        let views = self.amendment.rules.values();
        let views = views.filter(|view| view.enabled && new.contains(&view.name));
        let placed = views.map(|view| RulePlacement {
            rule: view.name.clone(),
            path: match view.placement {
                Placement { serves: false, .. } => "none",
                Placement {
                    path: Path::Kernel, ..
                } => "kernel",
                Placement {
                    path: Path::Userspace,
                    ..
                } => "userspace",
            }
            .to_owned(),
            reason: view.placement.reason.to_string(),
        });
        placed.collect()
    }

    /// The rules that differ from those of before, with what can be said about each.
    pub(crate) fn differing(&self) -> impl Iterator<Item = (&Rule, &RuleView)> {
        let differing: BTreeSet<&String> = differing(&self.change).collect();
        let compiled = self.recompiled.changes().added.iter();
        compiled
            .filter(move |(_, rule)| differing.contains(&rule.name))
            .filter_map(|(place, rule)| {
                let view = self.amendment.rules.get(place)?;
                Some((rule.as_ref(), view.as_ref()))
            })
    }

    /// The host it is for.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// What was listened to.
    pub(crate) fn into_listening(self) -> Listening {
        Arc::unwrap_or_clone(self.listening)
    }

    /// What runs after it.
    pub(crate) fn rules_and_settings(&self) -> (&RuleSet, &Settings) {
        (&self.rules, &self.settings)
    }

    /// What has to be left after it; `None` where all memberships have to be gone through.
    pub(crate) fn leaves(&self) -> Option<&BTreeSet<Membership>> {
        self.recompiled.some().map(|_| &self.wanted.leave)
    }
}

/// The names of the rules that are new or not what they were.
pub(super) fn differing(change: &Change) -> impl Iterator<Item = &String> {
    change.added.iter().chain(&change.changed)
}
