//! The running rules on disk: written whole before a change is answered, there for the next start
//! after a crash or a hand-over, gone after a clean stop.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model::config::{Config, Settings};
use model::document::RuleDocument;
use model::ruleset::RuleSet;
use serde::{Deserialize, Serialize};

/// Version of the file's format.
const VERSION: u32 = 1;

/// What is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    version: u32,
    pub(crate) generation: u64,
    pub(crate) rules: Vec<RuleDocument>,
    /// What there was beyond rules; earlier versions did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) settings: Option<Settings>,
    /// The configuration's rules as they were last read, by a daemon that handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    configured: Option<Vec<RuleDocument>>,
    /// Its settings then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    configured_settings: Option<Settings>,
}

impl Running {
    pub(crate) fn new(generation: u64, rules: &RuleSet, settings: &Settings) -> Self {
        Self {
            version: VERSION,
            generation,
            rules: rules.to_documents(),
            settings: Some(settings.clone()),
            configured: None,
            configured_settings: None,
        }
    }

    /// Notes the configuration as it was last read, for a daemon that hands over.
    pub(crate) fn note(&mut self, configured: &Config) {
        self.configured = Some(configured.rules.to_documents());
        self.configured_settings = Some(configured.settings.clone());
    }

    /// Whether the configuration was edited between the end of the daemon that handed over and
    /// now: who edits it and restarts wants the edit. After a crash nobody asked for anything.
    pub(crate) fn is_overtaken_by(&self, now: &Config) -> bool {
        let rules = self.configured.as_ref();
        let settings = self.configured_settings.as_ref();
        rules.is_some_and(|then| *then != now.rules.to_documents())
            || settings.is_some_and(|then| *then != now.settings)
    }
}

/// The file.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    path: PathBuf,
}

impl Store {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            path: directory.join("running.json"),
        }
    }

    /// Reads what a daemon left that did not stop cleanly. What cannot be understood is reported
    /// and not used.
    pub(crate) fn load(&self) -> Option<Running> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "cannot read running rules");
                return None;
            }
        };
        match serde_json::from_slice::<Running>(&text) {
            Ok(running) if running.version == VERSION => Some(running),
            Ok(running) => {
                let version = running.version;
                tracing::warn!(version, "running rules are of another version; not used");
                None
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "running rules are damaged");
                None
            }
        }
    }

    /// Replaces the file in one step.
    pub(crate) fn save(&self, running: &Running) -> io::Result<()> {
        let temporary = self.path.with_extension("json.new");
        fs::write(&temporary, serde_json::to_vec(running)?)?;
        fs::rename(&temporary, &self.path)
    }

    /// Forgets, after a clean stop.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(self.path.with_extension("json.new"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_it_wrote_until_it_forgets() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        assert_eq!(store.load(), None);
        let settings = Settings {
            allow_link_local: true,
            ..Settings::default()
        };
        let running = Running::new(7, &RuleSet::default(), &settings);
        store.save(&running).unwrap();
        assert_eq!(store.load(), Some(running));
        store.remove();
        assert_eq!(store.load(), None);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_edited_configuration_counts_after_a_hand_over_and_not_after_a_crash() {
        let same = Config::default();
        let mut edited = Config::default();
        edited.settings.allow_link_local = true;
        let mut running = Running::new(7, &same.rules, &same.settings);
        assert!(!running.is_overtaken_by(&edited));
        running.note(&same);
        assert!(running.is_overtaken_by(&edited));
        assert!(!running.is_overtaken_by(&same));
        running.configured = Some(vec![RuleDocument::default()]);
        assert!(running.is_overtaken_by(&same));
    }

    #[test]
    fn does_not_use_what_it_does_not_understand() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        for text in ["", "{", "{\"version\":9,\"generation\":1,\"rules\":[]}"] {
            fs::write(&store.path, text).unwrap();
            assert_eq!(store.load(), None);
        }
    }
}
