//! The configuration: TOML text in, rules and settings out, and back.
//!
//! Strict: an unknown key is an error. Every error of every file is reported with its file and
//! line. Does not read files itself; the caller passes their texts, the main file first.

mod api;
mod daemon;
mod error;
pub mod event_kind;
mod file;
mod fleet;
mod hosts;
mod join;
mod notify;
mod rewrite;
mod schema;
mod settings;
mod tunnel;
mod written;

use std::collections::{BTreeMap, BTreeSet};

use rules::document::RuleDocument;
use rules::problem::{Part, Problem, What};
use rules::ruleset::{Policy, RuleSet, is_link_local};
use rules::setting::differences;
use serde::Serialize;

pub use api::{ApiClient, ApiClients, ApiSettings, Role, TlsVersion, moment_text};
pub use daemon::{Automatic, DaemonSettings, LogForm, MAX_MEMBERSHIPS, MAX_RULES, OnFull};
pub use error::{ConfigError, ConfigErrors, unreadable};
pub use file::FILE;
pub use fleet::{FleetSettings, FleetTls, HOLD, Hold, OnIsolation, WEIGHT};
pub use hosts::{HostEntry, hosts};
pub use join::StaticJoin;
pub use notify::{Notify, NotifyFormat, NotifyTable, NotifyTarget, Url, Webhook};
pub use rewrite::{rewrite, rewrite_all, rewrite_joins};
pub use schema::schema;
pub use settings::{
    Budget, BudgetTable, Gro, InterfaceSettings, InterfaceTable, Over, Settings, Xdp,
};
pub use tunnel::{End, TUNNEL_ID, TUNNEL_PORT, Tunnel};
pub use written::{text, text_of_any, written};

/// The version of the format that is read and written.
pub const VERSION: i64 = 1;

/// One file's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Its name in errors.
    pub name: String,
    /// Its contents.
    pub text: String,
}

/// The configuration of all files together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The rules of all files, in their order.
    pub rules: RuleSet,
    /// Everything beyond rules.
    pub settings: Settings,
    /// Remote control, which only files of the host configure.
    pub api: ApiSettings,
    /// Further targets of events, which only files of the host configure, too.
    pub targets: Vec<NotifyTarget>,
}

impl Config {
    /// Rules and settings, without what only files configure.
    #[must_use]
    pub fn of(rules: RuleSet, settings: Settings) -> Self {
        Self {
            rules,
            settings,
            ..Self::default()
        }
    }

    /// What only files configure, without rules and settings.
    #[must_use]
    pub fn own(&self) -> Self {
        Self {
            api: self.api.clone(),
            targets: self.targets.clone(),
            ..Self::default()
        }
    }

    /// What differs from `before` in what only files configure. It is never disclosed, so only the keys are
    /// named.
    #[must_use]
    pub fn own_changes_since(&self, before: &Self) -> Vec<String> {
        let differences = differences(&self.api, &before.api).into_iter();
        let mut keys: BTreeSet<String> = differences
            .map(|difference| format!("api {}", difference.key))
            .collect();
        if self.api.client != before.api.client {
            keys.insert("api client".to_owned());
        }
        if self.targets != before.targets {
            keys.insert("notify target".to_owned());
        }
        keys.iter().map(|key| format!("{key}: changed")).collect()
    }

    /// Merges the files. Rules follow in the order of the files.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with any of them.
    pub fn load(files: &[ConfigFile], policy: Policy) -> Result<Self, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        let mut rules = Vec::new();
        let mut config = Self::default();
        let mut set_at = BTreeMap::new();
        for (index, file) in files.iter().enumerate() {
            let mut parsed = file::parse(file, index == 0);
            errors.0.append(&mut parsed.errors);
            for (what, line) in parsed.set {
                let at = (file.name.clone(), line);
                if let Some((file, line)) = set_at.insert(what.clone(), at.clone()) {
                    let message = format!("{what}: is set already at {file}:{line}; keep one");
                    errors.0.push(ConfigError::at(at, message));
                }
            }
            config.settings.add(parsed.settings);
            config.api = parsed.api.unwrap_or(std::mem::take(&mut config.api));
            config.targets.append(&mut parsed.targets);
            rules.append(&mut parsed.rules);
        }
        let settings = &config.settings;
        if let Some((name, problem)) = settings.impossible_tunnel() {
            let set = set_at.get(&format!("interface {name}")).cloned();
            let at = set.expect("what is set is set somewhere");
            let message = format!("interface {name}: {problem}");
            errors.0.push(ConfigError::at(at, message));
        }
        for rule in rules.iter().filter(|rule| rule.document.share.is_some()) {
            let at = (rule.file.clone(), rule.line_of(Part::Share));
            let name = &rule.document.name;
            let message = format!(
                "rule {name:?}: only rules of a fleet have a share; take it out, or give the rules \
                 to `mcr fleet apply`"
            );
            errors.0.push(ConfigError::at(at, message));
        }
        let policy = settings.policy(policy);
        let documents: Vec<RuleDocument> = rules.iter().map(|rule| rule.document.clone()).collect();
        match RuleSet::from_documents(&documents, policy) {
            Ok(set) => config.rules = set,
            Err(problems) => {
                let located = problems.0.iter().map(|problem| located(problem, &rules));
                errors.0.extend(located);
            }
        }
        if errors.0.is_empty() {
            return Ok(config);
        }
        let order = |error: &ConfigError| files.iter().position(|file| file.name == error.file);
        errors.0.sort_by_key(|error| (order(error), error.line));
        Err(errors)
    }

    /// Writes the configuration as one file, which [`Config::load`] reads back unchanged.
    #[must_use]
    pub fn export(&self) -> String {
        text_of(&self.settings, self.rules.to_documents())
    }
}

fn text_of(settings: &Settings, rules: Vec<RuleDocument>) -> String {
    #[derive(Serialize)]
    struct File<'a> {
        version: i64,
        #[serde(flatten)]
        settings: &'a Settings,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        rule: Vec<RuleDocument>,
    }
    let file = File {
        version: VERSION,
        settings,
        rule: rules
            .into_iter()
            .map(RuleDocument::with_short_input)
            .collect(),
    };
    toml::to_string_pretty(&file).expect("texts, numbers and tables are always valid TOML")
}

/// Parses a file of rules for a fleet: everything else of a configuration is each host's own.
///
/// # Errors
///
/// Everything that is wrong with it.
pub fn fleet_rules(file: &ConfigFile) -> Result<Vec<RuleDocument>, ConfigErrors> {
    let mut parsed = file::parse(file, true);
    let mut errors = ConfigErrors(std::mem::take(&mut parsed.errors));
    for (table, line) in parsed.beyond_rules() {
        let message = format!(
            "{table}: is not a fleet's to say; a file for `mcr fleet apply` has version and \
             [[rule]] alone, {table} stands in each relay's own"
        );
        errors
            .0
            .push(ConfigError::at((file.name.clone(), line), message));
    }
    let rules = &parsed.rules;
    let documents: Vec<RuleDocument> = rules.iter().map(|rule| rule.document.clone()).collect();
    if let Err(problems) = RuleSet::from_documents(&documents, Policy::default()) {
        let located = problems.0.iter().map(|problem| located(problem, rules));
        errors.0.extend(located);
    }
    if errors.0.is_empty() {
        return Ok(documents);
    }
    errors.0.sort_by_key(|error| error.line);
    Err(errors)
}

/// Writes rules of a fleet as a file, which [`fleet_rules`] reads back unchanged.
#[must_use]
pub fn export_fleet(rules: Vec<RuleDocument>) -> String {
    text_of(&Settings::default(), rules)
}

/// Writes rules and settings as a configuration file, which [`Config::load`] reads back unchanged.
/// If the rules need it, the file allows link-local inputs.
#[must_use]
pub fn export(rules: &RuleSet, settings: &Settings) -> String {
    let ordinary = rules.iter().filter(|rule| rule.reflect.is_none());
    let mut inputs = ordinary.flat_map(|rule| &rule.inputs);
    let mut settings = settings.clone();
    settings.allow_link_local |= inputs.any(|input| is_link_local(input.destination));
    text_of(&settings, rules.to_documents())
}

/// A rule's problem with its location in the files.
fn located(problem: &Problem, rules: &[file::LocatedRule]) -> ConfigError {
    let rule = &rules[problem.position];
    let mut message = problem.to_string();
    if let What::NameTaken { first } = problem.what {
        let first = &rules[first];
        message.push_str(&format!(
            " (the earlier one: {}:{})",
            first.file, first.line
        ));
    }
    ConfigError::at((rule.file.clone(), rule.line_of(problem.part)), message)
}

#[cfg(test)]
mod tests;
