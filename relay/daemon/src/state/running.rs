//! The running rules on disk: each change is written before it is answered. They exist for the next start
//! after a crash or a handover, and are removed by a clean stop.

use std::io;
use std::path::Path;

use config::{Config, Settings};
use rules::document::RuleDocument;
use rules::ruleset::RuleSet;
use serde::{Deserialize, Serialize};

use crate::state::journal::{Contents, Journal, Prepared};

/// Version of the file's format.
const VERSION: u32 = 1;

/// The running rules and settings.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    version: u32,
    pub(crate) generation: u64,
    pub(crate) rules: Vec<RuleDocument>,
    /// The settings; earlier versions did not write them.
    pub(crate) settings: Option<Settings>,
    /// The configuration's rules as last read by a daemon that handed over.
    configured: Option<Vec<RuleDocument>>,
    /// The configuration's settings at that time.
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

    /// Records the configuration as last read, for a daemon that hands over.
    pub(crate) fn note(&mut self, configured: &Config) {
        self.configured = Some(configured.rules.to_documents());
        self.configured_settings = Some(configured.settings.clone());
    }

    /// Ignores edits of the configuration: a change that waits to be confirmed takes precedence.
    pub(crate) fn forget_configured(&mut self) {
        (self.configured, self.configured_settings) = (None, None);
    }

    /// Returns whether the configuration was edited since the daemon that handed over read it: an edit
    /// followed by a restart is meant to apply. A crash applies no edit. Settings of the daemon's start do
    /// not count: an edit of those removes no rules.
    pub(crate) fn is_overtaken_by(&self, now: &Config) -> bool {
        let rules = self.configured.as_ref();
        let settings = self.configured_settings.as_ref();
        rules.is_some_and(|then| *then != now.rules.to_documents())
            || settings.is_some_and(|then| {
                let (daemon, fleet) = (&now.settings.daemon, &now.settings.fleet);
                Settings {
                    daemon: daemon.clone(),
                    fleet: fleet.clone(),
                    ..then.clone()
                } != now.settings
            })
    }
}

/// A change of the rules, a line of the journal: `rules` replace the `gone` rules from position `at` on.
/// Consecutive generations show that no line is missing.
#[derive(Debug, Serialize, Deserialize)]
struct Edit {
    generation: u64,
    at: usize,
    gone: usize,
    rules: Vec<RuleDocument>,
    /// The settings, if they changed too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settings: Option<Settings>,
}

impl Running {
    /// Parses the contents as far as they are valid.
    pub(crate) fn of(read: &Contents) -> Option<Self> {
        let mut running = match serde_json::from_slice::<Self>(&read.snapshot) {
            Ok(running) if running.version == VERSION => running,
            Ok(running) => {
                let version = running.version;
                tracing::warn!(version, "running rules are of another version; not used");
                return None;
            }
            Err(error) => {
                tracing::warn!(%error, "running rules are damaged");
                return None;
            }
        };
        for (line, edit) in read.lines.iter().enumerate() {
            let edit = serde_json::from_slice(edit);
            if !edit.is_ok_and(|edit| running.edit(edit)) {
                tracing::warn!(line, "the last changes of the running rules are damaged");
                break;
            }
        }
        Some(running)
    }

    fn edit(&mut self, edit: Edit) -> bool {
        let range = edit.at..edit.at.saturating_add(edit.gone);
        let fits =
            range.end <= self.rules.len() && edit.generation == self.generation.wrapping_add(1);
        if fits {
            self.rules.splice(range, edit.rules);
            self.settings = edit.settings.or(self.settings.take());
            self.generation = edit.generation;
        }
        fits
    }
}

/// The running rules on disk.
#[derive(Debug)]
pub(crate) struct RunningStore {
    journal: Journal,
}

impl RunningStore {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            journal: Journal::new(directory, "running"),
        }
    }

    /// Reads the running rules of a daemon that did not stop cleanly. Invalid ones are logged and not
    /// used.
    pub(crate) fn load(&self) -> Option<Running> {
        let path = self.journal.path().display();
        match self.journal.read() {
            Ok(read) => Running::of(&read?),
            Err(error) => {
                tracing::warn!(%path, %error, "cannot read running rules");
                None
            }
        }
    }

    /// Writes the change from the previous rules and settings to new ones, in time proportional to the
    /// difference. It is not valid before [`Self::commit`].
    pub(crate) fn prepare_change(
        &mut self,
        generation: u64,
        before: (&RuleSet, &Settings),
        (rules, settings): (&RuleSet, &Settings),
    ) -> io::Result<Prepared> {
        let (at, gone, added) = rules.difference_to(before.0);
        let edit = Edit {
            generation,
            at,
            gone,
            rules: added.into_iter().map(RuleDocument::from).collect(),
            settings: (settings != before.1).then(|| settings.clone()),
        };
        let mut line = serde_json::to_vec(&edit)?;
        line.push(b'\n');
        if let Some(prepared) = self.journal.prepare_lines(&line) {
            return Ok(prepared);
        }
        let running = Running::new(generation, rules, settings);
        self.journal.prepare_snapshot(serde_json::to_vec(&running)?)
    }

    /// Makes a prepared change valid.
    pub(crate) fn commit(&mut self, prepared: Prepared) -> io::Result<()> {
        self.journal.commit(prepared)
    }

    /// Discards a prepared change.
    pub(crate) fn abort(&mut self, prepared: Prepared) {
        self.journal.abort(prepared);
    }

    /// The path of the snapshot.
    pub(crate) fn path(&self) -> &Path {
        self.journal.path()
    }

    /// Writes all of them, atomically.
    pub(crate) fn save(&mut self, running: &Running) -> io::Result<()> {
        self.journal.replace(&serde_json::to_vec(running)?)
    }

    /// Removes them, after a clean stop.
    pub(crate) fn remove(&mut self) {
        self.journal.remove();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rules::ruleset::{ChangeError, Policy};

    use super::*;

    fn rule(name: &str) -> RuleDocument {
        let port = name
            .bytes()
            .fold(0_u16, |sum, byte| sum * 31 + u16::from(byte));
        RuleDocument {
            name: name.to_owned(),
            inputs: vec![format!("239.1.1.1%eth0:{port}")],
            outputs: vec!["239.10.1.1%eth1:6001".into()],
            ..RuleDocument::default()
        }
    }

    fn set(names: &[&str]) -> RuleSet {
        let documents: Vec<_> = names.iter().copied().map(rule).collect();
        RuleSet::from_documents(&documents, Policy::default()).unwrap()
    }

    /// A sequence of sets: rules are added, removed, replaced in place, and all at once; the settings
    /// change with the second and the last.
    fn history() -> Vec<(RuleSet, Settings)> {
        let mut sets = vec![set(&["a", "b", "c"])];
        let changes: [(&[&str], &[&str]); 5] = [
            (&[], &["d"]),
            (&["b"], &[]),
            (&["c"], &["c", "e"]),
            (&["a", "e"], &["f", "g"]),
            (&["c", "d", "f", "g"], &[]),
        ];
        for (remove, add) in changes {
            let remove: Vec<String> = remove.iter().map(ToString::to_string).collect();
            let add = add.iter().map(|name| rule(name).to_rule(0).unwrap());
            let changed: Result<_, ChangeError> =
                sets[sets.len() - 1].changed(&remove, add.collect(), Policy::default());
            sets.push(changed.unwrap());
        }
        let last = sets.len() - 1;
        let settings = |at| Settings {
            allow_link_local: (2..last).contains(&at),
            ..Settings::default()
        };
        let numbered = sets.into_iter().enumerate();
        numbered.map(|(at, set)| (set, settings(at))).collect()
    }

    /// A file may contain any number.
    #[test]
    fn a_change_follows_the_last_generation() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = RunningStore::new(directory.path());
        let settings = Settings::default();
        let (before, after) = (set(&["a"]), set(&["a", "b"]));
        let running = Running::new(u64::MAX, &before, &settings);
        store.save(&running).unwrap();
        let prepared = store.prepare_change(0, (&before, &settings), (&after, &settings));
        store.commit(prepared.unwrap()).unwrap();
        let read = store.load().unwrap();
        assert_eq!((read.generation, read.rules), (0, after.to_documents()));
    }

    #[test]
    fn reads_back_what_it_wrote_until_it_forgets() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = RunningStore::new(directory.path());
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
    fn continues_from_the_last_change_that_was_written_completely() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = RunningStore::new(directory.path());
        let sets = history();
        let expected = |at: usize| Running::new(7 + at as u64, &sets[at].0, &sets[at].1);
        store.save(&expected(0)).unwrap();
        let snapshot = fs::read(store.journal.path()).unwrap();
        for (at, pair) in (1..).zip(sets.windows(2)) {
            let [(rules, settings), (rules_now, settings_now)] = pair else {
                unreachable!("two by two")
            };
            let now = (rules_now, settings_now);
            let before = (rules, settings);
            let prepared = store.prepare_change(7 + at, before, now).unwrap();
            store.commit(prepared).unwrap();
            assert_eq!(store.load(), Some(expected(at as usize)));
        }
        assert_eq!(fs::read(store.journal.path()).unwrap(), snapshot);

        let log = directory.path().join("running.log");
        let whole = fs::read(&log).unwrap();
        for length in 0..whole.len() {
            fs::write(&log, &whole[..length]).unwrap();
            let ends = whole[..length].iter().filter(|byte| **byte == b'\n');
            let at = ends.count().saturating_sub(1);
            assert_eq!(store.load(), Some(expected(at)), "cut after {length} bytes");
        }
        // A missing or damaged line ends it too, whatever follows.
        let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
        fs::write(&log, [lines[0], lines[1], lines[3]].concat()).unwrap();
        assert_eq!(store.load(), Some(expected(1)));
        fs::write(&log, [lines[0], b"\0\0\0\n", lines[1]].concat()).unwrap();
        assert_eq!(store.load(), Some(expected(0)));
    }

    #[test]
    fn a_thousand_changes_do_not_grow_beyond_a_snapshot() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = RunningStore::new(directory.path());
        let (one, two) = (set(&["a", "b"]), set(&["a"]));
        let settings = Settings::default();
        store.save(&Running::new(0, &one, &settings)).unwrap();
        let mut sets = [&one, &two];
        for generation in 1..=2000 {
            let [before, now] = sets.map(|set| (set, &settings));
            let prepared = store.prepare_change(generation, before, now).unwrap();
            store.commit(prepared).unwrap();
            sets.reverse();
        }
        let expected = Running::new(2000, sets[0], &settings);
        assert_eq!(store.load(), Some(expected));
        let length = |name| fs::metadata(directory.path().join(name)).unwrap().len();
        assert!(length("running.json") + length("running.log") < 70_000);
    }

    #[test]
    fn an_edited_configuration_applies_after_a_handover_and_not_after_a_crash() {
        let same = Config::default();
        let mut edited = Config::default();
        edited.settings.allow_link_local = true;
        let mut running = Running::new(7, &same.rules, &same.settings);
        assert!(!running.is_overtaken_by(&edited));
        running.note(&same);
        assert!(running.is_overtaken_by(&edited));
        assert!(!running.is_overtaken_by(&same));
        let mut restarted = same.clone();
        restarted.settings.daemon.workers = Some(2);
        assert!(!running.is_overtaken_by(&restarted));
        running.configured = Some(vec![RuleDocument::default()]);
        assert!(running.is_overtaken_by(&same));
    }

    #[test]
    fn does_not_use_invalid_contents() {
        let directory = tempfile::tempdir().unwrap();
        let store = RunningStore::new(directory.path());
        for text in ["", "{", "{\"version\":9,\"generation\":1,\"rules\":[]}"] {
            fs::write(store.journal.path(), text).unwrap();
            assert_eq!(store.load(), None);
        }
    }
}
