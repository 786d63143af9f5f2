//! The control API over HTTP/1.1: who may connect, for how long, how much. What is answered stands
//! in `routes`.
//!
//! No client holds up another: each connection is a task of its own, requests are limited in size
//! and time, and where there are too many connections the oldest idle one goes.

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio_io_timeout::TimeoutWriter;

use super::connections::{Busy, Connections};
use super::host_name::Names;
use super::routes;
use super::service::Service;

/// How long a client may take over the head of a request, and be silent between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client may take nothing of what it is answered.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections held at a time.
const CONNECTIONS_MAX: usize = 512;

/// Serves the whole API on the control socket until the task is aborted.
pub(crate) async fn serve_control(listener: UnixListener, service: Arc<Service>) {
    let accept = || async { Ok(listener.accept().await?.0) };
    serve_all(accept, routes::control(service)).await;
}

/// Serves what only reads, on TCP, until the task is aborted.
pub(crate) async fn serve_read_only(listener: TcpListener, service: Arc<Service>, names: Names) {
    let accept = || async { Ok(listener.accept().await?.0) };
    serve_all(accept, routes::read_only(service, names)).await;
}

/// Gives every client that `accept` brings a conversation of its own.
async fn serve_all<S, F>(accept: impl Fn() -> F, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<S>>,
{
    let mut connections = Connections::new(CONNECTIONS_MAX);
    loop {
        match accept().await {
            Ok(stream) => {
                let serve = |busy| serve_connection(stream, router.clone(), busy);
                connections.add(serve).await;
            }
            Err(error) => pause(&error).await,
        }
    }
}

/// Out of descriptors, most likely: others will end and free some.
async fn pause(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

pub(super) async fn serve_connection<S>(stream: S, router: Router, busy: Busy)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // An answer that nobody reads would be held in memory for as long as the client likes.
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(WRITE_TIMEOUT));
    // Not by a layer of the router: it would be built anew for each connection.
    let routes = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(busy.clone());
        routes.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a client's connection broke off");
    }
}
