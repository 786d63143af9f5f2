//! Saves what runs in the configuration, for clients that may not write there.

use api::reply::Change;
use config::{Config, rewrite, rewrite_all};
use rules::document::RuleDocument;
use rules::ruleset::Policy;
use tokio::task::block_in_place;

use super::Supervisor;
use crate::api::api_error::{ApiError, Code};
use crate::author::Author;
use crate::config_files;
use crate::config_save::{Configuration, SaveError};
use crate::core::local;

impl Supervisor {
    /// Saves everything.
    pub(super) fn save_all(&mut self, author: &Author) -> Result<Change, ApiError> {
        let saved = block_in_place(|| self.save_configuration(None, author));
        saved.map_err(|why| ApiError::new(Code::Unavailable, why))?;
        Ok(Change {
            generation: self.core.generation(),
            unchanged: self.core.rules().len(),
            ..Change::default()
        })
    }

    /// Saves what a change changed; why not, where that cannot be.
    pub(super) fn save_changed(&mut self, change: &Change, author: &Author) -> Option<String> {
        block_in_place(|| self.save_configuration(Some(change), author)).err()
    }

    fn save_configuration(
        &mut self,
        change: Option<&Change>,
        author: &Author,
    ) -> Result<(), String> {
        let main = config_files::main_file(self.options.config.as_deref());
        let saved = self.write_configuration(&main, change, author);
        saved.map_err(|error| {
            format!("{error}; what runs and is not saved lasts until the daemon stops")
        })?;
        // For whoever takes over: the files say what this daemon knows of.
        let (named, policy) = (self.options.config.as_deref(), self.core.own_policy());
        if let Ok(configured) = config_files::read_again(named, policy) {
            self.configured = configured;
        }
        Ok(())
    }

    fn write_configuration(
        &self,
        main: &std::path::Path,
        change: Option<&Change>,
        author: &Author,
    ) -> Result<(), SaveError> {
        let configuration = Configuration::read(main)?;
        let rules = local(self.core.rules());
        match change.filter(|change| change.settings.is_empty()) {
            Some(change) => {
                let names = [&change.added, &change.changed, &change.removed];
                let changes = names.into_iter().flatten().map(|name| {
                    let rule = rules.get(name).map(RuleDocument::from);
                    (name.clone(), rule)
                });
                let changes: Vec<(String, Option<RuleDocument>)> = changes.collect();
                configuration.replace(|files| rewrite(files, &changes))
            }
            None => {
                let mut settings = config::Settings::clone(self.core.settings());
                settings.join.retain(|join| join.until.is_none());
                let rules = rules.to_documents();
                configuration.replace(|files| {
                    if author.is_elsewhere {
                        // Files that make no sense were refused: what has no settings is empty.
                        let own = Config::load(files, Policy::PERMISSIVE).unwrap_or_default();
                        settings.keep_own(&own.settings);
                    }
                    rewrite_all(files, &rules, &settings)
                })
            }
        }
    }
}
