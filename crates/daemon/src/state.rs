//! The running rules on disk: written whole before a change is answered, there for the next start
//! after a crash or a hand-over, gone after a clean stop.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model::document::RuleDocument;
use serde::{Deserialize, Serialize};

/// Version of the file's format.
const VERSION: u32 = 1;

/// What is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    version: u32,
    pub(crate) generation: u64,
    pub(crate) rules: Vec<RuleDocument>,
    /// The configuration's rules as they were last read, by a daemon that handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) configured: Option<Vec<RuleDocument>>,
}

impl Running {
    pub(crate) fn new(generation: u64, rules: Vec<RuleDocument>) -> Self {
        Self {
            version: VERSION,
            generation,
            rules,
            configured: None,
        }
    }

    /// Whether the configuration was edited between the end of the daemon that handed over and
    /// now: who edits it and restarts wants the edit. After a crash nobody asked for anything.
    pub(crate) fn is_overtaken_by(&self, now: &[RuleDocument]) -> bool {
        self.configured.as_deref().is_some_and(|then| then != now)
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
        let running = Running::new(7, vec![RuleDocument::default()]);
        store.save(&running).unwrap();
        assert_eq!(store.load(), Some(running));
        store.remove();
        assert_eq!(store.load(), None);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_edited_configuration_counts_after_a_hand_over_and_not_after_a_crash() {
        let edited = [RuleDocument::default()];
        let mut running = Running::new(7, Vec::new());
        assert!(!running.is_overtaken_by(&edited));
        running.configured = Some(Vec::new());
        assert!(running.is_overtaken_by(&edited));
        assert!(!running.is_overtaken_by(&[]));
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
