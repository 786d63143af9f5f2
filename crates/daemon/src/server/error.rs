//! Refusals as HTTP answers them: a status for programs, a stable code, a message for people.

use std::fmt::Display;

use api::reply::ErrorReply;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::core::Refusal;

/// A request that was not served.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) ErrorReply);

impl Failure {
    pub(crate) fn new(code: &str, message: impl Display) -> Self {
        Self(ErrorReply {
            code: code.to_owned(),
            message: message.to_string(),
        })
    }

    fn status(&self) -> StatusCode {
        match self.0.code.as_str() {
            "usage" => StatusCode::BAD_REQUEST,
            "not_found" | "no_such_endpoint" => StatusCode::NOT_FOUND,
            "wrong_method" => StatusCode::METHOD_NOT_ALLOWED,
            "exists" | "conflict" => StatusCode::CONFLICT,
            "invalid" => StatusCode::UNPROCESSABLE_ENTITY,
            "too_large" => StatusCode::PAYLOAD_TOO_LARGE,
            "timeout" => StatusCode::REQUEST_TIMEOUT,
            "privilege" => StatusCode::FORBIDDEN,
            "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.reply())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status(), Json(self.0)).into_response()
    }
}
