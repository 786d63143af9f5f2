//! JSON in, JSON or a refusal out; every refusal has a code that clients can rely on.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::api_error::{ApiError, Code, Reply};
use super::body_quota::{Client, Reservation, Room};
use super::connections::Connection;

/// Maximum size of a request body in bytes: 100,000 rules with room to spare.
pub(super) const BODY_MAX: usize = 32 << 20;

/// Maximum size in bytes of a body that needs no reservation.
const BODY_SMALL: usize = 64 << 10;

/// Memory for larger bodies, in bytes: a client may take as much as the largest body.
static ROOM: Room = Room::new(BODY_MAX, 2 * BODY_MAX);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (_, status) = self.code.parts();
        (status, Json(self.into_reply())).into_response()
    }
}

/// The name of a rule in the path of a request.
#[derive(Debug)]
pub(super) struct Name(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::from_request_parts(parts, state).await;
        let Path(name) = path
            .map_err(|error: PathRejection| ApiError::new(Code::BadRequest, error.body_text()))?;
        Ok(Self(name))
    }
}

/// The parameters of the query.
#[derive(Debug)]
pub(super) struct Parameters<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = Query::try_from_uri(&parts.uri);
        let Query(query) = query.map_err(|error| ApiError::new(Code::Usage, error.body_text()))?;
        Ok(Self(query))
    }
}

/// Runs longer work on a thread for blocking tasks.
pub(super) async fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Reply<T> {
    let result = tokio::task::spawn_blocking(work).await;
    result.map_err(|error| ApiError::new(Code::Internal, error))
}

/// JSON with the generation of the rules as its `ETag`.
#[derive(Debug)]
pub(super) struct Tagged<T>(pub(super) u64, pub(super) T);

impl<T: Serialize> IntoResponse for Tagged<T> {
    fn into_response(self) -> Response {
        (etag(self.0), Json(self.1)).into_response()
    }
}

/// The generation of the rules as a header.
pub(super) fn etag(generation: u64) -> [(HeaderName, String); 1] {
    [(header::ETAG, format!("\"{generation}\""))]
}

/// A request's JSON body, whatever its content type.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned + Send + 'static, S: Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let length = request.headers().get(header::CONTENT_LENGTH);
        let announced = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|length| length > BODY_MAX) {
            return Err(too_large());
        }
        let connection = request.extensions().get::<Connection>();
        let client = connection.and_then(Connection::client);
        let (bytes, reservation) = collect(request.into_body(), client).await?;
        let parsed = if reservation.is_none() {
            parse(&bytes)
        } else {
            // Parsing takes a while; other requests are answered meanwhile.
            spawn_blocking(move || parse(&bytes)).await?
        };
        parsed.map(Self)
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let message = format!("the body is not what is expected: {error}");
        ApiError::new(Code::Usage, message)
    })
}

/// Receives the body. Memory is reserved as bytes arrive, so that nobody holds what it only announces.
async fn collect(
    mut body: axum::body::Body,
    client: Client,
) -> Result<(Vec<u8>, Option<Reservation<'static>>), ApiError> {
    let mut bytes = Vec::new();
    let mut reservation: Option<Reservation<'static>> = None;
    loop {
        let frame = match &reservation {
            None => body.frame().await,
            Some(reservation) => tokio::select! {
                frame = body.frame() => frame,
                () = reservation.evicted() => return Err(evicted()),
            },
        };
        let Some(frame) = frame else { break };
        let Ok(data) = frame.map_err(|error| broken_off(&error))?.into_data() else {
            continue;
        };
        let length = bytes.len() + data.len();
        if length > BODY_MAX {
            return Err(too_large());
        }
        if length > BODY_SMALL {
            let reservation = reservation.get_or_insert_with(|| ROOM.enter(client));
            if !reservation.take(length).await {
                return Err(evicted());
            }
        }
        bytes.extend_from_slice(&data);
    }
    if let Some(reservation) = &reservation {
        reservation.finish();
    }
    Ok((bytes, reservation))
}

fn broken_off(error: &axum::Error) -> ApiError {
    ApiError::new(Code::Usage, format!("the body breaks off: {error}"))
}

fn evicted() -> ApiError {
    let message = "too many large requests at once, of which this one was idle longest; try again";
    ApiError::new(Code::Unavailable, message)
}

fn too_large() -> ApiError {
    let message = format!("the body is larger than {BODY_MAX} bytes; divide the change");
    ApiError::new(Code::TooLarge, message)
}
