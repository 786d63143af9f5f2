//! An ordered set of rules that make sense, alone and together. There is no other way to make one
//! than through validation, so whoever holds a set need not check it again.

mod change;
pub(crate) mod check;
mod index;

use std::collections::{BTreeMap, BTreeSet};

use crate::document::RuleDocument;
use crate::problem::{Problems, What};
use crate::rule::Rule;

pub use change::ChangeError;
pub(crate) use change::listed;
pub(crate) use index::InputIndex;

/// What is permitted beyond the ordinary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether 224.0.0.0/24 and ff02::/16 may be inputs.
    pub allow_link_local: bool,
}

/// Rules in the order of the operator, valid together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    rules: Vec<Rule>,
    positions: BTreeMap<String, usize>,
}

impl RuleSet {
    /// Makes a set of `rules`.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with them, at once.
    pub fn new(rules: Vec<Rule>, policy: Policy) -> Result<Self, Problems> {
        let problems = check::problems(&rules, policy);
        problems.or(Self::of_valid(rules))
    }

    fn of_valid(rules: Vec<Rule>) -> Self {
        let names = rules.iter().map(|rule| rule.name.clone());
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
                Ok(rule) => rules.push((position, rule)),
                Err(more) => problems.0.extend(more.0),
            }
        }
        let (positions, rules): (Vec<usize>, Vec<Rule>) = rules.into_iter().unzip();
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
        self.require(remove)?;
        let remove: BTreeSet<&str> = remove.iter().map(String::as_str).collect();
        let taken = |rule: &&Rule| self.get(&rule.name).is_some() && !remove.contains(&*rule.name);
        let taken: Vec<String> = add.iter().filter(taken).map(|r| r.name.clone()).collect();
        if !taken.is_empty() {
            return Err(ChangeError::AlreadyThere(taken));
        }
        let mut rules = self.rules.clone();
        let mut appended = Vec::new();
        let mut replaced = BTreeSet::new();
        for rule in add {
            match self.positions.get(&rule.name) {
                Some(position) if replaced.insert(*position) => rules[*position] = rule,
                _ => appended.push(rule),
            }
        }
        let mut position = 0..;
        rules.retain(|rule| {
            let here = position.next().unwrap_or_default();
            replaced.contains(&here) || !remove.contains(&*rule.name)
        });
        rules.append(&mut appended);
        Ok(Self::new(rules, policy)?)
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
        self.positions = self.names().map(str::to_owned).zip(0..).collect();
        Ok(rule)
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
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rules in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, Rule> {
        self.rules.iter()
    }

    /// The names in the order of the rules.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| rule.name.as_str())
    }

    /// The rule of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Rule> {
        self.positions
            .get(name)
            .map(|position| &self.rules[*position])
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
        self.rules.iter().map(RuleDocument::from).collect()
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

impl<'a> IntoIterator for &'a RuleSet {
    type Item = &'a Rule;
    type IntoIter = std::slice::Iter<'a, Rule>;

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
    for rule in new {
        match old.get(&rule.name) {
            None => diff.added.push(rule.name.clone()),
            Some(before) if before != rule => diff.changed.push(rule.name.clone()),
            Some(_) => {}
        }
    }
    let gone = old.names().filter(|name| new.get(name).is_none());
    diff.removed = gone.map(str::to_owned).collect();
    diff
}

#[cfg(test)]
mod tests;
