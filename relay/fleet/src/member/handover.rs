//! Giving shares away: the gate shuts, then the share's key names the next holder, which opens its own.

use std::collections::BTreeMap;

use crate::keys::{Key, SessionNumber, ShareEntry, Value};
use crate::member::claims::BATCH_MAX;
use crate::member::gates::Gates;
use crate::member::plan::Planned;
use crate::member::replica::Replica;
use crate::member::{Member, Outcome, PhaseName, Purpose, Txn, TxnId, created, faulty, modified};

/// Shares on their way to others.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct HandOver {
    /// Shares that stay shut until a write to their keys is committed.
    handing: BTreeMap<String, Handing>,
    /// The standby of each share that this relay holds, and since when.
    standbys: BTreeMap<String, (String, u64)>,
    /// Held shares that the standby would serve better: since when, and how long that is tolerated.
    unfit: BTreeMap<String, (u64, u64)>,
    /// When a share may be given away again.
    retry: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
struct Handing {
    /// Revision of the key that is to change.
    modified: u64,
    /// The transaction that changes it, until its answer: no other answer tells its outcome.
    in_flight: Option<TxnId>,
    /// Whether a transaction had no answer, and may still be committed.
    unsettled: bool,
    retry: u64,
}

impl HandOver {
    /// Whether a share is being given away, or may be.
    pub(super) fn is_handing(&self, share: &str) -> bool {
        self.handing.contains_key(share)
    }

    /// Whether another may hold a share by now.
    pub(super) fn may_be_given(&self, share: &str) -> bool {
        let handing = self.handing.get(share);
        handing.is_some_and(|handing| handing.in_flight.is_some() || handing.unsettled)
    }

    /// Shares that are being given away, or may be.
    pub(super) fn handing(&self) -> impl Iterator<Item = &String> {
        self.handing.keys()
    }

    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    fn settle_later(&mut self, share: &str, modified: u64) {
        let handing = Handing {
            modified,
            in_flight: None,
            unsettled: true,
            retry: 0,
        };
        self.handing.entry(share.to_owned()).or_insert(handing);
    }

    /// Settles the shares that a former process left shut: it may have been giving them away, or others may
    /// have them. Returns whether there are any.
    pub(super) fn settle_inherited(
        &mut self,
        gates: &Gates,
        replica: &Replica,
        me: &str,
        session: SessionNumber,
        now: u64,
    ) -> bool {
        for (share, entry) in &replica.shares {
            let is_own = entry.value.relay == me && entry.value.session == session;
            if is_own && gates.until(share) <= now {
                self.settle_later(share, entry.modified);
            }
        }
        !self.handing.is_empty()
    }
}

impl Member {
    /// Notes how long each standby has been next, and how long it could have served better.
    pub(super) fn note_standbys(&mut self) {
        let now = self.now;
        let mut standbys = BTreeMap::new();
        let mut unfit = BTreeMap::new();
        let mut deleted = Vec::new();
        let me = self.config.relay.as_str();
        let before = &self.handover;
        let is_mine = |planned: &Planned| planned.holder.as_deref() == Some(me);
        for (share, planned) in self.plan.shares.iter().filter(|(_, it)| is_mine(it)) {
            let Some(modified) = self.holds(share) else {
                continue;
            };
            if modified == 0 {
                deleted.push(share.clone());
            }
            if let Some(next) = &planned.standby {
                let since = match before.standbys.get(share) {
                    Some((name, since)) if **name == **next => *since,
                    _ => now,
                };
                standbys.insert(share.clone(), (next.to_string(), since));
            }
            if let Some(patience) = self.patience(share, planned) {
                let since = before.unfit.get(share).map_or(now, |(since, _)| *since);
                unfit.insert(share.clone(), (since, patience));
            }
        }
        self.handover.standbys = standbys;
        self.handover.unfit = unfit;
        // Somebody has deleted these keys: they are written again before the shares open again.
        deleted
            .iter()
            .for_each(|share| self.handover.settle_later(share, 0));
    }

    /// Whether there are shares to give away before this relay leaves.
    pub(super) fn holds_any(&self) -> bool {
        !self.handover.handing.is_empty() || !self.handover.standbys.is_empty()
    }

    pub(super) fn hand_over(&mut self) {
        self.drop_settled();
        let is_joined = self.session.phase == PhaseName::Joined && !self.session.rests(self.waited);
        if !is_joined || self.now >= self.beat.until {
            return;
        }
        self.choose_handed();
        let mut by_target: BTreeMap<Option<String>, Vec<String>> = BTreeMap::new();
        for (share, handing) in &self.handover.handing {
            let is_due = handing.in_flight.is_none() && self.now >= handing.retry;
            if is_due && self.is_read(share) {
                let target = self.target(share).map(str::to_owned);
                by_target.entry(target).or_default().push(share.clone());
            }
        }
        for (target, shares) in by_target {
            for batch in shares.chunks(BATCH_MAX) {
                self.send_hand_over(target.as_deref(), batch);
            }
        }
    }

    /// Removes what a committed write has settled.
    fn drop_settled(&mut self) {
        let mut handing = std::mem::take(&mut self.handover.handing);
        handing.retain(|share, handing| {
            let held = self.holds(share);
            held == Some(handing.modified) || held.is_some() && !self.is_read(share)
        });
        self.handover.handing = handing;
    }

    fn choose_handed(&mut self) {
        if !self.may_give_away() {
            return;
        }
        let retry = |share: &String| self.handover.retry.get(share).copied().unwrap_or(0);
        let held = self.handover.standbys.keys();
        let room = BATCH_MAX.saturating_sub(self.handover.handing.len());
        let chosen: Vec<(String, u64)> = held
            .filter(|share| !self.handover.is_handing(share) && self.now >= retry(share))
            .filter(|share| self.target(share).is_some())
            .filter_map(|share| Some((share.clone(), self.holds(share)?)))
            .take(room)
            .collect();
        self.status_version += chosen.len() as u64;
        for (share, modified) in chosen {
            let handing = Handing {
                modified,
                in_flight: None,
                unsettled: false,
                retry: 0,
            };
            self.handover.handing.insert(share, handing);
        }
    }

    /// Whether there may be a cause to give any share away: cheap to check, and mostly there is none.
    fn may_give_away(&self) -> bool {
        self.gives_all() || !self.replica.moves.is_empty() || !self.handover.unfit.is_empty()
    }

    fn gives_all(&self) -> bool {
        self.session.leaving || self.replica.is_drained(&self.config.relay)
    }

    /// The relay that a share is to be given to, if there is a cause. The standby must have had the time to
    /// get ready, and be beating.
    fn target(&self, share: &str) -> Option<&str> {
        let (next, since) = self.handover.standbys.get(share)?;
        let is_ready = self.now >= since + self.config.hold_ns / 4 && self.fencing.beats(next);
        (is_ready && self.is_to_go(share, next)).then_some(next)
    }

    fn is_to_go(&self, share: &str, next: &str) -> bool {
        let held = self.replica.shares.get(share).map(|entry| entry.modified);
        let wish = self.replica.moved_to(share);
        let is_moved = |held| wish.is_some_and(|w| w.modified > held && w.value.relay == next);
        let is_overdue = |(since, patience): &(u64, u64)| self.now >= since + patience;
        let unfit = self.handover.unfit.get(share);
        self.gives_all() || held.is_some_and(is_moved) || unfit.is_some_and(is_overdue)
    }

    /// Relays that shares are to be given to.
    pub(super) fn targets(&self) -> impl Iterator<Item = &String> {
        let standbys = self.handover.standbys.iter();
        standbys
            .filter(|_| self.may_give_away())
            .filter(|(share, (next, _))| self.is_to_go(share, next))
            .map(|(_, (next, _))| next)
    }

    /// Writes the new holder of `shares`: `target`, or this relay again, which settles transactions
    /// without an answer.
    fn send_hand_over(&mut self, target: Option<&str>, shares: &[String]) {
        let relay = target.unwrap_or(&self.config.relay).to_owned();
        let session = match target {
            None => Some(self.session.number),
            Some(relay) => self.replica.relay(relay).map(|entry| entry.session),
        };
        let Some(session) = session else {
            return;
        };
        let mut compares = vec![self.session_lives()];
        if target.is_some() {
            compares.push(created(self.beat_key(&relay), session));
        }
        let mut txn = Txn {
            compares,
            ..Txn::default()
        };
        let why = match target {
            None => "settled".to_owned(),
            Some(_) => format!("{} gave it away", self.config.relay),
        };
        let entry = ShareEntry {
            relay,
            session,
            at: self.calendar(),
            why,
        };
        for share in shares {
            let Some(handing) = self.handover.handing.get(share) else {
                continue;
            };
            let at = handing.modified;
            let key = self.key(Key::Share(share.clone()));
            txn.compares.push(modified(key.clone(), at));
            txn.puts.push((key.clone(), entry.write()));
            txn.reads.push(key);
        }
        let given = shares
            .iter()
            .map(|share| (share.clone(), entry.clone()))
            .collect();
        let purpose = Purpose::HandOver { shares: given };
        let id = self.send(txn, purpose, self.config.hold_ns);
        for share in shares {
            if let Some(handing) = self.handover.handing.get_mut(share) {
                handing.in_flight = Some(id);
            }
        }
    }

    pub(super) fn hand_over_answered(
        &mut self,
        id: TxnId,
        shares: Vec<(String, ShareEntry)>,
        outcome: Outcome,
    ) {
        let (is_refused, keys) = match outcome {
            Outcome::Applied { revision } => {
                for (share, entry) in shares {
                    self.learn_own(Key::Share(share), entry.write(), revision);
                }
                return;
            }
            Outcome::Refused { found, .. } => (true, found),
            Outcome::Unknown => (faulty!(self, UnknownIsRefused), Vec::new()),
            Outcome::NotSent => (true, Vec::new()),
        };
        let retry = self.now + self.config.hold_ns / 6;
        for (share, _) in shares {
            let handing = self.handover.handing.get_mut(&share);
            let Some(handing) = handing.filter(|handing| handing.in_flight == Some(id)) else {
                continue;
            };
            handing.in_flight = None;
            handing.unsettled |= !is_refused;
            handing.retry = retry;
            if !handing.unsettled {
                self.handover.handing.remove(&share);
                self.handover
                    .retry
                    .insert(share, retry + self.config.hold_ns / 6);
            }
        }
        // Only now, as `learn` depends on what may be given away.
        keys.iter().for_each(|kv| self.learn(kv, false));
    }
}
