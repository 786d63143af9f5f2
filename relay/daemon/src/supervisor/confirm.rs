//! Changes that undo themselves unless somebody confirms them.

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
use crate::core::{Refused, Step, compare, joins, local};
use crate::state::pending::Pending;
use crate::state::running::Running;

/// How long after an undoing that failed the next is tried.
const AGAIN: Duration = Duration::from_secs(1);

impl Supervisor {
    /// What waits to be confirmed.
    pub(super) fn waiting(&self) -> Option<&Pending> {
        self.unconfirmed.as_ref().filter(|pending| !pending.undone)
    }

    /// How long it may wait; a day where nothing does.
    pub(super) fn time_to_confirm(&self) -> Duration {
        let left = self.waiting().map(Pending::left);
        match left {
            Some(Duration::ZERO) if self.undoing_failed => AGAIN,
            Some(left) => left,
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
            seconds: pending.left().as_secs_f64().ceil() as u64,
        })
    }

    /// Writes down what to go back to, before a change that is to be confirmed.
    pub(super) fn begin_to_wait(&mut self, author: &Author, step: &Step) -> Result<(), Refused> {
        let (before, after) = (self.core.generation(), step.change.generation);
        let Some(within) = author.confirm.filter(|_| before != after) else {
            return Ok(());
        };
        let rules = local(self.core.rules());
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

    /// Forgets a change that was not made.
    pub(super) fn end_to_wait(&mut self, author: &Author) {
        if author.confirm.is_some() {
            self.unconfirmed = None;
            let _ = Pending::remove(&self.state);
        }
    }

    /// Has what waits stay.
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
        self.let_counters_go().await;
        let mut change = Change {
            generation: self.core.generation(),
            unchanged: self.core.rules().len(),
            ..Change::default()
        };
        let generation = pending.generation;
        let mut news = Vec::new();
        if !pending.undone {
            let mut record = self.record(author, &change);
            (record.of, record.outcome) = (Some(generation), Some(Outcome::Confirmed));
            record.rules = self.core.rules().len();
            news = block_in_place(|| self.append(&record));
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
        let told = event(CHANGE_CONFIRMED, "configuration", message);
        news.push(done_by(told, &author.by, author.message.as_deref()));
        self.tell(news);
        Ok(change)
    }

    /// Takes back what waits, or says what that would change.
    pub(super) async fn undo(&mut self, author: &Author, dry_run: bool) -> Result<Change, Refused> {
        let Some(mut pending) = self.waiting().cloned() else {
            return Err(Refused::NothingPending);
        };
        let mut before = self.rules_before(&pending)?;
        if author.is_elsewhere {
            before.settings.keep_own(self.core.settings());
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
        // The counters of what goes now go with it.
        self.unconfirmed = None;
        let generation = self.core.generation();
        let change = match self.change_to(before, &author).await {
            Ok(change) => change,
            Err(refused) => {
                self.unconfirmed = Some(pending);
                return Err(refused);
            }
        };
        self.let_counters_go().await;
        let mut news = Vec::new();
        if change.generation == generation {
            let mut record = self.record(&author, &change);
            record.rules = self.core.rules().len();
            news = block_in_place(|| self.append(&record));
        }
        // The files still say what was undone.
        pending.undone = pending.by.via == Via::Reload;
        let kept = block_in_place(|| {
            if pending.undone {
                pending.store(&self.state)
            } else {
                Pending::remove(&self.state)
            }
        });
        if let Err(error) = kept {
            tracing::error!(%error, "the next start undoes the change again");
        }
        let message = format!(
            "the change to generation {} by {} is undone",
            pending.generation, pending.by
        );
        self.unconfirmed = Some(pending).filter(|pending| pending.undone);
        let told = event(CHANGE_UNDONE, "configuration", message);
        news.push(done_by(told, &author.by, author.message.as_deref()));
        self.tell(news);
        Ok(change)
    }

    /// Takes back what nobody confirmed in time.
    pub(super) async fn undo_in_time(&mut self) {
        if self
            .waiting()
            .is_none_or(|pending| pending.left() > Duration::ZERO)
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

    /// Reads the configuration again where somebody wanted that meanwhile.
    pub(super) async fn reload_after_waiting(&mut self) {
        if self.waiting().is_none()
            && let Some(author) = self.reload_waits.take()
        {
            drop(self.reload(&author).await);
        }
    }

    /// Forgets what was undone: somebody has had other rules since.
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
            self.tell(Vec::new());
        }
    }

    /// What ran before a change, with what the fleet has now and without joins that ended meanwhile.
    fn rules_before(&self, pending: &Pending) -> Result<Config, Refused> {
        let mut settings = pending.before.settings.clone().unwrap_or_default();
        if let Some(join) = joins::remaining(&settings.join) {
            settings.join = join;
        }
        let rules = RuleSet::from_documents(&pending.before.rules, Policy::PERMISSIVE)?;
        self.core.keeping_fleet(Config::of(rules, settings))
    }

    /// Ends the counters that were kept for an undoing.
    async fn let_counters_go(&mut self) {
        let mut gone = std::mem::take(&mut self.counters_held);
        gone.retain(|name| self.core.rules().get(name).is_none());
        if let Err(error) = self.dataplane.apply(TableDiff::default(), gone).await {
            tracing::warn!(%error, "counters of rules that are gone stay");
        }
    }
}
