//! What follows from rules and host: no I/O, no clock, so that every decision can be tested.
//!
//! A [`Step`] is a proposal. The supervisor carries it out, and only then the core accepts it; a
//! step that cannot be carried out leaves no trace.

mod destinations;
mod request;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use api::reply::Change;
use api::request::{RULES_MAX, Transaction};
use model::budget::Spenders;
use model::compile::{Before, RuleView, amend, compile};
use model::config::{Config, Settings};
use model::diff::{BudgetChange, TableDiff};
use model::document::RuleDocument;
use model::endpoint::Endpoint;
use model::host::{Host, NextHopQuery};
use model::net::Ifindex;
use model::placement::{PathChoice, PathChoices, Support};
use model::problem::Problems;
use model::rule::Rule;
use model::ruleset::{Indexed, Policy, RuleSet, Stays, diff};
use model::table::{RateLimit, Table};
use sys::membership::Membership;

use crate::memberships::{Wanted, WantedDiff};
use destinations::Destinations;
pub(crate) use request::{Refused, Request};

/// Inputs and outputs that there may be for each rule that there may be, on average.
const ENDPOINTS_PER_RULE: usize = 8;

/// What to do to get to other rules or another host.
#[derive(Debug)]
pub(crate) struct Step {
    rules: Arc<RuleSet>,
    settings: Arc<Settings>,
    host: Arc<Host>,
    views: Vec<Arc<RuleView>>,
    pub(crate) parts: Parts,
    /// Rules whose counters end.
    pub(crate) gone: Vec<String>,
    pub(crate) change: Change,
}

/// What of everything changes.
#[derive(Debug)]
pub(crate) struct Parts {
    /// What the dataplane has to do first: routes on links that are not the ones they were.
    pub(crate) cleared: TableDiff,
    /// What the dataplane has to do then.
    pub(crate) diff: TableDiff,
    /// The table whole, where all of it was compiled.
    table: Option<Table>,
    /// Who draws on the budget then.
    spenders: Spenders,
    /// What has to be joined.
    pub(crate) wanted: Wanting,
    /// Which rules stay, if only what differs was compiled.
    stays: Option<Stays>,
}

/// What has to be joined: everything, or what changes.
#[derive(Debug)]
pub(crate) enum Wanting {
    Whole(Wanted),
    Part(WantedDiff),
}

impl Step {
    /// What has to be joined before the step: at least what is not joined yet.
    pub(crate) fn joins(&self) -> Cow<'_, BTreeSet<Membership>> {
        match &self.parts.wanted {
            Wanting::Whole(wanted) => Cow::Owned(wanted.memberships()),
            Wanting::Part(diff) => Cow::Borrowed(&diff.join),
        }
    }

    /// What has to be left after it, if that is known without a look at everything.
    pub(crate) fn leaves(&self) -> Option<&BTreeSet<Membership>> {
        match &self.parts.wanted {
            Wanting::Whole(_) => None,
            Wanting::Part(diff) => Some(&diff.leave),
        }
    }

    /// The table that it leads to, where all of it was compiled.
    pub(crate) const fn table(&self) -> Option<&Table> {
        self.parts.table.as_ref()
    }
}

/// The running rules on the host as it was last seen.
#[derive(Debug)]
pub(crate) struct Core {
    /// What the process permits, whatever the settings say.
    policy: Policy,
    /// The most rules that clients may bring about.
    max_rules: usize,
    support: Support,
    process_choice: PathChoice,
    settings: Arc<Settings>,
    generation: u64,
    rules: Indexed,
    destinations: Destinations,
    host: Arc<Host>,
    /// What can be said about each rule.
    views: Vec<Arc<RuleView>>,
    table: Table,
    spenders: Spenders,
    wanted: Wanted,
    /// Whether something changed that all rules depend on.
    stale: bool,
}

impl Core {
    pub(crate) fn new(support: Support, process_choice: PathChoice, policy: Policy) -> Self {
        Self {
            policy,
            max_rules: RULES_MAX,
            support,
            process_choice,
            settings: Arc::default(),
            generation: 0,
            rules: Indexed::default(),
            destinations: Destinations::default(),
            host: Arc::default(),
            views: Vec::new(),
            table: Table::default(),
            spenders: Spenders::default(),
            wanted: Wanted::default(),
            stale: true,
        }
    }

    /// Holds clients to so many rules.
    #[must_use]
    pub(crate) fn at_most(self, max_rules: usize) -> Self {
        Self { max_rules, ..self }
    }

    /// Goes on with the generation numbers of an earlier run.
    pub(crate) fn continue_from(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// What rules may be where these settings are.
    pub(crate) fn policy(&self, settings: &Settings) -> Policy {
        Policy {
            allow_link_local: self.policy.allow_link_local || settings.permit_link_local(),
        }
    }

    /// What the process permits, whatever the settings say.
    pub(crate) const fn own_policy(&self) -> Policy {
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

    /// What the configuration says beyond rules.
    pub(crate) const fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// What the running rules need joined.
    pub(crate) fn wanted(&self) -> BTreeSet<Membership> {
        self.wanted.memberships()
    }

    /// What can be said about each rule, in their order.
    pub(crate) fn views(&self) -> &[Arc<RuleView>] {
        &self.views
    }

    /// The rules and settings that a request comes to.
    pub(crate) fn asked(&self, request: &Request) -> Result<Config, Refused> {
        let asked = self.asked_unbounded(request)?;
        self.check_room(&asked.rules)?;
        Ok(asked)
    }

    /// Rules whose interfaces are not there take no room on either path, so they are counted here.
    /// Where there are too many already, by the configuration, there may be fewer.
    fn check_room(&self, rules: &RuleSet) -> Result<(), Refused> {
        let check = |what, count: fn(&RuleSet) -> usize, most| {
            let asked = count(rules);
            if asked > most && asked > count(self.rules()) {
                return Err(Refused::TooMany { what, asked, most });
            }
            Ok(())
        };
        let most = self.max_rules;
        check("rules", RuleSet::len, most)?;
        let most = most.saturating_mul(ENDPOINTS_PER_RULE);
        check("inputs and outputs", endpoints, most)
    }

    fn asked_unbounded(&self, request: &Request) -> Result<Config, Refused> {
        let generation = match request {
            Request::Change(transaction) => transaction.generation,
            Request::Replace(list) => list.generation,
        };
        if let Some(asked) = generation.filter(|asked| *asked != self.generation) {
            let running = self.generation;
            return Err(Refused::Conflict { running, asked });
        }
        match request {
            Request::Replace(list) => {
                let settings = list.settings.as_ref().unwrap_or(&self.settings).clone();
                let rules = RuleSet::from_documents(&list.rules, self.policy(&settings))?;
                Ok(Config { rules, settings })
            }
            Request::Change(Transaction { add, remove, .. }) => {
                let add = parse(add)?;
                let policy = self.policy(&self.settings);
                Ok(Config {
                    rules: self.rules.changed(remove, add, policy)?,
                    settings: Settings::clone(&self.settings),
                })
            }
        }
    }

    /// What a change to other rules and settings would change.
    pub(crate) fn compare(&self, rules: &RuleSet, settings: &Settings) -> Change {
        let diff = diff(self.rules(), rules);
        let unchanged = rules.len() - diff.added.len() - diff.changed.len();
        Change {
            generation: self.generation,
            added: diff.added,
            removed: diff.removed,
            changed: diff.changed,
            unchanged,
            settings: settings.changes_since(&self.settings),
            warnings: Vec::new(),
        }
    }

    /// The unicast destinations of `rules`, whose next hops the host has to know.
    pub(crate) fn queries(&self, rules: &RuleSet) -> Vec<NextHopQuery> {
        self.destinations.after(self.rules(), rules).queries()
    }

    /// Works out how to get to `rules` and `settings` on `host`. The routes on `renewed` links are
    /// made anew even where they look the same.
    pub(crate) fn step(
        &self,
        rules: Arc<RuleSet>,
        settings: Arc<Settings>,
        host: Arc<Host>,
        renewed: &BTreeSet<Ifindex>,
    ) -> Step {
        let mut change = self.compare(&rules, &settings);
        if rules != *self.rules() || settings != self.settings {
            change.generation += 1;
        }
        let choices = settings.path_choices(self.process_choice);
        let budget = settings.budget.map(|budget| budget.0);
        let stays = self.may_amend(&settings, &host, renewed);
        let stays = stays.then(|| rules.stays_of(self.rules()));
        // A wildcard takes what no other rule names, so what it gets depends on all of them.
        let stays = stays.filter(|stays| !brings_wildcard(&rules, stays));
        let (views, parts) = match stays {
            Some(stays) => self.amend(&rules, &choices, budget, stays),
            None => self.compile(&rules, &choices, budget, &host, renewed),
        };
        change.warnings = warnings(&change, &views, parts.stays.as_ref());
        Step {
            gone: change.removed.clone(),
            rules,
            settings,
            host,
            views,
            parts,
            change,
        }
    }

    /// Says whether what was compiled last still holds.
    fn may_amend(
        &self,
        settings: &Settings,
        host: &Arc<Host>,
        renewed: &BTreeSet<Ifindex>,
    ) -> bool {
        // The budget is no matter of single rules; every other setting may be one of all.
        let same = settings.interface == self.settings.interface;
        !self.stale
            && same
            && renewed.is_empty()
            && Arc::ptr_eq(host, &self.host)
            && !self.rules.has_wildcards()
    }

    fn compile(
        &self,
        rules: &RuleSet,
        choices: &PathChoices,
        budget: Option<RateLimit>,
        host: &Host,
        renewed: &BTreeSet<Ifindex>,
    ) -> (Vec<Arc<RuleView>>, Parts) {
        let mut compiled = compile(rules, host, &self.support, choices);
        let spenders = Spenders::of(&compiled.table);
        compiled.table.budget = budget.map(|whole| spenders.share(whole));
        let (cleared, diff) = if renewed.is_empty() {
            let diff = TableDiff::between(&self.table, &compiled.table);
            (TableDiff::default(), diff)
        } else {
            let mut base = self.table.clone();
            base.routes.retain(|key, _| !renewed.contains(&key.ingress));
            let cleared = TableDiff::between(&self.table, &base);
            (cleared, TableDiff::between(&base, &compiled.table))
        };
        let parts = Parts {
            cleared,
            diff,
            table: Some(compiled.table),
            spenders,
            wanted: Wanting::Whole(Wanted::of(&compiled.rules)),
            stays: None,
        };
        (compiled.rules, parts)
    }

    fn amend(
        &self,
        rules: &RuleSet,
        choices: &PathChoices,
        budget: Option<RateLimit>,
        stays: Stays,
    ) -> (Vec<Arc<RuleView>>, Parts) {
        let before = Before {
            rules: self.rules(),
            views: &self.views,
            table: &self.table,
        };
        let mut amended = amend(before, rules, &stays, &self.host, &self.support, choices);
        let spenders = self.spenders.after(&self.table, &amended.diff);
        let budget = budget.map(|whole| spenders.share(whole));
        amended.diff.budget = (budget != self.table.budget).then_some(BudgetChange(budget));
        let gone = stays.gone().flatten().map(|there| &*self.views[there]);
        let come = stays.come().flatten().map(|here| &*amended.rules[here]);
        let wanted = self.wanted.diff(gone, come);
        let parts = Parts {
            cleared: TableDiff::default(),
            diff: amended.diff,
            table: None,
            spenders,
            wanted: Wanting::Part(wanted),
            stays: Some(stays),
        };
        (amended.rules, parts)
    }

    /// Records that a step was carried out; says which rules stay, if only what differs was compiled.
    pub(crate) fn accept(&mut self, step: Step) -> Option<Stays> {
        self.destinations.follow(self.rules.rules(), &step.rules);
        self.rules.accept(step.rules);
        self.settings = step.settings;
        self.spenders = step.parts.spenders;
        self.host = step.host;
        self.views = step.views;
        match step.parts.table {
            Some(table) => self.table = table,
            None => step.parts.diff.apply_to(&mut self.table),
        }
        match step.parts.wanted {
            Wanting::Whole(wanted) => self.wanted = wanted,
            Wanting::Part(diff) => self.wanted.apply(diff),
        }
        self.generation = step.change.generation;
        self.stale = false;
        step.parts.stays
    }

    /// Records that the routes on renewed links were taken out, whatever becomes of the rest.
    pub(crate) fn accept_cleared(&mut self, renewed: &BTreeSet<Ifindex>) {
        self.table
            .routes
            .retain(|key, _| !renewed.contains(&key.ingress));
        self.stale = true;
    }
}

fn endpoints(rules: &RuleSet) -> usize {
    let each = rules.iter();
    each.map(|rule| rule.inputs.len() + rule.outputs.len())
        .sum()
}

/// Says whether a rule that comes names an interface by a wildcard.
fn brings_wildcard(rules: &RuleSet, stays: &Stays) -> bool {
    let come = stays.come().flatten().map(|here| &rules.rules()[here]);
    let mut inputs = come.flat_map(|rule| &rule.inputs);
    inputs.any(Endpoint::has_wildcard)
}

/// What keeps rules that came or changed from relaying all they should.
fn warnings(change: &Change, views: &[Arc<RuleView>], stays: Option<&Stays>) -> Vec<String> {
    let new: BTreeSet<&String> = change.added.iter().chain(&change.changed).collect();
    let come: Vec<usize> = match stays {
        Some(stays) => stays.come().flatten().collect(),
        None => (0..views.len()).collect(),
    };
    let views = come.into_iter().map(|here| &views[here]);
    views
        .filter(|view| new.contains(&view.name))
        .flat_map(|view| view.troubles())
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
