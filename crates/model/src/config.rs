//! The configuration: TOML text in, rules and settings out, and back.
//!
//! Strict: an unknown key is an error. Every error of every file is reported with its file and
//! line. Reads no files itself; whoever does hands the texts over, the main file first.

mod error;
mod file;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use error::{ConfigError, ConfigErrors};

use crate::document::{RuleDocument, Scalar};
use crate::placement::{PathChoice, PathChoices};
use crate::problem::{Problem, What};
use crate::ruleset::{Policy, RuleSet, check};
use crate::table::RateLimit;

/// The version of the format that is read and written.
pub const VERSION: i64 = 1;

/// One file's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Name to call it by in errors.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// Everything the files say together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The rules of all files, in their order.
    pub rules: RuleSet,
    /// Settings of interfaces, by name.
    pub interfaces: BTreeMap<String, InterfaceSettings>,
    /// Whether 224.0.0.0/24 and ff02::/16 may be inputs.
    pub allow_link_local: bool,
    /// Cap on what all unicast outputs send together.
    pub budget: Option<RateLimit>,
}

/// Settings of one interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InterfaceSettings {
    /// Whether the interface merges packets before they are relayed (`rx-udp-gro-forwarding`):
    /// `off` (left as it is), `on`, or `auto` (on where every output can segment).
    #[serde(default, skip_serializing_if = "is_default")]
    pub gro: Gro,
    /// Path of the rules whose inputs are on it: `auto`, `kernel` or `userspace`.
    #[serde(
        default,
        skip_serializing_if = "is_default",
        deserialize_with = "crate::document::path"
    )]
    pub path: PathChoice,
}

/// Whether an interface merges packets before they are relayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase", try_from = "Scalar")]
pub enum Gro {
    /// The interface is left as it is.
    #[default]
    Off,
    /// Turned on, and back on exit.
    On,
    /// Turned on where all that is relayed from the interface gains by it.
    Auto,
}

impl Config {
    /// Puts the files together. Rules follow in the order of the files.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with any of them.
    pub fn load(files: &[ConfigFile], policy: Policy) -> Result<Self, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        let mut rules = Vec::new();
        let mut config = Self {
            allow_link_local: false,
            ..Self::default()
        };
        let mut set_at = BTreeMap::new();
        let mut budget_at: Option<(String, usize)> = None;
        for (place, file) in files.iter().enumerate() {
            let mut parsed = file::parse(file, place == 0);
            errors.0.append(&mut parsed.errors);
            config.allow_link_local |= parsed.allow_link_local;
            if let Some((budget, line)) = parsed.budget {
                let at = (file.name.clone(), line);
                if let Some((file, line)) = budget_at.replace(at.clone()) {
                    let message = format!("budget: is set already at {file}:{line}; keep one");
                    errors.0.push(ConfigError::at(at, message));
                }
                config.budget = Some(budget);
            }
            rules.append(&mut parsed.rules);
            for (name, settings, line) in parsed.interfaces {
                let at = (file.name.clone(), line);
                if let Some((file, line)) = set_at.insert(name.clone(), at.clone()) {
                    let message =
                        format!("interface {name}: is set already at {file}:{line}; keep one");
                    errors.0.push(ConfigError::at(at, message));
                }
                config.interfaces.insert(name, settings);
            }
        }
        let policy = Policy {
            allow_link_local: policy.allow_link_local || config.allow_link_local,
        };
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
        #[derive(Serialize)]
        struct File<'a> {
            version: i64,
            #[serde(skip_serializing_if = "is_default")]
            allow_link_local: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            budget: Option<file::BudgetTable>,
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            interface: &'a BTreeMap<String, InterfaceSettings>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            rule: Vec<RuleDocument>,
        }
        let documents = self.rules.to_documents().into_iter();
        let file = File {
            version: VERSION,
            allow_link_local: self.allow_link_local,
            budget: self.budget.as_ref().map(file::BudgetTable::from),
            interface: &self.interfaces,
            rule: documents.map(RuleDocument::with_short_input).collect(),
        };
        toml::to_string_pretty(&file).expect("texts, numbers and tables are always valid TOML")
    }

    /// The choices of path for [`crate::compile::compile`], with the process's own.
    #[must_use]
    pub fn path_choices(&self, process: PathChoice) -> PathChoices {
        let interfaces = self.interfaces.iter();
        PathChoices {
            process,
            interfaces: interfaces
                .map(|(name, set)| (name.clone(), set.path))
                .collect(),
        }
    }
}

/// Writes rules alone as a configuration file, which [`Config::load`] reads back unchanged. Where
/// they need it, the file allows link-local inputs.
#[must_use]
pub fn export(rules: &RuleSet) -> String {
    let inputs = rules.iter().flat_map(|rule| &rule.inputs);
    let config = Config {
        allow_link_local: inputs
            .into_iter()
            .any(|input| check::is_link_local(input.destination)),
        rules: rules.clone(),
        ..Config::default()
    };
    config.export()
}

/// Says where in the files a rule's problem stands.
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

impl TryFrom<Scalar> for Gro {
    type Error = String;

    fn try_from(value: Scalar) -> Result<Self, String> {
        match value.to_string().as_str() {
            "off" | "no" => Ok(Self::Off),
            "on" | "yes" => Ok(Self::On),
            "auto" => Ok(Self::Auto),
            other => Err(format!("gro = {other:?}: give \"auto\", \"on\" or \"off\"")),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests;
