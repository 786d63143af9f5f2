//! Writes the running rules to disk: each change before it is made, so that one without room can be
//! refused, and everything again each second after a failure.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use api::reply::{Change, ChangeRecord, Event, Outcome, Via};
use config::{Config, OnFull};
use observe::events;

use super::Supervisor;
use crate::author::Author;
use crate::core::{Refused, Step, compare, local};
use crate::state::changes::ChangeLog;
use crate::state::generations::Generations;
use crate::state::journal::Prepared;
use crate::state::running::Running;

/// A change as written to disk: none of it is valid yet.
pub(super) struct Written {
    pub(super) record: ChangeRecord,
    running: Result<Prepared, String>,
    logged: Result<usize, String>,
}

impl Supervisor {
    /// Opens the log of changes and logs the first rules. A failure is logged and not fatal.
    pub(crate) fn begin_log(&mut self, before: u64, directory: &Path) {
        let opened = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .and_then(|()| ChangeLog::open(directory));
        self.log = opened.map_err(|error| {
            let why = format!(
                "no log of changes is kept: {}: {error}; make the directory, for root alone, and \
                 start the daemon again",
                directory.display()
            );
            tracing::warn!("{why}");
            why.into()
        });
        self.generations = Generations::start(directory).unwrap_or_default();
        if self.core.generation() == before {
            return;
        }
        let (rules, settings) = (local(self.core.rules()), self.core.settings());
        let record = self.generations.list().pop();
        let stored = record.and_then(|last| self.generations.load(last.generation).ok());
        let is_new = stored.is_none();
        let last = stored.unwrap_or_default();
        let change = Change {
            generation: self.core.generation(),
            ..compare((&last.rules, &last.settings), (&rules, settings))
        };
        let pending = self.unconfirmed.as_ref();
        let undone = pending.filter(|pending| pending.undone_now);
        let author = Author {
            undoes: undone.map(|pending| pending.generation),
            ..Author::of(Via::Start, None)
        };
        let record = ChangeRecord {
            before,
            rules: self.core.rules().len(),
            ..self.record(&author, &change)
        };
        let events = self.append(&record);
        self.publish(events);
        // Rules that continue unchanged are not a new generation.
        self.store_generation(Some(record).filter(|_| is_new || change.differs()));
    }

    /// Stores the rules after a change, so that a rollback may return to them.
    pub(super) fn store_generation(&mut self, record: Option<ChangeRecord>) {
        if let Some(record) = record {
            let is_made = matches!(record.by.via, Via::Client | Via::Reload | Via::Start);
            if is_made || record.of.is_some() {
                let (rules, settings) = (self.core.rules(), self.core.settings());
                self.generations.store(&record, rules, settings);
            }
            self.last = Some(record);
        }
    }

    /// The log's record of a change.
    pub(super) fn record(&self, author: &Author, change: &Change) -> ChangeRecord {
        let record = ChangeRecord {
            at_ms: sys::clock::realtime_ms(),
            by: author.by.clone(),
            message: author.message.clone(),
            before: self.core.generation(),
            of: author.undoes,
            outcome: match author.undoes {
                Some(_) => Some(Outcome::Undone),
                None => author.confirm.map(|_| Outcome::Pending),
            },
            ..ChangeRecord::default()
        };
        record.with(change)
    }

    /// Writes the result of a step and its author to disk; nothing of it is valid before
    /// [`Self::commit`].
    pub(super) fn prepare(&mut self, step: &Step, author: &Author) -> Option<Written> {
        let generation = step.change.generation;
        if generation == self.core.generation() {
            return None;
        }
        let after = step.rules_and_settings();
        let record = ChangeRecord {
            rules: after.0.len(),
            ..self.record(author, &step.change)
        };
        let before = (&**self.core.rules(), &**self.core.settings());
        let running = self
            .running_store
            .prepare_change(generation, before, after)
            .map_err(|error| format!("{}: {error}", self.running_store.path().display()));
        let logged = match &mut self.log {
            Ok(log) => log.prepare(&record).map_err(|error| error.to_string()),
            Err(_) => Ok(0),
        };
        Some(Written {
            record,
            running,
            logged,
        })
    }

    /// Refuses a change that could not be written, if the operator wants that.
    pub(super) fn require_written(&self, written: Option<&Written>) -> Result<(), Refused> {
        let error = written.and_then(|written| {
            let running = written.running.as_ref().err();
            running.or(written.logged.as_ref().err())
        });
        match (error, self.started_with.on_full.unwrap_or_default()) {
            (Some(error), OnFull::Refuse) => Err(Refused::Unavailable(format!(
                "cannot write the change to {error}; nothing was changed: make room there, or \
                 start the daemon with --on-full warn, for changes that a crash would undo"
            ))),
            _ => Ok(()),
        }
    }

    /// Makes a written change valid, now that it is made; returns the resulting events.
    pub(super) fn commit(&mut self, written: Option<Written>) -> Vec<Event> {
        let Some(written) = written else {
            return Vec::new();
        };
        let committed = written.running.and_then(|prepared| {
            self.running_store
                .commit(prepared)
                .map_err(|error| format!("{}: {error}", self.running_store.path().display()))
        });
        let logged = match &mut self.log {
            Ok(log) => match written.logged {
                Ok(bytes) => log.commit(bytes),
                Err(_) => log.append(&written.record),
            },
            Err(_) => Ok(()),
        };
        self.set_saved(committed.and(logged.map_err(|error| error.to_string())))
    }

    /// Discards a written change that is not made.
    pub(super) fn abort(&mut self, written: Option<Written>) {
        let Some(written) = written else {
            return;
        };
        if let Ok(prepared) = written.running {
            self.running_store.abort(prepared);
        }
        if let (Ok(log), Ok(_)) = (&self.log, written.logged) {
            log.abort();
        }
    }

    /// Logs a change that is not prepared; returns the resulting events.
    pub(crate) fn append(&mut self, record: &ChangeRecord) -> Vec<Event> {
        let appended = match &mut self.log {
            Ok(log) => log.append(record),
            Err(_) => Ok(()),
        };
        match appended {
            Ok(()) => Vec::new(),
            Err(error) => self.set_saved(Err(error.to_string())),
        }
    }

    /// Writes all running rules to disk; a daemon that hands over adds the configuration.
    pub(crate) fn save(&mut self, configured: Option<&Config>) {
        let (rules, settings) = (self.core.rules(), self.core.settings());
        let mut running = Running::new(self.core.generation(), rules, settings);
        if let Some(configured) = configured {
            running.note(configured);
        }
        let saved = self
            .running_store
            .save(&running)
            .map_err(|error| format!("{}: {error}", self.running_store.path().display()));
        let caught_up = match &mut self.log {
            Ok(log) => log.catch_up().map_err(|error| error.to_string()),
            Err(_) => Ok(()),
        };
        let events = self.set_saved(saved.and(caught_up));
        if !events.is_empty() {
            self.publish(events);
        }
    }

    /// The warning to clients that a crash would undo a change.
    pub(super) fn unsaved_warning(&self) -> Option<String> {
        let why = self.unsaved.as_ref()?;
        Some(format!(
            "{why}; until it is, a crash would bring back rules of before"
        ))
    }

    fn set_saved(&mut self, saved: Result<(), String>) -> Vec<Event> {
        let unsaved = saved
            .err()
            .map(|error| format!("the running rules are not written to {error}; make room there"));
        let events = match (&self.unsaved, &unsaved) {
            (None, Some(why)) => vec![events::not_saved(why)],
            (Some(_), None) => vec![events::saved()],
            _ => Vec::new(),
        };
        self.unsaved = unsaved.map(Into::into);
        events
    }
}
