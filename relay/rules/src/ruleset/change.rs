//! What differs between two sets, and why a change of a set was refused.

use std::sync::Arc;

use thiserror::Error;

use super::set::RuleSet;
use super::slot::Slot;
use crate::document::RuleDocument;
use crate::near::nearest;
use crate::problem::Problems;
use crate::rule::Rule;
use crate::shared_map::SharedMap;

/// The rules that differ between two sets, in the order of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleChanges {
    /// Rules of the old set that are not in the new one, or not at the same slot.
    pub removed: Vec<(Slot, Arc<Rule>)>,
    /// Rules of the new set that were not in the old one, or not at the same slot.
    pub added: Vec<(Slot, Arc<Rule>)>,
}

impl RuleChanges {
    /// Compares two sets by the identity of their rules in memory, in a time that depends on what
    /// differs more than on their size. A rule that was parsed again differs, even if it is equal.
    pub fn between(old: &RuleSet, new: &RuleSet) -> Self {
        let to_owned = |(slot, rule): (&Slot, &Arc<Rule>)| (*slot, Arc::clone(rule));
        let difference = SharedMap::difference(old.rules(), new.rules());
        Self {
            removed: difference.removed.into_iter().map(to_owned).collect(),
            added: difference.added.into_iter().map(to_owned).collect(),
        }
    }

    /// Replaces all rules of the old set by all of the new one.
    pub fn of_all(old: &RuleSet, new: &RuleSet) -> Self {
        let all = |set: &RuleSet| set.rules().iter().cloned().collect();
        Self {
            removed: all(old),
            added: all(new),
        }
    }
}

impl RuleSet {
    /// How this set differs from `old`: the first position that differs, how many rules of `old` are
    /// replaced from there on, and the rules that replace them. Unchanged rules between may be in both.
    pub fn difference_to(&self, old: &Self) -> (usize, usize, Vec<&Rule>) {
        let difference = SharedMap::difference(old.rules(), self.rules());
        let changed = difference.removed.iter().chain(&difference.added);
        let slots = changed.map(|(slot, _)| **slot);
        let (Some(first), Some(last)) = (slots.clone().min(), slots.max()) else {
            return (0, 0, Vec::new());
        };
        let start = self.position(first);
        let end = last.next();
        let from_first = self.rules().iter_from(&first);
        let added = from_first.take(self.position(end) - start);
        let rules = added.map(|(_, rule)| &**rule).collect();
        (start, old.position(end) - start, rules)
    }
}

/// The effect of a change of rules, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSetDiff {
    /// Rules only in the new set, in its order.
    pub added: Vec<String>,
    /// Rules only in the old set, in its order.
    pub removed: Vec<String>,
    /// Rules in both that are not the same, in the order of the new set.
    pub changed: Vec<String>,
}

impl RuleSetDiff {
    /// Returns whether no rule differs. The order of the rules does not count.
    pub const fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// Compares two sets, rule by rule.
pub fn diff(old: &RuleSet, new: &RuleSet) -> RuleSetDiff {
    let mut diff = RuleSetDiff::default();
    let changes = RuleChanges::between(old, new);
    for (_, rule) in &changes.added {
        match old.get(&rule.name) {
            None => diff.added.push(rule.name.clone()),
            Some(before) if before != &**rule => diff.changed.push(rule.name.clone()),
            Some(_) => {}
        }
    }
    let names = changes.removed.iter().map(|(_, rule)| &rule.name);
    let removed = names.filter(|name| new.get(name).is_none());
    diff.removed = removed.cloned().collect();
    diff
}

/// How a rule differs before and after a change, line by line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDifference {
    /// Lines that are only in the rule before.
    pub removed: Vec<String>,
    /// Lines that are only in the rule after.
    pub added: Vec<String>,
}

impl RuleDifference {
    /// Compares two rules.
    pub fn between(before: &Rule, after: &Rule) -> Self {
        let [before, after] = [before, after].map(|rule| RuleDocument::from(rule).lines());
        let only = |these: &[String], others: &[String]| -> Vec<String> {
            let lines = these.iter().filter(|line| !others.contains(line));
            lines.cloned().collect()
        };
        let mut added = only(&after, &before);
        let removed = only(&before, &after);
        if added.is_empty() && removed.is_empty() && before != after {
            added.push("another order of inputs or outputs".to_owned());
        }
        Self { removed, added }
    }
}

/// Why a change was refused. The set stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// Rules to remove that do not exist.
    #[error("{}", no_such_rules(.missing, .known))]
    NotFound {
        /// The names that do not exist.
        missing: Vec<String>,
        /// The names that exist.
        known: Vec<String>,
    },
    /// Rules to add whose names are taken.
    #[error("{}", already_there(.0))]
    AlreadyThere(Vec<String>),
    /// The rules are not valid.
    #[error(transparent)]
    Invalid(#[from] Problems),
}

/// How many names are shown before the rest is only counted.
const NAMES_SHOWN: usize = 8;

fn no_such_rules(missing: &[String], registered: &[String]) -> String {
    let line = |name: &String| match nearest(name, registered.iter().map(String::as_str)) {
        Some(near) => format!("no rule {name:?}; did you mean {near:?}?"),
        None if registered.is_empty() => format!("no rule {name:?} (there are none)"),
        None => format!("no rule {name:?} (have: {})", listed(registered)),
    };
    let mut lines: Vec<String> = missing.iter().take(NAMES_SHOWN).map(line).collect();
    if let Some(more) = missing
        .len()
        .checked_sub(NAMES_SHOWN)
        .filter(|more| *more > 0)
    {
        lines.push(format!("and {more} more that are not there"));
    }
    lines.join("\n")
}

fn already_there(names: &[String]) -> String {
    let line = |name: &String| {
        format!("rule {name:?}: is there already; remove it first or choose another name")
    };
    names.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The first of some names, and how many more there are.
pub fn listed(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>();
    let more = names.len().saturating_sub(NAMES_SHOWN);
    match more {
        0 => shown.join(", "),
        _ => format!("{} and {more} more", shown.join(", ")),
    }
}
