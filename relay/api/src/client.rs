//! A client of the control API: one request per connection, over the daemon's Unix socket.

mod events;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use rules::document::RuleDocument;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

pub use self::events::{Events, StreamItem};
use crate::query::{RulesQuery, StatsQuery, escaped};
use crate::reply::{
    Change, ChangeRecord, ErrorReply, FleetChange, FleetDone, FleetRecord, FleetRules, FleetStatus,
    FlowStats, History, InterfaceStatus, ListenerStats, Log, RulePart, Stats, Status,
};
use crate::request::{
    ActiveInput, FleetMove, FleetRelayName, FleetRuleList, MESSAGE_HEADER, RuleList, Transaction,
};

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long others may keep a client from connecting.
const CONNECT: Duration = Duration::from_secs(10);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens on the socket.
    #[error("{}: cannot reach the daemon: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The daemon went away or does not speak HTTP.
    #[error("{}: the conversation with the daemon broke off: {reason}", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The daemon refused.
    #[error("{}", .0.message)]
    Refused(ErrorReply),
}

/// A client for one socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    /// Why it changes what it changes.
    message: Option<String>,
}

impl Client {
    /// Makes a client; the daemon is first reached by a request.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            message: None,
        }
    }

    /// The same, that says why it changes what it changes.
    #[must_use]
    pub fn because(self, message: Option<String>) -> Self {
        Self { message, ..self }
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Reads all counters.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn stats(&self) -> Result<Stats, Error> {
        self.read(Method::GET, "/v1/stats", None::<&()>).await
    }

    /// Reads the counters of some rules; a daemon that knows no such query tells all, without a
    /// `selection`.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn selected_stats(&self, query: &StatsQuery) -> Result<Stats, Error> {
        self.read(Method::GET, &query.path(), None::<&()>).await
    }

    /// Reads the daemon's own state.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn status(&self) -> Result<Status, Error> {
        self.read(Method::GET, "/v1/status", None::<&()>).await
    }

    /// Reads the interfaces of the daemon's network namespace.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn interfaces(&self) -> Result<Vec<InterfaceStatus>, Error> {
        self.read(Method::GET, "/v1/interfaces", None::<&()>).await
    }

    /// Follows what happens, from so many events ago on; many of a kind that come together are told
    /// as one if `brief` is set.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn events(&self, recent: u32, brief: bool) -> Result<Events, Error> {
        let path = format!("/v1/events?recent={recent}&brief={brief}");
        let sent = self.send(Method::GET, &path, None::<&()>);
        let (reply, connection) = match timeout(PATIENCE, sent).await {
            Ok(sent) => sent?,
            Err(_) => return Err(self.late()),
        };
        Ok(Events::new(
            reply.into_body(),
            connection,
            self.socket.clone(),
        ))
    }

    /// Reads the running rules.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn rules(&self) -> Result<RuleList, Error> {
        self.read(Method::GET, "/v1/rules", None::<&()>).await
    }

    /// Reads some of the running rules; a daemon that knows no such query tells all, without a
    /// `selection`.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn selected_rules(&self, query: &RulesQuery) -> Result<RulePart, Error> {
        self.read(Method::GET, &query.path(), None::<&()>).await
    }

    /// Reads one rule.
    ///
    /// # Errors
    /// As every request; `not_found` where there is none of that name.
    pub async fn rule(&self, name: &str) -> Result<RuleDocument, Error> {
        let path = format!("/v1/rules/{}", escaped(name));
        self.read(Method::GET, &path, None::<&()>).await
    }

    /// Reads which hosts listen to a rule's outputs on demand.
    ///
    /// # Errors
    /// As every request; `not_found` where there is none of that name.
    pub async fn listeners(&self, name: &str) -> Result<Vec<ListenerStats>, Error> {
        let path = format!("/v1/rules/{}/listeners", escaped(name));
        self.read(Method::GET, &path, None::<&()>).await
    }

    /// Reads what was seen of each group and port of a rule with ranges.
    ///
    /// # Errors
    /// As every request; `not_found` where there is none of that name.
    pub async fn flows(&self, name: &str) -> Result<Vec<FlowStats>, Error> {
        let path = format!("/v1/rules/{}/flows", escaped(name));
        self.read(Method::GET, &path, None::<&()>).await
    }

    /// Reads what all rules together, and these of them, received and dropped in the last `seconds`.
    ///
    /// # Errors
    /// As every request; `not_found` where there is none of a name, `usage` of more rules than
    /// [`HISTORY_RULES_MAX`](crate::request::HISTORY_RULES_MAX).
    pub async fn history(&self, rules: &[&str], seconds: u32) -> Result<History, Error> {
        let names: Vec<String> = rules.iter().map(|name| escaped(name)).collect();
        let path = format!("/v1/history?seconds={seconds}&rules={}", names.join(","));
        self.read(Method::GET, &path, None::<&()>).await
    }

    /// Has another input of a rule relayed, of those that stand by for each other.
    ///
    /// # Errors
    /// As every request; `not_found` where there is no such rule, `invalid` where it has no such input.
    pub async fn switch(&self, name: &str, active: &ActiveInput) -> Result<ActiveInput, Error> {
        let path = format!("/v1/rules/{}/active", escaped(name));
        self.read(Method::PUT, &path, Some(active)).await
    }

    /// Changes the running rules, whole or not at all.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn transaction(&self, transaction: &Transaction) -> Result<Change, Error> {
        self.read(Method::POST, "/v1/transaction", Some(transaction))
            .await
    }

    /// Puts a whole rule set in the place of the running one, or only says what that would change.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn replace(&self, rules: &RuleList, dry_run: bool) -> Result<Change, Error> {
        let path = if dry_run {
            "/v1/rules?dry_run=true"
        } else {
            "/v1/rules"
        };
        self.read(Method::PUT, path, Some(rules)).await
    }

    /// Has the daemon read its configuration again.
    ///
    /// # Errors
    /// As every request; `invalid` where the configuration cannot be used.
    pub async fn reload(&self) -> Result<Change, Error> {
        self.read(Method::POST, "/v1/reload", None::<&()>).await
    }

    /// Reads how the fleet does.
    ///
    /// # Errors
    /// As every request; `not_found` where the daemon is in none.
    pub async fn fleet(&self) -> Result<FleetStatus, Error> {
        self.read(Method::GET, "/v1/fleet", None::<&()>).await
    }

    /// Reads the fleet's rules.
    ///
    /// # Errors
    /// As every request; `not_found` where the daemon is in no fleet, `unavailable` where etcd does
    /// not answer.
    pub async fn fleet_rules(&self) -> Result<FleetRules, Error> {
        self.read(Method::GET, "/v1/fleet/rules", None::<&()>).await
    }

    /// Reads what the daemon's part of the fleet was told in the last seconds.
    ///
    /// # Errors
    ///
    /// As every request; `not_found` where the daemon is in no fleet.
    pub async fn fleet_record(&self, seconds: u32) -> Result<FleetRecord, Error> {
        let path = format!("/v1/fleet/record?seconds={seconds}");
        self.read(Method::GET, &path, None::<&()>).await
    }

    /// Makes these the fleet's rules, or only says what that would change.
    ///
    /// # Errors
    /// As every request; `conflict` where the rules are of another generation, else as
    /// [`Client::fleet_rules`].
    pub async fn fleet_apply(
        &self,
        rules: &FleetRuleList,
        dry_run: bool,
    ) -> Result<FleetChange, Error> {
        let path = format!("/v1/fleet/rules?dry_run={dry_run}");
        self.read(Method::PUT, &path, Some(rules)).await
    }

    /// Has a relay of the fleet hold nothing, or take shares again.
    ///
    /// # Errors
    /// As [`Client::fleet_rules`]; `not_found` where there is no such relay.
    pub async fn fleet_drain(
        &self,
        relay: &FleetRelayName,
        drained: bool,
    ) -> Result<FleetDone, Error> {
        let word = if drained { "drain" } else { "undrain" };
        let path = format!("/v1/fleet/{word}");
        self.read(Method::POST, &path, Some(relay)).await
    }

    /// Has a relay of the fleet forward these rules.
    ///
    /// # Errors
    /// As [`Client::fleet_rules`]; `not_found` where there is no such rule or relay.
    pub async fn fleet_move(&self, asked: &FleetMove) -> Result<FleetDone, Error> {
        self.read(Method::POST, "/v1/fleet/move", Some(asked)).await
    }

    /// Has each share of the fleet go to the relay that placement gives it.
    ///
    /// # Errors
    /// As [`Client::fleet_rules`].
    pub async fn fleet_rebalance(&self) -> Result<FleetDone, Error> {
        self.read(Method::POST, "/v1/fleet/rebalance", None::<&()>)
            .await
    }

    /// Ends the session of a relay of the fleet that is known to be dead.
    ///
    /// # Errors
    /// As [`Client::fleet_rules`]; `not_found` where there is no such relay.
    pub async fn fleet_fence(&self, relay: &FleetRelayName) -> Result<FleetDone, Error> {
        self.read(Method::POST, "/v1/fleet/fence", Some(relay))
            .await
    }

    /// Reads the last changes, the oldest first.
    ///
    /// # Errors
    /// As every request; `unavailable` where the daemon keeps no log of them.
    pub async fn changes(&self, last: u32) -> Result<Vec<ChangeRecord>, Error> {
        let path = format!("/v1/changes?last={last}");
        self.read(Method::GET, &path, None::<&()>).await
    }

    /// Reads how much the daemon logs.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn log(&self) -> Result<Log, Error> {
        self.read(Method::GET, "/v1/log", None::<&()>).await
    }

    /// Changes how much the daemon logs.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn set_log(&self, log: &Log) -> Result<Log, Error> {
        self.read(Method::PUT, "/v1/log", Some(log)).await
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
        let exchange = self.exchange(method, path, body);
        match timeout(PATIENCE, exchange).await {
            Ok(reply) => reply,
            Err(_) => Err(self.late()),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Bytes, Error> {
        let (reply, connection) = self.send(method, path, body).await?;
        let bytes = reply.into_body().collect().await;
        connection.abort();
        Ok(bytes.map_err(|error| self.broken(error))?.to_bytes())
    }

    /// Sends a request; hands back the head of an answer that is not a refusal.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<(Response<Incoming>, JoinHandle<hyper::Result<()>>), Error> {
        let stream = self.connect().await.map_err(|source| Error::Connect {
            path: self.socket.clone(),
            source,
        })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(error))?;
        let connection = tokio::spawn(connection);
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|error| self.broken(error))?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "mcr")
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(message) = &self.message {
            request = request.header(MESSAGE_HEADER, message.as_bytes());
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| self.broken(error))?;
        let reply = sender
            .send_request(request)
            .await
            .map_err(|error| self.broken(error))?;
        let status = reply.status();
        if status.is_success() {
            return Ok((reply, connection));
        }
        let bytes = reply.into_body().collect().await;
        connection.abort();
        let bytes = bytes.map_err(|error| self.broken(error))?.to_bytes();
        Err(Error::Refused(refusal(status, &bytes)))
    }

    /// Connects; where so many do at once that the kernel keeps no more of them waiting, a moment later.
    async fn connect(&self) -> io::Result<UnixStream> {
        let deadline = Instant::now() + CONNECT;
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(error) if is_crowded(&error) && Instant::now() < deadline => {
                    sleep(CONNECT / 500).await;
                }
                connected => return connected,
            }
        }
    }

    fn late(&self) -> Error {
        self.broken(format!("no answer within {} s", PATIENCE.as_secs()))
    }

    fn broken(&self, reason: impl std::fmt::Display) -> Error {
        Error::Broken {
            path: self.socket.clone(),
            reason: reason.to_string(),
        }
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> ErrorReply {
    serde_json::from_slice(body).unwrap_or_else(|_| ErrorReply {
        code: "internal".to_owned(),
        message: format!("{status}: {}", String::from_utf8_lossy(body)),
    })
}

/// The queue of those who wait to be accepted is full (unix(7), EAGAIN).
fn is_crowded(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
