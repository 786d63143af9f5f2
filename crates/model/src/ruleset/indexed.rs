//! A set with what it takes to judge a change of it without going through all of it again.
//!
//! The rules of the set are valid together, so a change can only be wrong where a rule that comes
//! takes part: alone, as the rival of another input, or in a circle. That is looked for here; what
//! exactly is wrong is found out by the check of the whole, which stays the only one that reports.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::check::{self, claim_the_same};
use super::index::{InputIndex, InputPlace};
use super::{ByName, ChangeError, Policy, RuleSet};
use crate::loops::may_be_sender;
use crate::rule::Rule;

/// A valid set and the index of its inputs.
#[derive(Clone, Debug, Default)]
pub struct Indexed {
    rules: Arc<RuleSet>,
    index: InputIndex,
    numbers: HashMap<ByName, usize>,
    numbered: HashMap<usize, Arc<Rule>>,
    next: usize,
}

/// A rule in a change: one that stays, by its number, or one that comes, by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Node {
    Stays(usize),
    Comes(usize),
}

impl Indexed {
    /// The set.
    #[must_use]
    pub const fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Says whether some input names its interface by a wildcard.
    #[must_use]
    pub fn has_wildcards(&self) -> bool {
        self.index.has_wildcards()
    }

    /// As [`RuleSet::changed`], in a time that depends on the change more than on the set.
    ///
    /// # Errors
    ///
    /// As [`RuleSet::changed`].
    pub fn changed(
        &self,
        remove: &[String],
        add: Vec<Rule>,
        policy: Policy,
    ) -> Result<RuleSet, ChangeError> {
        let comes: Vec<Arc<Rule>> = add.into_iter().map(Arc::new).collect();
        let rules = self.rules.rearranged(remove, comes.clone())?;
        let goes = remove.iter().filter_map(|name| self.numbers.get(&**name));
        let change = Proposal {
            standing: self,
            goes: goes.copied().collect(),
            fresh: InputIndex::new(&comes),
            comes,
        };
        if !change.is_sound(policy) {
            return Ok(RuleSet::checked(rules, policy)?);
        }
        Ok(self.rules.followed_by(rules))
    }

    /// Makes `rules` the set; only what differs is indexed anew.
    pub fn accept(&mut self, rules: Arc<RuleSet>) {
        let (_, old, new) = self.rules.without_ends_shared_with(&rules);
        let new_at: HashSet<*const Rule> = new.iter().map(Arc::as_ptr).collect();
        let gone: Vec<Arc<Rule>> = old
            .iter()
            .filter(|rule| !new_at.contains(&Arc::as_ptr(rule)))
            .cloned()
            .collect();
        for rule in gone {
            if let Some(number) = self.numbers.remove(rule.name.as_str()) {
                self.numbered.remove(&number);
                self.index.remove(number, &rule);
            }
        }
        for rule in new {
            if self.has(rule) {
                continue;
            }
            self.index.insert(self.next, rule);
            self.numbers.insert(ByName(Arc::clone(rule)), self.next);
            self.numbered.insert(self.next, Arc::clone(rule));
            self.next += 1;
        }
        self.rules = rules;
    }

    /// Says whether this very rule is in the set.
    fn has(&self, rule: &Arc<Rule>) -> bool {
        let number = self.numbers.get(rule.name.as_str());
        let known = number.and_then(|number| self.numbered.get(number));
        known.is_some_and(|known| Arc::ptr_eq(known, rule))
    }
}

/// A change that may be wrong.
struct Proposal<'a> {
    standing: &'a Indexed,
    /// Numbers of the rules that go.
    goes: HashSet<usize>,
    comes: Vec<Arc<Rule>>,
    /// Inputs of the rules that come, by position in `comes`.
    fresh: InputIndex,
}

impl Proposal<'_> {
    /// Says whether nothing is wrong with it.
    fn is_sound(&self, policy: Policy) -> bool {
        check::alone(&self.comes, policy).0.is_empty() && !self.has_rivals() && !self.has_circle()
    }

    fn rule(&self, node: Node) -> Option<&Arc<Rule>> {
        match node {
            Node::Stays(number) => self.standing.numbered.get(&number),
            Node::Comes(position) => self.comes.get(position),
        }
    }

    /// Places in both indexes, those of rules that go left out.
    fn both(
        &self,
        find: impl Fn(&InputIndex) -> Vec<InputPlace>,
    ) -> impl Iterator<Item = (Node, usize)> {
        let stays = find(&self.standing.index).into_iter();
        let stays = stays.filter(|place| !self.goes.contains(&place.rule));
        let stays = stays.map(|place| (Node::Stays(place.rule), place.input));
        let comes = find(&self.fresh).into_iter();
        stays.chain(comes.map(|place| (Node::Comes(place.rule), place.input)))
    }

    fn has_rivals(&self) -> bool {
        self.comes.iter().enumerate().any(|(position, rule)| {
            rule.inputs.iter().enumerate().any(|(place, input)| {
                let own = (Node::Comes(position), place);
                self.both(|index| index.rivals(input))
                    .filter(|rival| *rival != own)
                    .filter_map(|(node, other)| self.rule(node)?.inputs.get(other))
                    .any(|other| claim_the_same(input, other))
            })
        })
    }

    /// Walks from the rules that come, depth first: a circle leads through one of them.
    fn has_circle(&self) -> bool {
        let mut done = HashSet::new();
        let mut walked = HashSet::new();
        for start in (0..self.comes.len()).map(Node::Comes) {
            if done.contains(&start) {
                continue;
            }
            let mut walk = vec![(start, self.fed_by(start))];
            walked.insert(start);
            while let Some((node, fed)) = walk.last_mut() {
                let Some(next) = fed.pop() else {
                    done.insert(*node);
                    walked.remove(node);
                    walk.pop();
                    continue;
                };
                if walked.contains(&next) {
                    return true;
                }
                if !done.contains(&next) {
                    walked.insert(next);
                    walk.push((next, self.fed_by(next)));
                }
            }
        }
        false
    }

    /// The rules that the outputs of one arrive at.
    fn fed_by(&self, node: Node) -> Vec<Node> {
        let outputs = self.rule(node).into_iter().flat_map(|rule| &rule.outputs);
        let mut fed: Vec<Node> = outputs
            .flat_map(|output| {
                let reached = self.both(|index| index.reached_by(&output.to));
                reached.filter(|(to, input)| {
                    let input = self.rule(*to).and_then(|rule| rule.inputs.get(*input));
                    input.is_some_and(|input| may_be_sender(output, &input.sources))
                })
            })
            .map(|(to, _)| to)
            .collect();
        fed.dedup();
        fed
    }
}
