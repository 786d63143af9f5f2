//! Taking shares that nobody holds.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::{Key, ShareEntry, Value};
use crate::member::plan::Planned;
use crate::member::{
    Compare, Member, Outcome, PhaseName, Purpose, Txn, created, faulty, modified, not_created,
};

/// Most shares in one transaction: etcd takes 128 comparisons, and each share is two.
pub(super) const BATCH_MAX: usize = 50;
/// How long each in a share's line leaves it to the one before, in ns.
const RANK_DELAY: u64 = 100_000_000;
/// The same with a share that nobody ever held, in holds: the one before may be slow to read new rules.
const FIRST_DELAY_HOLDS: u64 = 4;
/// Transactions that may be under way.
const IN_FLIGHT_MAX: usize = 4;

/// Claims.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Claims {
    /// Since when it is known here that nobody holds a share, and this relay's rank for it.
    vacant: BTreeMap<String, (u64, Option<u64>)>,
    /// Shares that are being claimed, or not to be claimed before a time.
    busy: BTreeMap<String, u64>,
    in_flight: usize,
    batch: usize,
    /// Shares that another holds whose keys somebody has deleted: whoever comes now does not know of it.
    deleted: BTreeSet<String>,
    /// Shares that this relay held in an etcd that has lost them: nobody has a better claim.
    held_before: BTreeSet<String>,
}

impl Claims {
    pub(super) fn held_before(&mut self, shares: Vec<String>) {
        self.held_before.extend(shares);
    }
}

impl Default for Claims {
    fn default() -> Self {
        Self {
            vacant: BTreeMap::new(),
            busy: BTreeMap::new(),
            in_flight: 0,
            batch: BATCH_MAX,
            deleted: BTreeSet::new(),
            held_before: BTreeSet::new(),
        }
    }
}

impl Member {
    pub(super) fn note_vacant(&mut self) {
        let now = self.now;
        let vacant = self
            .plan
            .shares
            .iter()
            .filter(|(_, planned)| planned.holder.is_none());
        let vacant: BTreeMap<_, _> = vacant
            .map(|(share, planned)| {
                let known = self.claims.vacant.get(share);
                let since = known.map_or(now, |(since, _)| *since);
                (share.clone(), (since, planned.rank))
            })
            .collect();
        let spoilt: BTreeSet<String> = self.spoilt_shares().collect();
        let me = Some(self.config.relay.as_str());
        let is_deleted = |(share, planned): &(&String, &Planned)| {
            let others = planned
                .holder
                .as_deref()
                .is_some_and(|holder| Some(holder) != me);
            others
                && self
                    .replica
                    .shares
                    .get(*share)
                    .is_some_and(|known| !known.stands())
        };
        let deleted = self.plan.shares.iter().filter(is_deleted);
        let deleted: BTreeSet<String> = deleted.map(|(share, _)| share.clone()).collect();
        let may_claim = |share: &String| {
            vacant.contains_key(share) || spoilt.contains(share) || deleted.contains(share)
        };
        self.claims.busy.retain(|share, _| may_claim(share));
        self.claims
            .held_before
            .retain(|share| vacant.contains_key(share));
        self.claims.vacant = vacant;
        self.claims.deleted = deleted;
    }

    /// Claims what it is this relay's turn to take.
    pub(super) fn claim(&mut self) {
        let joined = self.session.phase == PhaseName::Joined && !self.session.leaving;
        if !joined || self.now >= self.beat.until {
            return;
        }
        while self.claims.in_flight < IN_FLIGHT_MAX {
            let shares = self.due_claims();
            if shares.is_empty() {
                return;
            }
            self.send_claim(shares);
        }
    }

    fn due_claims(&self) -> Vec<String> {
        let due = |(share, (since, rank)): (&String, &(u64, Option<u64>))| {
            let rank = (*rank)?;
            let busy = self.claims.busy.get(share).copied().unwrap_or(0);
            let (since, delay) = self.turn(share, *since);
            let due = self.now >= since + rank * delay && self.now >= busy;
            let unclear = self.replica.unclear.get(share);
            let is_over = |at: &u64| self.replica.may_hold(share, *at).next().is_none();
            let due = due && unclear.is_none_or(is_over);
            // The plan may be older than what is known now.
            let known = self.replica.shares.get(share);
            let due = due && known.and_then(|known| self.holder(&known.value)).is_none();
            let due = due && (known.is_some() || self.waited >= self.session.unheld_from);
            let due = due && !self.rules.failed.contains_key(share) && self.is_read(share);
            due.then(|| share.clone())
        };
        let due = self.claims.vacant.iter().filter_map(due);
        let busy = &self.claims.busy;
        let is_free = |share: &String| busy.get(share).is_none_or(|at| self.now >= *at);
        let deleted = self.claims.deleted.iter().filter(|share| {
            let known = self.replica.shares.get(*share);
            let is_held = known.is_some_and(|known| self.holder(&known.value).is_some());
            is_held && known.is_some_and(|known| !known.stands()) && self.is_read(share)
        });
        let spoilt = self.spoilt_shares().chain(deleted.cloned());
        let spoilt = spoilt.filter(is_free);
        // One that is unclear takes a comparison for each relay.
        let clear = self.replica.unclear.is_empty();
        let most = if clear { self.claims.batch } else { 1 };
        spoilt.chain(due).take(most).collect()
    }

    /// Whether what is known of a share is the last that its key said, or nobody knows better: who does has
    /// had the time to write it anew.
    pub(super) fn is_read(&self, share: &str) -> bool {
        let unlisted = self.replica.unlisted.get(share);
        unlisted.is_none_or(|at| self.waited >= at + self.surely(self.config.hold_ns))
    }

    /// From when on the first in a share's line may take it, and how long each after it waits. There is no
    /// hurry with one that nobody ever held, and relays that start at the same time are to know of each
    /// other first: who comes alone takes all.
    fn turn(&self, share: &str, vacant: u64) -> (u64, u64) {
        let hold = self.config.hold_ns;
        match self.replica.shares.contains_key(share) {
            true => (vacant, RANK_DELAY),
            false if self.claims.held_before.contains(share) => (vacant, 0),
            false => (
                vacant.max(self.session.since + hold),
                FIRST_DELAY_HOLDS * hold,
            ),
        }
    }

    fn send_claim(&mut self, shares: Vec<String>) {
        let mut txn = Txn {
            compares: vec![self.session_lives()],
            ..Txn::default()
        };
        let mut entries = Vec::new();
        for share in shares {
            let entry = self.claim_one(&share, &mut txn);
            self.claims.busy.insert(share.clone(), u64::MAX);
            entries.push((share, entry));
        }
        self.claims.in_flight += 1;
        self.send(txn, Purpose::Claim { shares: entries }, self.config.hold_ns);
    }

    fn claim_one(&self, share: &str, txn: &mut Txn) -> ShareEntry {
        let known = self.replica.shares.get(share);
        let key = self.key(Key::Share(share.to_owned()));
        let unclear = self.replica.unclear.get(share);
        let at = known.map_or(0, |known| known.modified);
        let at = unclear.copied().unwrap_or(at);
        txn.compares.push(modified(key.clone(), at));
        if unclear.is_some() {
            self.compare_sessions(txn);
        }
        if let Some(known) = known.filter(|known| self.holder(&known.value).is_some()) {
            // It has its holder: what stands there makes no sense, or nothing does.
            txn.puts.push((key.clone(), known.value.write()));
            txn.reads.push(key);
            return known.value.clone();
        }
        let why = known.map_or("nobody held it".to_owned(), |known| {
            let old = &known.value;
            let ended = not_created(self.beat_key(&old.relay), old.session);
            let there = |compare: &Compare| *compare == ended;
            if !txn.compares.iter().any(there) && !faulty!(self, ClaimUnfenced) {
                txn.compares.push(ended);
            }
            format!("{}'s session ended", old.relay)
        });
        let entry = ShareEntry {
            relay: self.config.relay.clone(),
            session: self.session.number,
            at: self.calendar(),
            why,
        };
        txn.puts.push((key.clone(), entry.write()));
        txn.reads.push(key);
        entry
    }

    /// Adds the condition that no other session lives than those that are known.
    fn compare_sessions(&self, txn: &mut Txn) {
        let relays = self.replica.relays.keys().map(String::as_str);
        for relay in relays.chain(self.replica.unread_relays()) {
            let lives = self.replica.relay(relay).filter(|entry| !entry.fenced);
            let session = lives.map_or(0, |entry| entry.session);
            let known = created(self.beat_key(relay), session);
            if relay != self.config.relay && !txn.compares.contains(&known) {
                txn.compares.push(known);
            }
        }
    }

    pub(super) fn claim_answered(&mut self, shares: Vec<(String, ShareEntry)>, outcome: Outcome) {
        self.claims.in_flight -= 1;
        let hold = self.config.hold_ns;
        let again = match &outcome {
            Outcome::Applied { .. } => self.now,
            Outcome::Refused { .. } if shares.len() > 1 => self.now,
            Outcome::Refused { .. } | Outcome::NotSent => self.now + hold / 4,
            Outcome::Unknown => self.now + hold / 6,
        };
        for (share, _) in &shares {
            self.claims.busy.insert(share.clone(), again);
        }
        match outcome {
            Outcome::Applied { revision } => {
                self.claims.batch = (self.claims.batch * 2).min(BATCH_MAX);
                for (share, entry) in shares {
                    self.learn_own(Key::Share(share), entry.write(), revision);
                }
            }
            Outcome::Refused { found, .. } => {
                self.claims.batch = (shares.len() / 2).max(1);
                found.iter().for_each(|kv| self.learn(kv, false));
            }
            Outcome::Unknown | Outcome::NotSent => {}
        }
    }
}
