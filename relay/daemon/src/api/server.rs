//! The control API over HTTP/1.1: who may connect, for how long, how much. What is answered stands
//! in `routes`.
//!
//! No client holds up another: each connection is a task of its own, requests are limited in size
//! and time, and where there are too many connections the oldest idle one goes.

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
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

use super::connections::{Connection, Connections, Peer};
use super::host_name::Names;
use super::listening::listen;
use super::routes;
use super::service::Service;
use crate::abort_on_panic::AbortOnPanic;

/// How long a client may take over the head of a request, and be silent between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client may take nothing of what it is answered.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request's head, and of an answer on its way, that a connection holds at most.
const BUFFER_MAX: usize = 16 << 10;

/// Connections held at a time, where the limit of open descriptors allows as many.
const CONNECTIONS_MAX: usize = 512;

/// The part of the descriptors that one listener's connections may take: the daemon needs the rest.
const DESCRIPTORS_PART: usize = 4;

/// Serves the whole API on the control socket until the task is aborted.
pub(crate) async fn serve_control(listener: UnixListener, service: Arc<Service>) {
    let accept = || async {
        let (stream, _) = listener.accept().await?;
        let peer = stream.peer_cred().map(|peer| Peer {
            // 0 of one whose process this namespace does not know.
            pid: peer.pid().filter(|pid| *pid > 0),
            uid: Some(peer.uid()),
            network: None,
        });
        Ok((stream, peer.unwrap_or_default()))
    };
    serve_all(accept, routes::control(service)).await;
}

/// The listener on TCP, and a runtime of its own: whatever is asked there delays no change and no
/// sign of life.
#[derive(Debug)]
pub(crate) struct Public {
    listener: std::net::TcpListener,
    runtime: Runtime,
}

impl Public {
    /// Listens; who connects waits until somebody answers.
    pub(crate) fn listen(address: SocketAddr) -> io::Result<Self> {
        let listener = listen(address)?.into_std()?;
        let runtime = apart()?;
        Ok(Self { listener, runtime })
    }

    /// Serves what only reads for as long as the process lives.
    pub(crate) fn serve(self, service: &Service, names: Names) -> io::Result<()> {
        let Self { listener, runtime } = self;
        let service = Arc::new(service.apart());
        let serve = async move {
            let listener = TcpListener::from_std(listener);
            let listener = listener.expect("this runtime has just been made to serve it");
            serve_read_only(listener, service, names).await;
        };
        let thread = thread::Builder::new().name("listener".to_owned());
        thread.spawn(move || {
            let _guard = AbortOnPanic;
            // Where cores are few, hundreds who ask must not keep a change waiting.
            sys::capability::stand_back();
            runtime.block_on(serve);
        })?;
        Ok(())
    }
}

/// Serves what only reads, on TCP, until the task is aborted.
async fn serve_read_only(listener: TcpListener, service: Arc<Service>, names: Names) {
    let accept = || async { Ok((listener.accept().await?.0, Peer::default())) };
    serve_all(accept, routes::read_only(service, names)).await;
}

/// Gives every client that `accept` brings a conversation of its own.
async fn serve_all<S, F>(accept: impl Fn() -> F, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<(S, Peer)>>,
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

/// A runtime whose work delays nobody else's.
pub(super) fn apart() -> io::Result<Runtime> {
    Builder::new_current_thread()
        .thread_name("listener")
        .max_blocking_threads(1)
        .enable_all()
        .build()
}

/// How many connections a listener holds.
pub(super) fn connections_max() -> usize {
    let descriptors = sys::capability::descriptor_limit() / DESCRIPTORS_PART;
    descriptors.clamp(1, CONNECTIONS_MAX)
}

/// Out of descriptors, most likely: others will end and free some.
pub(super) async fn pause(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

pub(super) async fn serve_connection<S>(stream: S, router: Router, connection: Connection)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // An answer that nobody reads would be held in memory for as long as the client likes.
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(WRITE_TIMEOUT));
    // Not by a layer of the router: it would be built anew for each connection.
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
