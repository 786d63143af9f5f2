//! `--save` writes the rules that a subcommand changed into the configuration that the daemon reads.

use std::path::PathBuf;

use config::{ConfigErrors, ConfigFile, StaticJoin, rewrite, rewrite_all, rewrite_joins};
use daemon::config_save::{self, SaveError};
use rules::document::RuleDocument;

use crate::control::Control;
use crate::failure::{Failure, Status, unavailable};

/// The configuration as it was before the change.
pub(crate) struct Configuration(config_save::Configuration);

impl Configuration {
    /// Reads the configuration, so that nothing is changed if it cannot be written back.
    pub(crate) fn read(control: &Control) -> Result<Self, Failure> {
        if control.other_host().is_some() {
            let message =
                "--save: the configuration is a file of that host, which its daemon alone writes";
            return Err(unavailable(message));
        }
        let main = control.status()?.config.ok_or_else(|| {
            unavailable("--save: this daemon does not say what it reads; restart it first")
        })?;
        let read = config_save::Configuration::read(&PathBuf::from(main));
        read.map(Self).map_err(failure)
    }

    /// Writes the rules of these names as they run now, and deletes those that no longer exist.
    pub(crate) fn write(self, control: &Control, names: &[String]) -> Result<(), Failure> {
        let running = control.rules()?.rules;
        let changes: Vec<(String, Option<RuleDocument>)> = names
            .iter()
            .map(|name| {
                let rule = running.iter().find(|rule| rule.name == *name);
                (name.clone(), rule.cloned())
            })
            .collect();
        self.replace_all(|files| rewrite(files, &changes))
    }

    /// Writes the current static joins, except those with an end.
    pub(crate) fn write_joins(self, control: &Control) -> Result<(), Failure> {
        let running = control.rules()?.settings.unwrap_or_default();
        let static_joins = running.join.into_iter().filter(|join| join.until.is_none());
        let joins: Vec<StaticJoin> = static_joins.collect();
        self.replace_all(|files| rewrite_joins(files, joins))
    }

    /// Writes all rules and settings as they run now, and nothing else.
    pub(crate) fn write_all(self, control: &Control) -> Result<(), Failure> {
        let mut running = control.rules()?;
        // Rules of a fleet do not belong to this host.
        running.rules.retain(|rule| rule.share.is_none());
        let mut settings = running.settings.unwrap_or_default();
        settings.join.retain(|join| join.until.is_none());
        self.replace_all(|files| rewrite_all(files, &running.rules, &settings))
    }

    fn replace_all(
        self,
        rewritten: impl FnOnce(&[ConfigFile]) -> Result<Vec<ConfigFile>, ConfigErrors>,
    ) -> Result<(), Failure> {
        self.0.replace(rewritten).map_err(|error| match error {
            SaveError::Read(_) => failure(error),
            error => {
                let main = self.0.main().display();
                let then = match &error {
                    SaveError::Write { .. } => ", then mcr save",
                    _ => "",
                };
                let message = format!("the change runs, but {main} stays as it was: {error}{then}");
                Failure::new(status(&error), message)
            }
        })
    }
}

fn failure(error: SaveError) -> Failure {
    match error {
        SaveError::Read(error) => Failure::with_code(error.exit_code(), error),
        error => Failure::new(status(&error), error),
    }
}

fn status(error: &SaveError) -> Status {
    match error {
        SaveError::Write { source, .. } => Status::of_system(source, Status::Configuration),
        _ => Status::Configuration,
    }
}
