//! The control API over HTTP/1.1: the limits of connections and requests. The replies are in `routes`.
//!
//! No client delays another: each connection is a task of its own, requests are limited in size and time,
//! and if there are too many connections the oldest idle one is closed.

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
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
use tokio::runtime::{Builder, Runtime};
use tokio_io_timeout::TimeoutWriter;

use super::connections::{Connection, Connections, PeerCredentials};
use super::host_name::Names;
use super::listening::listen;
use super::routes;
use super::service::Service;
use crate::abort_on_panic;

/// How long a client may take to send the head of a request, and stay silent between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client may read nothing of a reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of a request's head, and of a reply in transit, that a connection buffers.
const BUFFER_MAX: usize = 16 << 10;

/// The most connections at a time, if the limit of open descriptors allows.
const CONNECTIONS_MAX: usize = 512;

/// One listener's connections may use one in this many descriptors: the daemon needs the rest.
const DESCRIPTORS_PART: usize = 4;

/// Serves the whole API on the control socket until the task is aborted.
pub(crate) async fn serve_control(listener: UnixListener, service: Arc<Service>) {
    let accept = || async {
        let (stream, _) = listener.accept().await?;
        let peer = stream.peer_cred().map(|peer| PeerCredentials {
            // 0 if the process is not visible in this PID namespace.
            pid: peer.pid().filter(|pid| *pid > 0),
            uid: Some(peer.uid()),
            network: None,
        });
        Ok((stream, peer.unwrap_or_default()))
    };
    serve_all(accept, routes::control(service)).await;
}

/// The listener on TCP with a runtime of its own: requests there delay no change and no sign of life.
#[derive(Debug)]
pub(crate) struct Public {
    listener: std::net::TcpListener,
    runtime: Runtime,
}

impl Public {
    /// Listens; connections wait until they are served.
    pub(crate) fn listen(address: SocketAddr) -> io::Result<Self> {
        let listener = listen(address)?.into_std()?;
        let runtime = apart()?;
        Ok(Self { listener, runtime })
    }

    /// Serves the read-only API for as long as the process lives.
    pub(crate) fn serve(self, service: &Service, names: Names) -> io::Result<()> {
        let Self { listener, runtime } = self;
        let service = Arc::new(service.apart());
        let serve = async move {
            let listener = TcpListener::from_std(listener)
                .expect("this runtime has just been made to serve it");
            serve_read_only(listener, service, names).await;
        };
        // On few cores, hundreds of requests must not delay a change.
        abort_on_panic::thread("listener", move || runtime.block_on(serve))
    }
}

/// Serves the read-only API on TCP until the task is aborted.
async fn serve_read_only(listener: TcpListener, service: Arc<Service>, names: Names) {
    let accept = || async { Ok((listener.accept().await?.0, PeerCredentials::default())) };
    serve_all(accept, routes::read_only(service, names)).await;
}

/// Serves every connection that `accept` returns as a task of its own.
async fn serve_all<S, F>(accept: impl Fn() -> F, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<(S, PeerCredentials)>>,
{
    let mut connections = Connections::new(connections_max());
    loop {
        match accept().await {
            Ok((stream, peer)) => {
                let serve = |connection| serve_connection(stream, router.clone(), connection);
                connections.add(peer, serve).await;
            }
            Err(error) => pause(&error).await,
        }
    }
}

/// A runtime whose work delays no other.
pub(super) fn apart() -> io::Result<Runtime> {
    Builder::new_current_thread()
        .thread_name("listener")
        .max_blocking_threads(1)
        .enable_all()
        .build()
}

/// The most connections of a listener.
pub(super) fn connections_max() -> usize {
    let descriptors = sys::capability::descriptor_limit() / DESCRIPTORS_PART;
    descriptors.clamp(1, CONNECTIONS_MAX)
}

/// Waits after a failed accept: most likely descriptors ran out, and other connections will free some.
pub(super) async fn pause(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

pub(super) async fn serve_connection<S>(stream: S, router: Router, connection: Connection)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // A reply that nobody reads would otherwise stay in memory for as long as the client likes.
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(WRITE_TIMEOUT));
    // Not as a layer of the router, which would be rebuilt for each connection.
    let routes = TowerToHyperService::new(router);
    let cut_off = connection.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(connection.clone());
        routes.call(request)
    });
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    tokio::select! {
        ended = conversation => if let Err(error) = ended {
            tracing::debug!(%error, "a client's connection broke off");
        },
        () = cut_off.is_cut_off() => tracing::debug!("a client's connection made room for others"),
    }
}
