//! A relay of a fleet at work: a thread of its own, with its member, its connections to etcd and a
//! socket that the other relays reach it by.

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
use operator::Order;

/// What a relay is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the configuration says.
    pub settings: FleetSettings,
    /// The relay's name, which is the host's where the configuration gives none.
    pub relay: String,
    /// The version of MCR that the others are sent.
    pub version: String,
    /// What rules are permitted.
    pub permitted: Policy,
    /// Where the session is kept for the next process of this boot.
    pub run: PathBuf,
    /// Where rules are kept for a start without etcd.
    pub cache: PathBuf,
    /// The gates of shares as they stand, in nanoseconds of `CLOCK_BOOTTIME`, where a process before this
    /// one left some.
    pub gates: BTreeMap<String, u64>,
}

/// What a relay knows of its fleet, and what it does itself.
#[derive(Clone, Debug)]
pub struct Status {
    /// The fleet as the deciding part sees it.
    pub member: member::Status,
    /// etcd as this relay sees it.
    pub etcd: FleetEtcd,
    /// Why the rules that etcd speaks of are not the ones in use, if they cannot be.
    pub unused_rules: Option<String>,
    /// The rules of each share, by name.
    pub rules: Arc<BTreeMap<String, Vec<String>>>,
    /// How many shares this relay took over from one that was silent or fenced.
    pub takeovers: u64,
    /// What the relays counted, by relay and share; only where that was asked for.
    pub counters: BTreeMap<String, BTreeMap<String, FleetCounters>>,
}

/// A relay of a fleet at work; clones are the same one. When the last is dropped it ends as if its process
/// had died: what it holds goes to others after the hold. [`Relay::leave`] hands it over before.
#[derive(Clone, Debug)]
pub struct Relay {
    orders: mpsc::UnboundedSender<Order>,
    published: watch::Receiver<Arc<Status>>,
    hold: Duration,
    /// Who asks.
    by: Option<String>,
}

impl Relay {
    /// Starts the relay; that etcd is away, or its names have no address yet, is no error.
    ///
    /// # Errors
    ///
    /// What is wrong with the settings, with files that they name or with the peers' address.
    pub fn start(config: Config, host: Arc<dyn Host>) -> Result<Self, Error> {
        starting::start(config, host)
    }

    /// What the relay knows, in the API's words; at once.
    #[must_use]
    pub fn report(&self) -> FleetStatus {
        report::status(&self.status(), self.hold)
    }

    /// The same with what all relays counted as they last told.
    pub async fn full_report(&self) -> FleetStatus {
        report::status(&self.full_status().await, self.hold)
    }

    /// What the relay knows; at once.
    #[must_use]
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.published.borrow())
    }

    /// What the relay knows, and what all relays counted as they last told.
    pub async fn full_status(&self) -> Status {
        let (reply, answer) = oneshot::channel();
        let _ = self.orders.send(Order::Counters(reply));
        match answer.await {
            Ok(status) => status,
            Err(_) => Status::clone(&self.status()),
        }
    }

    /// The rules as they are stored.
    ///
    /// # Errors
    ///
    /// Where etcd does not answer.
    pub async fn rules(&self) -> Result<FleetRules, Error> {
        self.ask(Order::Rules).await
    }

    /// The same for somebody, of whom the relays are told.
    #[must_use]
    pub fn by(&self, by: String) -> Self {
        Self {
            by: Some(by),
            ..self.clone()
        }
    }

    /// Makes these the rules of the fleet, as one step; `expected`: only in the place of that
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
        let order = |reply| Order::Apply {
            by: self.by.clone(),
            rules,
            expected,
            dry_run,
            reply,
        };
        self.ask(order).await
    }

    /// Takes a relay out of service, or back into it.
    ///
    /// # Errors
    ///
    /// Where there is no such relay, or etcd does not answer.
    pub async fn drain(&self, relay: String, drained: bool) -> Result<(), Error> {
        self.ask(|reply| Order::Drain(relay, drained, reply)).await
    }

    /// Has a relay forward these rules or shares; hands back which shares.
    ///
    /// # Errors
    ///
    /// Where one of them is not there, or etcd does not answer.
    pub async fn move_to(&self, names: Vec<String>, relay: String) -> Result<Vec<String>, Error> {
        self.ask(|reply| Order::Move(names, relay, reply)).await
    }

    /// Has every share go to the relay that placement gives it; hands back which go.
    ///
    /// # Errors
    ///
    /// Where etcd does not answer.
    pub async fn rebalance(&self) -> Result<Vec<String>, Error> {
        self.ask(Order::Rebalance).await
    }

    /// Ends the session of a relay that is known to be dead.
    ///
    /// # Errors
    ///
    /// Where there is no such relay, or etcd does not answer.
    pub async fn fence(&self, relay: String) -> Result<(), Error> {
        self.ask(|reply| Order::Fence(relay, reply)).await
    }

    /// What the deciding part was given of late, for [`crate::record::replay`]: of so long and a minute
    /// more at most, as far as it is kept. It has no secret in it.
    ///
    /// # Errors
    ///
    /// Where the relay has left.
    pub async fn record(&self, last: Duration) -> Result<Vec<u8>, Error> {
        self.ask(|reply| Order::Record(last, reply)).await
    }

    /// Hands all shares over and leaves; takes no longer than `limit`.
    pub async fn leave(&self, limit: Duration) {
        let (done, left) = oneshot::channel();
        let _ = self.orders.send(Order::Leave(done));
        if timeout(limit, left).await.is_err() {
            tracing::warn!("shares are not handed over in time; others take them after the hold");
        }
    }

    async fn ask<T>(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Order,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let _ = self.orders.send(order(reply));
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(Error::unavailable("the relay has left its fleet")),
        }
    }
}
