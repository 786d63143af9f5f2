//! The client: requests, each with a deadline, over the endpoint that answered last.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::{Config, ConfigError, Endpoint};
use crate::connection::{Failure, STATUS};
use crate::error::Error;
use crate::messages::{RangeRequest, RangeResponse, StatusRequest, StatusResponse, TxnResponse};
use crate::operation::{Op, OpReply, Txn, TxnReply};
use crate::pool::{Kind, Pool, TXN};
use crate::range::{KeyRange, RangeOptions, RangeReply};
use crate::tls;
use crate::watch::{self, WATCH, Watch, WatchTarget};

const RANGE: &str = "/etcdserverpb.KV/Range";
/// Keys in a page of [`Client::list`] where the caller does not say.
const PAGE: u32 = 1000;

/// A client of one etcd; clones share their connections.
#[derive(Clone)]
pub struct Client {
    pool: Arc<Pool>,
}

/// The status of a member, as reported by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The version of etcd, as 3.4.23.
    pub version: String,
    /// The cluster's id.
    pub cluster_id: u64,
    /// The member's id.
    pub member_id: u64,
    /// The leader's id; 0: the member knows no leader.
    pub leader_id: u64,
    /// Raft's term.
    pub term: u64,
    /// The newest revision that it has.
    pub revision: i64,
    /// Size of its database on disk, in bytes.
    pub db_bytes: u64,
    /// Whether it does not vote yet.
    pub is_learner: bool,
    /// Alarms and other errors.
    pub errors: Vec<String>,
}

impl Client {
    /// Makes a client; it connects to etcd with its first request.
    ///
    /// # Errors
    /// What is wrong with the configuration, certificates included.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        if config.endpoints.is_empty() {
            return Err(ConfigError::NoEndpoints);
        }
        if let Some(files) = &config.tls {
            tls::load(files)?;
        }
        for endpoint in config.endpoints.iter().filter(|endpoint| endpoint.secure) {
            tls::server_name(endpoint)?;
            if config.tls.is_none() {
                return Err(ConfigError::NoTls(endpoint.clone()));
            }
        }
        let pool = Arc::new(Pool::new(config));
        Ok(Self { pool })
    }

    /// The endpoints, in the order of the configuration.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.pool.config.endpoints
    }

    /// Carries out a transaction within the deadline. It is sent once at most.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it was sent and not answered; otherwise it was not applied.
    pub async fn txn(&self, txn: Txn, deadline: Duration) -> Result<TxnReply, Error> {
        let call = self.pool.call(TXN, &txn.message, Kind::Write, deadline);
        let response: TxnResponse = call.await?;
        Ok(response.into())
    }

    /// Writes a key, whatever its value; returns the new revision.
    ///
    /// # Errors
    /// As [`Client::txn`].
    pub async fn put(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        deadline: Duration,
    ) -> Result<i64, Error> {
        let txn = Txn::new().then(Op::put(key, value));
        Ok(self.txn(txn, deadline).await?.revision)
    }

    /// Deletes the keys of a range; returns how many there were.
    ///
    /// # Errors
    /// As [`Client::txn`].
    pub async fn delete(&self, range: KeyRange, deadline: Duration) -> Result<u64, Error> {
        let txn = Txn::new().then(Op::delete(range));
        match self.txn(txn, deadline).await?.replies.first() {
            Some(OpReply::Deleted(count)) => Ok(*count),
            _ => Ok(0),
        }
    }

    /// Reads a range, as agreed by the whole cluster unless `options` ask for less. It may be asked of
    /// several endpoints, one after the other.
    ///
    /// # Errors
    /// [`Error::Compacted`] if the requested revision has been compacted; never [`Error::Unknown`].
    pub async fn range(
        &self,
        range: KeyRange,
        options: RangeOptions,
        deadline: Duration,
    ) -> Result<RangeReply, Error> {
        let request = RangeRequest {
            key: range.first,
            range_end: range.end,
            limit: options.limit.into(),
            revision: options.revision,
            serializable: options.serializable,
            keys_only: options.keys_only,
        };
        let call = self.pool.call(RANGE, &request, Kind::Read, deadline);
        let response: RangeResponse = call.await?;
        Ok(response.into())
    }

    /// Reads a range in pages of `options.limit` keys (0: 1,000), all as of one revision: that of the
    /// reply, after which a watch may start. The deadline covers all pages.
    ///
    /// # Errors
    /// As [`Client::range`].
    pub async fn list(
        &self,
        mut range: KeyRange,
        mut options: RangeOptions,
        deadline: Duration,
    ) -> Result<RangeReply, Error> {
        let until = Instant::now() + deadline;
        if options.limit == 0 {
            options.limit = PAGE;
        }
        let mut whole = RangeReply::default();
        loop {
            let remaining = until.saturating_duration_since(Instant::now());
            let page = self.range(range.clone(), options, remaining).await?;
            if options.revision == 0 {
                options.revision = page.revision;
            }
            if whole.keys.is_empty() {
                whole.count = page.count;
            }
            let last = page.keys.last().map(|kv| kv.key.clone());
            whole.keys.extend(page.keys);
            let Some(mut next) = last.filter(|key| page.more && *key >= range.first) else {
                whole.revision = options.revision;
                return Ok(whole);
            };
            next.push(0);
            range.first = next;
        }
    }

    /// Opens a watch on these targets, over a stream of its own.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no endpoint accepted it within the deadline, [`Error::Refused`] if the
    /// user's password is not accepted.
    pub async fn watch(
        &self,
        targets: Vec<WatchTarget>,
        deadline: Duration,
    ) -> Result<Watch, Error> {
        let until = Instant::now() + deadline;
        let (index, connection) = self.pool.connection(deadline).await?;
        let open = async {
            let token = self.pool.fresh_token(&connection, until).await?;
            let (requests, request_body) = watch::requests(&targets);
            let stream = connection.stream(WATCH, request_body, token.as_deref(), until);
            Ok::<_, Failure>((requests, stream.await?))
        };
        match open.await {
            Ok(stream) => {
                let pool = Arc::clone(&self.pool);
                Ok(Watch::new(pool, (index, connection), stream, targets))
            }
            Err(failure) => Err(self.pool.read_error(index, failure)),
        }
    }

    /// Reads the status of one member, whether or not it has a leader.
    ///
    /// # Errors
    /// As [`Client::range`].
    pub async fn status(&self, endpoint: &Endpoint, deadline: Duration) -> Result<Status, Error> {
        let Some(index) = self.endpoints().iter().position(|it| it == endpoint) else {
            return Err(Error::Unavailable {
                reason: format!("{endpoint} is none of the client's endpoints"),
            });
        };
        let call = self
            .pool
            .call_at(index, STATUS, &StatusRequest {}, deadline);
        let response: StatusResponse = call.await?;
        Ok(response.into())
    }
}

impl From<StatusResponse> for Status {
    fn from(response: StatusResponse) -> Self {
        let header = response.header.unwrap_or_default();
        Self {
            version: response.version,
            cluster_id: header.cluster_id,
            member_id: header.member_id,
            leader_id: response.leader,
            term: header.raft_term,
            revision: header.revision,
            db_bytes: u64::try_from(response.db_size).unwrap_or(0),
            is_learner: response.is_learner,
            errors: response.errors,
        }
    }
}
