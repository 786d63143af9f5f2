//! What follows from rules and host: no I/O, no clock, so that every decision can be tested.
//!
//! A [`Step`] is a proposal. The supervisor carries it out, and only then the core accepts it; a
//! step that cannot be carried out leaves no trace.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::reply::Change;
use api::request::{RuleList, Transaction};
use model::compile::{Compiled, RuleView, compile, next_hop_queries};
use model::config::{Config, InterfaceSettings};
use model::diff::TableDiff;
use model::document::RuleDocument;
use model::host::{Host, NextHopQuery};
use model::net::Ifindex;
use model::placement::{PathChoice, PathChoices, Support};
use model::problem::Problems;
use model::rule::Rule;
use model::ruleset::{ChangeError, Indexed, Policy, RuleSet, diff};
use model::table::Table;
use sys::membership::Membership;

use crate::memberships::wanted;
use crate::question::{Code, Refusal};

/// A change that somebody asks for.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// Take rules out and put rules in.
    Change(Transaction),
    /// Make the rules these.
    Replace(RuleList),
}

/// Why a change is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// The rules, or their names.
    #[error(transparent)]
    Rules(#[from] ChangeError),
    /// Somebody else changed the rules in between.
    #[error(
        "the rules are of generation {running}, not {asked}: somebody changed them in between; \
         read them again and repeat the change"
    )]
    Conflict { running: u64, asked: u64 },
    /// The host could not carry it out; the rules stay as they were.
    #[error("{0}; the rules stay as they were")]
    Unavailable(String),
}

impl From<Problems> for Refused {
    fn from(problems: Problems) -> Self {
        Self::Rules(problems.into())
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        let code = match &refused {
            Refused::Rules(ChangeError::NotFound { .. }) => Code::NotFound,
            Refused::Rules(ChangeError::AlreadyThere(_)) => Code::Exists,
            Refused::Rules(ChangeError::Invalid(_)) => Code::Invalid,
            Refused::Conflict { .. } => Code::Conflict,
            Refused::Unavailable(_) => Code::Unavailable,
        };
        Self::new(code, refused)
    }
}

/// What to do to get to other rules or another host.
#[derive(Debug)]
pub(crate) struct Step {
    rules: Arc<RuleSet>,
    host: Arc<Host>,
    pub(crate) compiled: Compiled,
    /// What the dataplane has to do first: routes on links that are not the ones they were.
    pub(crate) cleared: TableDiff,
    /// What the dataplane has to do then.
    pub(crate) diff: TableDiff,
    /// Rules whose counters end.
    pub(crate) gone: Vec<String>,
    /// What has to be joined.
    pub(crate) wanted: BTreeSet<Membership>,
    pub(crate) change: Change,
}

/// The running rules on the host as it was last seen.
#[derive(Debug)]
pub(crate) struct Core {
    policy: Policy,
    support: Support,
    choices: PathChoices,
    process_choice: PathChoice,
    interfaces: BTreeMap<String, InterfaceSettings>,
    generation: u64,
    rules: Indexed,
    host: Arc<Host>,
    table: Table,
    wanted: BTreeSet<Membership>,
}

impl Core {
    pub(crate) fn new(support: Support, process_choice: PathChoice, policy: Policy) -> Self {
        Self {
            policy,
            support,
            choices: PathChoices {
                process: process_choice,
                ..PathChoices::default()
            },
            process_choice,
            interfaces: BTreeMap::new(),
            generation: 0,
            rules: Indexed::default(),
            host: Arc::default(),
            table: Table::default(),
            wanted: BTreeSet::new(),
        }
    }

    /// Takes over what the configuration says beyond rules.
    pub(crate) fn configure(&mut self, config: &Config) {
        self.choices = config.path_choices(self.process_choice);
        self.interfaces.clone_from(&config.interfaces);
        self.policy.allow_link_local |= config.allow_link_local;
    }

    /// Goes on with the generation numbers of an earlier run.
    pub(crate) fn continue_from(&mut self, generation: u64) {
        self.generation = generation;
    }

    pub(crate) const fn policy(&self) -> Policy {
        self.policy
    }

    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) const fn rules(&self) -> &Arc<RuleSet> {
        self.rules.rules()
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// What the dataplane executes.
    pub(crate) const fn table(&self) -> &Table {
        &self.table
    }

    /// What the configuration says about interfaces.
    pub(crate) const fn interfaces(&self) -> &BTreeMap<String, InterfaceSettings> {
        &self.interfaces
    }

    /// What the running rules need joined.
    pub(crate) const fn wanted(&self) -> &BTreeSet<Membership> {
        &self.wanted
    }

    /// The rules that a request comes to.
    pub(crate) fn asked(&self, request: &Request) -> Result<RuleSet, Refused> {
        let generation = match request {
            Request::Change(transaction) => transaction.generation,
            Request::Replace(list) => list.generation,
        };
        if let Some(asked) = generation.filter(|asked| *asked != self.generation) {
            let running = self.generation;
            return Err(Refused::Conflict { running, asked });
        }
        match request {
            Request::Replace(list) => Ok(RuleSet::from_documents(&list.rules, self.policy)?),
            Request::Change(Transaction { add, remove, .. }) => {
                let add = parse(add)?;
                Ok(self.rules.changed(remove, add, self.policy)?)
            }
        }
    }

    /// What a change to `rules` would change.
    pub(crate) fn compare(&self, rules: &RuleSet) -> Change {
        let diff = diff(self.rules(), rules);
        let unchanged = rules.len() - diff.added.len() - diff.changed.len();
        Change {
            generation: self.generation,
            added: diff.added,
            removed: diff.removed,
            changed: diff.changed,
            unchanged,
            warnings: Vec::new(),
        }
    }

    /// The unicast destinations of `rules`, whose next hops the host has to know.
    pub(crate) fn queries(rules: &RuleSet) -> Vec<NextHopQuery> {
        next_hop_queries(rules)
    }

    /// Works out how to get to `rules` on `host`. The routes on `renewed` links are made anew even
    /// where they look the same.
    pub(crate) fn step(
        &self,
        rules: Arc<RuleSet>,
        host: Arc<Host>,
        renewed: &BTreeSet<Ifindex>,
    ) -> Step {
        let mut change = self.compare(&rules);
        if rules != *self.rules() {
            change.generation += 1;
        }
        let compiled = compile(&rules, &host, &self.support, &self.choices);
        change.warnings = warnings(&change, &compiled);
        let (cleared, diff) = if renewed.is_empty() {
            let diff = TableDiff::between(&self.table, &compiled.table);
            (TableDiff::default(), diff)
        } else {
            let mut base = self.table.clone();
            base.routes.retain(|key, _| !renewed.contains(&key.ingress));
            let cleared = TableDiff::between(&self.table, &base);
            (cleared, TableDiff::between(&base, &compiled.table))
        };
        Step {
            cleared,
            diff,
            gone: change.removed.clone(),
            wanted: wanted(&compiled),
            rules,
            host,
            compiled,
            change,
        }
    }

    /// Records that a step was carried out.
    pub(crate) fn accept(&mut self, step: Step) -> Compiled {
        let mut compiled = step.compiled;
        self.rules.accept(step.rules);
        self.host = step.host;
        self.table = std::mem::take(&mut compiled.table);
        self.wanted = step.wanted;
        self.generation = step.change.generation;
        compiled
    }

    /// Records that the routes on renewed links were taken out, whatever becomes of the rest.
    pub(crate) fn accept_cleared(&mut self, renewed: &BTreeSet<Ifindex>) {
        self.table
            .routes
            .retain(|key, _| !renewed.contains(&key.ingress));
    }
}

/// What keeps rules that came or changed from relaying all they should.
fn warnings(change: &Change, compiled: &Compiled) -> Vec<String> {
    let new: BTreeSet<&String> = change.added.iter().chain(&change.changed).collect();
    let rules = compiled.rules.iter();
    rules
        .filter(|rule| new.contains(&rule.name))
        .flat_map(RuleView::troubles)
        .collect()
}

/// Reads rules; everything that is wrong with any of them is reported.
fn parse(documents: &[RuleDocument]) -> Result<Vec<Rule>, Problems> {
    let mut rules = Vec::new();
    let mut problems = Problems::default();
    for (position, document) in documents.iter().enumerate() {
        match document.to_rule(position) {
            Ok(rule) => rules.push(rule),
            Err(more) => problems.0.extend(more.0),
        }
    }
    if problems.0.is_empty() {
        Ok(rules)
    } else {
        Err(problems)
    }
}
