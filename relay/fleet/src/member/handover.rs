//! Giving shares away: the gate shuts, then the share's key names the next, who opens.

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
    /// Shares that stay shut until a committed write to their keys.
    handing: BTreeMap<String, Handing>,
    /// Who is next for what this relay holds, and since when.
    standbys: BTreeMap<String, (String, u64)>,
    /// Since when what is held is served badly while the next would serve it better, and how long it
    /// may be.
    unfit: BTreeMap<String, (u64, u64)>,
    /// Not before this time is a share given away again.
    retry: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
struct Handing {
    /// Revision of the key that is to change.
    modified: u64,
    /// The transaction that changes it, until its answer: none but that says what became of it.
    in_flight: Option<TxnId>,
    /// A transaction had no answer, and may be committed yet.
    unsettled: bool,
    retry: u64,
}

impl HandOver {
    /// Whether a share is on its way, or may be.
    pub(super) fn is_handing(&self, share: &str) -> bool {
        self.handing.contains_key(share)
    }

    /// Whether another may hold a share by now.
    pub(super) fn may_be_given(&self, share: &str) -> bool {
        let handing = self.handing.get(share);
        handing.is_some_and(|handing| handing.in_flight.is_some() || handing.unsettled)
    }

    /// Shares that are on their way, or may be.
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

    /// What a former process left shut it may have been giving away, or others may have it: that is settled
    /// first. Whether there is anything.
    pub(super) fn settle_inherited(
        &mut self,
        gates: &Gates,
        replica: &Replica,
        me: &str,
        session: SessionNumber,
        now: u64,
    ) -> bool {
        for (share, known) in &replica.shares {
            let own = known.value.relay == me && known.value.session == session;
            if own && gates.until(share) <= now {
                self.settle_later(share, known.modified);
            }
        }
        !self.handing.is_empty()
    }
}

impl Member {
    /// Notes how long each that could take over has been next, and could have served better.
    pub(super) fn note_standbys(&mut self) {
        let now = self.now;
        let mut standbys = BTreeMap::new();
        let mut unfit = BTreeMap::new();
        let mut deleted = Vec::new();
        let me = self.config.relay.as_str();
        let mine = |planned: &Planned| planned.holder.as_deref() == Some(me);
        for (share, planned) in self.plan.shares.iter().filter(|(_, planned)| mine(planned)) {
            let Some(modified) = self.holds(share) else {
                continue;
            };
            if modified == 0 {
                deleted.push(share.clone());
            }
            if let Some(next) = &planned.standby {
                let known = self
                    .handover
                    .standbys
                    .get(share)
                    .filter(|(name, _)| **name == **next);
                let since = known.map_or(now, |(_, since)| *since);
                standbys.insert(share.clone(), (next.to_string(), since));
            }
            if let Some(patience) = self.patience(share, planned) {
                let since = self
                    .handover
                    .unfit
                    .get(share)
                    .map_or(now, |(since, _)| *since);
                unfit.insert(share.clone(), (since, patience));
            }
        }
        self.handover.standbys = standbys;
        self.handover.unfit = unfit;
        // Somebody has deleted the key: it is written again before the share opens again.
        deleted
            .iter()
            .for_each(|share| self.handover.settle_later(share, 0));
    }

    /// Whether there is something to give away before this relay goes.
    pub(super) fn holds_any(&self) -> bool {
        !self.handover.handing.is_empty() || !self.handover.standbys.is_empty()
    }

    pub(super) fn hand_over(&mut self) {
        self.drop_settled();
        let joined = self.session.phase == PhaseName::Joined && !self.session.rests(self.waited);
        if !joined || self.now >= self.beat.until {
            return;
        }
        self.choose_handed();
        let now = self.now;
        let due = |handing: &Handing| handing.in_flight.is_none() && now >= handing.retry;
        let mut by_target: BTreeMap<Option<String>, Vec<String>> = BTreeMap::new();
        for (share, _) in self
            .handover
            .handing
            .iter()
            .filter(|(share, handing)| due(handing) && self.is_read(share))
        {
            let target = self.target(share).map(str::to_owned);
            by_target.entry(target).or_default().push(share.clone());
        }
        for (target, shares) in by_target {
            for batch in shares.chunks(BATCH_MAX) {
                self.send_hand_over(target.as_deref(), batch);
            }
        }
    }

    /// Forgets what a committed write has settled.
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
        self.news += chosen.len() as u64;
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

    /// Whether there is a cause to give any share away: what mostly is not, and cheap to see.
    fn may_give_away(&self) -> bool {
        self.gives_all() || !self.replica.moves.is_empty() || !self.handover.unfit.is_empty()
    }

    fn gives_all(&self) -> bool {
        self.session.leaving || self.replica.is_drained(&self.config.relay)
    }

    /// To whom a share is to go, if there is a cause. The next must have had the time to get ready, and
    /// beat.
    fn target(&self, share: &str) -> Option<&str> {
        let (next, since) = self.handover.standbys.get(share)?;
        let ready = self.now >= since + self.config.hold_ns / 4 && self.fencing.beats(next);
        (ready && self.is_to_go(share, next)).then_some(next)
    }

    fn is_to_go(&self, share: &str, next: &str) -> bool {
        let held = self.replica.shares.get(share).map(|known| known.modified);
        let wish = self.replica.moved_to(share);
        let moved = |held| wish.is_some_and(|w| w.modified > held && w.value.relay == next);
        let unfit = self.handover.unfit.get(share);
        let unfit = unfit.is_some_and(|(since, patience)| self.now >= since + patience);
        self.gives_all() || held.is_some_and(moved) || unfit
    }

    /// Those that are to be given something.
    pub(super) fn targets(&self) -> impl Iterator<Item = &String> {
        let next = self
            .handover
            .standbys
            .iter()
            .filter(|_| self.may_give_away());
        let next = next.filter(|(share, (next, _))| self.is_to_go(share, next));
        next.map(|(_, (next, _))| next)
    }

    /// Writes who holds `shares` from now on: `target`, or this relay again, which settles what had
    /// no answer.
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
        let (refused, found) = match outcome {
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
            handing.unsettled |= !refused;
            handing.retry = retry;
            if !handing.unsettled {
                self.handover.handing.remove(&share);
                self.handover
                    .retry
                    .insert(share, retry + self.config.hold_ns / 6);
            }
        }
        // Now it is known what may be given away.
        found.iter().for_each(|kv| self.learn(kv, false));
    }
}
