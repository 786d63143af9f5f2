//! Changes that undo themselves unless they are confirmed.

use std::time::Duration;

use api::reply::{By, Change, Outcome, Via};
use compile::diff::TableDiff;
use config::Config;
use observe::events::kind::{CHANGE_CONFIRMED, CHANGE_UNDONE};
use observe::events::{done_by, event};
use rules::ruleset::{Policy, RuleSet};
use tokio::task::block_in_place;

use super::Supervisor;
use crate::api::api_error::{ApiError, Code};
use crate::author::Author;
use crate::config_files;
use crate::core::{Refused, compare, joins, local};
use crate::state::pending::Pending;
use crate::state::running::Running;

/// How long after a failed undo the next is tried.
const AGAIN: Duration = Duration::from_secs(1);

impl Supervisor {
    /// The change that waits to be confirmed.
    pub(super) fn waiting(&self) -> Option<&Pending> {
        self.unconfirmed.as_ref().filter(|pending| !pending.undone)
    }

    /// The time left to confirm it; a day if nothing waits.
    pub(super) fn time_to_confirm(&self) -> Duration {
        match self.waiting().map(Pending::remaining) {
            Some(Duration::ZERO) if self.undoing_failed => AGAIN,
            Some(remaining) => remaining,
            None => Duration::from_secs(86_400),
        }
    }

    /// Refuses changes while one waits.
    pub(super) fn refuse_while_waiting(&self) -> Result<(), Refused> {
        let Some(pending) = self.waiting() else {
            return Ok(());
        };
        Err(Refused::Pending {
            by: pending.by.to_string(),
            seconds: pending.remaining().as_secs_f64().ceil() as u64,
        })
    }

    /// Stores the current rules before a change to generation `after` that is to be confirmed.
    pub(super) fn begin_confirmation(
        &mut self,
        author: &Author,
        after: u64,
    ) -> Result<(), Refused> {
        let Some(within) = author.confirm else {
            return Ok(());
        };
        let (before, rules) = (self.core.generation(), local(self.core.rules()));
        let running = Running::new(before, &rules, self.core.settings());
        let files = config_files::digest(self.options.config.as_deref());
        let pending = Pending::new(author, within, (after, running), files);
        if let Err(error) = pending.store(&self.state) {
            return Err(Refused::Unavailable(format!(
                "cannot write down what to go back to: {error}; make room there"
            )));
        }
        self.unconfirmed = Some(pending);
        Ok(())
    }

    /// Notes what only files configure, as a reload found it, and adds to its change what that changes. If
    /// it is to be confirmed, the undo brings back what was before.
    pub(super) fn change_own(
        &mut self,
        own: Config,
        mut change: Change,
        author: &Author,
    ) -> Result<Change, Refused> {
        let before = self.configured.own();
        let changes = own.own_changes_since(&before);
        let is_tried = author.confirm.is_some() && !changes.is_empty();
        if is_tried && self.waiting().is_none() {
            block_in_place(|| self.begin_confirmation(author, change.generation))?;
        }
        if is_tried && let Some(pending) = &mut self.unconfirmed {
            pending.own_before = Some(before);
            self.publish(Vec::new());
        }
        self.set_own(own);
        change.settings.extend(changes);
        Ok(change)
    }

    /// Notes what only files configure; [`Supervisor::follow_own_files`] applies it.
    fn set_own(&mut self, own: Config) {
        (self.configured.api, self.configured.targets) = (own.api, own.targets);
    }

    /// Discards the pending confirmation of a change that was not made.
    pub(super) fn cancel_confirmation(&mut self, author: &Author) {
        if author.confirm.is_some() {
            self.unconfirmed = None;
            let _ = Pending::remove(&self.state);
        }
    }

    /// Confirms the waiting change.
    pub(super) async fn confirm(&mut self, author: &Author) -> Result<Change, ApiError> {
        let Some(pending) = self.unconfirmed.clone() else {
            return Err(ApiError::new(
                Code::Conflict,
                "no change waits to be confirmed",
            ));
        };
        // Clients of other hosts have no user here, but a name.
        let is_author = |by: &By| (by.uid, &by.name) == (pending.by.uid, &pending.by.name);
        if author.by.uid != Some(0) && !is_author(&author.by) {
            let message = format!(
                "the change was made by {}: they or root confirm it",
                pending.by
            );
            return Err(ApiError::new(Code::Privilege, message));
        }
        if let Err(error) = block_in_place(|| Pending::remove(&self.state)) {
            let message = format!("cannot confirm it for good: {error}");
            return Err(ApiError::new(Code::Unavailable, message));
        }
        self.unconfirmed = None;
        self.release_counters().await;
        let mut change = Change {
            generation: self.core.generation(),
            unchanged: self.core.rules().len(),
            ..Change::default()
        };
        let generation = pending.generation;
        let mut events = Vec::new();
        if !pending.undone {
            let mut record = self.record(author, &change);
            (record.of, record.outcome) = (Some(generation), Some(Outcome::Confirmed));
            record.rules = self.core.rules().len();
            events = block_in_place(|| self.append(&record));
            if pending.save {
                let settings = pending.before.settings.clone().unwrap_or_default();
                let before = RuleSet::from_documents(&pending.before.rules, Policy::PERMISSIVE);
                let after = (&local(self.core.rules()), &**self.core.settings());
                let changed = before.map(|before| compare((&before, &settings), after));
                let why = changed.map_or(None, |changed| self.save_changed(&changed, author));
                change.to_save = why.is_some();
                change.warnings.extend(why);
            }
        }
        let message = format!(
            "the change to generation {generation} by {} stays",
            pending.by
        );
        let confirmed = event(CHANGE_CONFIRMED, "configuration", message);
        events.push(done_by(confirmed, &author.by, author.message.as_deref()));
        self.publish(events);
        Ok(change)
    }

    /// Undoes the waiting change, or returns what that would change.
    pub(super) async fn undo(&mut self, author: &Author, dry_run: bool) -> Result<Change, Refused> {
        let Some(mut pending) = self.waiting().cloned() else {
            return Err(Refused::NothingPending);
        };
        let mut before = self.rules_before(&pending)?;
        if author.is_elsewhere {
            before.settings.retain_local(self.core.settings());
        }
        if dry_run {
            return Ok(self.core.compare(&before.rules, &before.settings));
        }
        let author = Author {
            confirm: None,
            undoes: Some(pending.generation),
            goes_back: true,
            ..author.clone()
        };
        // The counters of rules removed by the undo are removed with them.
        self.unconfirmed = None;
        let generation = self.core.generation();
        let mut change = match self.change_to(before, &author).await {
            Ok(change) => change,
            Err(refused) => {
                self.unconfirmed = Some(pending);
                return Err(refused);
            }
        };
        self.release_counters().await;
        if let Some(own) = pending.own_before.take() {
            change
                .settings
                .extend(own.own_changes_since(&self.configured));
            self.set_own(own);
            self.follow_own_files();
        }
        let mut events = Vec::new();
        if change.generation == generation {
            let mut record = self.record(&author, &change);
            record.rules = self.core.rules().len();
            events = block_in_place(|| self.append(&record));
        }
        // The files still contain an undone reload.
        pending.undone = pending.by.via == Via::Reload;
        let stored = block_in_place(|| {
            if pending.undone {
                pending.store(&self.state)
            } else {
                Pending::remove(&self.state)
            }
        });
        if let Err(error) = stored {
            tracing::error!(%error, "the next start undoes the change again");
        }
        let message = format!(
            "the change to generation {} by {} is undone",
            pending.generation, pending.by
        );
        self.unconfirmed = Some(pending).filter(|pending| pending.undone);
        let undone = event(CHANGE_UNDONE, "configuration", message);
        events.push(done_by(undone, &author.by, author.message.as_deref()));
        self.publish(events);
        Ok(change)
    }

    /// Undoes a change that was not confirmed in time.
    pub(super) async fn undo_in_time(&mut self) {
        if self
            .waiting()
            .is_none_or(|pending| pending.remaining() > Duration::ZERO)
        {
            return;
        }
        let undone = self.undo(&Author::of(Via::Time, None), false).await;
        self.undoing_failed = undone.is_err();
        match undone {
            Ok(_) => self.reload_after_waiting().await,
            Err(error) => {
                tracing::error!(%error, "cannot undo what nobody confirmed; trying again")
            }
        }
    }

    /// Reads the configuration again if that was requested while a change waited.
    pub(super) async fn reload_after_waiting(&mut self) {
        if self.waiting().is_none()
            && let Some(author) = self.reload_waits.take()
        {
            drop(self.reload(&author).await);
        }
    }

    /// Forgets an undone change: other rules were requested since.
    pub(super) fn forget_undone(&mut self) {
        if self
            .unconfirmed
            .as_ref()
            .is_some_and(|pending| pending.undone)
        {
            self.unconfirmed = None;
            let removed = block_in_place(|| Pending::remove(&self.state));
            if let Err(error) = removed {
                tracing::error!(%error, "the next start takes the rules before again");
            }
            self.publish(Vec::new());
        }
    }

    /// The rules before a change, with the fleet's current ones and without joins that expired meanwhile.
    fn rules_before(&self, pending: &Pending) -> Result<Config, Refused> {
        let mut settings = pending.before.settings.clone().unwrap_or_default();
        if let Some(join) = joins::remaining(&settings.join) {
            settings.join = join;
        }
        let rules = RuleSet::from_documents(&pending.before.rules, Policy::PERMISSIVE)?;
        self.core.keeping_fleet(Config::of(rules, settings))
    }

    /// Removes the counters that were held for an undo.
    async fn release_counters(&mut self) {
        let mut removed = std::mem::take(&mut self.counters_held);
        removed.retain(|name| self.core.rules().get(name).is_none());
        if let Err(error) = self.dataplane.apply(TableDiff::default(), removed).await {
            tracing::warn!(%error, "counters of rules that are gone stay");
        }
    }
}
