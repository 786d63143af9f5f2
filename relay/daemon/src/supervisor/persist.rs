//! Writes down what runs: each change before it is carried out, so that one without room can be
//! refused, and everything again each second after that failed.

use std::io;

use api::reply::Event;
use config::{Config, OnFull};
use observe::events;

use super::Supervisor;
use crate::core::{Refused, Step};
use crate::state::journal::Prepared;
use crate::state::running::Running;

impl Supervisor {
    /// Writes down what a step comes to; nothing of it counts before [`Self::keep`].
    pub(super) fn prepare(&mut self, step: &Step) -> io::Result<Option<Prepared>> {
        let generation = step.change.generation;
        if generation == self.core.generation() {
            return Ok(None);
        }
        let before = (&**self.core.rules(), &**self.core.settings());
        let prepared =
            self.running_store
                .prepare_change(generation, before, step.rules_and_settings());
        prepared.map(Some)
    }

    /// Refuses a change that could not be written down, where the operator wants that.
    pub(super) fn require_written(
        &self,
        written: &io::Result<Option<Prepared>>,
    ) -> Result<(), Refused> {
        match (written, self.started_with.on_full.unwrap_or_default()) {
            (Err(error), OnFull::Refuse) => Err(Refused::Unavailable(format!(
                "cannot write the change to {}: {error}; nothing was changed: make room there, or \
                 start the daemon with --on-full warn, for changes that a crash would undo",
                self.running_store.path().display()
            ))),
            _ => Ok(()),
        }
    }

    /// Lets what was written down count, now that it is carried out; says what changed.
    pub(super) fn keep(&mut self, written: io::Result<Option<Prepared>>) -> Vec<Event> {
        let kept = written.and_then(|prepared| match prepared {
            Some(prepared) => self.running_store.commit(prepared).map(Some),
            None => Ok(None),
        });
        match kept {
            Ok(None) => Vec::new(),
            Ok(Some(())) => self.note(Ok(())),
            Err(error) => self.note(Err(error)),
        }
    }

    /// Takes back what was written down of a step that is not carried out.
    pub(super) fn take_back(&mut self, written: io::Result<Option<Prepared>>) {
        if let Ok(Some(prepared)) = written {
            self.running_store.abort(prepared);
        }
    }

    /// Writes all that runs down; for a daemon that hands over with what was configured.
    pub(crate) fn save(&mut self, configured: Option<&Config>) {
        let (rules, settings) = (self.core.rules(), self.core.settings());
        let mut running = Running::new(self.core.generation(), rules, settings);
        if let Some(configured) = configured {
            running.note(configured);
        }
        let saved = self.running_store.save(&running);
        let news = self.note(saved);
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

    fn note(&mut self, saved: io::Result<()>) -> Vec<Event> {
        let path = self.running_store.path().display();
        let now = saved.err().map(|error| {
            format!("the running rules are not written to {path}: {error}; make room there")
        });
        let news = match (&self.unsaved, &now) {
            (None, Some(why)) => vec![events::not_saved(why)],
            (Some(_), None) => vec![events::saved()],
            _ => Vec::new(),
        };
        self.unsaved = now.map(Into::into);
        news
    }
}
