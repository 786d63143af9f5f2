//! Refusals of requests: a code that clients rely on, and a message for people.

use api::reply::ErrorReply;
use axum::http::StatusCode;
use rules::ruleset::ChangeError;

use crate::core::Refused;

/// A reply, or the refusal.
pub(crate) type Reply<T> = Result<T, ApiError>;

/// Why a request is refused. [`ErrorReply`] carries the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl ApiError {
    pub(crate) fn new(code: Code, message: impl std::fmt::Display) -> Self {
        Self {
            code,
            message: shortened(message.to_string()),
        }
    }

    pub(crate) fn into_reply(self) -> ErrorReply {
        ErrorReply {
            code: self.code.parts().0.to_owned(),
            message: self.message,
        }
    }
}

/// Refuses a method that a path does not support.
pub(crate) fn no_such_method(method: impl std::fmt::Display, path: &str) -> ApiError {
    let message = format!("{path} does not know {method}; GET /openapi.json lists what there is");
    ApiError::new(Code::Method, message)
}

/// Maximum length of a message in bytes: hundreds of errors, one on each line.
const MESSAGE_MAX: usize = 64 << 10;

/// Truncates a message to its first lines: a malformed body may have an error for every few bytes.
fn shortened(mut message: String) -> String {
    if message.len() <= MESSAGE_MAX {
        return message;
    }
    let most = message.floor_char_boundary(MESSAGE_MAX);
    let end = message[..most].rfind('\n').unwrap_or(most);
    let more = message[end..].lines().count().saturating_sub(1).max(1);
    message.truncate(end);
    message.push_str(&format!("\n… and {more} more"));
    message
}

/// The kind of refusal; clients rely on the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The API does not support such a request.
    Usage,
    /// The path does not support the method.
    Method,
    /// The request names a host that this listener does not serve.
    Misdirected,
    /// Not a request at all: no text, or meant for another service.
    BadRequest,
    /// The client showed no valid credentials.
    Unauthorized,
    /// More than the client's role allows.
    Forbidden,
    /// No such rule.
    NotFound,
    /// A rule of that name exists.
    Exists,
    /// The rules are of another generation than the client requires.
    Conflict,
    /// Only another authority may do it.
    Privilege,
    /// The rules are invalid.
    Invalid,
    /// An interface, a path or room is missing.
    Unavailable,
    /// The request is too large.
    TooLarge,
    /// The request took too long.
    Timeout,
    /// The daemon's own fault.
    Internal,
}

impl Code {
    /// Its name, and the status of HTTP that is answered with it.
    pub(super) const fn parts(self) -> (&'static str, StatusCode) {
        match self {
            Self::Usage => ("usage", StatusCode::BAD_REQUEST),
            Self::Method => ("usage", StatusCode::METHOD_NOT_ALLOWED),
            Self::Misdirected => ("bad_request", StatusCode::MISDIRECTED_REQUEST),
            Self::BadRequest => ("bad_request", StatusCode::BAD_REQUEST),
            Self::Unauthorized => ("unauthorized", StatusCode::UNAUTHORIZED),
            Self::Forbidden => ("forbidden", StatusCode::FORBIDDEN),
            Self::NotFound => ("not_found", StatusCode::NOT_FOUND),
            Self::Exists => ("exists", StatusCode::CONFLICT),
            Self::Conflict => ("conflict", StatusCode::CONFLICT),
            Self::Privilege => ("privilege", StatusCode::FORBIDDEN),
            Self::Invalid => ("invalid", StatusCode::UNPROCESSABLE_ENTITY),
            Self::Unavailable => ("unavailable", StatusCode::SERVICE_UNAVAILABLE),
            Self::TooLarge => ("too_large", StatusCode::PAYLOAD_TOO_LARGE),
            Self::Timeout => ("timeout", StatusCode::REQUEST_TIMEOUT),
            Self::Internal => ("internal", StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let code = match &refused {
            Refused::Rules(ChangeError::NotFound { .. }) | Refused::NotJoined(_) => Code::NotFound,
            Refused::Rules(ChangeError::AlreadyThere(_)) => Code::Exists,
            Refused::Rules(ChangeError::Invalid(_)) | Refused::OfFleet(_) | Refused::Share(_) => {
                Code::Invalid
            }
            Refused::Conflict { .. } | Refused::Pending { .. } | Refused::NothingPending => {
                Code::Conflict
            }
            Refused::TooMany { .. } | Refused::Unavailable(_) => Code::Unavailable,
        };
        Self::new(code, refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_end_is_shortened_to_whole_lines() {
        let line = "rule \"ä\": is wrong";
        let long = vec![line; 100_000].join("\n");
        let refusal = ApiError::new(Code::Invalid, long);
        assert!(refusal.message.len() <= MESSAGE_MAX + 32);
        let mut lines: Vec<&str> = refusal.message.lines().collect();
        let last = lines.pop().unwrap();
        assert_eq!(last, format!("… and {} more", 100_000 - lines.len()));
        assert!(lines.iter().all(|retained| *retained == line));
        let one = ApiError::new(Code::Usage, "é".repeat(100_000));
        assert!(one.message.len() <= MESSAGE_MAX + 32);
    }
}
