//! JSON in, JSON or a refusal out; nothing leaves without a code that clients can rely on.

use axum::Json;
use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::BODY_MAX;
use crate::question::{Code, Refusal};

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.code {
            Code::Usage => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::Exists | Code::Conflict => StatusCode::CONFLICT,
            Code::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::Timeout => StatusCode::REQUEST_TIMEOUT,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(self.into_reply())).into_response()
    }
}

/// The generation of the rules that a client insists on by `If-Match: "7"`; any by `*` or without.
#[derive(Clone, Copy, Debug)]
pub(super) struct IfMatch(Option<u64>);

impl IfMatch {
    /// Together with what the body says.
    pub(super) fn and(self, body: Option<u64>) -> Result<Option<u64>, Refusal> {
        match (self.0, body) {
            (Some(header), Some(body)) if header != body => {
                let message = format!("If-Match says generation {header}, the body {body}");
                Err(Refusal::new(Code::Conflict, message))
            }
            (header, body) => Ok(header.or(body)),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let Some(value) = parts.headers.get(header::IF_MATCH) else {
            return Ok(Self(None));
        };
        let text = value.to_str().unwrap_or_default().trim();
        if text == "*" {
            return Ok(Self(None));
        }
        let quoted = text
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'));
        let generation = quoted.unwrap_or(text).parse().map_err(|_| {
            let message = "If-Match: give the ETag of /v1/rules, as in \"7\", or *";
            Refusal::new(Code::Usage, message)
        })?;
        Ok(Self(Some(generation)))
    }
}

/// JSON that tells the generation of the rules as its `ETag` too.
#[derive(Debug)]
pub(super) struct Tagged<T>(pub(super) u64, pub(super) T);

impl<T: Serialize> IntoResponse for Tagged<T> {
    fn into_response(self) -> Response {
        let tag = format!("\"{}\"", self.0);
        ([(header::ETAG, tag)], Json(self.1)).into_response()
    }
}

/// A request's JSON body, whatever its content type says.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|length| length > BODY_MAX) {
            return Err(too_large());
        }
        let bytes = to_bytes(request.into_body(), BODY_MAX)
            .await
            .map_err(|error| refused(&error))?;
        serde_json::from_slice(&bytes).map(Self).map_err(|error| {
            Refusal::new(
                Code::Usage,
                format!("the body is not what is expected: {error}"),
            )
        })
    }
}

fn refused(error: &axum::Error) -> Refusal {
    let text = error.to_string();
    if text.contains("length limit") {
        return too_large();
    }
    Refusal::new(Code::Usage, format!("the body breaks off: {text}"))
}

fn too_large() -> Refusal {
    let message = format!("the body is larger than {BODY_MAX} bytes; divide the change");
    Refusal::new(Code::TooLarge, message)
}
