//! What every changing request carries: author, reason, terms and deadline.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::reply::{By, Change, Via};
use api::request::{MESSAGE_HEADER, MESSAGE_MAX, Transaction};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use compile::table::Table;
use config::Role;
use rules::net::Ifindex;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use tokio::sync::oneshot;
use tokio::time::Instant;
use utoipa::IntoParams;

use super::api_error::{ApiError, Code, Reply};
use super::body::{Parameters, Tagged};
use super::connections::Connection;
use super::remote::admission::Caller;
use super::service::Service;
use crate::author::Author;
use crate::core::{Refused, Request as ChangeRequest};
use crate::supervisor::command::{Order, RoutesAsked};

/// How much earlier a change's own deadline is, whose error can say more about the outcome.
const CHANGE_HEADSTART: Duration = Duration::from_millis(500);

/// The time by which a request has to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(pub(super) Instant);

/// The author, reason and deadline of a change, and the generation of the rules that it is for.
#[derive(Clone)]
pub(super) struct Changing {
    pub(super) service: Arc<Service>,
    pub(super) author: Author,
    deadline: Instant,
}

impl Changing {
    pub(super) async fn change(self, order: Order) -> Reply<Change> {
        self.service.change(order, self.author, self.deadline).await
    }

    /// Refuses what the supervisor is not asked for if the rules are of another generation.
    pub(super) fn insist(&self) -> Reply<()> {
        let running = self.service.view().generation;
        Ok(Refused::insist(running, self.author.generation)?)
    }

    /// What the dataplane executes for a group or address on an interface.
    pub(super) async fn routes(self, ingress: Ifindex, destination: IpAddr) -> Reply<Table> {
        let (table, reply) = oneshot::channel();
        let request = RoutesAsked {
            ingress,
            destination,
            table,
        };
        self.change(Order::Routes(request)).await?;
        reply
            .await
            .map_err(|error| ApiError::new(Code::Internal, error))
    }
}

impl FromRequestParts<Arc<Service>> for Changing {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        service: &Arc<Service>,
    ) -> Result<Self, ApiError> {
        let Parameters(query) =
            Parameters::<ConfirmOptions>::from_request_parts(parts, service).await?;
        let limit = parts.extensions.get::<Deadline>();
        let deadline = limit.map_or_else(Instant::now, |deadline| deadline.0);
        let client = parts.extensions.get::<Connection>();
        let caller = parts.extensions.get::<Caller>();
        if let (true, Some(Caller(name, role))) = (query.save, caller)
            && *role < Role::Change
        {
            let message = format!("client {name} has the role {role}, and saving takes change");
            return Err(ApiError::new(Code::Forbidden, message));
        }
        Ok(Self {
            service: Arc::clone(service),
            author: Author {
                by: match caller {
                    Some(Caller(name, _)) => By::of(Via::Client, Some(name.clone())),
                    None => client.map(Connection::by).cloned().unwrap_or_default(),
                },
                is_elsewhere: caller.is_some(),
                message: message(&parts.headers)?,
                generation: if_match(&parts.headers)?,
                confirm: query.confirm,
                save: query.save,
                ..Author::default()
            },
            // Earlier than the deadline of everything the request waits for.
            deadline: deadline - CHANGE_HEADSTART,
        })
    }
}

/// Whether a change is to be confirmed, and saved then.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ConfirmOptions {
    /// Undo the change unless somebody confirms it in this time, `1s` to `1h`.
    #[serde(default, deserialize_with = "time_to_confirm")]
    #[param(value_type = Option<String>, required = false, nullable = false, pattern = "^0*(1h|([1-9]|[1-5][0-9]|60)m|([1-9][0-9]{0,2}|[12][0-9]{3}|3[0-5][0-9]{2}|3600)s|([1-9][0-9]{3,5}|[12][0-9]{6}|3[0-5][0-9]{5}|3600000)ms)$")]
    confirm: Option<Duration>,
    /// Write it into the configuration, at the confirmation.
    #[serde(default)]
    save: bool,
}

fn time_to_confirm<'de, D: Deserializer<'de>>(text: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(text)?;
    let time = api::request::time_to_confirm(&text);
    time.map(Some).map_err(D::Error::custom)
}

/// The reason for a change that the client gave.
fn message(headers: &HeaderMap) -> Reply<Option<String>> {
    let Some(message) = headers.get(MESSAGE_HEADER) else {
        return Ok(None);
    };
    let message = String::from_utf8_lossy(message.as_bytes());
    match message.len() {
        0 => Ok(None),
        1..=MESSAGE_MAX => Ok(Some(message.into_owned())),
        length => {
            let message = format!("{MESSAGE_HEADER}: {length} bytes, of at most {MESSAGE_MAX}");
            Err(ApiError::new(Code::Usage, message))
        }
    }
}

/// The generation that a client requires with `If-Match: "7"`; `None` for `*` or no header.
fn if_match(headers: &HeaderMap) -> Reply<Option<u64>> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let quoted = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    quoted.unwrap_or(text).parse().map(Some).map_err(|_| {
        let message = "If-Match: give the ETag of /v1/rules, as in \"7\", or *";
        ApiError::new(Code::Usage, message)
    })
}

/// Passes a change to the supervisor.
pub(super) async fn change(changing: Changing, order: Order) -> Reply<Tagged<Change>> {
    let change = changing.change(order).await?;
    Ok(Tagged(change.generation, change))
}

pub(super) async fn transact(
    changing: Changing,
    transaction: Transaction,
) -> Reply<Tagged<Change>> {
    change(changing, Order::Change(ChangeRequest::Change(transaction))).await
}

/// How `If-Match` stands in the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only described here; if_match reads it")]
pub(super) struct IfMatchHeader {
    /// The ETag of `/v1/rules` that the change was made for, or `*`: where the rules are of another
    /// generation by now, the change is refused as `conflict`.
    #[param(rename = "If-Match", required = false, nullable = false, value_type = String,
        pattern = r#"^([*]|"[0-9]{1,18}")$"#, example = "*")]
    if_match: Option<String>,
}

/// How `X-MCR-Message` stands in the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only described here; message reads it")]
pub(super) struct MessageHeader {
    /// Why it is changed, for the log of changes: at most 1,024 bytes.
    #[param(rename = "X-MCR-Message", required = false, nullable = false, value_type = String,
        max_length = 1024)]
    message: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ReplaceOptions {
    /// Only say what would change.
    #[serde(default)]
    pub(super) dry_run: bool,
}

impl ReplaceOptions {
    /// The supervisor's order for a request.
    pub(super) const fn order(&self, request: ChangeRequest) -> Order {
        if self.dry_run {
            Order::DryRun(request)
        } else {
            Order::Change(request)
        }
    }
}
