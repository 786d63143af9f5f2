//! Saves the running rules and settings in the configuration, for clients that may not write there.

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
        block_in_place(|| self.save_configuration(None, author))
            .map_err(|why| ApiError::new(Code::Unavailable, why))?;
        Ok(Change {
            generation: self.core.generation(),
            unchanged: self.core.rules().len(),
            ..Change::default()
        })
    }

    /// Saves a change; returns why it cannot be saved, if so.
    pub(super) fn save_changed(&mut self, change: &Change, author: &Author) -> Option<String> {
        block_in_place(|| self.save_configuration(Some(change), author)).err()
    }

    fn save_configuration(
        &mut self,
        change: Option<&Change>,
        author: &Author,
    ) -> Result<(), String> {
        let main = config_files::main_file(self.options.config.as_deref());
        self.write_configuration(&main, change, author)
            .map_err(|error| {
                format!("{error}; what runs and is not saved lasts until the daemon stops")
            })?;
        // For a handover: the files contain nothing that this daemon has not read.
        let (named, policy) = (self.options.config.as_deref(), self.core.own_policy());
        if let Ok(configured) = config_files::read_again(named, policy) {
            self.note_configured(configured);
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
                let changes: Vec<(String, Option<RuleDocument>)> = names
                    .into_iter()
                    .flatten()
                    .map(|name| (name.clone(), rules.get(name).map(RuleDocument::from)))
                    .collect();
                configuration.replace(|files| rewrite(files, &changes))
            }
            None => {
                let mut settings = config::Settings::clone(self.core.settings());
                settings.join.retain(|join| join.until.is_none());
                let documents = rules.to_documents();
                configuration.replace(|files| {
                    if author.is_elsewhere {
                        // Invalid files were refused already: without settings they are empty.
                        let own = Config::load(files, Policy::PERMISSIVE).unwrap_or_default();
                        settings.retain_local(&own.settings);
                    }
                    rewrite_all(files, &documents, &settings)
                })
            }
        }
    }
}
