//! The rule sets that people made last, each as a compressed configuration file that `mcr check` reads.
//! They are written by a thread of their own: a change costs in proportion to itself, a file to all rules.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use api::reply::ChangeRecord;
use config::{Config, Settings};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use parking_lot::{Condvar, Mutex};
use rules::ruleset::{Policy, RuleSet};
use sys::whole_file;

use crate::abort_on_panic;
use crate::core::export;
use crate::state::changes::ChangeLog;

/// The most sets that are stored.
const GENERATIONS_MAX: usize = 50;

/// The thread's pause as a multiple of its work: it uses at most a quarter of one core.
const REST: u32 = 3;

/// How long a stopping daemon waits for sets that are not written yet.
const PATIENCE: Duration = Duration::from_secs(2);

/// The stored sets, below a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Generations {
    directory: PathBuf,
    waiting: Arc<(Mutex<BTreeMap<u64, Waiting>>, Condvar)>,
}

/// A set that is not written yet.
#[derive(Clone, Debug)]
struct Waiting {
    record: ChangeRecord,
    rules: Arc<RuleSet>,
    settings: Arc<Settings>,
}

impl Waiting {
    /// The text of the file, with the record in its first line.
    fn text(&self) -> io::Result<String> {
        let head = serde_json::to_string(&self.record)?;
        Ok(format!("# {head}\n{}", export(&self.rules, &self.settings)))
    }
}

impl Generations {
    /// Starts storing them below an instance's directory.
    pub(crate) fn start(directory: &Path) -> io::Result<Self> {
        let generations = Self {
            directory: directory.join("generations"),
            ..Self::default()
        };
        let directory = &generations.directory;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        for path in fs::read_dir(directory)?.flatten().map(|entry| entry.path()) {
            if path.to_string_lossy().ends_with(".new") {
                fs::remove_file(path)?;
            }
        }
        let writer = generations.clone();
        abort_on_panic::thread("generations", move || writer.write_all())?;
        Ok(generations)
    }

    /// Stores the set after a change.
    pub(crate) fn store(
        &self,
        record: &ChangeRecord,
        rules: &Arc<RuleSet>,
        settings: &Arc<Settings>,
    ) {
        let record = ChangeRecord {
            what: String::new(),
            left_out: 0,
            ..record.clone()
        };
        let set = Waiting {
            rules: Arc::clone(rules),
            settings: Arc::clone(settings),
            record,
        };
        let mut waiting = self.waiting.0.lock();
        waiting.insert(set.record.generation, set);
        while waiting.len() > GENERATIONS_MAX {
            waiting.pop_first();
        }
        self.waiting.1.notify_all();
    }

    /// Waits for a short time until all sets are written.
    pub(crate) fn finish(&self) {
        let (waiting, written) = &*self.waiting;
        written.wait_while_for(&mut waiting.lock(), |sets| !sets.is_empty(), PATIENCE);
    }

    /// The records of the stored sets, the oldest first.
    pub(crate) fn list(&self) -> Vec<ChangeRecord> {
        // Waiting sets first: one that is written meanwhile is read from its file.
        let waiting = self.waiting.0.lock().clone();
        let mut records: BTreeMap<u64, ChangeRecord> = waiting
            .into_iter()
            .map(|(number, set)| (number, set.record))
            .collect();
        for (number, path) in self.files() {
            if !records.contains_key(&number)
                && let Some(record) = head(&path)
            {
                records.insert(number, record);
            }
        }
        let old = records.len().saturating_sub(GENERATIONS_MAX);
        records.into_values().skip(old).collect()
    }

    /// The text of a stored set.
    pub(crate) fn text(&self, number: u64) -> io::Result<String> {
        let waiting = self.waiting.0.lock().get(&number).cloned();
        match waiting {
            Some(set) => set.text(),
            None => text(fs::read(self.path(number))?),
        }
    }

    /// The rules and settings of a stored set.
    pub(crate) fn load(&self, number: u64) -> io::Result<Config> {
        let file = config::ConfigFile {
            name: format!("generation {number}"),
            text: self.text(number)?,
        };
        // The set passed the policy when it ran.
        let policy = Policy::PERMISSIVE;
        Config::load(&[file], policy).map_err(io::Error::other)
    }

    fn write_all(&self) -> ! {
        let mut is_reported = false;
        loop {
            let set = {
                let mut some = self.waiting.0.lock();
                self.waiting
                    .1
                    .wait_while(&mut some, |waiting| waiting.is_empty());
                some.first_key_value()
                    .map(|(number, set)| (*number, set.clone()))
            };
            let Some((number, set)) = set else { continue };
            let begun = Instant::now();
            match self.write(number, &set) {
                Ok(()) => is_reported = false,
                Err(error) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        let path = self.directory.display();
                        tracing::warn!("{path}: cannot keep a rule set: {error}; make room there");
                    }
                    // It stays available in memory.
                    thread::sleep(Duration::from_secs(1));
                    continue;
                }
            }
            self.waiting.0.lock().remove(&number);
            self.waiting.1.notify_all();
            thread::sleep((begun.elapsed() * REST).min(Duration::from_secs(1)));
        }
    }

    /// Writes a set. Also syncs the log of changes to disk, which would be too slow for each change.
    fn write(&self, number: u64, set: &Waiting) -> io::Result<()> {
        ChangeLog::sync(self.directory.parent().unwrap_or(&self.directory))?;
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(set.text()?.as_bytes())?;
        whole_file::replace(&self.path(number), &packed.finish()?)?;
        let files = self.files();
        let old = files.len().saturating_sub(GENERATIONS_MAX);
        for (_, path) in files.into_iter().take(old) {
            fs::remove_file(path)?;
        }
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number}.toml.gz"))
    }

    fn files(&self) -> BTreeMap<u64, PathBuf> {
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        let files = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name.strip_suffix(".toml.gz")?.parse().ok()?, entry.path()))
        });
        files.collect()
    }
}

fn head(path: &Path) -> Option<ChangeRecord> {
    let mut line = String::new();
    let text = BufReader::new(MultiGzDecoder::new(File::open(path).ok()?));
    text.take(64 << 10).read_line(&mut line).ok()?;
    serde_json::from_str(line.strip_prefix("# ")?).ok()
}

/// The text of a file, which may be compressed.
pub(crate) fn text(bytes: Vec<u8>) -> io::Result<String> {
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut text = Vec::new();
        MultiGzDecoder::new(&bytes[..])
            .take(TEXT_MAX)
            .read_to_end(&mut text)?;
        text
    } else {
        bytes
    };
    String::from_utf8(bytes).map_err(|error| {
        let read = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + read.iter().filter(|byte| **byte == b'\n').count();
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("line {line} is no UTF-8"),
        )
    })
}

/// The most bytes of a decompressed text, which may come from anybody.
const TEXT_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn store(generations: &Generations, number: u64) {
        let record = ChangeRecord {
            generation: number,
            what: "+ much\n".to_owned(),
            ..ChangeRecord::default()
        };
        let settings = Settings {
            allow_link_local: number.is_multiple_of(2),
            ..Settings::default()
        };
        generations.store(&record, &Arc::default(), &settings.into());
    }

    #[test]
    fn the_last_are_stored_and_read_back_before_and_after_they_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let generations = Generations::start(directory.path()).unwrap();
        for number in 1..=60 {
            store(&generations, number);
            assert_eq!(
                generations.load(number).unwrap().settings.allow_link_local,
                number % 2 == 0
            );
            generations.finish();
        }
        for generations in [generations, Generations::start(directory.path()).unwrap()] {
            let records = generations.list().into_iter();
            let listed: Vec<u64> = records.map(|record| record.generation).collect();
            assert!(listed.iter().copied().eq(11..=60), "{listed:?}");
            assert!(generations.load(60).unwrap().settings.allow_link_local);
            assert!(!generations.load(11).unwrap().settings.allow_link_local);
            assert_eq!(
                generations.text(1).unwrap_err().kind(),
                io::ErrorKind::NotFound
            );
        }
    }

    #[test]
    fn temporary_files_of_a_dead_process_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let files = directory.path().join("generations");
        fs::create_dir(&files).unwrap();
        fs::write(files.join("7.toml.new"), "half").unwrap();
        let generations = Generations::start(directory.path()).unwrap();
        store(&generations, 8);
        generations.finish();
        assert!(generations.files().into_keys().eq([8]));
        assert_eq!(files.read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_set_that_is_being_written_is_listed_at_any_moment() {
        let directory = tempfile::tempdir().unwrap();
        let generations = Generations::start(directory.path()).unwrap();
        for number in 1..=20 {
            store(&generations, number);
            while generations.waiting.0.lock().contains_key(&number) {
                let last = generations.list().pop().unwrap();
                assert_eq!(last.generation, number);
            }
        }
    }
}
