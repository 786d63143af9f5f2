//! A running relay of a fleet: a thread of its own, with its member, its connections to etcd and a
//! socket for the other relays.

mod applying;
mod engine;
mod installer;
mod operator;
mod outage;
mod own_address;
mod peering;
mod received;
mod report;
mod retained;
mod rules_reader;
mod starting;
mod status;
mod tasks;
mod transactions;
mod watching;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::reply::{FleetChange, FleetCounters, FleetEtcd, FleetRules, FleetStatus};
use config::FleetSettings;
use rules::document::RuleDocument;
use rules::ruleset::Policy;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::error::Error;
use crate::host::Host;
use crate::member;
use operator::Request;

/// The parameters of a relay.
#[derive(Clone, Debug)]
pub struct Config {
    /// The section `[fleet]` of the configuration.
    pub settings: FleetSettings,
    /// The relay's name, by default that of the host.
    pub relay: String,
    /// The version of MCR, which is published to the others.
    pub version: String,
    /// What rules are permitted.
    pub permitted: Policy,
    /// Where the session is saved for the next process of this boot.
    pub run: PathBuf,
    /// Where rules are saved for a start without etcd.
    pub cache: PathBuf,
    /// The gates that a former process left open, in nanoseconds of `CLOCK_BOOTTIME`, by share.
    pub gates: BTreeMap<String, u64>,
}

/// A relay's view of its fleet, and its own state.
#[derive(Clone, Debug)]
pub struct Status {
    /// The fleet as the member sees it.
    pub member: member::Status,
    /// etcd as this relay sees it.
    pub etcd: FleetEtcd,
    /// Why the rules that etcd names are not in use, if they cannot be.
    pub unused_rules: Option<String>,
    /// The names of each share's rules.
    pub rules: Arc<BTreeMap<String, Vec<String>>>,
    /// How many shares this relay took over from one that was silent or fenced.
    pub takeovers: u64,
    /// The counters of all relays, by relay and share; only if they were requested.
    pub counters: BTreeMap<String, BTreeMap<String, FleetCounters>>,
}

/// Tries the files that settings name.
///
/// # Errors
///
/// Which cannot be used, and why.
pub fn try_files(settings: &FleetSettings) -> Result<(), Error> {
    starting::client(settings).map(drop)
}

/// Tries all that [`Relay::start`] needs of the settings, without a relay of them in this process.
///
/// # Errors
///
/// What [`Relay::start`] would refuse.
pub fn try_start(settings: &FleetSettings) -> Result<(), Error> {
    let client = starting::client(settings)?;
    own_address::configured(settings, client.endpoints()).map(drop)
}

/// A running relay of a fleet; clones share it. When the last is dropped it ends as if its process had
/// died: its shares go to others after the hold. [`Relay::leave`] hands them over before.
#[derive(Clone, Debug)]
pub struct Relay {
    requests: mpsc::UnboundedSender<Request>,
    published: watch::Receiver<Arc<Status>>,
    hold: Duration,
    /// Who makes requests.
    by: Option<String>,
}

impl Relay {
    /// Starts the relay; it is no error if etcd does not answer, or its names do not resolve yet.
    ///
    /// # Errors
    ///
    /// What is wrong with the settings, with files that they name or with the address for peers.
    pub fn start(config: Config, host: Arc<dyn Host>) -> Result<Self, Error> {
        starting::start(config, host)
    }

    /// The last published status as in the API, without waiting.
    #[must_use]
    pub fn report(&self) -> FleetStatus {
        report::status(&self.status(), self.hold)
    }

    /// The same with the last published counters of all relays.
    pub async fn full_report(&self) -> FleetStatus {
        report::status(&self.full_status().await, self.hold)
    }

    /// The last published status, without waiting.
    #[must_use]
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.published.borrow())
    }

    /// The status with the last published counters of all relays.
    pub async fn full_status(&self) -> Status {
        let (reply, receiver) = oneshot::channel();
        let _ = self.requests.send(Request::Counters(reply));
        match receiver.await {
            Ok(status) => status,
            Err(_) => Status::clone(&self.status()),
        }
    }

    /// The rules as they are stored; with `last_known`, while etcd does not answer, those that this relay last
    /// had.
    ///
    /// # Errors
    ///
    /// If etcd does not answer.
    pub async fn rules(&self, last_known: bool) -> Result<FleetRules, Error> {
        self.ask(|reply| Request::Rules(last_known, reply)).await
    }

    /// The same relay, for requests in the name of `by`, which all relays see.
    #[must_use]
    pub fn by(&self, by: String) -> Self {
        Self {
            by: Some(by),
            ..self.clone()
        }
    }

    /// Replaces the rules of the fleet in one step; with `expected`, only if that is the current
    /// generation.
    ///
    /// # Errors
    ///
    /// What is wrong with the rules, or why they could not be stored.
    pub async fn apply(
        &self,
        rules: Vec<RuleDocument>,
        expected: Option<u64>,
        dry_run: bool,
    ) -> Result<FleetChange, Error> {
        let request = |reply| Request::Apply {
            by: self.by.clone(),
            rules,
            expected,
            dry_run,
            reply,
        };
        self.ask(request).await
    }

    /// Takes a relay out of service, or back into it.
    ///
    /// # Errors
    ///
    /// If there is no such relay, or etcd does not answer.
    pub async fn drain(&self, relay: String, drained: bool) -> Result<(), Error> {
        let request = |reply| Request::Drain(relay, drained, reply);
        self.ask(request).await
    }

    /// Has a relay forward these rules or shares; returns the shares.
    ///
    /// # Errors
    ///
    /// If one of them does not exist, or etcd does not answer.
    pub async fn move_to(&self, names: Vec<String>, relay: String) -> Result<Vec<String>, Error> {
        self.ask(|reply| Request::Move(names, relay, reply)).await
    }

    /// Moves every share to the relay that placement gives it; returns the shares that move.
    ///
    /// # Errors
    ///
    /// If etcd does not answer.
    pub async fn rebalance(&self) -> Result<Vec<String>, Error> {
        self.ask(Request::Rebalance).await
    }

    /// Ends the session of a relay that is known to be dead.
    ///
    /// # Errors
    ///
    /// If there is no such relay, or etcd does not answer.
    pub async fn fence(&self, relay: String) -> Result<(), Error> {
        self.ask(|reply| Request::Fence(relay, reply)).await
    }

    /// The recent inputs of the member, for [`crate::record::replay`]: of that time and at most a minute
    /// more, as far as they are retained. They contain no secret.
    ///
    /// # Errors
    ///
    /// If the relay has left.
    pub async fn record(&self, last: Duration) -> Result<Vec<u8>, Error> {
        self.ask(|reply| Request::Record(last, reply)).await
    }

    /// Hands all shares over and leaves; takes no longer than `limit`.
    pub async fn leave(&self, limit: Duration) {
        let (done, receiver) = oneshot::channel();
        let _ = self.requests.send(Request::Leave(done));
        if timeout(limit, receiver).await.is_err() {
            tracing::warn!("shares are not handed over in time; others take them after the hold");
        }
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Request,
    ) -> Result<T, Error> {
        let (reply, receiver) = oneshot::channel();
        let _ = self.requests.send(request(reply));
        match receiver.await {
            Ok(result) => result,
            Err(_) => Err(Error::unavailable("the relay has left its fleet")),
        }
    }
}
