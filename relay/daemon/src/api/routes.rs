//! Every route of the API, each described where it is defined: the OpenAPI document is generated from the
//! router.

use std::sync::Arc;
use std::time::Duration;

use api::query::{RulesQuery, StatsQuery};
use api::reply::{
    ApiClientStatus, Change, ErrorReply, FlowStats, InterfaceStatus, ListenerStats, Log,
    NotifyTested, RulePart, Stats, Status, Via,
};
use api::request::{ActiveInput, RuleList, Transaction};
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use config::Role;
use observe::stats::metrics::Format;
use rules::document::RuleDocument;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};
use utoipa::openapi::OpenApi;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api_error::{self, ApiError, Code, Reply};
use super::body::{Body, Name, Parameters, Tagged, etag};
use super::changing::{
    Changing, ConfirmOptions, Deadline, IfMatchHeader, MessageHeader, ReplaceOptions, change,
    transact,
};
use super::connections::Connection;
use super::document::{Routes, described, least, least_roles, queries, refuse_unknown};
use super::host_name::{self, Names};
use super::remote::admission::{Gate, admit};
use super::remote::sign_in;
use super::response_cache::{Requester, Subject, text};
use super::service::Service;
use super::{
    acknowledged, capture, earlier, enabled, event_stream, explain, fleet, history, selection, web,
    writing,
};
use crate::core::Request as ChangeRequest;
use crate::supervisor::command::Order;

/// How long a request may take from its head to its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The whole API, for clients of other hosts, and the page that uses it: a client's role limits what it
/// may ask for, and the page itself discloses nothing.
pub(super) fn remote(service: Arc<Service>, names: Names) -> Router {
    let (router, document) = described(reading().merge(changing()).merge(session()));
    let mut roles = least_roles(&document);
    roles.extend(web::paths().map(|path| (path.to_owned(), vec![(Method::GET, None)])));
    let gate = Gate {
        roles: Arc::new(roles),
        remote: Arc::clone(&service.remote),
        events: service.events.clone(),
        names,
    };
    let router = finish(router.merge(web::routes()), document, service);
    router.layer(middleware::from_fn_with_state(gate, admit))
}

/// The whole API.
pub(super) fn control(service: Arc<Service>) -> Router {
    let (router, document) = described(reading().merge(changing()));
    finish(router, document, service)
}

/// The read-only API, for requests that name a served host.
pub(super) fn read_only(service: Arc<Service>, names: Names) -> Router {
    let (router, document) = described(reading());
    let router = finish(router.merge(web::routes()), document, service);
    router.layer(middleware::from_fn_with_state(names, host_name::check))
}

/// The OpenAPI document of the whole API.
#[cfg(test)]
pub(super) fn document() -> OpenApi {
    described(reading().merge(changing())).1
}

fn reading() -> Routes {
    let anybodys = OpenApiRouter::new()
        .routes(routes!(healthz))
        .routes(routes!(readyz));
    let reading = OpenApiRouter::new()
        .routes(routes!(status))
        .routes(routes!(stats))
        .routes(routes!(rules))
        .routes(routes!(rule))
        .routes(routes!(flows))
        .routes(routes!(listeners))
        .routes(routes!(history::history))
        .routes(routes!(export))
        .routes(routes!(interfaces))
        .routes(routes!(log))
        .routes(routes!(earlier::changes))
        .routes(routes!(earlier::unsaved))
        .routes(routes!(earlier::generations))
        .routes(routes!(earlier::rule_of_before))
        .routes(routes!(event_stream::events))
        .routes(routes!(fleet::status))
        .routes(routes!(metrics_text));
    least(None, anybodys).merge(least(Some(Role::View), reading))
}

fn changing() -> Routes {
    let reading = OpenApiRouter::new()
        .routes(routes!(explain::explain))
        .routes(routes!(writing::schema))
        .routes(routes!(writing::check))
        .routes(routes!(writing::import))
        .routes(routes!(fleet::rules))
        .routes(routes!(fleet::record));
    let operating = OpenApiRouter::new()
        .routes(routes!(switch))
        .routes(routes!(enabled::set_one))
        .routes(routes!(enabled::set_all))
        .merge(capture::routes())
        .routes(routes!(acknowledged::acknowledge))
        .routes(routes!(earlier::confirm))
        .routes(routes!(fleet::drain))
        .routes(routes!(fleet::undrain));
    let changing = OpenApiRouter::new()
        .routes(routes!(clients))
        .routes(routes!(notify_test))
        .routes(routes!(add, replace))
        .routes(routes!(remove))
        .routes(routes!(transaction))
        .routes(routes!(reload))
        .routes(routes!(earlier::rollback))
        .routes(routes!(earlier::save))
        .routes(routes!(set_log))
        .routes(routes!(fleet::apply))
        .routes(routes!(fleet::move_to))
        .routes(routes!(fleet::rebalance))
        .routes(routes!(fleet::fence));
    least(Some(Role::View), reading)
        .merge(least(Some(Role::Operate), operating))
        .merge(least(Some(Role::Change), changing))
}

/// Signing in and out, over TLS only.
fn session() -> Routes {
    let anybodys = OpenApiRouter::new().routes(routes!(sign_in::session));
    let clients = OpenApiRouter::new().routes(routes!(sign_in::sign_in, sign_in::sign_out));
    least(None, anybodys).merge(least(Some(Role::View), clients))
}

fn finish(router: Router<Arc<Service>>, document: OpenApi, service: Arc<Service>) -> Router {
    // Once, not for each request.
    let json = serde_json::to_vec(&document).expect("a document of texts is always JSON");
    let kind = [(header::CONTENT_TYPE, "application/json")];
    let reply = (kind, Bytes::from(json));
    let queries = Arc::new(queries(&document));
    router
        .route("/openapi.json", get(move || async { reply }))
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
        .with_state(service)
        .layer(middleware::from_fn_with_state(queries, refuse_unknown))
        .layer(middleware::from_fn(in_time))
}

async fn in_time(
    Extension(connection): Extension<Connection>,
    mut request: Request,
    next: Next,
) -> Response {
    let _held = connection.hold();
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    request.extensions_mut().insert(Deadline(deadline));
    match timeout_at(deadline, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let limit = REQUEST_TIMEOUT.as_secs();
            let message =
                format!("the request was not complete within {limit} s; nothing was changed");
            ApiError::new(Code::Timeout, message).into_response()
        }
    }
}

async fn no_such_route(request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::new(
        Code::NotFound,
        format!("no {path} here; GET /openapi.json lists what there is"),
    )
}

async fn no_such_method(request: Request) -> ApiError {
    api_error::no_such_method(request.method(), request.uri().path())
}

/// The daemon in a few words.
#[utoipa::path(get, path = "/v1/status", tag = "daemon", responses((status = 200, body = Status)))]
async fn status(State(service): State<Arc<Service>>) -> Json<Status> {
    let unsaved = service.unsaved().await;
    Json(Status {
        unsaved: unsaved.ok().map(|change| change.count()),
        ..service.status()
    })
}

/// Everything counted, of all rules or of those that are asked for.
#[utoipa::path(get, path = "/v1/stats", tag = "daemon", params(StatsQuery),
    responses((status = 200, body = Stats)))]
async fn stats(
    State(service): State<Arc<Service>>,
    Parameters(pairs): Parameters<selection::Pairs>,
    client: Requester,
) -> Reply<Response> {
    let query = selection::of_stats(pairs)?;
    let subject = Subject::Stats(query.map(Box::new));
    let reading = service.read(subject, &client).await?;
    Ok(text("application/json", reading))
}

/// Clients of other hosts, and when they were last served.
#[utoipa::path(get, path = "/v1/clients", tag = "daemon",
    responses((status = 200, body = Vec<ApiClientStatus>)))]
async fn clients(State(service): State<Arc<Service>>) -> Json<Vec<ApiClientStatus>> {
    Json(service.remote.clients())
}

/// Tells those who are told of events that there is nothing to tell, and says who took it.
#[utoipa::path(post, path = "/v1/notify/test", tag = "events",
    responses((status = 200, body = Vec<NotifyTested>)))]
async fn notify_test(State(service): State<Arc<Service>>) -> Json<Vec<NotifyTested>> {
    Json(service.notified.test(&service.identity).await)
}

/// The interfaces of the daemon's network namespace.
#[utoipa::path(get, path = "/v1/interfaces", tag = "daemon",
    responses((status = 200, body = Vec<InterfaceStatus>)))]
async fn interfaces(State(service): State<Arc<Service>>, client: Requester) -> Reply<Response> {
    let reading = service.read(Subject::Interfaces, &client).await?;
    Ok(text("application/json", reading))
}

/// How much the daemon logs.
#[utoipa::path(get, path = "/v1/log", tag = "daemon",
    responses((status = 200, body = Log)))]
async fn log(State(service): State<Arc<Service>>) -> Reply<Json<Log>> {
    service.log().map(Json)
}

/// Changes how much the daemon logs, until it ends.
#[utoipa::path(put, path = "/v1/log", tag = "daemon", request_body = Log,
    responses((status = 200, body = Log)))]
async fn set_log(State(service): State<Arc<Service>>, Body(log): Body<Log>) -> Reply<Json<Log>> {
    service.set_log(&log).map(Json)
}

/// The running rules and their generation, all or those that are asked for.
#[utoipa::path(get, path = "/v1/rules", tag = "rules", params(RulesQuery),
    responses((status = 200, body = RulePart, headers(
        ("ETag" = String, description = "The generation, for If-Match")))))]
async fn rules(
    State(service): State<Arc<Service>>,
    Parameters(pairs): Parameters<selection::Pairs>,
    client: Requester,
) -> Reply<Response> {
    let query = selection::of_rules(pairs)?;
    let reading = service.read(Subject::Rules(query), &client).await?;
    let tag = etag(reading.generation());
    Ok((tag, text("application/json", reading)).into_response())
}

/// One rule.
#[utoipa::path(get, path = "/v1/rules/{name}", tag = "rules",
    params(("name" = String, Path, description = "Name of the rule")),
    responses((status = 200, body = RuleDocument), (status = 404, body = ErrorReply)))]
async fn rule(State(service): State<Arc<Service>>, Name(name): Name) -> Reply<Json<RuleDocument>> {
    service.rule(&name).map(Json)
}

/// What was seen of each group and port of a rule with ranges: the flows most recently seen.
#[utoipa::path(get, path = "/v1/rules/{name}/flows", tag = "rules",
    params(("name" = String, Path, description = "Name of the rule")),
    responses((status = 200, body = Vec<FlowStats>), (status = 404, body = ErrorReply)))]
async fn flows(
    State(service): State<Arc<Service>>,
    Name(name): Name,
    client: Requester,
) -> Reply<Response> {
    let reading = service.read(Subject::Flows(name), &client).await?;
    Ok(text("application/json", reading))
}

/// The hosts that listen to a rule's outputs on demand, as they said themselves; at most 1,000.
#[utoipa::path(get, path = "/v1/rules/{name}/listeners", tag = "rules",
    params(("name" = String, Path, description = "Name of the rule")),
    responses((status = 200, body = Vec<ListenerStats>), (status = 404, body = ErrorReply)))]
async fn listeners(
    State(service): State<Arc<Service>>,
    Name(name): Name,
) -> Reply<Json<Vec<ListenerStats>>> {
    service.members(&name).map(Json)
}

/// The running rules as a configuration file, TOML.
#[utoipa::path(get, path = "/v1/export", tag = "rules",
    responses((status = 200, body = String, content_type = "application/toml")))]
async fn export(State(service): State<Arc<Service>>, client: Requester) -> Reply<Response> {
    let reading = service.read(Subject::Export, &client).await?;
    Ok(text("application/toml", reading))
}

/// Rules to add.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Rules {
    #[serde(deserialize_with = "api::request::not_too_many")]
    rules: Vec<RuleDocument>,
}

/// Adds rules behind the running ones, all or none.
#[utoipa::path(post, path = "/v1/rules", tag = "rules", params(IfMatchHeader, MessageHeader, ConfirmOptions), request_body = Rules,
    responses((status = 200, body = Change), (status = 409, body = ErrorReply),
        (status = 422, body = ErrorReply)))]
async fn add(changing: Changing, Body(Rules { rules }): Body<Rules>) -> Reply<Tagged<Change>> {
    let transaction = Transaction {
        add: rules,
        ..Transaction::default()
    };
    transact(changing, transaction).await
}

/// Puts a whole rule set in the place of the running one, as one step.
#[utoipa::path(put, path = "/v1/rules", tag = "rules", params(ReplaceOptions, IfMatchHeader, MessageHeader, ConfirmOptions),
    request_body = RuleList,
    responses((status = 200, body = Change), (status = 409, body = ErrorReply),
        (status = 422, body = ErrorReply)))]
async fn replace(
    changing: Changing,
    Parameters(options): Parameters<ReplaceOptions>,
    Body(rules): Body<RuleList>,
) -> Reply<Tagged<Change>> {
    let request = ChangeRequest::Replace(Box::new(rules));
    change(changing, options.order(request)).await
}

/// Takes one rule out.
#[utoipa::path(delete, path = "/v1/rules/{name}", tag = "rules",
    params(("name" = String, Path, description = "Name of the rule"), IfMatchHeader, MessageHeader, ConfirmOptions),
    responses((status = 200, body = Change), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply)))]
async fn remove(changing: Changing, Name(name): Name) -> Reply<Tagged<Change>> {
    let transaction = Transaction {
        remove: vec![name],
        ..Transaction::default()
    };
    transact(changing, transaction).await
}

/// Removes and adds rules as one step.
#[utoipa::path(post, path = "/v1/transaction", tag = "rules", params(ReplaceOptions, IfMatchHeader, MessageHeader, ConfirmOptions),
    request_body = Transaction,
    responses((status = 200, body = Change), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 422, body = ErrorReply)))]
async fn transaction(
    changing: Changing,
    Parameters(options): Parameters<ReplaceOptions>,
    Body(transaction): Body<Transaction>,
) -> Reply<Tagged<Change>> {
    change(changing, options.order(ChangeRequest::Change(transaction))).await
}

/// Has another input of a rule relayed, of those that stand by for each other.
#[utoipa::path(put, path = "/v1/rules/{name}/active", tag = "rules", request_body = ActiveInput,
    params(("name" = String, Path, description = "Name of the rule"), IfMatchHeader),
    responses((status = 200, body = ActiveInput), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 422, body = ErrorReply)))]
async fn switch(
    changing: Changing,
    Name(name): Name,
    Body(active): Body<ActiveInput>,
) -> Reply<Json<ActiveInput>> {
    changing.insist()?;
    changing.service.switch(&name, active).await.map(Json)
}

/// Reads the configuration file again and makes its rules the running ones, as SIGHUP does.
#[utoipa::path(post, path = "/v1/reload", tag = "rules", params(IfMatchHeader, MessageHeader, ConfirmOptions),
    responses((status = 200, body = Change), (status = 409, body = ErrorReply),
        (status = 422, body = ErrorReply)))]
async fn reload(mut changing: Changing) -> Reply<Json<Change>> {
    changing.author.by.via = Via::Reload;
    changing.change(Order::Reload).await.map(Json)
}

/// The counters for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "observe",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics_text(
    State(service): State<Arc<Service>>,
    client: Requester,
    headers: HeaderMap,
) -> Reply<Response> {
    let value = headers.get(header::ACCEPT);
    let accept = value.and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let reading = service.read(Subject::Metrics(format), &client).await?;
    Ok(text(format.content_type(), reading))
}

/// Says that the daemon answers.
#[utoipa::path(get, path = "/healthz", tag = "observe", responses((status = 200, body = String)))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// What is no reason not to be ready.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct ReadyOptions {
    /// `ok`: that the host lacks interfaces of inputs.
    #[param(inline)]
    missing: Option<Missing>,
}

#[derive(Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Missing {
    Ok,
}

/// Says whether every input is joined, and the fleet, if there is one.
#[utoipa::path(get, path = "/readyz", tag = "observe", params(ReadyOptions),
    responses((status = 200, body = String)))]
async fn readyz(
    State(service): State<Arc<Service>>,
    Parameters(options): Parameters<ReadyOptions>,
) -> Reply<&'static str> {
    service.check_ready(options.missing.is_some()).await?;
    Ok("ready\n")
}
