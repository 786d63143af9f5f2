//! Which endpoint a request goes to, and when the next one gets it.
//!
//! One endpoint is preferred until it fails. A request goes to the next only if it surely was not
//! sent, or if it only reads; never to two at once: that multiplies the load just when etcd is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::answer::Answer;
use crate::config::{Config, Endpoint, Tls};
use crate::connection::{Connection, Failure};
use crate::error::Error;
use crate::messages::{TxnRequest, TxnResponse};
use crate::refusal::Refusal;
use crate::token::{Token, Tokens, is_stale};
use crate::unmade::Unmade;

/// What a read waits for one endpoint at least before it asks the next.
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

    /// Sends a request to the endpoints, one after the other as far as its kind allows.
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
            match self.meaning(index, failure, kind) {
                Meaning::Next(reason) => turns.failed(index, reason),
                Meaning::Final(error) => return Err(error),
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
        reply.map_err(|failure| self.unread(index, failure))
    }

    /// What a failure means for who reads from one endpoint and asks no other.
    pub(crate) fn unread(&self, index: usize, failure: Failure) -> Error {
        match self.meaning(index, failure, Kind::Read) {
            Meaning::Final(error) => error,
            Meaning::Next(reason) => Error::Unavailable {
                reason: format!("{}: {reason}", self.slots[index].endpoint),
            },
        }
    }

    /// A token that this member took just now. etcd tells a watch neither in 3.4 that its token is
    /// stale, nor asks it for another: it says that permission is denied.
    pub(crate) async fn fresh_token(
        &self,
        connection: &Connection,
        until: Instant,
    ) -> Result<Token, Failure> {
        if self.config.user.is_none() {
            return Ok(None);
        }
        let nothing = TxnRequest::default();
        let _: TxnResponse = self.authorized(connection, TXN, &nothing, until).await?;
        self.token(connection, None, until).await
    }

    /// Calls with the user's token; with a new one if the member does not take the old one.
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

    /// What a failure at an endpoint means for the request, and for the endpoint.
    fn meaning(&self, index: usize, failure: Failure, kind: Kind) -> Meaning {
        let endpoint = self.slots[index].endpoint.to_string();
        match failure {
            Failure::NotSent(reason) => {
                self.leave(index);
                Meaning::Next(reason)
            }
            Failure::Lost(reason) => {
                self.leave(index);
                unsettled(endpoint, reason, kind)
            }
            Failure::Answered { code, message } => match Answer::of(code, &message) {
                Answer::NotApplied => {
                    self.leave(index);
                    Meaning::Next(message)
                }
                Answer::Unsettled => {
                    self.leave(index);
                    unsettled(endpoint, message, kind)
                }
                Answer::Compacted => Meaning::Final(Error::Compacted { revision: 0 }),
                Answer::Refused => Meaning::Final(Error::Refused {
                    endpoint,
                    code,
                    message,
                }),
            },
        }
    }

    /// Prefers another endpoint, if this one was.
    pub(crate) fn leave(&self, index: usize) {
        let next = (index + 1) % self.slots.len();
        // Another request may have left it already.
        let _ = self
            .preferred
            .compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn endpoint(&self, index: usize) -> &Endpoint {
        &self.slots[index].endpoint
    }
}

enum Meaning {
    /// The next endpoint may have it.
    Next(String),
    Final(Error),
}

fn unsettled(endpoint: String, reason: String, kind: Kind) -> Meaning {
    match kind {
        Kind::Read => Meaning::Next(reason),
        Kind::Write => Meaning::Final(Error::Unknown { endpoint, reason }),
    }
}

/// The endpoints' turns for one request: the preferred one first, then the others, then again those
/// whose connection was still being made.
struct Turns<'a> {
    pool: &'a Pool,
    until: Instant,
    /// Not asked yet in this round, the next one last.
    left: Vec<usize>,
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
            left: (0..count)
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
            if self.left.is_empty() {
                self.left.extend(self.connecting.drain(..).rev());
            }
            let now = Instant::now();
            if now >= self.until {
                return None;
            }
            let index = self.left.pop()?;
            let patience = self.until.min(now + self.pool.config.connect_timeout);
            match timeout_at(patience, self.pool.slots[index].connection()).await {
                Ok(Ok(connection)) => return Some((index, connection)),
                Ok(Err(reason)) => self.failed(index, reason),
                Err(_) => {
                    self.failed(index, "no connection yet".to_owned());
                    self.connecting.push(index);
                }
            }
            self.pool.leave(index);
        }
    }

    fn failed(&mut self, index: usize, reason: String) {
        self.reasons[index] = Some(reason);
    }

    /// How long a read may wait for this endpoint, so that the others have their turns too.
    fn share(&self) -> Instant {
        let now = Instant::now();
        let turns = u32::try_from(self.left.len() + 1).unwrap_or(1);
        let share = self.until.saturating_duration_since(now) / turns;
        if self.left.is_empty() {
            self.until
        } else {
            self.until.min(now + share.max(READ_MIN))
        }
    }

    fn unavailable(&self) -> Error {
        let said = self.reasons.iter().zip(&self.pool.slots);
        let said = said.filter_map(|(reason, slot)| {
            let reason = reason.as_ref()?;
            Some(format!("{}: {reason}", slot.endpoint))
        });
        let reason = said.collect::<Vec<_>>().join("; ");
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
    /// Being made, whether somebody waits for it or not; after a refusal, if there was one.
    Making(
        JoinHandle<Result<Connection, Unmade>>,
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

    /// The connection, which is made if there is none. Whoever stops waiting leaves the attempt to
    /// the next who asks.
    async fn connection(&self) -> Result<Arc<Connection>, String> {
        let mut link = self.link.lock().await;
        if let Link::Making(task, before) = &mut *link
            && task.is_finished()
        {
            // It ended while nobody waited: a failure of then says nothing of now.
            *link = ended(task, before.take())
                .await
                .unwrap_or_else(|(link, _)| link);
        }
        loop {
            *link = match &mut *link {
                Link::Made(connection) if connection.is_usable() => {
                    return Ok(Arc::clone(connection));
                }
                Link::Made(_) | Link::None => self.make(None),
                Link::Refused(refusal) => match refusal.stands(Instant::now()) {
                    Some(reason) => return Err(reason),
                    None => self.make(Some(refusal.clone())),
                },
                Link::Making(task, before) => {
                    // Left where it is: whoever stops waiting must not take it along.
                    let before = before.clone();
                    match ended(task, before).await {
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

    fn make(&self, before: Option<Refusal<String>>) -> Link {
        let made = Connection::open(self.endpoint.clone(), self.tls.clone());
        Link::Making(tokio::spawn(made), before)
    }
}

/// What came of an attempt; why there is no connection, and what follows from that.
async fn ended(
    task: &mut JoinHandle<Result<Connection, Unmade>>,
    before: Option<Refusal<String>>,
) -> Result<Link, (Link, String)> {
    match task.await {
        Ok(Ok(made)) => Ok(Link::Made(Arc::new(made))),
        Ok(Err(Unmade::Failed(reason))) => Err((Link::None, reason)),
        Ok(Err(Unmade::Refused(reason))) => {
            let refusal = Refusal::new(reason.clone(), before.as_ref(), Instant::now());
            Err((Link::Refused(refusal), reason))
        }
        Err(error) => Err((Link::None, error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_which_answers_leave_a_write_open() {
        let cases = [
            (14, "etcdserver: request timed out", Answer::Unsettled),
            (14, "etcdserver: leader changed", Answer::Unsettled),
            (14, "etcdserver: no leader", Answer::NotApplied),
            (4, "context deadline exceeded", Answer::Unsettled),
            (2, "anything", Answer::Unsettled),
            (99, "", Answer::Unsettled),
            (7, "etcdserver: permission denied", Answer::Refused),
            (
                3,
                "etcdserver: too many operations in txn request",
                Answer::Refused,
            ),
            (
                8,
                "etcdserver: mvcc: database space exceeded",
                Answer::Refused,
            ),
            (
                11,
                "etcdserver: mvcc: required revision has been compacted",
                Answer::Compacted,
            ),
            (
                11,
                "etcdserver: mvcc: required revision is a future revision",
                Answer::Refused,
            ),
        ];
        for (code, message, answer) in cases {
            assert_eq!(Answer::of(code, message), answer, "{code} {message}");
        }
    }
}
