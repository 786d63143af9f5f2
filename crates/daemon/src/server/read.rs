//! Endpoints that only look.

use api::reply::{ErrorReply, InterfaceInfo, InterfaceList, PathSupport, RuleStats, Stats, Status};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use dataplane::counters::RuleCounters;
use utoipa::OpenApi;

use super::routes::Document;
use super::{Api, Failure};
use crate::core::Refusal;
use crate::statistics;

/// What the daemon is and what this host lets it do.
#[utoipa::path(get, path = "/v1/status", tag = "daemon", responses(
    (status = 200, description = "The daemon", body = Status),
))]
pub(super) async fn status(State(api): State<Api>) -> Json<Status> {
    let view = api.view();
    let support = |path: &Result<(), String>| PathSupport {
        available: path.is_ok(),
        reason: path.as_ref().err().cloned(),
    };
    Json(Status {
        instance: api.identity.instance.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: api.identity.started.elapsed().as_secs_f64(),
        socket: api.socket.display().to_string(),
        generation: view.generation,
        rules: view.rules.len(),
        ready: view.ready,
        kernel: support(&api.support.kernel),
        userspace: support(&api.support.userspace),
    })
}

/// Everything counted.
#[utoipa::path(get, path = "/v1/stats", tag = "statistics", responses(
    (status = 200, description = "States and counters of all rules and workers", body = Stats),
    (status = 503, description = "The counters cannot be read", body = ErrorReply),
))]
pub(super) async fn stats(State(api): State<Api>) -> Result<Json<Stats>, Failure> {
    let counters = api.counters().await?;
    Ok(Json(statistics::stats(
        &api.identity,
        &api.view(),
        &counters,
    )))
}

/// What one rule counted.
#[utoipa::path(get, path = "/v1/stats/{name}", tag = "statistics",
    params(("name" = String, Path, description = "Name of the rule")),
    responses(
        (status = 200, description = "State and counters of the rule", body = RuleStats),
        (status = 404, description = "No rule of that name", body = ErrorReply),
        (status = 503, description = "The counters cannot be read", body = ErrorReply),
    )
)]
pub(super) async fn rule_stats(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<RuleStats>, Failure> {
    let view = api.view();
    let names = [name];
    let there = view.rules.require(&names).map_err(Refusal::from);
    there?;
    let state = view.states.iter().find(|state| state.name == names[0]);
    let state = state.ok_or_else(|| Failure::new("not_found", "no such rule"))?;
    let counters = api.counters().await?;
    let none = RuleCounters::default();
    let counted = counters.rules.get(&state.name).unwrap_or(&none);
    Ok(Json(statistics::rule(state, counted)))
}

/// The host's interfaces, as the daemon sees them.
#[utoipa::path(get, path = "/v1/interfaces", tag = "daemon", responses(
    (status = 200, description = "The interfaces", body = InterfaceList),
))]
pub(super) async fn interfaces(State(api): State<Api>) -> Json<InterfaceList> {
    let view = api.view();
    let info = |link: &model::host::Interface| InterfaceInfo {
        index: link.index.0,
        name: link.name.clone(),
        up: link.up,
        mtu: link.mtu,
        mac: link.mac.map(|mac| mac.to_string()),
        addresses: link.addresses.iter().map(ToString::to_string).collect(),
    };
    let interfaces = view.host.interfaces.values().map(info).collect();
    Json(InterfaceList { interfaces })
}

/// The running rules as a configuration file.
#[utoipa::path(get, path = "/v1/export", tag = "rules", responses(
    (status = 200, description = "TOML that `mcr apply` takes", body = String, content_type = "application/toml"),
))]
pub(super) async fn export(State(api): State<Api>) -> Response {
    let text = model::config::export(&api.view().rules);
    ([(header::CONTENT_TYPE, "application/toml")], text).into_response()
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "daemon", responses(
    (status = 200, description = "The OpenAPI document", body = Object),
))]
pub(super) async fn openapi() -> Response {
    Json(Document::openapi()).into_response()
}

/// Whether the daemon lives: it answers, and its dataplane answers it.
#[utoipa::path(get, path = "/healthz", tag = "daemon", responses(
    (status = 200, description = "It does", body = String, content_type = "text/plain"),
    (status = 503, description = "The dataplane does not answer", body = ErrorReply),
))]
pub(super) async fn healthz(State(api): State<Api>) -> Result<&'static str, Failure> {
    api.counters().await?;
    Ok("ok\n")
}

/// Whether the first rules are live.
#[utoipa::path(get, path = "/readyz", tag = "daemon", responses(
    (status = 200, description = "They are", body = String, content_type = "text/plain"),
    (status = 503, description = "Not yet", body = ErrorReply),
))]
pub(super) async fn readyz(State(api): State<Api>) -> Result<&'static str, Failure> {
    match api.view().ready {
        true => Ok("ready\n"),
        false => Err(Failure::new(
            "unavailable",
            "the first rules are not live yet",
        )),
    }
}
