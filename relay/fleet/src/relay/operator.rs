//! Requests of operators: each is a write to etcd, which the relays then follow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::reply::{FleetChange, FleetCounters, FleetRelay, FleetRelayState, FleetRules};
use etcd::{Client, Compare, Is, KeyRange, Op, RangeOptions, Txn};
use rules::document::RuleDocument;
use sys::clock::realtime_ms;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::status::listed;
use super::tasks::beside;
use super::{Config, Status};
use crate::error::Error;
use crate::keys::{Beat, Current, Drained, HOLD_MAX_MS, Key, Keys, Move, RelayEntry, Value};
use crate::placement::{Candidate, Loads, order};
use crate::rules::{Rules, Text};
use crate::store::Store;

/// How long one request may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Keys that one transaction writes; etcd takes 128.
const BATCH: usize = 100;

type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// A request to the fleet.
#[derive(Debug)]
pub(super) enum Request {
    Leave(oneshot::Sender<()>),
    /// The inputs of the member in the last `Duration`.
    Record(Duration, Reply<Vec<u8>>),
    Counters(oneshot::Sender<Status>),
    /// The rules; whether those that this relay last had will do.
    Rules(bool, Reply<FleetRules>),
    Apply {
        by: Option<String>,
        rules: Vec<RuleDocument>,
        expected: Option<u64>,
        dry_run: bool,
        reply: Reply<FleetChange>,
    },
    Drain(String, bool, Reply<()>),
    Move(Vec<String>, String, Reply<Vec<String>>),
    Rebalance(Reply<Vec<String>>),
    Fence(String, Reply<()>),
}

/// Carries a request out, with the state at the time of the request.
pub(super) struct Operator {
    pub(super) client: Client,
    pub(super) keys: Keys,
    pub(super) config: Arc<Config>,
    pub(super) rules: Arc<Rules>,
    /// The value of `rules/current` that named these rules.
    pub(super) current: Option<Current>,
    pub(super) status: Arc<Status>,
}

impl Operator {
    /// Carries a request out, whether or not the requester still waits for the reply.
    pub(super) async fn carry_out(self, request: Request) {
        match request {
            // The engine handles these itself.
            Request::Leave(_) | Request::Record(..) => {}
            Request::Counters(reply) => drop(reply.send(self.with_counters().await)),
            Request::Rules(last_known, reply) => drop(reply.send(self.rules(last_known).await)),
            Request::Apply {
                by,
                rules,
                expected,
                dry_run,
                reply,
            } => drop(reply.send(self.apply(by, rules, expected, dry_run).await)),
            Request::Drain(relay, drained, reply) => {
                drop(reply.send(self.drain(&relay, drained).await));
            }
            Request::Move(names, relay, reply) => {
                drop(reply.send(self.move_to(&names, &relay).await));
            }
            Request::Rebalance(reply) => drop(reply.send(self.rebalance().await)),
            Request::Fence(relay, reply) => drop(reply.send(self.fence(&relay).await)),
        }
    }

    pub(super) fn store(&self) -> Store {
        Store::new(self.client.clone(), self.keys.clone())
    }

    /// The status with the last published counters of each relay.
    async fn with_counters(&self) -> Status {
        let mut status = Status::clone(&self.status);
        if !status.member.etcd_reachable {
            return status;
        }
        let range = KeyRange::prefix(format!("{}counters/", self.keys.prefix()));
        let options = RangeOptions::default();
        let read = self.client.range(range, options, PATIENCE / 5);
        let (read, ()) = futures::join!(read, self.ask_etcd(&mut status));
        for entry in read.map(|read| read.keys).unwrap_or_default() {
            let key = String::from_utf8_lossy(&entry.key).into_owned();
            let Ok(Key::Counters(relay)) = self.keys.parse(&key) else {
                continue;
            };
            let counters: Result<BTreeMap<String, FleetCounters>, _> =
                serde_json::from_slice(&entry.value);
            if let Ok(counters) = counters {
                status.counters.insert(relay, counters);
            }
        }
        status
    }

    /// Fills in etcd's own status, from the first of its members that answers.
    async fn ask_etcd(&self, status: &mut Status) {
        for endpoint in self.client.endpoints() {
            if let Ok(member) = self.client.status(endpoint, PATIENCE / 10).await {
                status.etcd.endpoint = Some(endpoint.to_string());
                status.etcd.version = Some(member.version);
                status.etcd.db_bytes = Some(member.db_bytes);
                return;
            }
        }
    }

    async fn rules(&self, last_known: bool) -> Result<FleetRules, Error> {
        let is_away = !self.status.member.etcd_reachable;
        if last_known && is_away {
            return Ok(self.known(Some(self.status.etcd_problem())));
        }
        match self.stored().await {
            Err(Error::Unavailable(why)) if last_known => {
                let problem = format!("etcd: {why}; the rules are those that this relay last had");
                Ok(self.known(Some(problem)))
            }
            stored => stored,
        }
    }

    /// The rules that are in force here.
    fn known(&self, problem: Option<String>) -> FleetRules {
        FleetRules {
            generation: self.rules.generation,
            rules: self.rules.documents.clone(),
            problem,
        }
    }

    async fn stored(&self) -> Result<FleetRules, Error> {
        let Some(current) = self.store().current().await?.current else {
            // The key is invalid or was deleted.
            return Ok(self.known(None));
        };
        Ok(FleetRules {
            generation: current.generation,
            rules: self.documents(&current).await?,
            problem: None,
        })
    }

    pub(super) async fn documents(&self, current: &Current) -> Result<Vec<RuleDocument>, Error> {
        if self.current.as_ref() == Some(current) {
            return Ok(self.rules.documents.clone());
        }
        let (text, hash) = (self.store().text(current).await?, current.hash.clone());
        let read =
            move || Text::read(&text, &hash).map_err(|error| Error::invalid(error.to_string()));
        beside(read).await
    }

    /// Live relays that have these roles.
    pub(super) fn able<'a>(&'a self, roles: &'a BTreeSet<String>) -> impl Iterator<Item = &'a str> {
        let has = |relay: &FleetRelay| roles.iter().all(|role| relay.roles.contains(role));
        let relays = self.status.member.relays.iter();
        relays
            .filter(move |(_, relay)| is_alive(&relay.reported) && has(&relay.reported))
            .map(|(name, _)| name.as_str())
    }

    fn require_relay(&self, relay: &str) -> Result<(), Error> {
        if self.status.member.relays.contains_key(relay) {
            return Ok(());
        }
        let names = listed(self.status.member.relays.keys().cloned());
        Err(Error::not_found(format!(
            "no relay of the fleet is called {relay:?}; there are: {names}"
        )))
    }

    async fn drain(&self, relay: &str, drained: bool) -> Result<(), Error> {
        self.require_relay(relay)?;
        let key = self.keys.text(&Key::Drained(relay.to_owned()));
        if drained {
            let value = Drained { at: realtime_ms() }.write();
            self.client.put(key, value, PATIENCE).await?;
        } else {
            self.client.delete(KeyRange::key(key), PATIENCE).await?;
        }
        Ok(())
    }

    async fn move_to(&self, names: &[String], relay: &str) -> Result<Vec<String>, Error> {
        self.require_relay(relay)?;
        let all = self.rules.shares();
        let mut moved = BTreeSet::new();
        for name in names {
            let share = self.rules.share_of(name).ok_or_else(|| {
                Error::not_found(format!("the fleet has no rule and no share {name:?}"))
            })?;
            let roles = &all[share];
            if !self.able(roles).any(|able| able == relay) {
                return Err(Error::invalid(format!(
                    "relay {relay:?} cannot serve {share:?}: it is away, or has not all of its \
                     interfaces ({})",
                    listed(roles.iter().cloned())
                )));
            }
            moved.insert(share.to_owned());
        }
        let moves = moved.iter().map(|share| (share.as_str(), relay));
        self.put_moves(moves).await?;
        Ok(moved.into_iter().collect())
    }

    async fn put_moves(&self, moves: impl Iterator<Item = (&str, &str)>) -> Result<(), Error> {
        let put = |(share, relay): (&str, &str)| {
            let key = self.keys.text(&Key::Move(share.to_owned()));
            let entry = Move {
                relay: relay.to_owned(),
                at: realtime_ms(),
            };
            Op::put(key, entry.write())
        };
        let puts: Vec<Op> = moves.map(put).collect();
        for batch in puts.chunks(BATCH) {
            let txn = batch.iter().cloned().fold(Txn::new(), Txn::then);
            self.client.txn(txn, PATIENCE).await?;
        }
        Ok(())
    }

    /// Moves each share that is not where placement would put all of them now.
    async fn rebalance(&self) -> Result<Vec<String>, Error> {
        let shares = self.rules.shares();
        let relays = self.status.member.relays.values();
        let takers: Vec<_> = relays
            .map(|relay| &relay.reported)
            .filter(|relay| is_alive(relay) && relay.state != FleetRelayState::Drained)
            .map(|relay| Candidate {
                name: &relay.name,
                weight: relay.weight,
            })
            .collect();
        let mut loads = Loads::new(takers.iter().map(|taker| taker.weight), shares.len());
        let mut moves = Vec::new();
        for (share, roles) in shares {
            let able: BTreeSet<&str> = self.able(roles).collect();
            let preferred = order(share, &takers).into_iter();
            let able_takers = preferred.filter(|index| able.contains(takers[*index].name));
            let status = self.status.member.shares.get(share);
            let holder = status.and_then(|share| share.relay.as_deref());
            match loads.take(able_takers).map(|taker| takers[taker].name) {
                Some(to) if Some(to) != holder => moves.push((share.as_str(), to)),
                _ => {}
            }
        }
        self.put_moves(moves.iter().copied()).await?;
        Ok(moves
            .into_iter()
            .map(|(share, _)| share.to_owned())
            .collect())
    }

    /// Ends the session of a relay that an operator knows to be dead.
    async fn fence(&self, relay: &str) -> Result<(), Error> {
        self.require_relay(relay)?;
        let entry = self.keys.text(&Key::Relay(relay.to_owned()));
        let range = KeyRange::key(entry.as_str());
        let options = RangeOptions::default();
        let read = self.client.range(range, options, PATIENCE).await?;
        let found = read.keys.first();
        // If the entry is invalid or was deleted, the session is known from the shares that it holds.
        let session = self.status.member.relays[relay].session;
        let mut value = found
            .and_then(|kv| RelayEntry::read(&entry, &kv.value).ok())
            .unwrap_or_else(|| RelayEntry::unknown(session, 0));
        value.fenced = true;
        value.since = realtime_ms();
        let (beat, seen) = self.silence(relay).await?;
        let txn = Txn::new()
            .when(Compare::mod_revision(beat.as_str(), Is::Equal, seen))
            .when(Compare::mod_revision(
                entry.as_str(),
                Is::Equal,
                found.map_or(0, |kv| kv.mod_revision),
            ))
            .then(Op::delete(KeyRange::key(beat)))
            .then(Op::put(entry, value.write()));
        if self.client.txn(txn, PATIENCE).await?.succeeded {
            Ok(())
        } else {
            Err(Error::conflict(format!(
                "relay {relay:?} has just told something of itself, so it is alive; drain it"
            )))
        }
    }

    /// A relay's beat key and its revision, after a wait in which the relay's gates shut if it is silent,
    /// unless others promise on or its policy is `hold`.
    async fn silence(&self, relay: &str) -> Result<(String, i64), Error> {
        let key = self.keys.text(&Key::Beat(relay.to_owned()));
        let range = KeyRange::key(key.as_str());
        let read = self.client.range(range, RangeOptions::default(), PATIENCE);
        let found = read.await?.keys.pop();
        let beat = found
            .as_ref()
            .and_then(|kv| Beat::read(&key, &kv.value).ok());
        // An invalid beat may come from a newer version, and a relay whose key was deleted may not have
        // noticed yet.
        let hold = beat.map_or(HOLD_MAX_MS, |beat| beat.hold_ms);
        sleep(Duration::from_millis(hold)).await;
        Ok((key, found.map_or(0, |kv| kv.mod_revision)))
    }
}

fn is_alive(relay: &FleetRelay) -> bool {
    relay.state > FleetRelayState::Silent
}
