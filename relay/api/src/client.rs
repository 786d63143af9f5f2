//! A client of the control API: one request per connection, over the daemon's Unix socket, or over TLS to a
//! daemon on another host.

mod events;
mod host;
mod pieces;
mod requests;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
pub use hyper::body::Bytes;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::http::request;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

pub use self::events::{Events, StreamItem};
use self::host::Stream;
pub use self::host::{Host, HostError};
pub use self::pieces::{OUTCOME_HEADER, Pieces};
use crate::query::escaped;
use crate::reply::{ErrorReply, History};
use crate::request::{ChangeTerms, LAST_EVENT_ID_HEADER, MESSAGE_HEADER};

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a client tries to connect while others crowd it out.
const CONNECT: Duration = Duration::from_secs(10);

const CREDENTIALS: &str =
    "see ca, and server_name or address, of this host in hosts.toml, and the certificate there";
const NOT_TLS: &str = "what listens there does not speak TLS; see the address in hosts.toml, and \
                       that it is that of [api] listen";

/// What drives a connection.
type Connection = JoinHandle<hyper::Result<()>>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens on the socket.
    #[error("{}: cannot reach the daemon: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The daemon closed the connection or does not speak HTTP.
    #[error("{}: the conversation with the daemon broke off: {reason}", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The daemon of another host does not accept the certificate.
    #[error("{}: the daemon refuses the certificate: {reason}", path.display())]
    Denied {
        /// The host.
        path: PathBuf,
        /// Its reason.
        reason: String,
    },
    /// The certificate of another host's daemon is not accepted.
    #[error("{}: the daemon's certificate is not accepted: {reason}; {CREDENTIALS}", path.display())]
    Untrusted {
        /// The host.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The daemon refused.
    #[error("{}", .0.message)]
    Refused(ErrorReply),
}

/// A client for one daemon.
#[derive(Clone, Debug)]
pub struct Client {
    /// The socket, or the host as text.
    socket: PathBuf,
    terms: ChangeTerms,
    host: Option<Host>,
}

impl Client {
    /// Makes a client; it connects for the first request.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            terms: ChangeTerms::default(),
            host: None,
        }
    }

    /// The same client with these terms for its changes.
    #[must_use]
    pub fn on(self, terms: ChangeTerms) -> Self {
        Self { terms, ..self }
    }

    /// The same client, whose changes are saved when they are confirmed if `save` is set.
    #[must_use]
    pub fn saving(mut self, save: bool) -> Self {
        self.terms.save = save;
        self
    }

    /// Makes a client of the daemon on another host.
    pub fn at(host: Host) -> Self {
        Self {
            socket: host.to_string().into(),
            host: Some(host),
            terms: ChangeTerms::default(),
        }
    }

    /// The name of the other host that the daemon is on, if it is on one.
    pub fn other_host(&self) -> Option<&str> {
        self.host.as_ref().map(Host::name)
    }

    /// Follows events, starting `recent` events ago; if `brief` is set, many of a kind at once are reported as
    /// one.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn events(&self, recent: u32, brief: bool) -> Result<Events, Error> {
        let path = format!("/v1/events?recent={recent}&brief={brief}");
        Events::begin(self.clone(), path).await
    }

    /// Opens the stream of events at `path`, or what of it comes behind the event with the id `last`.
    async fn event_stream(
        &self,
        path: &str,
        last: Option<&str>,
    ) -> Result<(Incoming, Connection), Error> {
        let mut request = Request::get(path);
        if let Some(last) = last {
            request = request.header(LAST_EVENT_ID_HEADER, last);
        }
        let reply = timeout(PATIENCE, self.send_request(request, Bytes::new())).await;
        let (reply, connection) = reply.unwrap_or_else(|_| Err(self.timed_out()))?;
        Ok((reply.into_body(), connection))
    }

    /// Reads what all rules together, and each of `rules`, received and dropped in the last `seconds`.
    ///
    /// # Errors
    /// As every request; `not_found` if there is no rule of a name, `usage` for more rules than
    /// [`HISTORY_RULES_MAX`](crate::request::HISTORY_RULES_MAX).
    pub async fn history(&self, rules: &[&str], seconds: u32) -> Result<History, Error> {
        let names: Vec<String> = rules.iter().map(|name| escaped(name)).collect();
        let path = format!("/v1/history?seconds={seconds}&rules={}", names.join(","));
        self.read(Method::GET, &path, None::<&()>).await
    }

    /// Reads the running rules as a configuration file.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn export(&self) -> Result<String, Error> {
        let body = self.request(Method::GET, "/v1/export", None::<&()>).await?;
        String::from_utf8(body.to_vec()).map_err(|error| self.broken(error))
    }

    async fn read<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, Error> {
        let reply = self.request(method, path, body).await?;
        serde_json::from_slice(&reply).map_err(|error| self.broken(error))
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Bytes, Error> {
        let exchange = async {
            let (reply, connection) = self.send(method, path, body).await?;
            let bytes = reply.into_body().collect().await;
            connection.abort();
            Ok(bytes.map_err(|error| self.broken(error))?.to_bytes())
        };
        let reply = timeout(PATIENCE, exchange).await;
        reply.unwrap_or_else(|_| Err(self.timed_out()))
    }

    /// Sends a request; returns the head of a reply that is not a refusal.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<(Response<Incoming>, Connection), Error> {
        let json = body.map(serde_json::to_vec).transpose();
        let json = json.map_err(|error| self.broken(error))?;
        let ChangeTerms { confirm, save, .. } = self.terms;
        let mut path = path.to_owned();
        if method != Method::GET && (save || confirm.is_some()) {
            let separator = if path.contains('?') { '&' } else { '?' };
            path += &format!("{separator}save={save}");
            if let Some(within) = confirm.map(rules::duration::text) {
                path += &format!("&confirm={within}");
            }
        }
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(message) = &self.terms.message {
            request = request.header(MESSAGE_HEADER, message.as_bytes());
        }
        if let Some(generation) = self.terms.generation {
            request = request.header(header::IF_MATCH, format!("\"{generation}\""));
        }
        // For the outcome after a streamed body.
        request = request.header(header::TE, "trailers");
        let body = Bytes::from(json.unwrap_or_default());
        self.send_request(request, body).await
    }

    async fn send_request(
        &self,
        mut request: request::Builder,
        body: Bytes,
    ) -> Result<(Response<Incoming>, Connection), Error> {
        let alert = tls::Alert::default();
        let stream = self
            .connect(&alert)
            .await
            .map_err(|source| self.not_connected(source))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(error))?;
        let connection = tokio::spawn(connection);
        request = request.header(header::HOST, "mcr");
        if let Some(token) = self.host.as_ref().and_then(Host::authorization) {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| self.broken(error))?;
        let reply =
            sender
                .send_request(request)
                .await
                .map_err(|error| match alert.description() {
                    Some(alert) => self.denied(&format!("{alert:?}")),
                    None => self.broken(error),
                })?;
        let status = reply.status();
        if status.is_success() {
            return Ok((reply, connection));
        }
        let body = reply.into_body().collect().await;
        connection.abort();
        let bytes = body.map_err(|error| self.broken(error))?.to_bytes();
        Err(self.refused(error_reply(status, &bytes)))
    }

    fn refused(&self, mut reply: ErrorReply) -> Error {
        if let Some(host) = &self.host {
            reply.message = format!("{}: {}", host.name(), reply.message);
        }
        Error::Refused(reply)
    }

    /// Connects; tries again if the queue of the kernel is full because many clients connect at once.
    async fn connect(&self, alert: &tls::Alert) -> io::Result<Box<dyn Stream>> {
        if let Some(host) = &self.host {
            let connecting = timeout(CONNECT, host.connect(alert));
            return connecting
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        }
        let deadline = Instant::now() + CONNECT;
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(error) if is_crowded(&error) && Instant::now() < deadline => {
                    sleep(CONNECT / 500).await;
                }
                connected => return Ok(Box::new(connected?)),
            }
        }
    }

    fn not_connected(&self, source: io::Error) -> Error {
        match tls::of_tls(&source) {
            Some(rustls::Error::AlertReceived(alert)) => self.denied(&format!("{alert:?}")),
            Some(rustls::Error::InvalidCertificate(reason)) => Error::Untrusted {
                path: self.socket.clone(),
                reason: reason.to_string(),
            },
            Some(rustls::Error::InvalidMessage(_)) => self.broken(NOT_TLS),
            _ => Error::Connect {
                path: self.socket.clone(),
                source,
            },
        }
    }

    fn denied(&self, reason: &str) -> Error {
        Error::Denied {
            path: self.socket.clone(),
            reason: reason.to_owned(),
        }
    }

    fn timed_out(&self) -> Error {
        self.broken(format!("no answer within {} s", PATIENCE.as_secs()))
    }

    fn broken(&self, reason: impl std::fmt::Display) -> Error {
        Error::Broken {
            path: self.socket.clone(),
            reason: reason.to_string(),
        }
    }
}

fn error_reply(status: StatusCode, body: &[u8]) -> ErrorReply {
    serde_json::from_slice(body).unwrap_or_else(|_| ErrorReply {
        code: "internal".to_owned(),
        message: format!("{status}: {}", String::from_utf8_lossy(body)),
    })
}

/// Returns whether the queue of connections to be accepted is full (unix(7), EAGAIN).
fn is_crowded(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
