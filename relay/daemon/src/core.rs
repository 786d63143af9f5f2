//! The core decides what follows from the rules and the host. It does no I/O and reads no clock, so
//! that every decision can be tested.
//!
//! A [`Step`] is a proposal. The core accepts it once the supervisor has executed it; a step that cannot
//! be executed leaves no trace.

mod demand;
mod destinations;
mod fleet;
pub(crate) mod joins;
mod request;
mod step;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use api::reply::{Change, RuleChange};
use api::request::{RULES_MAX, Transaction};
use compile::budget::Spenders;
use compile::diff::{BudgetChange, TableDiff};
use compile::host::{Host, NextHopQuery};
use compile::placement::{PathChoice, Support};
use compile::table::Table;
use compile::{Compiled, InputView, RuleView, tunnel_query};
use config::{Config, MAX_MEMBERSHIPS, Settings};
use rules::demand::Listening;
use rules::document::RuleDocument;
use rules::net::Ifindex;
use rules::problem::Problems;
use rules::rule::Rule;
use rules::ruleset::{Policy, RuleChanges, RuleDifference, RuleSet, Slot, diff};
use rules::shared_map::SharedMap;
use sys::membership::Membership;

use crate::memberships::{Wanted, of_inputs, of_rules};
use demand::Demanding;
use destinations::Destinations;
pub(crate) use fleet::{export, local};
pub(crate) use request::{Refused, Request};
use step::differing;
pub(crate) use step::{Recompiled, Step};

/// Inputs and outputs that are permitted for each permitted rule, on average.
const ENDPOINTS_PER_RULE: usize = 8;

/// The running rules on the host as last observed.
#[derive(Debug)]
pub(crate) struct Core {
    /// The policy of the process, whatever the settings are.
    policy: Policy,
    /// The most rules that clients may run.
    max_rules: usize,
    max_memberships: usize,
    support: Support,
    process_choice: PathChoice,
    settings: Arc<Settings>,
    generation: u64,
    rules: Arc<RuleSet>,
    destinations: Destinations,
    demanding: Demanding,
    host: Arc<Host>,
    /// The groups that hosts on the interfaces of outputs on demand listen to.
    listening: Arc<Listening>,
    /// The compiled rules.
    compiled: Compiled,
    spenders: Spenders,
    wanted: Wanted,
    /// The static joins, which do not depend on rules.
    joined: Arc<[InputView]>,
    /// Whether something that all rules depend on has changed.
    stale: bool,
}

impl Core {
    pub(crate) fn new(support: Support, process_choice: PathChoice, policy: Policy) -> Self {
        Self {
            policy,
            max_rules: RULES_MAX,
            max_memberships: MAX_MEMBERSHIPS as usize,
            support,
            process_choice,
            settings: Arc::default(),
            generation: 0,
            rules: Arc::default(),
            destinations: Destinations::default(),
            demanding: Demanding::default(),
            host: Arc::default(),
            listening: Arc::default(),
            compiled: Compiled::default(),
            spenders: Spenders::default(),
            wanted: Wanted::default(),
            joined: Arc::default(),
            stale: true,
        }
    }

    /// Limits the rules and memberships of clients.
    #[must_use]
    pub(crate) fn at_most(self, max_rules: usize, max_memberships: usize) -> Self {
        Self {
            max_rules,
            max_memberships,
            ..self
        }
    }

    /// Continues the generation numbers of an earlier run.
    pub(crate) fn continue_from(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// The policy for rules under these settings.
    pub(crate) fn policy(&self, settings: &Settings) -> Policy {
        settings.policy(self.policy)
    }

    /// The policy of the process, whatever the settings are.
    pub(crate) const fn own_policy(&self) -> Policy {
        self.policy
    }

    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) const fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// The table that the dataplane executes.
    pub(crate) const fn table(&self) -> &Table {
        &self.compiled.table
    }

    /// The settings, everything in the configuration except rules.
    pub(crate) const fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// The memberships that the running rules need.
    pub(crate) fn wanted(&self) -> BTreeSet<Membership> {
        self.wanted.memberships()
    }

    /// The static joins, in the order of the settings.
    pub(crate) const fn joined(&self) -> &Arc<[InputView]> {
        &self.joined
    }

    /// The memberships to join before a step: at least those not joined yet.
    pub(crate) fn joins(&self, step: &Step) -> BTreeSet<Membership> {
        match step.recompiled {
            Recompiled::Some(_) => step.wanted.join.clone(),
            // Memberships may have been lost with their link.
            Recompiled::All(_) => {
                let mut wanted = self.wanted.clone();
                wanted.apply(step.wanted.clone());
                wanted.memberships()
            }
        }
    }

    /// The compiled view of each rule, in their order.
    pub(crate) const fn views(&self) -> &SharedMap<Slot, Arc<RuleView>> {
        &self.compiled.rules
    }

    /// The rules and settings that a request results in.
    pub(crate) fn resolve(&self, request: &Request) -> Result<Config, Refused> {
        let config = self.resolve_unbounded(request)?;
        self.check_room(&config.rules, &config.settings)?;
        Ok(config)
    }

    /// Refuses more rules than clients may run. Rules whose interfaces are missing take no room on
    /// either path, so they are counted here. If the configuration has too many, clients may still
    /// reduce them.
    fn check_room(&self, rules: &RuleSet, settings: &Settings) -> Result<(), Refused> {
        let check = |what, count: &dyn Fn(&RuleSet, &Settings) -> usize, most, option| {
            let asked = count(rules, settings);
            if asked > most && asked > count(self.rules(), &self.settings) {
                return Err(Refused::TooMany {
                    what,
                    asked,
                    most,
                    option,
                });
            }
            Ok(())
        };
        let rules = self.max_rules;
        check("rules", &|rules, _| rules.len(), rules, "--max-rules")?;
        check(
            "inputs and outputs",
            &|rules, _| rules.endpoints(),
            rules.saturating_mul(ENDPOINTS_PER_RULE),
            "--max-rules",
        )?;
        let most = self.max_memberships;
        let memberships = |rules: &RuleSet, settings: &Settings| {
            rules.memberships(self.host.names(), most) + joins::count(&settings.join)
        };
        check("memberships", &memberships, most, "--max-memberships")
    }

    fn resolve_unbounded(&self, request: &Request) -> Result<Config, Refused> {
        let generation = match request {
            Request::Change(transaction) => transaction.generation,
            Request::Replace(list) => list.generation,
        };
        Refused::insist(self.generation, generation)?;
        match request {
            Request::Replace(list) => {
                fleet::check_without_share(&list.rules)?;
                let settings = list.settings.as_ref().unwrap_or(&self.settings).clone();
                let rules = RuleSet::from_documents(&list.rules, self.policy(&settings))?;
                self.keeping_fleet(Config::of(rules, settings))
            }
            Request::Change(transaction) => {
                self.check_local(transaction)?;
                let Transaction { add, remove, .. } = transaction;
                let add = parse(add)?;
                let policy = self.policy(&self.settings);
                let rules = self.rules.changed(remove, add, policy)?;
                Ok(Config::of(
                    rules,
                    joins::changed(&self.settings, transaction)?,
                ))
            }
        }
    }

    /// Compares other rules and settings with the running ones.
    pub(crate) fn compare(&self, rules: &RuleSet, settings: &Settings) -> Change {
        Change {
            generation: self.generation,
            ..compare((&self.rules, &self.settings), (rules, settings))
        }
    }

    /// Lists the unicast destinations of `rules` and the other ends of tunnels, whose next hops have to
    /// be looked up.
    pub(crate) fn queries(&self, rules: &RuleSet, settings: &Settings) -> Vec<NextHopQuery> {
        let mut queries = self.destinations.after(self.rules(), rules).queries();
        queries.extend(settings.tunnels().map(|(_, tunnel)| tunnel_query(tunnel)));
        queries
    }

    /// The step to `rules` and `settings` on `host`. The routes on `renewed` links are recreated even if
    /// they are equal.
    pub(crate) fn step(
        &self,
        rules: Arc<RuleSet>,
        settings: Arc<Settings>,
        host: Arc<Host>,
        renewed: &BTreeSet<Ifindex>,
    ) -> Step {
        let recompiled = if self.still_holds(&rules, &settings, &host, renewed) {
            Recompiled::Some(RuleChanges::between(&self.rules, &rules))
        } else {
            Recompiled::All(RuleChanges::of_all(&self.rules, &rules))
        };
        let environment = (host, self.listening.clone());
        self.step_over((rules, settings), environment, recompiled, renewed)
    }

    /// The step that compiles the given rules.
    fn step_over(
        &self,
        (rules, settings): (Arc<RuleSet>, Arc<Settings>),
        (host, listening): (Arc<Host>, Arc<Listening>),
        recompiled: Recompiled,
        renewed: &BTreeSet<Ifindex>,
    ) -> Step {
        let mut change = self.compare(&rules, &settings);
        // If no rule differs, their order may.
        let differ = has_changes(&change) || rules != self.rules;
        if differ || settings != self.settings {
            // A stored generation may be any number.
            change.generation = change.generation.wrapping_add(1);
        }
        let choices = settings.path_choices(self.process_choice);
        let changes = recompiled.changes();
        let (cleared, standing) = self.without_links(renewed);
        let mut amendment = standing.amended(changes, (&host, &listening), &self.support, &choices);
        let spenders = self
            .spenders
            .after(self.table(), &cleared)
            .after(&standing.table, &amendment.diff);
        let budget = settings.budget.map(|budget| spenders.share(budget.0));
        amendment.diff.budget = (budget != self.table().budget).then_some(BudgetChange(budget));
        let views = |map: &SharedMap<_, _>, rules: &[(Slot, _)]| -> Vec<Arc<RuleView>> {
            let positions = rules.iter().map(|(position, _)| position);
            positions
                .filter_map(|position| map.get(position))
                .cloned()
                .collect()
        };
        let removed = views(self.views(), &changes.removed);
        let added = views(&amendment.rules, &changes.added);
        change.warnings = warnings(&change, &added);
        let joined = compile::joined(&settings.join, &host);
        let new: Vec<_> = differing(&change)
            .filter_map(|name| rules.get(name))
            .collect();
        let mixed = rules::mixed::mixed(rules.iter(), new.iter().copied());
        let spoilt = rules::payload::spoilt(new.into_iter());
        change.warnings.extend(mixed.into_iter().chain(spoilt));
        change.warnings.extend(self.joins_in_trouble(&joined));
        let leaving = of_rules(&removed).chain(of_inputs(&self.joined));
        let joining = of_rules(&added).chain(of_inputs(&joined));
        Step {
            wanted: self.wanted.diff(leaving, joining),
            joined: joined.into(),
            rules,
            settings,
            host,
            listening,
            recompiled,
            cleared,
            amendment,
            spenders,
            change,
        }
    }

    /// Warnings about new static joins that cannot be made yet.
    fn joins_in_trouble(&self, joins: &[InputView]) -> Vec<String> {
        let is_new = |join: &&InputView| self.joined.iter().all(|joined| joined.at != join.at);
        let new = joins.iter().filter(is_new);
        new.filter_map(|join| Some(format!("join {}: {}", join.at, join.pending.as_ref()?)))
            .collect()
    }

    /// Returns whether the last compilation is still valid for every rule that does not differ.
    fn still_holds(
        &self,
        rules: &RuleSet,
        settings: &Settings,
        host: &Arc<Host>,
        renewed: &BTreeSet<Ifindex>,
    ) -> bool {
        // The budget does not affect single rules; every other setting may affect all.
        let same = settings.interface == self.settings.interface;
        // A wildcard matches what no other rule names, so its matches depend on all of them.
        let has_wildcards = self.rules.has_wildcards() || rules.has_wildcards();
        !self.stale && same && renewed.is_empty() && Arc::ptr_eq(host, &self.host) && !has_wildcards
    }

    /// Removes the routes on renewed links from the last compilation; the diff does the same in the
    /// dataplane.
    fn without_links(&self, renewed: &BTreeSet<Ifindex>) -> (TableDiff, Cow<'_, Compiled>) {
        if renewed.is_empty() {
            return (TableDiff::default(), Cow::Borrowed(&self.compiled));
        }
        let keys = self.table().routes.keys();
        let cleared = TableDiff {
            removed: keys
                .filter(|key| renewed.contains(&key.ingress))
                .copied()
                .collect(),
            ..TableDiff::default()
        };
        let mut standing = self.compiled.clone();
        cleared.clone().apply_to(&mut standing.table);
        (cleared, Cow::Owned(standing))
    }

    /// Records that a step was executed; returns which rules were compiled.
    pub(crate) fn accept(&mut self, step: Step) -> Recompiled {
        self.destinations.follow(&self.rules, &step.rules);
        self.demanding.follow(&self.rules, &step.rules);
        self.rules = step.rules;
        self.settings = step.settings;
        self.spenders = step.spenders;
        self.host = step.host;
        self.listening = step.listening;
        self.compiled.apply(step.amendment);
        self.wanted.apply(step.wanted);
        self.joined = step.joined;
        self.generation = step.change.generation;
        self.stale = false;
        step.recompiled
    }

    /// Records that routes were cleared, whether or not the rest of the step succeeds.
    pub(crate) fn accept_cleared(&mut self, cleared: &TableDiff) {
        self.spenders = self.spenders.after(self.table(), cleared);
        cleared.clone().apply_to(&mut self.compiled.table);
        self.stale = true;
    }
}

/// Compares rules and settings with earlier ones.
pub(crate) fn compare(
    (before, settings_before): (&RuleSet, &Settings),
    (rules, settings): (&RuleSet, &Settings),
) -> Change {
    let diff = diff(before, rules);
    let unchanged = rules.len() - diff.added.len() - diff.changed.len();
    let differences = diff.changed.iter().filter_map(|name| {
        let (before, after) = (before.get(name)?, rules.get(name)?);
        let RuleDifference { removed, added } = RuleDifference::between(before, after);
        Some(RuleChange {
            rule: name.clone(),
            removed,
            added,
        })
    });
    Change {
        differences: differences.collect(),
        added: diff.added,
        removed: diff.removed,
        changed: diff.changed,
        unchanged,
        settings: settings.changes_since(settings_before),
        ..Change::default()
    }
}

const fn has_changes(change: &Change) -> bool {
    !(change.added.is_empty() && change.removed.is_empty() && change.changed.is_empty())
}

/// Lists what prevents new and changed rules from relaying all they should.
fn warnings(change: &Change, compiled: &[Arc<RuleView>]) -> Vec<String> {
    let new: BTreeSet<&String> = differing(change).collect();
    let views = compiled.iter().filter(|view| new.contains(&view.name));
    views.flat_map(|view| view.troubles()).collect()
}

/// Parses rules; all problems of all of them are reported.
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
