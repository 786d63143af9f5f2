//! Every route of the API, each described where it is written: the OpenAPI document is made of the
//! router itself.

use std::time::Duration;

use api::reply::{Change, ErrorReply, FlowStats, InterfaceStatus, Log, Stats, Status};
use api::request::{RuleList, Transaction};
use axum::body::Bytes;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use model::document::RuleDocument;
use serde::Deserialize;
use tokio::time::timeout;
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{Body, IfMatch, Tagged};
use super::connections::Busy;
use super::event_stream;
use super::question::{Answer, Code, Question, Refusal, Supervisor};
use super::web;
use crate::stats::metrics::{self, Format};
use crate::stats::process::Process;

/// How long a request may take from its head to its answer.
const REQUEST_PATIENCE: Duration = Duration::from_secs(30);

/// The whole API.
pub(super) fn control(supervisor: Supervisor) -> Router {
    let (router, document) = described(reading().merge(changing()));
    finish(router, document, supervisor)
}

/// What changes nothing.
pub(super) fn read_only(supervisor: Supervisor) -> Router {
    let (router, document) = described(reading());
    finish(router.merge(web::routes()), document, supervisor)
}

/// The OpenAPI document of the whole API.
#[cfg(test)]
pub(super) fn document() -> OpenApi {
    described(reading().merge(changing())).1
}

fn reading() -> OpenApiRouter<Supervisor> {
    OpenApiRouter::new()
        .routes(routes!(status))
        .routes(routes!(stats))
        .routes(routes!(rules))
        .routes(routes!(rule))
        .routes(routes!(flows))
        .routes(routes!(export))
        .routes(routes!(interfaces))
        .routes(routes!(log))
        .routes(routes!(event_stream::events))
        .routes(routes!(metrics_text))
        .routes(routes!(healthz))
        .routes(routes!(readyz))
}

fn changing() -> OpenApiRouter<Supervisor> {
    OpenApiRouter::new()
        .routes(routes!(add, replace))
        .routes(routes!(remove))
        .routes(routes!(transaction))
        .routes(routes!(reload))
        .routes(routes!(set_log))
}

fn described(router: OpenApiRouter<Supervisor>) -> (Router<Supervisor>, OpenApi) {
    let about = InfoBuilder::new()
        .title("MCR control API")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("The multicast relay's daemon, over its Unix socket."))
        .build();
    let (router, routes) = router.split_for_parts();
    let mut document = OpenApiBuilder::new().info(about).build();
    document.merge(routes);
    (router, document)
}

fn finish(router: Router<Supervisor>, document: OpenApi, supervisor: Supervisor) -> Router {
    // Once, not for each who asks.
    let document = serde_json::to_vec(&document).expect("a document of texts is always JSON");
    let document = Bytes::from(document);
    let document = ([(header::CONTENT_TYPE, "application/json")], document);
    router
        .route("/openapi.json", get(move || async { document }))
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
        .with_state(supervisor)
        .layer(middleware::from_fn(in_time))
}

async fn in_time(Extension(busy): Extension<Busy>, request: Request, next: Next) -> Response {
    let _held = busy.hold();
    match timeout(REQUEST_PATIENCE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let limit = REQUEST_PATIENCE.as_secs();
            let message = format!("the request was not complete and done within {limit} s");
            Refusal::new(Code::Timeout, message).into_response()
        }
    }
}

async fn no_such_route(request: Request) -> Refusal {
    let path = request.uri().path();
    Refusal::new(
        Code::NotFound,
        format!("no {path} here; GET /openapi.json lists what there is"),
    )
}

async fn no_such_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let message = format!("{path} does not know {method}; GET /openapi.json lists what there is");
    let mut response = Refusal::new(Code::Usage, message).into_response();
    *response.status_mut() = axum::http::StatusCode::METHOD_NOT_ALLOWED;
    response
}

/// The daemon in a few words.
#[utoipa::path(get, path = "/v1/status", tag = "daemon", responses((status = 200, body = Status)))]
async fn status(State(supervisor): State<Supervisor>) -> Answer<Json<Status>> {
    supervisor.ask(Question::Status).await.map(Json)
}

/// Everything counted.
#[utoipa::path(get, path = "/v1/stats", tag = "daemon", responses((status = 200, body = Stats)))]
async fn stats(State(supervisor): State<Supervisor>) -> Answer<Json<Stats>> {
    supervisor.ask(Question::Stats).await.map(Json)
}

/// The interfaces of the daemon's network namespace.
#[utoipa::path(get, path = "/v1/interfaces", tag = "daemon",
    responses((status = 200, body = Vec<InterfaceStatus>)))]
async fn interfaces(State(supervisor): State<Supervisor>) -> Answer<Json<Vec<InterfaceStatus>>> {
    supervisor.ask(Question::Interfaces).await.map(Json)
}

/// How much the daemon logs.
#[utoipa::path(get, path = "/v1/log", tag = "daemon",
    responses((status = 200, body = Log), (status = 503, body = ErrorReply)))]
async fn log(State(supervisor): State<Supervisor>) -> Answer<Json<Log>> {
    let ask = |reply| Question::Log(None, reply);
    supervisor.ask(ask).await.map(Json)
}

/// Changes how much the daemon logs, until it ends.
#[utoipa::path(put, path = "/v1/log", tag = "daemon", request_body = Log,
    responses((status = 200, body = Log), (status = 400, body = ErrorReply),
        (status = 413, body = ErrorReply), (status = 503, body = ErrorReply)))]
async fn set_log(State(supervisor): State<Supervisor>, Body(log): Body<Log>) -> Answer<Json<Log>> {
    let ask = |reply| Question::Log(Some(log), reply);
    supervisor.ask(ask).await.map(Json)
}

/// The running rules and their generation.
#[utoipa::path(get, path = "/v1/rules", tag = "rules", responses((status = 200, body = RuleList, headers(
        ("ETag" = String, description = "The generation, for If-Match")))))]
async fn rules(State(supervisor): State<Supervisor>) -> Answer<Tagged<RuleList>> {
    let rules = supervisor.ask(Question::Rules).await?;
    Ok(Tagged(rules.generation.unwrap_or_default(), rules))
}

/// Hands a change to the supervisor.
async fn change(supervisor: &Supervisor, transaction: Transaction) -> Answer<Tagged<Change>> {
    let ask = |reply| Question::Change(transaction, reply);
    let change = supervisor.ask(ask).await?;
    Ok(Tagged(change.generation, change))
}

/// One rule.
#[utoipa::path(get, path = "/v1/rules/{name}", tag = "rules",
    params(("name" = String, Path, description = "Name of the rule")),
    responses((status = 200, body = RuleDocument), (status = 404, body = ErrorReply)))]
async fn rule(
    State(supervisor): State<Supervisor>,
    Path(name): Path<String>,
) -> Answer<Json<RuleDocument>> {
    let list = supervisor.ask(Question::Rules).await?;
    let names: Vec<&str> = list.rules.iter().map(|rule| rule.name.as_str()).collect();
    let message = format!("no rule {name} (have: {})", names.join(", "));
    let found = list.rules.iter().find(|rule| rule.name == name).cloned();
    found.map(Json).ok_or(Refusal::new(Code::NotFound, message))
}

/// What was seen of each group and port of a rule with ranges: the flows most recently seen.
#[utoipa::path(get, path = "/v1/rules/{name}/flows", tag = "rules",
    params(("name" = String, Path, description = "Name of the rule")),
    responses((status = 200, body = Vec<FlowStats>), (status = 404, body = ErrorReply)))]
async fn flows(
    State(supervisor): State<Supervisor>,
    Path(name): Path<String>,
) -> Answer<Json<Vec<FlowStats>>> {
    let ask = |reply| Question::Flows(name, reply);
    supervisor.ask(ask).await.map(Json)
}

/// The running rules as a configuration file, TOML.
#[utoipa::path(get, path = "/v1/export", tag = "rules",
    responses((status = 200, body = String, content_type = "application/toml")))]
async fn export(State(supervisor): State<Supervisor>) -> Answer<impl IntoResponse> {
    let text = supervisor.ask(Question::Export).await?;
    Ok(([(header::CONTENT_TYPE, "application/toml")], text))
}

/// Rules to add.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Rules {
    #[serde(deserialize_with = "api::request::not_too_many")]
    rules: Vec<RuleDocument>,
}

/// Adds rules behind the running ones, all or none.
#[utoipa::path(post, path = "/v1/rules", tag = "rules", params(IfMatchHeader), request_body = Rules,
    responses((status = 200, body = Change), (status = 400, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 413, body = ErrorReply),
        (status = 422, body = ErrorReply), (status = 503, body = ErrorReply)))]
async fn add(
    State(supervisor): State<Supervisor>,
    if_match: IfMatch,
    Body(Rules { rules }): Body<Rules>,
) -> Answer<Tagged<Change>> {
    let transaction = Transaction {
        generation: if_match.and(None)?,
        add: rules,
        ..Transaction::default()
    };
    change(&supervisor, transaction).await
}

/// How [`IfMatch`] stands in the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only described here; IfMatch reads it")]
struct IfMatchHeader {
    /// The ETag of `/v1/rules` that the change was made for, or `*`: where the rules are of another
    /// generation by now, the change is refused as `conflict`.
    #[param(rename = "If-Match", required = false, nullable = false, value_type = String,
        pattern = r#"^([*]|"[0-9]{1,18}")$"#, example = "*")]
    if_match: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct ReplaceOptions {
    /// Only say what would change.
    #[serde(default)]
    dry_run: bool,
}

/// Puts a whole rule set in the place of the running one, as one step.
#[utoipa::path(put, path = "/v1/rules", tag = "rules", params(ReplaceOptions, IfMatchHeader),
    request_body = RuleList,
    responses((status = 200, body = Change), (status = 400, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 413, body = ErrorReply),
        (status = 422, body = ErrorReply), (status = 503, body = ErrorReply)))]
async fn replace(
    State(supervisor): State<Supervisor>,
    options: Result<Query<ReplaceOptions>, axum::extract::rejection::QueryRejection>,
    if_match: IfMatch,
    Body(mut rules): Body<RuleList>,
) -> Answer<Tagged<Change>> {
    rules.generation = if_match.and(rules.generation)?;
    let Query(options) = options.map_err(|error| Refusal::new(Code::Usage, error.body_text()))?;
    let ask = |reply| Question::Replace {
        rules,
        dry_run: options.dry_run,
        reply,
    };
    let change = supervisor.ask(ask).await?;
    Ok(Tagged(change.generation, change))
}

/// Takes one rule out.
#[utoipa::path(delete, path = "/v1/rules/{name}", tag = "rules",
    params(("name" = String, Path, description = "Name of the rule"), IfMatchHeader),
    responses((status = 200, body = Change), (status = 400, body = ErrorReply),
        (status = 404, body = ErrorReply), (status = 409, body = ErrorReply),
        (status = 503, body = ErrorReply)))]
async fn remove(
    State(supervisor): State<Supervisor>,
    Path(name): Path<String>,
    if_match: IfMatch,
) -> Answer<Tagged<Change>> {
    let transaction = Transaction {
        generation: if_match.and(None)?,
        remove: vec![name],
        ..Transaction::default()
    };
    change(&supervisor, transaction).await
}

/// Removes and adds rules as one step.
#[utoipa::path(post, path = "/v1/transaction", tag = "rules", params(IfMatchHeader),
    request_body = Transaction,
    responses((status = 200, body = Change), (status = 400, body = ErrorReply),
        (status = 404, body = ErrorReply), (status = 409, body = ErrorReply),
        (status = 413, body = ErrorReply), (status = 422, body = ErrorReply),
        (status = 503, body = ErrorReply)))]
async fn transaction(
    State(supervisor): State<Supervisor>,
    if_match: IfMatch,
    Body(mut transaction): Body<Transaction>,
) -> Answer<Tagged<Change>> {
    transaction.generation = if_match.and(transaction.generation)?;
    change(&supervisor, transaction).await
}

/// Reads the configuration file again and makes its rules the running ones, as SIGHUP does.
#[utoipa::path(post, path = "/v1/reload", tag = "rules",
    responses((status = 200, body = Change), (status = 422, body = ErrorReply),
        (status = 503, body = ErrorReply)))]
async fn reload(State(supervisor): State<Supervisor>) -> Answer<Json<Change>> {
    supervisor.ask(Question::Reload).await.map(Json)
}

/// The counters for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "observe",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics_text(
    State(supervisor): State<Supervisor>,
    headers: HeaderMap,
) -> Answer<impl IntoResponse> {
    let accept = headers.get(header::ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let scrape = supervisor.ask(Question::Scrape).await?;
    let text = metrics::text(format, &scrape, &Process::read());
    Ok(([(header::CONTENT_TYPE, format.content_type())], text))
}

/// Says that the daemon answers.
#[utoipa::path(get, path = "/healthz", tag = "observe", responses((status = 200, body = String)))]
async fn healthz(State(supervisor): State<Supervisor>) -> Answer<&'static str> {
    supervisor.ask(Question::Status).await.map(|_| "ok\n")
}

/// Says whether every input is joined.
#[utoipa::path(get, path = "/readyz", tag = "observe",
    responses((status = 200, body = String), (status = 503, body = ErrorReply)))]
async fn readyz(State(supervisor): State<Supervisor>) -> Answer<&'static str> {
    let stats = supervisor.ask(Question::Stats).await?;
    let waiting = stats
        .rules
        .iter()
        .filter(|rule| rule.inputs.iter().any(|input| !input.joined));
    let waiting: Vec<&str> = waiting.map(|rule| rule.name.as_str()).collect();
    if waiting.is_empty() {
        return Ok("ready\n");
    }
    let message = format!("not joined: {}", waiting.join(", "));
    Err(Refusal::new(Code::Unavailable, message))
}
