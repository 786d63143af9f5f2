//! Rules of a fleet beside those of this host: one set, in which each side changes only its own.

use std::collections::BTreeMap;

use api::request::Transaction;
use config::{Config, Settings};
use rules::document::RuleDocument;
use rules::rule::Rule;
use rules::ruleset::{Policy, RuleSet};

use super::{Core, Refused, parse};

impl Core {
    /// The running rules with exactly these of a fleet; and for every share that is refused, why. Equal
    /// rules keep their position.
    pub(crate) fn with_fleet(
        &self,
        documents: &[RuleDocument],
    ) -> (RuleSet, BTreeMap<String, String>) {
        let mut refused = BTreeMap::new();
        let shares = by_share(documents, &mut refused);
        let all = shares.values().flatten().cloned().collect();
        let set = match self.changed_to(&self.rules, all) {
            Ok(set) => set,
            Err(_) => self.share_by_share(shares, &mut refused),
        };
        (set, refused)
    }

    /// Adds the valid shares one by one, those that run unchanged first.
    fn share_by_share(
        &self,
        shares: BTreeMap<String, Vec<Rule>>,
        refused: &mut BTreeMap<String, String>,
    ) -> RuleSet {
        let runs = |rule: &Rule| self.rules.get(&rule.name) == Some(rule);
        let (standing, new): (BTreeMap<_, _>, BTreeMap<_, _>) = shares
            .into_iter()
            .partition(|(_, rules)| rules.iter().all(runs));
        let retained = standing.into_values().flatten().collect();
        // Any subset of a valid set of rules is valid.
        let mut set = self
            .changed_to(&self.rules, retained)
            .unwrap_or_else(|_| RuleSet::clone(&self.rules));
        for (share, rules) in new {
            match self.added_to(&set, rules) {
                Ok(with) => set = with,
                Err(why) => drop(refused.insert(share, why.to_string())),
            }
        }
        set
    }

    /// `set` with exactly these rules of a fleet.
    fn changed_to(&self, set: &RuleSet, rules: Vec<Rule>) -> Result<RuleSet, Refused> {
        let wanted: BTreeMap<&str, &Rule> = rules
            .iter()
            .map(|rule| (rule.name.as_str(), rule))
            .collect();
        let stays = |rule: &Rule| wanted.get(rule.name.as_str()) == Some(&rule);
        let goes = |rule: &&Rule| rule.share.is_some() && !stays(rule);
        let remove: Vec<String> = set
            .iter()
            .filter(goes)
            .map(|rule| rule.name.clone())
            .collect();
        let differs = |rule: &&Rule| set.get(&rule.name) != Some(*rule);
        let add: Vec<Rule> = rules.iter().filter(differs).cloned().collect();
        if remove.is_empty() && add.is_empty() {
            return Ok(set.clone());
        }
        let changed = set.changed(&remove, add, self.policy(&self.settings))?;
        self.check_room(&changed, &self.settings)?;
        Ok(changed)
    }

    fn added_to(&self, set: &RuleSet, rules: Vec<Rule>) -> Result<RuleSet, Refused> {
        let with = set.changed(&[], rules, self.policy(&self.settings))?;
        self.check_room(&with, &self.settings)?;
        Ok(with)
    }

    /// A configuration of this host with the running rules of the fleet.
    pub(crate) fn keeping_fleet(&self, local: Config) -> Result<Config, Refused> {
        let fleet: Vec<Rule> = self
            .rules
            .iter()
            .filter(|rule| rule.share.is_some())
            .cloned()
            .collect();
        if fleet.is_empty() {
            return Ok(local);
        }
        let policy = self.policy(&local.settings);
        let rules = local.rules.changed(&[], fleet, policy)?;
        Ok(Config { rules, ..local })
    }

    /// Refuses a local change that adds or removes rules of a fleet.
    pub(super) fn check_local(&self, transaction: &Transaction) -> Result<(), Refused> {
        let is_of_fleet = |name: &&String| {
            let rule = self.rules.get(name);
            rule.is_some_and(|rule| rule.share.is_some())
        };
        let added = transaction.add.iter().map(|rule| &rule.name);
        match transaction.remove.iter().chain(added).find(is_of_fleet) {
            None => check_without_share(&transaction.add),
            Some(name) => Err(Refused::OfFleet(name.clone())),
        }
    }
}

/// The rules of this host, without those of a fleet.
pub(crate) fn local(rules: &RuleSet) -> RuleSet {
    // The running rules passed the policy already.
    let policy = Policy::PERMISSIVE;
    let fleet: Vec<String> = rules
        .iter()
        .filter(|rule| rule.share.is_some())
        .map(|rule| rule.name.clone())
        .collect();
    if fleet.is_empty() {
        rules.clone()
    } else {
        rules
            .changed(&fleet, Vec::new(), policy)
            .unwrap_or_default()
    }
}

/// The rules of this host and the settings as a configuration file.
pub(crate) fn export(rules: &RuleSet, settings: &Settings) -> String {
    config::export(&local(rules), settings)
}

/// Refuses rules that name a share of a fleet.
pub(super) fn check_without_share(rules: &[RuleDocument]) -> Result<(), Refused> {
    let mut shared = rules.iter().filter(|rule| rule.share.is_some());
    match shared.next() {
        None => Ok(()),
        Some(rule) => Err(Refused::Share(rule.name.clone())),
    }
}

/// Parses the rules of each share; a share with an invalid rule is refused.
fn by_share(
    documents: &[RuleDocument],
    refused: &mut BTreeMap<String, String>,
) -> BTreeMap<String, Vec<Rule>> {
    let mut texts: BTreeMap<&String, Vec<RuleDocument>> = BTreeMap::new();
    for document in documents {
        // The driver sets it; a rule without one would belong to no share.
        if let Some(share) = &document.share {
            texts.entry(share).or_default().push(document.clone());
        }
    }
    let mut shares = BTreeMap::new();
    for (share, documents) in texts {
        match parse(&documents) {
            Ok(rules) => drop(shares.insert(share.clone(), rules)),
            Err(problems) => drop(refused.insert(share.clone(), problems.to_string())),
        }
    }
    shares
}
