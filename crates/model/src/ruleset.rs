//! An ordered set of rules that make sense, alone and together. There is no other way to make one
//! than through validation, so whoever holds a set need not check it again.

mod change;
pub(crate) mod check;
mod index;
mod indexed;
mod stays;

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::document::RuleDocument;
use crate::problem::{Problems, What};
use crate::rule::Rule;

pub use change::ChangeError;
pub(crate) use change::listed;
pub(crate) use index::InputIndex;
pub use indexed::Indexed;
pub use stays::{Piece, Stays};

/// What is permitted beyond the ordinary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether 224.0.0.0/24 and ff02::/16 may be inputs.
    pub allow_link_local: bool,
}

/// Rules in the order of the operator, valid together. Sets share the rules they have in common, so
/// that one of ten thousand is changed without a copy of the others.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: Vec<Arc<Rule>>,
    positions: HashMap<ByName, usize>,
}

impl PartialEq for RuleSet {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules
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

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
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
        Self::checked(rules.into_iter().map(Arc::new).collect(), policy)
    }

    fn checked(rules: Vec<Arc<Rule>>, policy: Policy) -> Result<Self, Problems> {
        let problems = check::problems(&rules, policy);
        problems.or(Self::of_valid(rules))
    }

    fn of_valid(rules: Vec<Arc<Rule>>) -> Self {
        let names = rules.iter().map(|rule| ByName(Arc::clone(rule)));
        let positions = names.zip(0..).collect();
        Self { rules, positions }
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
        let mut more = check::problems(&rules, policy);
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
        problems.or(Self::of_valid(rules))
    }

    /// Takes the rules named in `remove` out and puts `add` behind the rest, as one step. A name
    /// may be in both: the rule is replaced and keeps its place.
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
        let add = add.into_iter().map(Arc::new).collect();
        let rules = self.rearranged(remove, add)?;
        Ok(Self::checked(rules, policy)?)
    }

    /// The rules as they would be after a change, unchecked.
    fn rearranged(
        &self,
        remove: &[String],
        add: Vec<Arc<Rule>>,
    ) -> Result<Vec<Arc<Rule>>, ChangeError> {
        self.require(remove)?;
        let remove: BTreeSet<&str> = remove.iter().map(String::as_str).collect();
        let taken =
            |rule: &&Arc<Rule>| self.get(&rule.name).is_some() && !remove.contains(&*rule.name);
        let taken: Vec<String> = add.iter().filter(taken).map(|r| r.name.clone()).collect();
        if !taken.is_empty() {
            return Err(ChangeError::AlreadyThere(taken));
        }
        let mut rules = self.rules.clone();
        let mut appended = Vec::new();
        let mut gone: BTreeSet<usize> = remove.iter().map(|name| self.positions[*name]).collect();
        for rule in add {
            match self.positions.get(rule.name.as_str()) {
                Some(position) if gone.remove(position) => rules[*position] = rule,
                _ => appended.push(rule),
            }
        }
        if !gone.is_empty() {
            let mut position = 0..;
            rules.retain(|_| !gone.contains(&position.next().unwrap_or_default()));
        }
        rules.append(&mut appended);
        Ok(rules)
    }

    /// Puts one rule behind the rest.
    ///
    /// # Errors
    ///
    /// As [`RuleSet::changed`]; the set stays as it was.
    pub fn add(&mut self, rule: Rule, policy: Policy) -> Result<(), ChangeError> {
        *self = self.changed(&[], vec![rule], policy)?;
        Ok(())
    }

    /// Takes one rule out.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NotFound`] if there is none of that name.
    pub fn remove(&mut self, name: &str) -> Result<Rule, ChangeError> {
        self.require(&[name.to_owned()])?;
        let position = self.positions[name];
        let rule = self.rules.remove(position);
        *self = Self::of_valid(std::mem::take(&mut self.rules));
        Ok(Arc::unwrap_or_clone(rule))
    }

    /// Puts `rule` in the place of the one that has its name.
    ///
    /// # Errors
    ///
    /// As [`RuleSet::changed`]; the set stays as it was.
    pub fn replace(&mut self, rule: Rule, policy: Policy) -> Result<(), ChangeError> {
        let name = [rule.name.clone()];
        *self = self.changed(&name, vec![rule], policy)?;
        Ok(())
    }

    /// The rules in their order.
    #[must_use]
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// The rules in their order.
    pub fn iter(&self) -> Iter<'_> {
        self.rules.iter().map(AsRef::as_ref)
    }

    /// The names in the order of the rules.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| rule.name.as_str())
    }

    /// Where the rule of that name stands.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.positions.get(name).copied()
    }

    /// The rule of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Rule> {
        let position = *self.positions.get(name)?;
        self.rules.get(position).map(AsRef::as_ref)
    }

    /// Counts the rules.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rules.len()
    }

    /// Says whether there are no rules.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty()
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

/// The rules of a set in their order.
pub type Iter<'a> = std::iter::Map<std::slice::Iter<'a, Arc<Rule>>, fn(&Arc<Rule>) -> &Rule>;

impl<'a> IntoIterator for &'a RuleSet {
    type Item = &'a Rule;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// What a change of rules comes to, by name.
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
    /// Says whether no rule differs. The order of the rules does not count.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// Compares two sets, rule by rule.
#[must_use]
pub fn diff(old: &RuleSet, new: &RuleSet) -> RuleSetDiff {
    let mut diff = RuleSetDiff::default();
    let (_, from_old, from_new) = old.without_ends_shared_with(new);
    for rule in from_new {
        match old.get(&rule.name) {
            None => diff.added.push(rule.name.clone()),
            Some(before) if before != &**rule => diff.changed.push(rule.name.clone()),
            Some(_) => {}
        }
    }
    let gone = from_old.iter().filter(|rule| new.get(&rule.name).is_none());
    diff.removed = gone.map(|rule| rule.name.clone()).collect();
    diff
}

impl RuleSet {
    fn without_ends_shared_with<'a, 'b>(
        &'a self,
        other: &'b Self,
    ) -> (usize, &'a [Arc<Rule>], &'b [Arc<Rule>]) {
        without_shared_ends(&self.rules, &other.rules)
    }

    /// Makes a set of rules that are valid together and most of which are this set's: only what
    /// lies in between is looked up by name.
    fn followed_by(&self, rules: Vec<Arc<Rule>>) -> Self {
        let (start, gone, come) = without_shared_ends(&self.rules, &rules);
        let mut positions = self.positions.clone();
        for rule in gone {
            positions.remove(rule.name.as_str());
        }
        let (from, to) = (start + gone.len(), start + come.len());
        if from != to {
            let behind = positions.values_mut().filter(|place| **place >= from);
            behind.for_each(|place| *place = *place - from + to);
        }
        positions.reserve(come.len());
        let come = come.iter().map(|rule| ByName(Arc::clone(rule)));
        positions.extend(come.zip(start..));
        // Of many rules that went no room is left behind, and none made for each that comes again.
        positions.shrink_to(2 * rules.len());
        Self { rules, positions }
    }

    /// How this set differs from `old`: the place from which on, how many rules of `old` are not here
    /// any more, and which are here instead. Rules in between that stay may be among both.
    #[must_use]
    pub fn difference_to<'a>(&'a self, old: &Self) -> (usize, usize, &'a [Arc<Rule>]) {
        let (start, from_old, from_new) = old.without_ends_shared_with(self);
        (start, from_old.len(), from_new)
    }

    /// Which of its rules are the very ones of `old`.
    #[must_use]
    pub fn stays_of(&self, old: &Self) -> Stays {
        Stays::between(old, self)
    }
}

/// What of two lists lies between the elements that both begin with, which are counted, and those that
/// both end with. They are told apart by where they lie in memory, so elements in between may still
/// be the same.
pub fn without_shared_ends<'a, 'b, T>(
    a: &'a [Arc<T>],
    b: &'b [Arc<T>],
) -> (usize, &'a [Arc<T>], &'b [Arc<T>]) {
    let same = |(a, b): &(&Arc<T>, &Arc<T>)| Arc::ptr_eq(a, b);
    let start = a.iter().zip(b).take_while(same).count();
    let (a, b) = (&a[start..], &b[start..]);
    let end = a.iter().rev().zip(b.iter().rev()).take_while(same).count();
    (start, &a[..a.len() - end], &b[..b.len() - end])
}

#[cfg(test)]
mod tests;
