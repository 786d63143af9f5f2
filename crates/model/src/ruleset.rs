//! An ordered set of rules that make sense, alone and together. There is no other way to make one
//! than through validation, so whoever holds a set need not check it again.

mod change;
pub(crate) mod check;
mod index;

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;
use std::sync::Arc;

use crate::compile::joined_groups;
use crate::document::RuleDocument;
use crate::host::Host;
use crate::problem::{Problems, What};
use crate::rule::Rule;
use crate::shared_map::{Entries, SharedMap};
use crate::wildcard;

pub(crate) use change::listed;
pub use change::{ChangeError, RuleChanges, RuleSetDiff, diff};
use index::InputIndex;

/// What is permitted beyond the ordinary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether 224.0.0.0/24 and ff02::/16 may be inputs.
    pub allow_link_local: bool,
}

/// Rules in the order of the operator, valid together. Sets share what they have in common, so that
/// one of ten thousand rules is changed without a copy of the others.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: SharedMap<Place, Arc<Rule>>,
    places: SharedMap<ByName, Place>,
    index: InputIndex,
    endpoints: usize,
    /// Memberships of all inputs, those counted twice that several ask for.
    memberships: usize,
}

/// Where a rule stands in the order of its set. Rules that stay keep their places when others go or
/// come, so places are no positions: those have no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

impl Place {
    const FIRST: Self = Self(0);
    const LAST: Self = Self(u64::MAX);
}

impl PartialEq for RuleSet {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.rules.values().eq(other.rules.values())
    }
}

impl Eq for RuleSet {}

/// A rule, known by its name.
#[derive(Clone, Debug)]
struct ByName(Arc<Rule>);

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
    /// Makes a set of `rules`.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with them, at once.
    pub fn new(rules: Vec<Rule>, policy: Policy) -> Result<Self, Problems> {
        let set = Self::unchecked(rules.into_iter().map(Arc::new));
        let problems = set.problems(policy);
        problems.or(set)
    }

    /// Makes a set of rules that may not be valid.
    pub(crate) fn unchecked(rules: impl IntoIterator<Item = Arc<Rule>>) -> Self {
        let places = (0..).map(Place);
        let rules: SharedMap<Place, Arc<Rule>> = places.zip(rules).collect();
        let by_name = |(place, rule): &(Place, Arc<Rule>)| (ByName(Arc::clone(rule)), *place);
        let mut set = Self {
            places: rules.iter().map(by_name).collect(),
            ..Self::default()
        };
        for (place, rule) in rules.iter() {
            set.index.insert(*place, rule);
            set.endpoints += endpoints(rule);
            set.memberships += memberships(rule);
        }
        set.rules = rules;
        set
    }

    /// Everything that is wrong with its rules.
    fn problems(&self, policy: Policy) -> Problems {
        let places: Vec<Place> = self.places().collect();
        check::problems(self, &places, policy)
    }

    /// Makes a set of what was written.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it, at once: texts that cannot be read, and what is wrong
    /// with the rules that can.
    pub fn from_documents(documents: &[RuleDocument], policy: Policy) -> Result<Self, Problems> {
        let mut rules = Vec::new();
        let mut problems = Problems::default();
        for (position, document) in documents.iter().enumerate() {
            match document.to_rule(position) {
                Ok(rule) => rules.push((position, Arc::new(rule))),
                Err(more) => problems.0.extend(more.0),
            }
        }
        let (positions, rules): (Vec<usize>, Vec<Arc<Rule>>) = rules.into_iter().unzip();
        let set = Self::unchecked(rules);
        let mut more = set.problems(policy);
        for problem in &mut more.0 {
            problem.position = positions[problem.position];
            if let What::NameTaken { first } = &mut problem.what {
                *first = positions[*first];
            }
        }
        problems.0.extend(more.0);
        problems
            .0
            .sort_by_key(|problem| (problem.position, problem.part));
        problems.or(set)
    }

    /// Takes the rules named in `remove` out and puts `add` behind the rest, as one step. A name
    /// may be in both: the rule is replaced and keeps its place. Only the rules that come are
    /// checked, for the others are valid together; where something is wrong with them everything
    /// is checked again, so that it is reported as it would be of the whole.
    ///
    /// # Errors
    ///
    /// Names that are not there or are taken, or everything that would be wrong afterwards.
    pub fn changed(
        &self,
        remove: &[String],
        add: Vec<Rule>,
        policy: Policy,
    ) -> Result<Self, ChangeError> {
        let (set, added) = self.rearranged(remove, add)?;
        if check::problems(&set, &added, policy).0.is_empty() {
            return Ok(set);
        }
        let problems = set.problems(policy);
        Ok(problems.or(set)?)
    }

    /// The rules as they would be after a change, unchecked, and the places of those that come.
    fn rearranged(
        &self,
        remove: &[String],
        add: Vec<Rule>,
    ) -> Result<(Self, Vec<Place>), ChangeError> {
        self.require(remove)?;
        let places = remove.iter().filter_map(|name| {
            let place = self.places.get(name.as_str())?;
            Some((name.as_str(), *place))
        });
        let mut vacant: BTreeMap<&str, Place> = places.collect();
        let is_taken = |rule: &&Rule| {
            self.get(&rule.name).is_some() && !vacant.contains_key(rule.name.as_str())
        };
        let taken: Vec<String> = add
            .iter()
            .filter(is_taken)
            .map(|r| r.name.clone())
            .collect();
        if !taken.is_empty() {
            return Err(ChangeError::AlreadyThere(taken));
        }
        let mut set = self.clone();
        for place in vacant.values() {
            set.take(*place);
        }
        let last = self.rules.keys().next_back();
        let mut behind = last.map_or(0, |last| last.0 + 1);
        let mut added = Vec::new();
        for rule in add {
            let place = vacant.remove(rule.name.as_str()).unwrap_or_else(|| {
                behind += 1;
                Place(behind - 1)
            });
            set.put(place, Arc::new(rule));
            added.push(place);
        }
        added.sort();
        Ok((set, added))
    }

    fn take(&mut self, place: Place) {
        if let Some(rule) = self.rules.remove(&place) {
            self.places.remove(rule.name.as_str());
            self.index.remove(place, &rule);
            self.endpoints -= endpoints(&rule);
            self.memberships -= memberships(&rule);
        }
    }

    fn put(&mut self, place: Place, rule: Arc<Rule>) {
        self.index.insert(place, &rule);
        self.endpoints += endpoints(&rule);
        self.memberships += memberships(&rule);
        self.places.insert(ByName(Arc::clone(&rule)), place);
        self.rules.insert(place, rule);
    }

    /// The rules in their order, each with its place.
    #[must_use]
    pub const fn rules(&self) -> &SharedMap<Place, Arc<Rule>> {
        &self.rules
    }

    pub(crate) const fn index(&self) -> &InputIndex {
        &self.index
    }

    /// The rules in their order.
    pub fn iter(&self) -> Iter<'_> {
        self.rules.iter().map(|(_, rule)| rule)
    }

    /// The places in their order.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.rules.keys().copied()
    }

    /// The names in the order of the rules.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rules.values().map(|rule| rule.name.as_str())
    }

    /// Where the rule of that name stands.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<Place> {
        self.places.get(name).copied()
    }

    /// Counts the rules before a place.
    #[must_use]
    pub fn position(&self, place: Place) -> usize {
        self.rules.rank(&place)
    }

    /// The rule of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Rule> {
        let place = self.places.get(name)?;
        self.rules.get(place).map(AsRef::as_ref)
    }

    /// Counts the rules.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rules.len()
    }

    /// Counts the inputs and outputs of all rules.
    #[must_use]
    pub const fn endpoints(&self) -> usize {
        self.endpoints
    }

    /// Counts the memberships that all rules need on `host`, each interface that is named and not
    /// there included. A number up to `enough` may be too large: no more is counted than it takes
    /// to know that there are not more.
    #[must_use]
    pub fn memberships(&self, host: &Host, enough: usize) -> usize {
        if self.memberships <= enough && !self.has_wildcards() {
            return self.memberships;
        }
        let inputs = self.iter().flat_map(|rule| &rule.inputs);
        let distinct: BTreeSet<_> = inputs
            .map(|input| {
                (
                    input.interface.as_deref(),
                    input.destination,
                    &input.sources,
                )
            })
            .collect();
        let mut links: BTreeMap<&str, usize> = BTreeMap::new();
        let each = distinct.into_iter().map(|(interface, groups, sources)| {
            let name = interface.unwrap_or_default();
            let links = *links
                .entry(name)
                .or_insert_with(|| links_of(name, host).max(1));
            joined_groups(groups)
                .saturating_mul(sources.len().max(1))
                .saturating_mul(links)
        });
        each.fold(0, usize::saturating_add)
    }

    /// Says whether there are no rules.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Says whether some input names its interface by a wildcard.
    #[must_use]
    pub fn has_wildcards(&self) -> bool {
        self.index.has_wildcards()
    }

    /// Writes the rules as documents.
    #[must_use]
    pub fn to_documents(&self) -> Vec<RuleDocument> {
        self.iter().map(RuleDocument::from).collect()
    }

    /// Refuses names that are not there.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NotFound`] with all of them.
    pub fn require(&self, names: &[String]) -> Result<(), ChangeError> {
        let missing = names.iter().filter(|name| self.get(name).is_none());
        let missing: Vec<String> = missing.cloned().collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(ChangeError::NotFound {
            missing,
            known: self.names().map(str::to_owned).collect(),
        })
    }
}

impl Index<Place> for RuleSet {
    type Output = Rule;

    fn index(&self, place: Place) -> &Rule {
        &self.rules[&place]
    }
}

/// The rules of a set in their order.
pub type Iter<'a> =
    std::iter::Map<Entries<'a, Place, Arc<Rule>>, fn(&'a (Place, Arc<Rule>)) -> &'a Rule>;

impl<'a> IntoIterator for &'a RuleSet {
    type Item = &'a Rule;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

fn memberships(rule: &Rule) -> usize {
    let inputs = rule.inputs.iter();
    inputs
        .map(|input| joined_groups(input.destination) * input.sources.len().max(1))
        .sum()
}

fn links_of(name: &str, host: &Host) -> usize {
    let links = host.interfaces.values();
    links
        .filter(|link| wildcard::matches(name, &link.name))
        .count()
}

const fn endpoints(rule: &Rule) -> usize {
    rule.inputs.len() + rule.outputs.len()
}

#[cfg(test)]
mod tests;
