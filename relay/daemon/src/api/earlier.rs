//! The log of changes, unsaved changes, earlier generations of the rules, and the rollback to one.

use std::io;
use std::path::Path;
use std::sync::Arc;

use api::reply::{Change, ChangeRecord, EarlierRule, ErrorReply, RuleChange};
use api::request::{Rollback, RuleList};
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use config::Config;
use observe::view::View;
use rules::document::RuleDocument;
use rules::printable::things;
use rules::ruleset::RuleDifference;
use serde::Deserialize;
use utoipa::IntoParams;

use super::api_error::{ApiError, Code, Reply};
use super::body::{Body, Name, Parameters, Tagged, spawn_blocking};
use super::changing::{
    Changing, ConfirmOptions, IfMatchHeader, MessageHeader, ReplaceOptions, change,
};
use super::response_cache::{Requester, Subject, text};
use super::service::Service;
use crate::core::{Request as ChangeRequest, compare, joins, local};
use crate::state::generations::Generations;
use crate::supervisor::command::Order;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangesOptions {
    /// The last so many; all that are kept where it is left out.
    #[serde(default = "ChangesOptions::all")]
    last: usize,
}

impl ChangesOptions {
    const fn all() -> usize {
        usize::MAX
    }
}

/// Who changed what, the oldest first: the last 10,000 changes, over restarts and reboots.
#[utoipa::path(get, path = "/v1/changes", tag = "rules", params(ChangesOptions),
    responses((status = 200, body = Vec<ChangeRecord>)))]
pub(super) async fn changes(
    State(service): State<Arc<Service>>,
    Parameters(options): Parameters<ChangesOptions>,
    client: Requester,
) -> Reply<Response> {
    let reading = service
        .read(Subject::Changes(options.last), &client)
        .await?;
    Ok(text("application/json", reading))
}

/// The rule sets that people made last, at most 50, each with who made it, when and why; the oldest first.
#[utoipa::path(get, path = "/v1/generations", tag = "rules",
    responses((status = 200, body = Vec<ChangeRecord>)))]
pub(super) async fn generations(
    State(service): State<Arc<Service>>,
) -> Reply<Json<Vec<ChangeRecord>>> {
    service.generations().await.map(Json)
}

/// Has the change stay that undoes itself otherwise: its author or root does that.
#[utoipa::path(post, path = "/v1/confirm", tag = "rules", params(IfMatchHeader, MessageHeader),
    responses((status = 200, body = Change), (status = 409, body = ErrorReply)))]
pub(super) async fn confirm(changing: Changing) -> Reply<Tagged<Change>> {
    change(changing, Order::Confirm).await
}

/// Goes back to rules and settings of before, as one step. Where a change waits to be confirmed, the last
/// are those before it.
#[utoipa::path(post, path = "/v1/rollback", tag = "rules",
    params(ReplaceOptions, IfMatchHeader, MessageHeader, ConfirmOptions), request_body = Rollback,
    responses((status = 200, body = Change), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 422, body = ErrorReply)))]
pub(super) async fn rollback(
    mut changing: Changing,
    Parameters(options): Parameters<ReplaceOptions>,
    Body(rollback): Body<Rollback>,
) -> Reply<Tagged<Change>> {
    let dry_run = options.dry_run;
    if rollback.generation.is_none() && changing.service.is_waiting() {
        return change(changing, Order::Undo { dry_run }).await;
    }
    let is_elsewhere = changing.author.is_elsewhere;
    let (list, warnings) = changing.service.earlier(rollback, is_elsewhere).await?;
    changing.author.goes_back = true;
    let order = options.order(ChangeRequest::Replace(Box::new(list)));
    let Tagged(generation, mut changed) = change(changing, order).await?;
    changed.warnings.extend(warnings);
    Ok(Tagged(generation, changed))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct EarlierOptions {
    /// Which of those that `GET /v1/generations` tells.
    generation: u64,
}

/// A rule as it was in a generation that is kept, and what has changed in it since.
#[utoipa::path(get, path = "/v1/rules/{name}/earlier", tag = "rules",
    params(("name" = String, Path, description = "Name of the rule"), EarlierOptions),
    responses((status = 200, body = EarlierRule), (status = 404, body = ErrorReply),
        (status = 422, body = ErrorReply)))]
pub(super) async fn rule_of_before(
    State(service): State<Arc<Service>>,
    Name(name): Name,
    Parameters(options): Parameters<EarlierOptions>,
) -> Reply<Json<EarlierRule>> {
    let (generations, number) = (service.generations.clone(), options.generation);
    let config = spawn_blocking(move || load(&generations, number)).await??;
    let then = config.rules.get(&name).ok_or_else(|| {
        let message = format!("generation {number} had no rule {name:?}");
        ApiError::new(Code::NotFound, message)
    })?;
    let rule = RuleDocument::from(then);
    let view = service.view();
    let RuleDifference { removed, added } = match view.rules.get(&name) {
        Some(now) => RuleDifference::between(then, now),
        None => RuleDifference {
            removed: rule.lines(),
            added: Vec::new(),
        },
    };
    let since = RuleChange {
        rule: name,
        removed,
        added,
    };
    Ok(Json(EarlierRule { rule, since }))
}

/// What runs and the configuration does not say, as what it would take there.
#[utoipa::path(get, path = "/v1/unsaved", tag = "rules",
    responses((status = 200, body = Change), (status = 422, body = ErrorReply)))]
pub(super) async fn unsaved(State(service): State<Arc<Service>>) -> Reply<Json<Change>> {
    service
        .unsaved()
        .await
        .map(|change| Json(Change::clone(&change)))
}

/// Writes all that runs into the configuration, whose comments and order stay, where the daemon may.
#[utoipa::path(post, path = "/v1/save", tag = "rules", params(IfMatchHeader, MessageHeader),
    responses((status = 200, body = Change), (status = 409, body = ErrorReply)))]
pub(super) async fn save(changing: Changing) -> Reply<Tagged<Change>> {
    change(changing, Order::Save).await
}

impl Service {
    /// The running rules and settings that are not in the configuration.
    pub(super) async fn unsaved(&self) -> Reply<Arc<Change>> {
        let (view, unsaved) = (self.view(), Arc::clone(&self.unsaved));
        let main = self.identity.config.clone();
        spawn_blocking(move || unsaved.change(&main, &view)).await?
    }

    /// The last rule sets that people made, with the change that made each.
    pub(super) async fn generations(&self) -> Reply<Vec<ChangeRecord>> {
        let generations = self.generations.clone();
        spawn_blocking(move || generations.list()).await
    }

    /// Whether a change waits to be confirmed.
    pub(super) fn is_waiting(&self) -> bool {
        let view = self.view();
        view.pending.as_ref().is_some_and(|pending| !pending.undone)
    }

    /// The earlier rules and settings that a rollback asks for, and warnings about what they leave out.
    pub(super) async fn earlier(
        &self,
        rollback: Rollback,
        is_elsewhere: bool,
    ) -> Reply<(RuleList, Vec<String>)> {
        let (view, generations) = (self.view(), self.generations.clone());
        spawn_blocking(move || earlier(&view, &generations, &rollback, is_elsewhere)).await?
    }

    /// The path of the log of changes.
    pub(super) fn log_of_changes(&self) -> Reply<&Path> {
        self.changes
            .as_deref()
            .map_err(|why| ApiError::new(Code::Unavailable, why))
    }
}

/// The stored generations, the newest first.
fn stored(generations: &Generations) -> impl Iterator<Item = u64> {
    let records = generations.list().into_iter().rev();
    records.map(|record| record.generation)
}

fn load(generations: &Generations, number: u64) -> Reply<Config> {
    generations
        .load(number)
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let numbers: Vec<String> = stored(generations).map(|n| n.to_string()).collect();
                let have = numbers.join(", ");
                let message =
                    format!("the rules of generation {number} are not kept (have: {have})");
                ApiError::new(Code::NotFound, message)
            }
            _ => ApiError::new(Code::Invalid, format!("generation {number}: {error}")),
        })
}

/// The earlier rules and settings to replace the running ones with, and warnings. Who is elsewhere goes
/// back to no settings that only files of this host may change.
fn earlier(
    view: &View,
    generations: &Generations,
    rollback: &Rollback,
    is_elsewhere: bool,
) -> Reply<(RuleList, Vec<String>)> {
    let running = local(&view.rules);
    let as_possible = |mut then: Config| {
        if is_elsewhere {
            then.settings.retain_local(&view.settings);
        }
        let join = joins::remaining(&then.settings.join);
        let ended = join.map(|join| std::mem::replace(&mut then.settings.join, join));
        (then, ended.unwrap_or_default())
    };
    let (number, (config, joined)) = match rollback.generation {
        Some(number) => (number, as_possible(load(generations, number)?)),
        None => {
            let mut loaded = stored(generations).filter_map(|number| {
                let then = generations.load(number).ok()?;
                Some((number, as_possible(then)))
            });
            let differs = |(_, (then, _)): &(u64, (Config, _))| {
                let then = (&then.rules, &then.settings);
                compare((&running, &view.settings), then).differs()
            };
            loaded.find(differs).ok_or_else(|| {
                ApiError::new(
                    Code::NotFound,
                    "no other rules than those that run are kept",
                )
            })?
        }
    };
    let settings = config.settings;
    let ended = joined.iter().filter(|then| !settings.join.contains(then));
    let warning = |join| format!("join {join}: its time is over; it is left alone");
    let mut warnings: Vec<String> = ended.map(warning).collect();
    if running.len() != view.rules.len() {
        let rules = things((view.rules.len() - running.len()) as u64, "rule");
        warnings.push(format!(
            "{rules} of the fleet stay as they are: mcr fleet apply"
        ));
    }
    if rollback.generation.is_none() {
        warnings.push(format!("these are the rules of generation {number}"));
    }
    let list = RuleList {
        // `last` would mean another generation if the rules changed meanwhile.
        generation: rollback.generation.is_none().then_some(view.generation),
        rules: config.rules.to_documents(),
        settings: Some(settings),
    };
    Ok((list, warnings))
}
