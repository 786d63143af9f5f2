//! A change that undoes itself unless it is confirmed, written before it is made: it records the previous
//! rules and the deadline for the next daemon.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::reply::By;
use config::Config;
use serde::{Deserialize, Serialize};
use sys::clock::boottime_ns;
use sys::whole_file;

use super::running::Running;
use crate::author::Author;

/// A change that waits to be confirmed, or was undone although the files still contain it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pending {
    /// The generation of the rules after it.
    pub(crate) generation: u64,
    pub(crate) by: By,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// Whether it is written into the configuration once confirmed.
    pub(crate) save: bool,
    /// The boot in which it was made.
    boot: String,
    /// By `CLOCK_BOOTTIME`, which cannot be set.
    pub(crate) deadline_ns: u64,
    /// The rules of this host before it, and the settings.
    pub(crate) before: Running,
    /// What only files configure as it was before a reload changed it; it is never written down.
    #[serde(skip)]
    pub(crate) own_before: Option<Config>,
    /// The digest of the configuration files at that time.
    files: String,
    /// Whether it is undone.
    pub(crate) undone: bool,
    /// Whether this process undid it at its start.
    #[serde(skip)]
    pub(crate) undone_now: bool,
}

impl Pending {
    pub(crate) fn new(
        author: &Author,
        within: Duration,
        (generation, before): (u64, Running),
        files: String,
    ) -> Self {
        Self {
            generation,
            by: author.by.clone(),
            message: author.message.clone(),
            save: author.save,
            boot: boot(),
            deadline_ns: boottime_ns() + within.as_nanos() as u64,
            before,
            own_before: None,
            files,
            undone: false,
            undone_now: false,
        }
    }

    /// The time left to confirm it: zero in another boot.
    pub(crate) fn remaining(&self) -> Duration {
        if self.boot == boot() {
            Duration::from_nanos(self.deadline_ns.saturating_sub(boottime_ns()))
        } else {
            Duration::ZERO
        }
    }

    /// The first rules of a daemon that starts with it: the running ones while it waits; else the previous
    /// ones, with the fleet's running rules.
    pub(crate) fn first(&self, running: Option<Running>) -> Running {
        match running {
            Some(mut running) if !self.undone => {
                running.forget_configured();
                running
            }
            running => {
                let mut before = self.before.clone();
                let generation = running.as_ref().map_or(0, |running| running.generation);
                before.generation = before.generation.max(generation);
                let now = running.map(|running| running.rules).unwrap_or_default();
                let fleet = now.into_iter().filter(|rule| rule.share.is_some());
                before.rules.extend(fleet);
                before
            }
        }
    }

    /// Returns whether the configuration files have changed since.
    pub(crate) fn is_overtaken_by(&self, files: &str) -> bool {
        self.files != files
    }

    /// Reads the change of an earlier process; errors are logged.
    pub(crate) fn load(directory: &Path) -> Option<Self> {
        let path = path(directory);
        match fs::read(&path).map(|text| serde_json::from_slice(&text)) {
            Ok(Ok(pending)) => Some(pending),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Ok(Err(error)) => {
                tracing::error!(%error, "{}: cannot be understood; not gone by", path.display());
                None
            }
            Err(error) => {
                tracing::error!(%error, "{}: cannot be read; not gone by", path.display());
                None
            }
        }
    }

    /// Writes it so that it survives a power failure.
    pub(crate) fn store(&self, directory: &Path) -> io::Result<()> {
        whole_file::replace(&path(directory), &serde_json::to_vec(self)?)
    }

    /// Removes it durably.
    pub(crate) fn remove(directory: &Path) -> io::Result<()> {
        whole_file::remove(&path(directory))
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join("pending.json")
}

fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use config::Settings;
    use rules::ruleset::RuleSet;

    use super::*;

    #[test]
    fn it_waits_until_its_deadline_and_in_no_other_boot() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Pending::load(directory.path()).is_none());
        let before = Running::new(7, &RuleSet::default(), &Settings::default());
        let within = Duration::from_secs(60);
        let files = "as they are".to_owned();
        let made = Pending::new(&Author::default(), within, (8, before.clone()), files);
        made.store(directory.path()).unwrap();
        let mut read = Pending::load(directory.path()).unwrap();
        assert_eq!((read.generation, &read.before), (8, &before));
        assert!(read.remaining() <= within && read.remaining() > within / 2);
        assert!(read.is_overtaken_by("") && !read.is_overtaken_by("as they are"));
        read.deadline_ns = 1;
        assert_eq!(read.remaining(), Duration::ZERO);
        read.deadline_ns = u64::MAX;
        assert!(read.remaining() > within);
        read.boot = "another".to_owned();
        assert_eq!(read.remaining(), Duration::ZERO);
        Pending::remove(directory.path()).unwrap();
        Pending::remove(directory.path()).unwrap();
        assert!(Pending::load(directory.path()).is_none());
        fs::write(path(directory.path()), "{").unwrap();
        assert!(Pending::load(directory.path()).is_none());
    }
}
