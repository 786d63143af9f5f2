//! The history of rules, bounded to what one reply may hold.

use std::sync::Arc;

use api::reply::{ErrorReply, History};
use axum::extract::State;
use axum::response::Response;
use observe::stats::history::{STEP_SECONDS, STEPS};
use serde::Deserialize;
use utoipa::IntoParams;

use super::api_error::{ApiError, Code, Reply};
use super::body::Parameters;
use super::response_cache::{Requester, Subject, text};
use super::selection;
use super::service::Service;

/// How much of the past, and of which rules.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryOptions {
    /// Names of rules, with commas between them, at most 100; all rules together are told in any case.
    #[serde(default)]
    rules: String,
    /// How far back, in seconds; an hour if it is left out.
    #[serde(default = "an_hour")]
    #[param(minimum = 1, maximum = 3600)]
    seconds: u32,
}

const fn an_hour() -> u32 {
    STEPS * STEP_SECONDS
}

/// What rules received and dropped in the last hour, or since the daemon started.
#[utoipa::path(get, path = "/v1/history", tag = "rules", params(HistoryOptions),
    responses((status = 200, body = History), (status = 404, body = ErrorReply)))]
pub(super) async fn history(
    State(service): State<Arc<Service>>,
    Parameters(options): Parameters<HistoryOptions>,
    client: Requester,
) -> Reply<Response> {
    let HistoryOptions { rules, seconds } = options;
    let rules = selection::names(&rules)?;
    if !(1..=an_hour()).contains(&seconds) {
        let message = format!("seconds={seconds}: 1 to {}", an_hour());
        return Err(ApiError::new(Code::Usage, message));
    }
    let reading = service
        .read(Subject::History { rules, seconds }, &client)
        .await?;
    Ok(text("application/json", reading))
}
