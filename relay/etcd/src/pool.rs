//! Chooses the endpoint of a request, and when to try the next one.
//!
//! One endpoint is preferred until it fails. A request goes to the next only if it surely was not
//! sent, or if it only reads; never to two at once, which would multiply the load just when etcd is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::config::{Config, Endpoint, Tls};
use crate::connect_error::ConnectError;
use crate::connection::{Connection, Failure};
use crate::error::Error;
use crate::error_class::ErrorClass;
use crate::messages::{TxnRequest, TxnResponse};
use crate::refusal::Refusal;
use crate::token::{Token, Tokens, is_stale};

/// How long a read waits for one endpoint at least before it asks the next.
const READ_MIN: Duration = Duration::from_millis(700);
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";

/// Whether a request that was sent may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
}

pub(crate) struct Pool {
    pub(crate) config: Config,
    slots: Vec<Slot>,
    preferred: AtomicUsize,
    tokens: Tokens,
}

impl Pool {
    pub(crate) fn new(config: Config) -> Self {
        let slot = |endpoint: &Endpoint| Slot::new(endpoint.clone(), config.tls.clone());
        Self {
            slots: config.endpoints.iter().map(slot).collect(),
            preferred: AtomicUsize::new(0),
            tokens: Tokens::default(),
            config,
        }
    }

    /// Sends a request to the endpoints, one after the other if its kind allows that.
    pub(crate) async fn call<Q: Message, R: Message + Default>(
        &self,
        path: &str,
        request: &Q,
        kind: Kind,
        deadline: Duration,
    ) -> Result<R, Error> {
        let mut turns = Turns::new(self, deadline);
        while let Some((index, connection)) = turns.next().await {
            let until = match kind {
                Kind::Write => turns.until,
                Kind::Read => turns.share(),
            };
            let failure = match self.authorized(&connection, path, request, until).await {
                Ok(reply) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            match self.consequence(index, failure, kind) {
                Consequence::Next(reason) => turns.failed(index, reason),
                Consequence::Final(error) => return Err(error),
            }
        }
        Err(turns.unavailable())
    }

    /// A connection to the preferred endpoint, or to the next that has one.
    pub(crate) async fn connection(
        &self,
        deadline: Duration,
    ) -> Result<(usize, Arc<Connection>), Error> {
        let mut turns = Turns::new(self, deadline);
        turns.next().await.ok_or_else(|| turns.unavailable())
    }

    /// Asks one endpoint and no other.
    pub(crate) async fn call_at<Q: Message, R: Message + Default>(
        &self,
        index: usize,
        path: &str,
        request: &Q,
        deadline: Duration,
    ) -> Result<R, Error> {
        let until = Instant::now() + deadline;
        let unavailable = |reason: String| Error::Unavailable {
            reason: format!("{}: {reason}", self.slots[index].endpoint),
        };
        let connection = timeout_at(until, self.slots[index].connection())
            .await
            .map_err(|_| unavailable("no connection before the deadline".to_owned()))?
            .map_err(unavailable)?;
        let reply = self.authorized(&connection, path, request, until).await;
        reply.map_err(|failure| self.read_error(index, failure))
    }

    /// The error of a read from one endpoint only.
    pub(crate) fn read_error(&self, index: usize, failure: Failure) -> Error {
        match self.consequence(index, failure, Kind::Read) {
            Consequence::Final(error) => error,
            Consequence::Next(reason) => Error::Unavailable {
                reason: format!("{}: {reason}", self.slots[index].endpoint),
            },
        }
    }

    /// A token that this member has just accepted. etcd 3.4 does not report to a watch that its token is
    /// stale: it replies that permission is denied.
    pub(crate) async fn fresh_token(
        &self,
        connection: &Connection,
        until: Instant,
    ) -> Result<Token, Failure> {
        if self.config.user.is_none() {
            return Ok(None);
        }
        let empty = TxnRequest::default();
        let _: TxnResponse = self.authorized(connection, TXN, &empty, until).await?;
        self.token(connection, None, until).await
    }

    /// Calls with the user's token; with a new one if the member does not accept the old one.
    pub(crate) async fn authorized<Q: Message, R: Message + Default>(
        &self,
        connection: &Connection,
        path: &str,
        request: &Q,
        until: Instant,
    ) -> Result<R, Failure> {
        let max = self.config.reply_max;
        let token = self.token(connection, None, until).await?;
        let reply = connection.unary(path, request, token.as_deref(), until, max);
        match reply.await {
            Err(Failure::Answered { code, message })
                if self.config.user.is_some() && is_stale(code, &message) =>
            {
                let token = self.token(connection, Some(&token), until).await?;
                let again = connection.unary(path, request, token.as_deref(), until, max);
                again.await
            }
            reply => reply,
        }
    }

    async fn token(
        &self,
        connection: &Connection,
        refused: Option<&Token>,
        until: Instant,
    ) -> Result<Token, Failure> {
        let token = self.tokens.of(&self.config, connection, refused, until);
        token.await
    }

    /// What follows from a failure at an endpoint for the request; may also demote the endpoint.
    fn consequence(&self, index: usize, failure: Failure, kind: Kind) -> Consequence {
        let endpoint = self.slots[index].endpoint.to_string();
        match failure {
            Failure::NotSent(reason) => {
                self.demote(index);
                Consequence::Next(reason)
            }
            Failure::Lost(reason) => {
                self.demote(index);
                unsettled(endpoint, reason, kind)
            }
            Failure::Answered { code, message } => match ErrorClass::of(code, &message) {
                ErrorClass::NotApplied => {
                    self.demote(index);
                    Consequence::Next(message)
                }
                ErrorClass::Unsettled => {
                    self.demote(index);
                    unsettled(endpoint, message, kind)
                }
                ErrorClass::Compacted => Consequence::Final(Error::Compacted { revision: 0 }),
                ErrorClass::Refused => Consequence::Final(Error::Refused {
                    endpoint,
                    code,
                    message,
                }),
            },
        }
    }

    /// Prefers the next endpoint, if this one was preferred.
    pub(crate) fn demote(&self, index: usize) {
        let next = (index + 1) % self.slots.len();
        // Another request may have demoted it already.
        let _ = self
            .preferred
            .compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn endpoint(&self, index: usize) -> &Endpoint {
        &self.slots[index].endpoint
    }
}

/// What follows from a failure for a request.
enum Consequence {
    /// The next endpoint may be tried.
    Next(String),
    Final(Error),
}

fn unsettled(endpoint: String, reason: String, kind: Kind) -> Consequence {
    match kind {
        Kind::Read => Consequence::Next(reason),
        Kind::Write => Consequence::Final(Error::Unknown { endpoint, reason }),
    }
}

/// The order of the endpoints for one request: the preferred one, then the others, then again those
/// whose connection was still being made.
struct Turns<'a> {
    pool: &'a Pool,
    until: Instant,
    /// Endpoints that remain in this round, the next one last.
    remaining: Vec<usize>,
    connecting: Vec<usize>,
    reasons: Vec<Option<String>>,
}

impl<'a> Turns<'a> {
    fn new(pool: &'a Pool, deadline: Duration) -> Self {
        let count = pool.slots.len();
        let first = pool.preferred.load(Ordering::Relaxed);
        Self {
            pool,
            until: Instant::now() + deadline,
            remaining: (0..count)
                .rev()
                .map(|step| (first + step) % count)
                .collect(),
            connecting: Vec::new(),
            reasons: vec![None; count],
        }
    }

    /// The next endpoint that has a connection.
    async fn next(&mut self) -> Option<(usize, Arc<Connection>)> {
        loop {
            if self.remaining.is_empty() {
                self.remaining.extend(self.connecting.drain(..).rev());
            }
            let now = Instant::now();
            if now >= self.until {
                return None;
            }
            let index = self.remaining.pop()?;
            let patience = self.until.min(now + self.pool.config.connect_timeout);
            match timeout_at(patience, self.pool.slots[index].connection()).await {
                Ok(Ok(connection)) => return Some((index, connection)),
                Ok(Err(reason)) => self.failed(index, reason),
                Err(_) => {
                    self.failed(index, "no connection yet".to_owned());
                    self.connecting.push(index);
                }
            }
            self.pool.demote(index);
        }
    }

    fn failed(&mut self, index: usize, reason: String) {
        self.reasons[index] = Some(reason);
    }

    /// How long a read may wait for this endpoint, so that the others get their turns too.
    fn share(&self) -> Instant {
        let now = Instant::now();
        let turns = u32::try_from(self.remaining.len() + 1).unwrap_or(1);
        let share = self.until.saturating_duration_since(now) / turns;
        if self.remaining.is_empty() {
            self.until
        } else {
            self.until.min(now + share.max(READ_MIN))
        }
    }

    fn unavailable(&self) -> Error {
        let slots = self.reasons.iter().zip(&self.pool.slots);
        let reasons = slots.filter_map(|(reason, slot)| {
            let reason = reason.as_ref()?;
            Some(format!("{}: {reason}", slot.endpoint))
        });
        let reason = reasons.collect::<Vec<_>>().join("; ");
        Error::Unavailable { reason }
    }
}

/// An endpoint and its connection.
struct Slot {
    endpoint: Endpoint,
    tls: Option<Tls>,
    link: Mutex<Link>,
}

enum Link {
    None,
    /// Being made, whether or not anybody waits for it; with the last refusal, if there was one.
    Making(
        JoinHandle<Result<Connection, ConnectError>>,
        Option<Refusal<String>>,
    ),
    Made(Arc<Connection>),
    Refused(Refusal<String>),
}

impl Slot {
    fn new(endpoint: Endpoint, tls: Option<Tls>) -> Self {
        Self {
            endpoint,
            tls,
            link: Mutex::new(Link::None),
        }
    }

    /// The connection, which is made if there is none. If a caller stops waiting, the attempt continues for
    /// the next one.
    async fn connection(&self) -> Result<Arc<Connection>, String> {
        let mut link = self.link.lock().await;
        if let Link::Making(task, previous) = &mut *link
            && task.is_finished()
        {
            // It ended while nobody waited: a failure is outdated by now.
            *link = finish(task, previous.take())
                .await
                .unwrap_or_else(|(link, _)| link);
        }
        loop {
            *link = match &mut *link {
                Link::Made(connection) if connection.is_usable() => {
                    return Ok(Arc::clone(connection));
                }
                Link::Made(_) | Link::None => self.make(None),
                Link::Refused(refusal) => match refusal.active(Instant::now()) {
                    Some(reason) => return Err(reason),
                    None => self.make(Some(refusal.clone())),
                },
                Link::Making(task, previous) => {
                    // Cloned: if this caller stops waiting, the next one needs it.
                    let previous = previous.clone();
                    match finish(task, previous).await {
                        Ok(made) => made,
                        Err((next, reason)) => {
                            *link = next;
                            return Err(reason);
                        }
                    }
                }
            }
        }
    }

    fn make(&self, previous: Option<Refusal<String>>) -> Link {
        let open = Connection::open(self.endpoint.clone(), self.tls.clone());
        Link::Making(tokio::spawn(open), previous)
    }
}

/// Awaits an attempt; on failure, returns the next state and the reason.
async fn finish(
    task: &mut JoinHandle<Result<Connection, ConnectError>>,
    previous: Option<Refusal<String>>,
) -> Result<Link, (Link, String)> {
    match task.await {
        Ok(Ok(made)) => Ok(Link::Made(Arc::new(made))),
        Ok(Err(ConnectError::Failed(reason))) => Err((Link::None, reason)),
        Ok(Err(ConnectError::Refused(reason))) => {
            let refusal = Refusal::new(reason.clone(), previous.as_ref(), Instant::now());
            Err((Link::Refused(refusal), reason))
        }
        Err(error) => Err((Link::None, error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_errors_by_what_they_mean_for_a_write() {
        let cases = [
            (14, "etcdserver: request timed out", ErrorClass::Unsettled),
            (14, "etcdserver: leader changed", ErrorClass::Unsettled),
            (14, "etcdserver: no leader", ErrorClass::NotApplied),
            (4, "context deadline exceeded", ErrorClass::Unsettled),
            (2, "anything", ErrorClass::Unsettled),
            (99, "", ErrorClass::Unsettled),
            (7, "etcdserver: permission denied", ErrorClass::Refused),
            (
                3,
                "etcdserver: too many operations in txn request",
                ErrorClass::Refused,
            ),
            (
                8,
                "etcdserver: mvcc: database space exceeded",
                ErrorClass::Refused,
            ),
            (
                11,
                "etcdserver: mvcc: required revision has been compacted",
                ErrorClass::Compacted,
            ),
            (
                11,
                "etcdserver: mvcc: required revision is a future revision",
                ErrorClass::Refused,
            ),
        ];
        for (code, message, class) in cases {
            assert_eq!(ErrorClass::of(code, message), class, "{code} {message}");
        }
    }
}
