//! An ordered set of rules that are valid, alone and together. Only validation makes one, so the holder
//! of a set need not check it again.

mod change;
mod check;
pub(crate) mod index;
pub(crate) mod set;
pub(crate) mod slot;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::document::RuleDocument;
use crate::problem::{Problems, What};
use crate::rule::Rule;

pub use change::{ChangeError, RuleChanges, RuleDifference, RuleSetDiff, diff, listed};
pub use check::{Policy, is_link_local};
pub use set::{Iter, RuleSet};
pub use slot::Slot;

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

    /// Everything that is wrong with its rules.
    fn problems(&self, policy: Policy) -> Problems {
        let slots: Vec<Slot> = self.slots().collect();
        check::problems(self, &slots, policy)
    }

    /// Makes a set of rules as written.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with them, at once: texts that cannot be parsed, and what is wrong
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

    /// Removes the rules named in `remove` and appends `add`, as one step. A name may be in both:
    /// the rule is replaced and keeps its slot. Only added rules are checked, because the others
    /// are valid together; if one of them has a problem, everything is checked again, so that the
    /// report is that of the whole set.
    ///
    /// # Errors
    ///
    /// Names that do not exist or are taken, or everything that would be wrong afterwards.
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

    /// The rules after a change, unchecked, and the slots of those added.
    fn rearranged(
        &self,
        remove: &[String],
        add: Vec<Rule>,
    ) -> Result<(Self, Vec<Slot>), ChangeError> {
        self.require(remove)?;
        let mut vacant: BTreeMap<&str, Slot> = remove
            .iter()
            .filter_map(|name| Some((name.as_str(), self.slot(name)?)))
            .collect();
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
        for slot in vacant.values() {
            set.take(*slot);
        }
        let last = self.rules().keys().next_back();
        let mut next = last.map_or(Slot::FIRST, |last| last.next());
        let mut added = Vec::new();
        for rule in add {
            let slot = vacant.remove(rule.name.as_str()).unwrap_or_else(|| {
                let slot = next;
                next = next.next();
                slot
            });
            set.put(slot, Arc::new(rule));
            added.push(slot);
        }
        added.sort();
        Ok((set, added))
    }

    /// Refuses names of rules that do not exist.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NotFound`] with all of them.
    pub fn require(&self, names: &[String]) -> Result<(), ChangeError> {
        let is_missing = |name: &&String| self.get(name).is_none();
        let missing: Vec<String> = names.iter().filter(is_missing).cloned().collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(ChangeError::NotFound {
            missing,
            known: self.names().map(str::to_owned).collect(),
        })
    }
}

#[cfg(test)]
mod tests;
