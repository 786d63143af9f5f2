//! Taking shares that nobody holds.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::{Key, ShareEntry, Value};
use crate::member::{
    Compare, Member, Outcome, PhaseName, Purpose, Txn, created, faulty, modified, not_created,
};

/// Most shares in one transaction: etcd takes 128 comparisons, and each share is two.
pub(super) const BATCH_MAX: usize = 50;
/// How much later than its predecessor each relay in a share's order may claim it, in ns.
const RANK_DELAY: u64 = 100_000_000;
/// The same for a share that nobody ever held, in holds: the predecessor may be slow to read new rules.
const FIRST_DELAY_HOLDS: u64 = 4;
/// Most transactions under way at once.
const IN_FLIGHT_MAX: usize = 4;

/// The shares that may be claimed, and the claims under way.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Claims {
    /// Since when this relay has seen that nobody holds a share, and its rank for it.
    vacant: BTreeMap<String, (u64, Option<u64>)>,
    /// Shares that are being claimed, or are not to be claimed before a time.
    busy: BTreeMap<String, u64>,
    in_flight: usize,
    batch: usize,
    /// Shares held by others whose keys somebody has deleted: a relay that starts now would not know the
    /// holder.
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
        let me = self.config.relay.as_str();
        let (mut vacant, mut deleted) = (BTreeMap::new(), BTreeSet::new());
        for (share, planned) in &self.plan.shares {
            let Some(holder) = planned.holder.as_deref() else {
                let before = self.claims.vacant.get(share);
                let since = before.map_or(self.now, |(since, _)| *since);
                vacant.insert(share.clone(), (since, planned.rank));
                continue;
            };
            let entry = self.replica.shares.get(share);
            if holder != me && entry.is_some_and(|entry| !entry.is_present()) {
                deleted.insert(share.clone());
            }
        }
        let spoilt: BTreeSet<String> = self.spoilt_shares().collect();
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

    /// Claims the shares that it is this relay's turn to take.
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
            let unclear = self.replica.unclear.get(share);
            let is_over = |at: &u64| self.replica.may_hold(share, *at).next().is_none();
            // The plan may be older than the replica.
            let entry = self.replica.shares.get(share);
            let is_due = self.now >= since + rank * delay
                && self.now >= busy
                && unclear.is_none_or(is_over)
                && entry.and_then(|entry| self.holder(&entry.value)).is_none()
                && (entry.is_some() || self.waited >= self.session.unheld_from)
                && !self.rules.failed.contains_key(share)
                && self.is_read(share);
            is_due.then(|| share.clone())
        };
        let due_shares = self.claims.vacant.iter().filter_map(due);
        let busy = &self.claims.busy;
        let is_free = |share: &String| busy.get(share).is_none_or(|at| self.now >= *at);
        let deleted = self.claims.deleted.iter().filter(|share| {
            let entry = self.replica.shares.get(*share);
            let is_held = entry.is_some_and(|entry| self.holder(&entry.value).is_some());
            is_held && entry.is_some_and(|entry| !entry.is_present()) && self.is_read(share)
        });
        let to_rewrite = self.spoilt_shares().chain(deleted.cloned()).filter(is_free);
        // An unclear share takes a comparison for each relay.
        let is_clear = self.replica.unclear.is_empty();
        let most = if is_clear { self.claims.batch } else { 1 };
        to_rewrite.chain(due_shares).take(most).collect()
    }

    /// Whether the replica has the last value of a share's key, or nobody has a later one: a relay that
    /// does has had the time to write it again.
    pub(super) fn is_read(&self, share: &str) -> bool {
        let unlisted = self.replica.unlisted.get(share);
        unlisted.is_none_or(|at| self.waited >= at + self.required_wait(self.config.hold_ns))
    }

    /// From when on the first in a share's order may take it, and how long each after it waits. A share
    /// that nobody ever held is not urgent, and relays that start together must see each other first: a
    /// relay that sees no other takes everything.
    fn turn(&self, share: &str, vacant: u64) -> (u64, u64) {
        let hold = self.config.hold_ns;
        if self.replica.shares.contains_key(share) {
            (vacant, RANK_DELAY)
        } else if self.claims.held_before.contains(share) {
            (vacant, 0)
        } else {
            let since = vacant.max(self.session.since + hold);
            (since, FIRST_DELAY_HOLDS * hold)
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
        let entry = self.replica.shares.get(share);
        let key = self.key(Key::Share(share.to_owned()));
        let unclear = self.replica.unclear.get(share).copied();
        let at = unclear.unwrap_or(entry.map_or(0, |entry| entry.modified));
        txn.compares.push(modified(key.clone(), at));
        if unclear.is_some() {
            self.compare_sessions(txn);
        }
        if let Some(held) = entry.filter(|entry| self.holder(&entry.value).is_some()) {
            // The share has a holder: its key is invalid or deleted, and written again.
            txn.puts.push((key.clone(), held.value.write()));
            txn.reads.push(key);
            return held.value.clone();
        }
        let why = entry.map_or("nobody held it".to_owned(), |entry| {
            let old = &entry.value;
            let ended = not_created(self.beat_key(&old.relay), old.session);
            let is_compared = |compare: &Compare| *compare == ended;
            if !txn.compares.iter().any(is_compared) && !faulty!(self, ClaimUnfenced) {
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

    /// Adds the condition that no session is live but those in the replica.
    fn compare_sessions(&self, txn: &mut Txn) {
        let relays = self.replica.relays.keys().map(String::as_str);
        for relay in relays.chain(self.replica.unread_relays()) {
            let live = self.replica.relay(relay).filter(|entry| !entry.fenced);
            let session = live.map_or(0, |entry| entry.session);
            let condition = created(self.beat_key(relay), session);
            if relay != self.config.relay && !txn.compares.contains(&condition) {
                txn.compares.push(condition);
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
