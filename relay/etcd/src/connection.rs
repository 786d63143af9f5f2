//! One connection to one member, and calls over it.
//!
//! A connection counts as made when the member has answered over it: a stopped process still accepts
//! connections, and a server that rejects the client's certificate reports that only after the client
//! has begun to send. So each request is sent to a member that was alive just before.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::select_ok;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost::Message;
use prost::bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use crate::config::{ConfigError, Endpoint, Tls};
use crate::connect_error::{ConnectError, chain};
use crate::grpc::{self, Frames};
use crate::messages::{StatusRequest, StatusResponse};
use crate::tls;
use ::tls::{Alert, Heeding};

/// Most addresses of a name that are tried, all at once.
const ADDRESSES_MAX: usize = 8;
/// How much may arrive on one stream, and on all together, before it is read: a watch that is not read
/// does not hold up replies.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const HEADERS_MAX: u32 = 16 << 10;
/// Time for making a connection. No request waits that long; a slow connection serves a later one.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long to wait for the reason why a connection ended.
const CLOSE_REASON_MAX: Duration = Duration::from_millis(50);

pub(crate) const STATUS: &str = "/etcdserverpb.Maintenance/Status";

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request was not sent.
    NotSent(String),
    /// The request was sent, or may have been, and there is no usable answer.
    Lost(String),
    /// The member answered with an error.
    Answered { code: u32, message: String },
}

impl Failure {
    pub(crate) fn reason(self) -> String {
        match self {
            Failure::NotSent(reason) | Failure::Lost(reason) => reason,
            Failure::Answered { message, .. } => message,
        }
    }
}

/// An open connection. It closes when the last request and the last watch on it have ended.
pub(crate) struct Connection {
    origin: String,
    sender: SendRequest<Body>,
    last_received: Mutex<Instant>,
    retired: AtomicBool,
    driver: JoinHandle<Result<(), hyper::Error>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects and waits for a first answer.
    pub(crate) async fn open(endpoint: Endpoint, files: Option<Tls>) -> Result<Self, ConnectError> {
        let files = files.filter(|_| endpoint.secure);
        let open = async {
            let alert = Alert::default();
            let mut connection = Self::connect(&endpoint, files.as_ref(), &alert).await?;
            let until = Instant::now() + CONNECT_MAX;
            let probe = connection.unary::<_, StatusResponse>(
                STATUS,
                &StatusRequest {},
                None,
                until,
                1 << 20,
            );
            match probe.await {
                Ok(_) | Err(Failure::Answered { .. }) => Ok(connection),
                Err(failure) => {
                    let reason = connection.close_reason(failure).await;
                    Err(match (alert.description(), &files) {
                        (Some(alert), Some(files)) => {
                            ConnectError::Refused(tls::certificate_refused(files, alert))
                        }
                        _ => ConnectError::Failed(reason),
                    })
                }
            }
        };
        timeout(CONNECT_MAX, open).await.unwrap_or_else(|_| {
            let reason = format!("no answer within {} s", CONNECT_MAX.as_secs());
            Err(ConnectError::Failed(reason))
        })
    }

    /// Why the connection broke before it was used: its driver knows more than the request that failed.
    async fn close_reason(&mut self, failure: Failure) -> String {
        let reason = failure.reason();
        match timeout(CLOSE_REASON_MAX, &mut self.driver).await {
            Ok(Ok(Err(error))) => format!("{reason}: {}", chain(&error)),
            _ => reason,
        }
    }

    async fn connect(
        endpoint: &Endpoint,
        files: Option<&Tls>,
        alert: &Alert,
    ) -> Result<Self, ConnectError> {
        let addresses = lookup_host((endpoint.host.as_str(), endpoint.port))
            .await
            .map_err(|error| {
                let host = &endpoint.host;
                ConnectError::Failed(format!("cannot find the address of {host}: {error}"))
            })?;
        let tcp = connect_tcp(addresses.take(ADDRESSES_MAX).collect())
            .await
            .map_err(ConnectError::Failed)?;
        let origin = endpoint.to_string();
        let Some(files) = files else {
            return Self::handshake(origin, tcp).await;
        };
        // Read anew each time; a faulty file makes every attempt fail.
        let refused = |error: ConfigError| ConnectError::Refused(error.to_string());
        let config = tls::load(files).map_err(refused)?;
        let name = tls::server_name(endpoint).map_err(refused)?;
        match TlsConnector::from(config).connect(name, tcp).await {
            Ok(stream) => Self::handshake(origin, Heeding::new(stream, alert.clone())).await,
            Err(error) => Err(tls::handshake_error(endpoint, files, &error)),
        }
    }

    async fn handshake(
        origin: String,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let (sender, driver) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADERS_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ConnectError::Failed(chain(&error)))?;
        let driver = tokio::spawn(driver);
        Ok(Self {
            origin,
            sender,
            last_received: Mutex::new(Instant::now()),
            retired: AtomicBool::new(false),
            driver,
        })
    }

    /// Whether a new request may go over it.
    pub(crate) fn is_usable(&self) -> bool {
        !self.sender.is_closed() && !self.retired.load(Ordering::Relaxed)
    }

    /// Takes no new requests from now on.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Notes that something was received over it.
    pub(crate) fn note_received(&self) {
        *self.last_received.lock() = Instant::now();
    }

    /// Calls `path` and reads its one reply. A connection over which nothing is received until the
    /// deadline is retired; one on which only this reply is missing stays in use.
    pub(crate) async fn unary<Q: Message, R: Message + Default>(
        &self,
        path: &str,
        message: &Q,
        token: Option<&str>,
        until: Instant,
        reply_max: usize,
    ) -> Result<R, Failure> {
        let started = Instant::now();
        let body = Full::new(grpc::frame(message)).boxed_unsync();
        let request = self.request(path, body, token, Some(until))?;
        let mut sender = self.ready(until).await?;
        let exchange = async {
            let reply = send(&mut sender, request).await?;
            self.note_received();
            let message = self.read(reply, reply_max).await?;
            grpc::decode(message).map_err(|error| Failure::Lost(error.to_string()))
        };
        timeout_at(until, exchange).await.unwrap_or_else(|_| {
            if *self.last_received.lock() <= started {
                self.retire();
            }
            Err(Failure::Lost("no answer before the deadline".to_owned()))
        })
    }

    /// Calls `path` with a streaming body, and waits for the head of the reply.
    pub(crate) async fn stream(
        &self,
        path: &str,
        body: Body,
        token: Option<&str>,
        until: Instant,
    ) -> Result<Incoming, Failure> {
        let request = self.request(path, body, token, None)?;
        let mut sender = self.ready(until).await?;
        let exchange = timeout_at(until, send(&mut sender, request));
        let reply = exchange.await.unwrap_or_else(|_| {
            self.retire();
            Err(Failure::Lost("no answer before the deadline".to_owned()))
        })?;
        self.note_received();
        check(&reply)?;
        Ok(reply.into_body())
    }

    async fn ready(&self, until: Instant) -> Result<SendRequest<Body>, Failure> {
        let mut sender = self.sender.clone();
        match timeout_at(until, sender.ready()).await {
            Ok(Ok(())) => Ok(sender),
            Ok(Err(error)) => Err(Failure::NotSent(chain(&error))),
            Err(_) => Err(Failure::NotSent("the connection is too busy".to_owned())),
        }
    }

    fn request(
        &self,
        path: &str,
        body: Body,
        token: Option<&str>,
        until: Option<Instant>,
    ) -> Result<Request<Body>, Failure> {
        let mut request = Request::post(format!("{}{path}", self.origin))
            .header("te", "trailers")
            .header("content-type", "application/grpc")
            // Without it a member that has lost its leader leaves requests and watches waiting.
            .header("hasleader", "true");
        if let Some(token) = token {
            request = request.header("token", token);
        }
        if let Some(until) = until {
            let remaining = until.saturating_duration_since(Instant::now());
            let timeout_ms = remaining.as_millis().clamp(1, 99_999_999);
            request = request.header("grpc-timeout", format!("{timeout_ms}m"));
        }
        request
            .body(body)
            .map_err(|error| Failure::NotSent(error.to_string()))
    }

    /// Reads the one message of a reply, and its status.
    async fn read(&self, reply: Response<Incoming>, max: usize) -> Result<Bytes, Failure> {
        check(&reply)?;
        let lost = |error: grpc::Malformed| Failure::Lost(error.to_string());
        let mut body = reply.into_body();
        let mut frames = Frames::new(max);
        let mut message = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Failure::Lost(chain(&error)))?;
            self.note_received();
            if let Some(data) = frame.data_ref() {
                frames.push(data);
                if let Some(whole) = frames.next().map_err(lost)? {
                    message = Some(whole);
                }
                if message.is_some() && !frames.is_empty() {
                    return Err(Failure::Lost("more than one reply".to_owned()));
                }
            } else if let Some(trailers) = frame.trailers_ref() {
                return match grpc::status(trailers) {
                    Some((0, _)) => message.ok_or_else(|| lost(grpc::Malformed::Short)),
                    Some((code, message)) => Err(Failure::Answered { code, message }),
                    None => Err(Failure::Lost("a reply without a status".to_owned())),
                };
            }
        }
        Err(lost(grpc::Malformed::Short))
    }
}

async fn connect_tcp(addresses: Vec<SocketAddr>) -> Result<TcpStream, String> {
    if addresses.is_empty() {
        return Err("its name has no address".to_owned());
    }
    let attempts = addresses
        .into_iter()
        .map(|address| Box::pin(TcpStream::connect(address)));
    let (tcp, _) = select_ok(attempts)
        .await
        .map_err(|error| error.to_string())?;
    tcp.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(tcp)
}

async fn send(
    sender: &mut SendRequest<Body>,
    request: Request<Body>,
) -> Result<Response<Incoming>, Failure> {
    sender.try_send_request(request).await.map_err(|error| {
        // hyper returns the request if it has not begun to send it.
        let is_unsent = error.message().is_some();
        let reason = chain(error.error());
        if is_unsent {
            Failure::NotSent(reason)
        } else {
            Failure::Lost(reason)
        }
    })
}

/// Checks that the head of a reply is that of a successful gRPC call.
fn check(reply: &Response<Incoming>) -> Result<(), Failure> {
    if reply.status() != StatusCode::OK {
        let reason = format!("HTTP status {}: is that etcd?", reply.status());
        return Err(Failure::Lost(reason));
    }
    match grpc::status(reply.headers()) {
        None | Some((0, _)) => Ok(()),
        Some((code, message)) => Err(Failure::Answered { code, message }),
    }
}
