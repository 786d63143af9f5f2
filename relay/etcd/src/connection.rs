//! One connection to one member: how it is made, and calls over it.
//!
//! A connection counts as made when the member has answered over it. A stopped process still accepts
//! connections, and a server that dislikes the client's certificate says so only after the client
//! has begun to speak; so a request that is sent has a member that was alive just before.

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

use crate::config::{Endpoint, Tls};
use crate::grpc::{self, Frames};
use crate::messages::{StatusRequest, StatusResponse};
use crate::tls;
use crate::unmade::{Unmade, chain};
use ::tls::{Alert, Heeding};

/// So many of a name's addresses are tried, all at once.
const ADDRESSES_MAX: usize = 8;
/// What may arrive on one stream, and on all together, before it is read: so that a watch that is
/// not read holds up no reply.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const HEADERS_MAX: u32 = 16 << 10;
/// Time for making a connection. Nobody waits that long; a slow one is there for a later request.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Time for a connection to say why it ended.
const LAST_WORDS: Duration = Duration::from_millis(50);

pub(crate) const STATUS: &str = "/etcdserverpb.Maintenance/Status";

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Why a call brought no answer that could be used.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request never left.
    NotSent(String),
    /// The request left, or may have.
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

/// An open connection. It closes when the last request and the last watch on it have gone.
pub(crate) struct Connection {
    origin: String,
    sender: SendRequest<Body>,
    heard: Mutex<Instant>,
    retired: AtomicBool,
    driver: JoinHandle<Result<(), hyper::Error>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects and hears a first answer.
    pub(crate) async fn open(endpoint: Endpoint, files: Option<Tls>) -> Result<Self, Unmade> {
        let files = files.filter(|_| endpoint.secure);
        let made = async {
            let alert = Alert::default();
            let mut connection = Self::reach(&endpoint, files.as_ref(), &alert).await?;
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
                    let reason = connection.end(failure).await;
                    let refused = alert.told().zip(files.as_ref());
                    Err(match refused {
                        Some((alert, files)) => Unmade::Refused(tls::disliked(files, alert)),
                        None => Unmade::Failed(reason),
                    })
                }
            }
        };
        let late = || Unmade::Failed(format!("no answer within {} s", CONNECT_MAX.as_secs()));
        let made = timeout(CONNECT_MAX, made).await;
        made.unwrap_or_else(|_| Err(late()))
    }

    /// Why it broke before it was used: the connection knows more than the request that it took
    /// along.
    async fn end(&mut self, failure: Failure) -> String {
        let reason = failure.reason();
        match timeout(LAST_WORDS, &mut self.driver).await {
            Ok(Ok(Err(error))) => format!("{reason}: {}", chain(&error)),
            _ => reason,
        }
    }

    async fn reach(
        endpoint: &Endpoint,
        files: Option<&Tls>,
        alert: &Alert,
    ) -> Result<Self, Unmade> {
        let addresses = lookup_host((endpoint.host.as_str(), endpoint.port)).await;
        let addresses = addresses.map_err(|error| {
            let host = &endpoint.host;
            Unmade::Failed(format!("cannot find the address of {host}: {error}"))
        })?;
        let tcp = connect(addresses.take(ADDRESSES_MAX).collect()).await;
        let tcp = tcp.map_err(Unmade::Failed)?;
        let origin = endpoint.to_string();
        let Some(files) = files else {
            return Self::over(origin, tcp).await;
        };
        // Read anew each time; what is wrong with a file lasts.
        let config = tls::load(files).map_err(|error| Unmade::Refused(error.to_string()))?;
        let name =
            tls::server_name(endpoint).map_err(|error| Unmade::Refused(error.to_string()))?;
        let stream = TlsConnector::from(config).connect(name, tcp).await;
        let stream = stream.map_err(|error| tls::unmade(endpoint, files, &error))?;
        Self::over(origin, Heeding::new(stream, alert.clone())).await
    }

    async fn over(
        origin: String,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, Unmade> {
        let (sender, driver) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADERS_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Unmade::Failed(chain(&error)))?;
        let driver = tokio::spawn(driver);
        Ok(Self {
            origin,
            sender,
            heard: Mutex::new(Instant::now()),
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

    /// Notes that something came over it.
    pub(crate) fn hear(&self) {
        *self.heard.lock() = Instant::now();
    }

    /// Calls `path` and reads its one reply. A connection over which nothing came until the deadline
    /// is retired; one that only this answer is missing from goes on.
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
            let reply = sent(&mut sender, request).await?;
            self.hear();
            let message = self.read(reply, reply_max).await?;
            grpc::decode(message).map_err(|error| Failure::Lost(error.to_string()))
        };
        timeout_at(until, exchange).await.unwrap_or_else(|_| {
            let heard = *self.heard.lock();
            if heard <= started {
                self.retire();
            }
            Err(Failure::Lost("no answer before the deadline".to_owned()))
        })
    }

    /// Calls `path` with a body that goes on, and waits until the answer has begun.
    pub(crate) async fn stream(
        &self,
        path: &str,
        body: Body,
        token: Option<&str>,
        until: Instant,
    ) -> Result<Incoming, Failure> {
        let request = self.request(path, body, token, None)?;
        let mut sender = self.ready(until).await?;
        let begun = timeout_at(until, sent(&mut sender, request)).await;
        let reply = begun.unwrap_or_else(|_| {
            self.retire();
            Err(Failure::Lost("no answer before the deadline".to_owned()))
        })?;
        self.hear();
        checked(&reply)?;
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
            // Without it a member that has lost its leader lets a request wait and a watch sleep.
            .header("hasleader", "true");
        if let Some(token) = token {
            request = request.header("token", token);
        }
        if let Some(until) = until {
            let left = until.saturating_duration_since(Instant::now()).as_millis();
            let left = left.clamp(1, 99_999_999);
            request = request.header("grpc-timeout", format!("{left}m"));
        }
        request
            .body(body)
            .map_err(|error| Failure::NotSent(error.to_string()))
    }

    /// Reads the one message of a reply, and its status.
    async fn read(&self, reply: Response<Incoming>, max: usize) -> Result<Bytes, Failure> {
        checked(&reply)?;
        let lost = |error: grpc::Malformed| Failure::Lost(error.to_string());
        let mut body = reply.into_body();
        let mut frames = Frames::new(max);
        let mut message = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Failure::Lost(chain(&error)))?;
            self.hear();
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

async fn connect(addresses: Vec<SocketAddr>) -> Result<TcpStream, String> {
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

async fn sent(
    sender: &mut SendRequest<Body>,
    request: Request<Body>,
) -> Result<Response<Incoming>, Failure> {
    sender.try_send_request(request).await.map_err(|error| {
        // hyper gives back what it has not begun to send.
        let unsent = error.message().is_some();
        let reason = chain(error.error());
        if unsent {
            Failure::NotSent(reason)
        } else {
            Failure::Lost(reason)
        }
    })
}

/// Whether the head of a reply is that of a gRPC call that goes on.
fn checked(reply: &Response<Incoming>) -> Result<(), Failure> {
    if reply.status() != StatusCode::OK {
        let reason = format!("HTTP status {}: is that etcd?", reply.status());
        return Err(Failure::Lost(reason));
    }
    match grpc::status(reply.headers()) {
        None | Some((0, _)) => Ok(()),
        Some((code, message)) => Err(Failure::Answered { code, message }),
    }
}
