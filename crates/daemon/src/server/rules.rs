//! Rules: listed, added, replaced, removed. Every change is one transaction, all or nothing.

use api::reply::{Change, ErrorReply};
use api::request::{RuleList, Transaction};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Path, Query, Request, State};
use axum::http::StatusCode;
use model::document::RuleDocument;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use utoipa::IntoParams;

use super::{Api, Failure};
use crate::core::{self, Refusal};

/// All rules, in their order, with the generation of the set.
#[utoipa::path(get, path = "/v1/rules", tag = "rules", responses(
    (status = 200, description = "The rules as configured", body = RuleList),
))]
pub(super) async fn list(State(api): State<Api>) -> Json<RuleList> {
    let view = api.view();
    Json(RuleList {
        generation: Some(view.generation),
        rules: view.rules.to_documents(),
    })
}

/// One rule.
#[utoipa::path(get, path = "/v1/rules/{name}", tag = "rules",
    params(("name" = String, Path, description = "Name of the rule")),
    responses(
        (status = 200, description = "The rule as configured", body = RuleDocument),
        (status = 404, description = "No rule of that name", body = ErrorReply),
    )
)]
pub(super) async fn show(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<RuleDocument>, Failure> {
    let view = api.view();
    let names = [name];
    let found = view.rules.require(&names).map_err(Refusal::from);
    found?;
    let rule = view.rules.get(&names[0]).map(RuleDocument::from);
    rule.map(Json)
        .ok_or_else(|| Failure::new("not_found", "no such rule"))
}

/// Adds rules behind those there are.
#[utoipa::path(post, path = "/v1/rules", tag = "rules", request_body = RuleList, responses(
    (status = 200, description = "Added, all of them", body = Change),
    (status = 400, description = "Not JSON, or not of this form", body = ErrorReply),
    (status = 408, description = "It took too long", body = ErrorReply),
    (status = 409, description = "A name is taken, or the generation is another", body = ErrorReply),
    (status = 413, description = "Too large", body = ErrorReply),
    (status = 422, description = "The rules do not make sense; nothing was changed", body = ErrorReply),
    (status = 503, description = "The host cannot do it; nothing was changed", body = ErrorReply),
))]
pub(super) async fn add(
    State(api): State<Api>,
    Body(list): Body<RuleList>,
) -> Result<Json<Change>, Failure> {
    let request = core::Request::Change {
        generation: list.generation,
        add: list.rules,
        remove: Vec::new(),
    };
    ask(&api, request).await
}

/// How to replace.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReplaceQuery {
    /// Only say what would change.
    #[serde(default)]
    #[param(required = false)]
    dry_run: bool,
}

/// Makes the rules these; rules that stay the same lose no packet.
#[utoipa::path(put, path = "/v1/rules", tag = "rules", params(ReplaceQuery),
    request_body = RuleList, responses(
    (status = 200, description = "What changed, or would change", body = Change),
    (status = 400, description = "Not JSON, or not of this form", body = ErrorReply),
    (status = 408, description = "It took too long", body = ErrorReply),
    (status = 409, description = "The generation is another", body = ErrorReply),
    (status = 413, description = "Too large", body = ErrorReply),
    (status = 422, description = "The rules do not make sense; nothing was changed", body = ErrorReply),
    (status = 503, description = "The host cannot do it; nothing was changed", body = ErrorReply),
))]
pub(super) async fn replace(
    State(api): State<Api>,
    query: Result<Query<ReplaceQuery>, axum::extract::rejection::QueryRejection>,
    Body(list): Body<RuleList>,
) -> Result<Json<Change>, Failure> {
    let Query(query) = query.map_err(|error| Failure::new("usage", error.body_text()))?;
    let request = core::Request::Replace {
        generation: list.generation,
        rules: list.rules,
        dry_run: query.dry_run,
    };
    ask(&api, request).await
}

/// Removes one rule.
#[utoipa::path(delete, path = "/v1/rules/{name}", tag = "rules",
    params(("name" = String, Path, description = "Name of the rule")),
    responses(
        (status = 200, description = "Removed", body = Change),
        (status = 404, description = "No rule of that name", body = ErrorReply),
        (status = 408, description = "It took too long", body = ErrorReply),
        (status = 503, description = "The host cannot do it; nothing was changed", body = ErrorReply),
    )
)]
pub(super) async fn remove(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<Change>, Failure> {
    let request = core::Request::Change {
        generation: None,
        add: Vec::new(),
        remove: vec![name],
    };
    ask(&api, request).await
}

/// Takes rules out and puts rules in, as one step.
#[utoipa::path(post, path = "/v1/transaction", tag = "rules", request_body = Transaction, responses(
    (status = 200, description = "Carried out, all of it", body = Change),
    (status = 400, description = "Not JSON, or not of this form", body = ErrorReply),
    (status = 404, description = "A rule to remove is not there", body = ErrorReply),
    (status = 408, description = "It took too long", body = ErrorReply),
    (status = 409, description = "A name is taken, or the generation is another", body = ErrorReply),
    (status = 413, description = "Too large", body = ErrorReply),
    (status = 422, description = "The rules do not make sense; nothing was changed", body = ErrorReply),
    (status = 503, description = "The host cannot do it; nothing was changed", body = ErrorReply),
))]
pub(super) async fn transaction(
    State(api): State<Api>,
    Body(transaction): Body<Transaction>,
) -> Result<Json<Change>, Failure> {
    let request = core::Request::Change {
        generation: transaction.generation,
        add: transaction.add,
        remove: transaction.remove,
    };
    ask(&api, request).await
}

/// Has the supervisor carry a change out.
async fn ask(api: &Api, request: core::Request) -> Result<Json<Change>, Failure> {
    let (reply, answer) = oneshot::channel();
    let sent = api.asks.send((request, reply)).await;
    sent.map_err(|_| Refusal::Stopping)?;
    let change = answer.await.map_err(|_| Refusal::Stopping)??;
    Ok(Json(change))
}

/// A JSON body, whatever its content type says, refused in the API's own words.
pub(super) struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state).await.map_err(unread)?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Self(value)),
            Err(error) => Err(Failure::new("usage", format!("request body: {error}"))),
        }
    }
}

fn unread(rejection: BytesRejection) -> Failure {
    let code = match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => "too_large",
        _ => "usage",
    };
    Failure::new(code, format!("request body: {}", rejection.body_text()))
}
