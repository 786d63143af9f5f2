//! Rules in their order, with indices for lookup. Does not check whether they are valid.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;
use std::sync::Arc;

use super::index::InputIndex;
use super::slot::Slot;
use crate::document::RuleDocument;
use crate::joins::joined_groups;
use crate::rule::{OutputSpec, Rule};
use crate::shared_map::{Entries, SharedMap};
use crate::wildcard;

/// Rules in the operator's order, valid together. Sets share what they have in common, so that changing
/// one of ten thousand rules does not copy the others.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: SharedMap<Slot, Arc<Rule>>,
    pub(super) slots: SharedMap<ByName, Slot>,
    pub(super) index: InputIndex,
    endpoints: usize,
    /// Memberships of all inputs; those that several inputs need are counted for each.
    memberships: usize,
}

impl PartialEq for RuleSet {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.rules.values().eq(other.rules.values())
    }
}

impl Eq for RuleSet {}

/// A rule, compared by its name.
#[derive(Clone, Debug)]
pub(super) struct ByName(Arc<Rule>);

impl Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl Ord for ByName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name.cmp(&other.0.name)
    }
}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ByName {}

impl RuleSet {
    /// Makes a set of rules that may not be valid.
    pub(crate) fn unchecked(rules: impl IntoIterator<Item = Arc<Rule>>) -> Self {
        let rules: SharedMap<Slot, Arc<Rule>> = Slot::all().zip(rules).collect();
        let by_name = |(slot, rule): &(Slot, Arc<Rule>)| (ByName(Arc::clone(rule)), *slot);
        let mut set = Self {
            slots: rules.iter().map(by_name).collect(),
            ..Self::default()
        };
        for (slot, rule) in rules.iter() {
            set.index.insert(*slot, rule);
            set.endpoints += endpoints(rule);
            set.memberships += memberships(rule);
        }
        set.rules = rules;
        set
    }

    pub(super) fn take(&mut self, slot: Slot) {
        if let Some(rule) = self.rules.remove(&slot) {
            self.slots.remove(rule.name.as_str());
            self.index.remove(slot, &rule);
            self.endpoints -= endpoints(&rule);
            self.memberships -= memberships(&rule);
        }
    }

    pub(super) fn put(&mut self, slot: Slot, rule: Arc<Rule>) {
        self.index.insert(slot, &rule);
        self.endpoints += endpoints(&rule);
        self.memberships += memberships(&rule);
        self.slots.insert(ByName(Arc::clone(&rule)), slot);
        self.rules.insert(slot, rule);
    }

    /// The rules in their order, each with its slot.
    #[must_use]
    pub const fn rules(&self) -> &SharedMap<Slot, Arc<Rule>> {
        &self.rules
    }

    pub(crate) const fn index(&self) -> &InputIndex {
        &self.index
    }

    /// The rules in their order.
    pub fn iter(&self) -> Iter<'_> {
        self.rules.iter().map(|(_, rule)| rule)
    }

    /// The slots in their order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.rules.keys().copied()
    }

    /// The names in the order of the rules.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rules.values().map(|rule| rule.name.as_str())
    }

    /// The slot of the rule of that name.
    #[must_use]
    pub fn slot(&self, name: &str) -> Option<Slot> {
        self.slots.get(name).copied()
    }

    /// Counts the rules before a slot.
    pub fn position(&self, slot: Slot) -> usize {
        self.rules.rank(&slot)
    }

    /// The rule of that name.
    pub fn get(&self, name: &str) -> Option<&Rule> {
        let slot = self.slots.get(name)?;
        self.rules.get(slot).map(AsRef::as_ref)
    }

    /// Counts the rules.
    pub const fn len(&self) -> usize {
        self.rules.len()
    }

    /// Counts the inputs and outputs of all rules.
    pub const fn endpoints(&self) -> usize {
        self.endpoints
    }

    /// Counts the memberships that all rules need on a host with these links, including those on named
    /// interfaces that do not exist. A result up to `enough` may be too large: counting stops once it is
    /// certain that there are no more than that.
    pub fn memberships<'a>(
        &self,
        names: impl Iterator<Item = &'a str> + Clone,
        enough: usize,
    ) -> usize {
        if self.memberships <= enough && !self.has_wildcards() {
            return self.memberships;
        }
        let enabled = self.iter().filter(|rule| rule.enabled);
        let inputs = enabled.flat_map(|rule| {
            let on_demand = rule.is_on_demand();
            rule.inputs.iter().map(move |input| (input, on_demand))
        });
        let distinct: BTreeSet<_> = inputs
            .map(|(input, on_demand)| {
                (
                    input.interface.as_deref(),
                    input.destination,
                    &input.sources,
                    on_demand,
                )
            })
            .collect();
        let mut link_counts: BTreeMap<&str, usize> = BTreeMap::new();
        let each = distinct
            .into_iter()
            .map(|(interface, groups, sources, on_demand)| {
                let name = interface.unwrap_or_default();
                let links = *link_counts.entry(name).or_insert_with(|| {
                    let matching = names.clone().filter(|link| wildcard::matches(name, link));
                    matching.count().max(1)
                });
                joined_groups(groups, on_demand)
                    .saturating_mul(sources.len().max(1))
                    .saturating_mul(links)
            });
        each.fold(0, usize::saturating_add)
    }

    /// Returns whether there are no rules.
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns whether some input names its interface by a wildcard.
    pub fn has_wildcards(&self) -> bool {
        self.index.has_wildcards()
    }

    /// Writes the rules as documents.
    pub fn to_documents(&self) -> Vec<RuleDocument> {
        self.iter().map(RuleDocument::from).collect()
    }
}

impl Index<Slot> for RuleSet {
    type Output = Rule;

    fn index(&self, slot: Slot) -> &Rule {
        &self.rules[&slot]
    }
}

/// The rules of a set in their order.
pub type Iter<'a> =
    std::iter::Map<Entries<'a, Slot, Arc<Rule>>, fn(&'a (Slot, Arc<Rule>)) -> &'a Rule>;

impl<'a> IntoIterator for &'a RuleSet {
    type Item = &'a Rule;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

fn memberships(rule: &Rule) -> usize {
    let inputs = rule.inputs.iter().filter(|_| rule.enabled);
    inputs
        .map(|input| {
            joined_groups(input.destination, rule.is_on_demand()) * input.sources.len().max(1)
        })
        .sum()
}

pub(super) fn endpoints(rule: &Rule) -> usize {
    let copies = |output: &OutputSpec| output.all.map_or(1, |all| all.max.into());
    rule.inputs.len() + rule.outputs.iter().map(copies).sum::<usize>()
}
