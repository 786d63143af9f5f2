//! Writes down what runs: each change before it is carried out, so that one without room can be
//! refused, and everything again each second after that failed.

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

/// A change as it was written down: none of it counts yet.
pub(super) struct Written {
    pub(super) record: ChangeRecord,
    running: Result<Prepared, String>,
    logged: Result<usize, String>,
}

impl Supervisor {
    /// Opens the log of changes, now that something runs, and begins it with that. Where there can be
    /// none that is told, and ends nothing.
    pub(crate) fn begin_log(&mut self, before: u64, directory: &Path) {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
        let opened = made.and_then(|()| ChangeLog::open(directory));
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
        let last = self.generations.list().pop();
        let last = last.and_then(|last| self.generations.load(last.generation).ok());
        let is_new = last.is_none();
        let last = last.unwrap_or_default();
        let change = Change {
            generation: self.core.generation(),
            ..compare((&last.rules, &last.settings), (&rules, settings))
        };
        let undone = self.unconfirmed.as_ref();
        let undone = undone.filter(|pending| pending.undone_now);
        let author = Author {
            undoes: undone.map(|pending| pending.generation),
            ..Author::of(Via::Start, None)
        };
        let record = ChangeRecord {
            before,
            rules: self.core.rules().len(),
            ..self.record(&author, &change)
        };
        let news = self.append(&record);
        self.tell(news);
        // One that goes on as the one before it is none that somebody made.
        self.remember(Some(record).filter(|_| is_new || change.differs()));
    }

    /// Remembers what a change led to, so that somebody may come back to it.
    pub(super) fn remember(&mut self, record: Option<ChangeRecord>) {
        if let Some(record) = record {
            let is_made = matches!(record.by.via, Via::Client | Via::Reload | Via::Start);
            if is_made || record.of.is_some() {
                let (rules, settings) = (self.core.rules(), self.core.settings());
                self.generations.keep(&record, rules, settings);
            }
            self.last = Some(record);
        }
    }

    /// A change for the log.
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

    /// Writes down what a step comes to and who asked for it; nothing of it counts before
    /// [`Self::keep`].
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

    /// Refuses a change that could not be written down, where the operator wants that.
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

    /// Lets what was written down count, now that it is carried out; says what changed.
    pub(super) fn keep(&mut self, written: Option<Written>) -> Vec<Event> {
        let Some(written) = written else {
            return Vec::new();
        };
        let kept = written.running.and_then(|prepared| {
            let kept = self.running_store.commit(prepared);
            kept.map_err(|error| format!("{}: {error}", self.running_store.path().display()))
        });
        let logged = match &mut self.log {
            Ok(log) => match written.logged {
                Ok(bytes) => log.commit(bytes),
                Err(_) => log.append(&written.record),
            },
            Err(_) => Ok(()),
        };
        self.note(kept.and(logged.map_err(|error| error.to_string())))
    }

    /// Takes back what was written down of a step that is not carried out.
    pub(super) fn take_back(&mut self, written: Option<Written>) {
        let Some(Written {
            running, logged, ..
        }) = written
        else {
            return;
        };
        if let Ok(prepared) = running {
            self.running_store.abort(prepared);
        }
        if let (Ok(log), Ok(_)) = (&self.log, logged) {
            log.abort();
        }
    }

    /// Writes down what happened besides changes that are carried out; what that is news of.
    pub(crate) fn append(&mut self, record: &ChangeRecord) -> Vec<Event> {
        let appended = match &mut self.log {
            Ok(log) => log.append(record),
            Err(_) => Ok(()),
        };
        match appended {
            Ok(()) => Vec::new(),
            Err(error) => self.note(Err(error.to_string())),
        }
    }

    /// Writes all that runs down; for a daemon that hands over with what was configured.
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
        let news = self.note(saved.and(caught_up));
        if !news.is_empty() {
            self.tell(news);
        }
    }

    /// Tries again to write down what a crash would lose.
    pub(super) fn save_again(&mut self) {
        if self.unsaved.is_some() {
            self.save(None);
        }
    }

    /// What clients are told of a change that a crash would undo.
    pub(super) fn unsaved_warning(&self) -> Option<String> {
        let why = self.unsaved.as_ref()?;
        Some(format!(
            "{why}; until it is, a crash would bring back rules of before"
        ))
    }

    fn note(&mut self, saved: Result<(), String>) -> Vec<Event> {
        let now = saved
            .err()
            .map(|error| format!("the running rules are not written to {error}; make room there"));
        let news = match (&self.unsaved, &now) {
            (None, Some(why)) => vec![events::not_saved(why)],
            (Some(_), None) => vec![events::saved()],
            _ => Vec::new(),
        };
        self.unsaved = now.map(Into::into);
        news
    }
}
