//! Connections: as many as there is room for, each with a deadline, none at another's expense.
//!
//! A client that connects and says nothing has [`HEADER_TIMEOUT`]; when there is no room, whoever
//! has waited longest without a request goes first. So thousands of silent clients cannot keep one
//! that speaks from being answered.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// How long a client may take to send a request's head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Most connections of one listener.
const CONNECTIONS: usize = 256;

/// Largest head of a request in bytes.
const HEAD: usize = 16 * 1024;

/// Pause after a failed accept: descriptors may have run out.
const PAUSE: Duration = Duration::from_millis(50);

/// Where connections come from.
pub(super) trait Accept: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// The control socket.
pub(super) struct Control(pub(super) UnixListener);

/// The read-only listener.
pub(super) struct Public(pub(super) TcpListener);

impl Accept for Control {
    type Stream = tokio::net::UnixStream;

    async fn accept(&self) -> io::Result<Self::Stream> {
        Ok(self.0.accept().await?.0)
    }
}

impl Accept for Public {
    type Stream = tokio::net::TcpStream;

    async fn accept(&self) -> io::Result<Self::Stream> {
        Ok(self.0.accept().await?.0)
    }
}

/// Accepts for ever.
pub(super) async fn accept(listener: impl Accept, router: Router) {
    let room = Arc::new(Room::default());
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
                continue;
            }
        };
        let served = Served::new(Arc::clone(&room));
        let (number, busy) = (served.number, Arc::clone(&served.busy));
        let task = tokio::spawn(serve(stream, router.clone(), served));
        room.enter(number, busy, task.abort_handle());
    }
}

/// Serves one connection to its end.
async fn serve<S>(stream: S, router: Router, served: Served)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let busy = Arc::clone(&served.busy);
    let service = service_fn(move |request: Request<Incoming>| {
        let (busy, router) = (Arc::clone(&busy), router.clone());
        async move {
            busy.store(true, Ordering::Relaxed);
            let answer = TowerToHyperService::new(router);
            let answer = hyper::service::Service::call(&answer, request.map(Body::new)).await;
            busy.store(false, Ordering::Relaxed);
            answer
                .or_else(|never: Infallible| match never {})
                .map_err(|never: Infallible| never)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_header_size(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "connection");
    }
    drop(served);
}

/// The connections there are, oldest first.
#[derive(Default)]
struct Room {
    connections: Mutex<BTreeMap<u64, (Arc<AtomicBool>, AbortHandle)>>,
    next: std::sync::atomic::AtomicU64,
}

impl Room {
    /// Lets a connection in; where there is no room, the oldest that has no request under way
    /// goes, or else the oldest.
    fn enter(&self, number: u64, busy: Arc<AtomicBool>, task: AbortHandle) {
        if task.is_finished() {
            return;
        }
        let mut connections = self.lock();
        if connections.len() >= CONNECTIONS {
            let idle = connections
                .iter()
                .find(|(_, (busy, _))| !busy.load(Ordering::Relaxed));
            let leaver = idle.or_else(|| connections.iter().next());
            let leaver = leaver.map(|(number, _)| *number);
            if let Some((_, task)) = leaver.and_then(|number| connections.remove(&number)) {
                task.abort();
            }
        }
        connections.insert(number, (busy, task));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, (Arc<AtomicBool>, AbortHandle)>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection's place; given up when it ends, however it ends.
struct Served {
    room: Arc<Room>,
    number: u64,
    busy: Arc<AtomicBool>,
}

impl Served {
    fn new(room: Arc<Room>) -> Self {
        let number = room.next.fetch_add(1, Ordering::Relaxed);
        Self {
            room,
            number,
            busy: Arc::default(),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.room.lock().remove(&self.number);
    }
}
