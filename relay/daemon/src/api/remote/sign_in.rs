//! Signing in and out with a browser: a token or certificate, shown once, begins a session.

use std::sync::Arc;
use std::time::Instant;

use api::reply::SignedIn;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::super::api_error::{ApiError, Code, Reply};
use super::super::connections::Connection;
use super::super::service::Service;
use super::admission::Caller;
use super::session::set_cookie;

/// Who is signed in here, if anybody; asking is a use of the session.
#[utoipa::path(get, path = "/v1/session", tag = "session",
    responses((status = 200, body = SignedIn)))]
pub(in crate::api) async fn session(
    State(service): State<Arc<Service>>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
) -> Json<SignedIn> {
    let (remote, peer) = (&service.remote, connection.remote());
    let settings = remote.settings();
    let session = peer.and_then(|peer| {
        let session = remote.session(peer, &headers, true)?;
        session
            .client
            .may_come_from(peer.address)
            .then_some(session)
    });
    let certified = || peer.and_then(|peer| peer.client(&settings, &HeaderMap::new()).ok());
    Json(match session {
        Some(session) => SignedIn {
            client: Some(session.client.name),
            role: Some(session.client.role.to_string()),
            csrf: Some(session.csrf),
            certificate: None,
        },
        None => SignedIn {
            certificate: certified().map(|client| client.name),
            ..SignedIn::default()
        },
    })
}

/// Begins a session for the token or the certificate that is shown, as a cookie that no script reads.
#[utoipa::path(post, path = "/v1/session", tag = "session",
    responses((status = 204)))]
pub(in crate::api) async fn sign_in(
    State(service): State<Arc<Service>>,
    Extension(connection): Extension<Connection>,
    Extension(Caller(name, _)): Extension<Caller>,
    headers: HeaderMap,
) -> Reply<Response> {
    let remote = &service.remote;
    let settings = remote.settings();
    let client = settings.client.iter().find(|client| client.name == name);
    let cookie = connection.remote().zip(client).and_then(|(peer, client)| {
        remote.sessions.end(&headers);
        remote
            .sessions
            .begin(client.clone(), peer.address, Instant::now())
    });
    let cookie = cookie.ok_or_else(|| {
        ApiError::new(Code::Unavailable, "no session can be begun now; try again")
    })?;
    let headers = [(header::SET_COOKIE, set_cookie(Some(&cookie)))];
    Ok((StatusCode::NO_CONTENT, headers).into_response())
}

/// Ends the session.
#[utoipa::path(delete, path = "/v1/session", tag = "session", responses((status = 204)))]
pub(in crate::api) async fn sign_out(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
) -> Response {
    service.remote.sessions.end(&headers);
    let headers = [(header::SET_COOKIE, set_cookie(None))];
    (StatusCode::NO_CONTENT, headers).into_response()
}
