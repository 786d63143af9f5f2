//! This relay's own beats, and until when they let it forward.
//!
//! Each beat is written on condition that the last confirmed one is still in place. So at most one of
//! those without an answer can ever be committed, and a later success settles them all.

use std::collections::{BTreeSet, VecDeque};

use config::OnIsolation;

use crate::keys::{Beat, BeatMonitor, Key, RelayEntry, Value};
use crate::member::{
    Command, FleetEvent, KeyValue, Member, Outcome, PhaseName, Purpose, Txn, TxnId, faulty,
    modified,
};

/// The data plane must have given a sign of life within this time before a beat, in ns.
const ALIVE_WITHIN: u64 = 500_000_000;
/// Most beats without an answer that are remembered.
const SENT_MAX: usize = 16;

/// The beats of a session.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct OwnBeat {
    /// Revision of the last confirmed beat.
    modified: u64,
    /// The monitors that it lists; `None` if a former process wrote it.
    in_force: Option<Vec<BeatMonitor>>,
    /// The monitors listed by beats whose outcome is unknown.
    unsettled: BTreeSet<Vec<BeatMonitor>>,
    sent: VecDeque<Sent>,
    number: u64,
    /// Beats of this session up to this number can no longer be written. `None`: a former process began
    /// the session.
    settled: Option<u64>,
    next: u64,
    /// Sending time of the newest beat that counts.
    acked: Option<u64>,
    /// Since when acknowledgements have come without a gap.
    acked_since: u64,
    /// Until when beats let this relay forward.
    pub(super) until: u64,
    is_etcd_away: bool,
    /// This relay's own entry as last written, and when it may be written again.
    entry: Option<Vec<u8>>,
    entry_next: u64,
}

#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
struct Sent {
    id: TxnId,
    number: u64,
    /// When it was sent, or a little earlier.
    at: u64,
    monitors: Vec<BeatMonitor>,
    entry: Option<Vec<u8>>,
    waiting: bool,
}

impl OwnBeat {
    pub(super) fn begin(&mut self, modified: u64) {
        let number = self.number;
        *self = Self {
            modified,
            number,
            ..Self::default()
        };
    }

    /// Makes the next beat due at once.
    pub(super) fn hasten(&mut self) {
        self.next = 0;
    }

    /// Has this relay's own entry written again, as etcd does not hold it.
    pub(super) fn write_entry_anew(&mut self) {
        self.entry = None;
    }

    /// Counts the beat that was sent at `sent`.
    pub(super) fn confirmed(&mut self, sent: u64, counts_for: u64, now: u64) {
        if self.in_force.is_none() {
            self.in_force = Some(Vec::new());
        }
        self.settled = Some(self.number);
        self.until = self.until.max(sent + counts_for);
        let gap = self.acked.is_none_or(|acked| sent > acked + counts_for / 2);
        if gap {
            self.acked_since = now;
        }
        self.acked = self.acked.max(Some(sent));
    }

    /// Sending time of the newest beat that counts.
    pub(super) fn acked(&self) -> Option<u64> {
        self.acked
    }

    /// Since when etcd has answered without a gap; `None` if it is not answering at `now`.
    pub(super) fn answered_since(&self, now: u64) -> Option<u64> {
        (now < self.until).then_some(self.acked_since)
    }

    /// The lists of monitors, one of which is in force; none if that is unknown. An empty list lets
    /// anybody fence.
    pub(super) fn lists(&self) -> impl Iterator<Item = &[BeatMonitor]> {
        let in_force = self.in_force.iter();
        let lists = in_force.flat_map(|list| std::iter::once(list).chain(&self.unsettled));
        lists.map(Vec::as_slice)
    }

    /// Settles all beats without an answer: the one at `modified` is written, the others never will be.
    fn settle(&mut self, modified: u64, in_force: Option<Vec<BeatMonitor>>) {
        self.modified = modified;
        self.in_force = in_force;
        self.unsettled.clear();
        self.sent.clear();
    }
}

impl Member {
    /// Sends the next beat when it is time.
    pub(super) fn keep_beating(&mut self) {
        if self.session.phase != PhaseName::Joined {
            return;
        }
        self.report_if_etcd_away();
        let hold = self.config.hold_ns;
        let patience = hold * 7 / 12;
        let now = self.now;
        let in_flight = |sent: &Sent| sent.waiting && now < sent.at + patience;
        if now < self.beat.next || !self.is_alive() || self.beat.sent.iter().any(in_flight) {
            return;
        }
        self.send_beat(patience);
        self.beat.next = now + hold / 6;
    }

    /// Whether the data plane gave a sign of life recently.
    pub(super) fn is_alive(&self) -> bool {
        self.alive
            .is_some_and(|alive| self.now <= alive + ALIVE_WITHIN)
    }

    fn send_beat(&mut self, patience: u64) {
        self.beat.number += 1;
        let monitors = self.plan.monitors.clone();
        let beat = Beat {
            number: self.beat.number,
            process: self.config.process,
            hold_ms: self.config.hold_ns / 1_000_000,
            policy: self.config.policy,
            monitors: monitors.clone(),
        };
        let key = self.beat_key(&self.config.relay);
        let mut txn = Txn {
            compares: vec![
                self.session_lives(),
                modified(key.clone(), self.beat.modified),
            ],
            puts: vec![(key.clone(), beat.write())],
            reads: vec![key, self.key(Key::Relay(self.config.relay.clone()))],
            ..Txn::default()
        };
        let entry = self.entry_to_write();
        if let Some(entry) = &entry {
            let key = self.key(Key::Relay(self.config.relay.clone()));
            txn.puts.push((key, entry.clone()));
        }
        let id = self.send(txn, Purpose::Beat, patience);
        if self.beat.sent.len() == SENT_MAX {
            self.beat.sent.pop_front();
        }
        self.beat.unsettled.insert(monitors.clone());
        let sent = Sent {
            id,
            number: beat.number,
            at: self.now,
            monitors,
            entry,
            waiting: true,
        };
        self.beat.sent.push_back(sent);
    }

    /// This relay's entry, if it has changed and was not written recently.
    fn entry_to_write(&mut self) -> Option<Vec<u8>> {
        let mut entry = self.own_entry();
        if let Some(written) = self.replica.relay(&self.config.relay)
            && written.session == entry.session
        {
            entry.since = written.since;
        } else {
            self.beat.entry = None;
        }
        let entry = entry.write();
        let changed = self.beat.entry.as_ref() != Some(&entry);
        if !changed || self.now < self.beat.entry_next {
            return None;
        }
        self.beat.entry_next = self.now + self.config.hold_ns / 4;
        Some(entry)
    }

    pub(super) fn beat_answered(&mut self, id: TxnId, sent_ns: u64, outcome: Outcome) {
        let Some(index) = self.beat.sent.iter().position(|sent| sent.id == id) else {
            return;
        };
        match outcome {
            Outcome::Applied { revision } => {
                let mut sent = self.beat.sent.remove(index).expect("position is in it");
                sent.at = sent.at.max(sent_ns);
                self.beat_written(sent, revision);
            }
            Outcome::Refused { found, .. } => self.beat_refused(&found),
            Outcome::Unknown => {
                let sent = &mut self.beat.sent[index];
                sent.at = sent.at.max(sent_ns);
                sent.waiting = false;
            }
            Outcome::NotSent => {
                self.beat.sent.remove(index);
            }
        }
    }

    fn beat_written(&mut self, sent: Sent, revision: u64) {
        self.beat.settle(revision, Some(sent.monitors));
        let key = self.beat_key(&self.config.relay);
        self.replica.refused.remove(&key);
        let at = if faulty!(self, CountFromAnswer) {
            self.now
        } else {
            sent.at
        };
        let counts_for = self.config.hold_ns - self.margin();
        if self.beat.acked.is_some() && self.now >= self.deadline() {
            // This relay may have been fenced in a history that an older backup has undone.
            self.rest();
        }
        self.beat.confirmed(at, counts_for, self.now);
        self.replica.believe(sent.at);
        if let Some(entry) = sent.entry {
            self.learn_own(
                Key::Relay(self.config.relay.clone()),
                entry.clone(),
                revision,
            );
            self.beat.entry = Some(entry);
        }
        if self.beat.is_etcd_away {
            self.beat.is_etcd_away = false;
            self.report(FleetEvent::EtcdBack);
        }
    }

    /// Either an earlier beat without an answer was written after all, or the session has ended.
    fn beat_refused(&mut self, keys: &[KeyValue]) {
        let key = self.beat_key(&self.config.relay);
        let current = keys
            .iter()
            .find(|kv| kv.key == key && kv.created == self.session.number);
        let Some(current) = current else {
            if self.is_fenced(keys) {
                return self.lost_session();
            }
            // Whoever ends a session notes that in the relay's entry: this may be another etcd.
            return self.went_back();
        };
        if current.modified < self.beat.modified {
            return self.went_back();
        }
        self.beat.next = self.now;
        let beat = match Beat::read(&key, &current.value) {
            Ok(beat) => beat,
            Err(error) => {
                // The session goes on, whoever wrote that; the next beat repairs the key.
                self.beat.settle(current.modified, None);
                return self.refuse(error);
            }
        };
        let is_ours = beat.process == self.config.process;
        let is_later = |number| is_ours && beat.number > number;
        if !self.beat.settled.is_none_or(is_later) {
            // A session of the same number, from an earlier state of etcd.
            return self.went_back();
        }
        let is_current = |sent: &Sent| is_ours && sent.number == beat.number;
        match self.beat.sent.iter().position(is_current) {
            Some(index) => {
                let sent = self.beat.sent.remove(index).expect("position is in it");
                self.beat_written(sent, current.modified);
            }
            None => self
                .beat
                .settle(current.modified, is_ours.then_some(beat.monitors)),
        }
    }

    /// Whether this relay's entry says that its session was ended.
    fn is_fenced(&self, keys: &[KeyValue]) -> bool {
        let key = self.key(Key::Relay(self.config.relay.clone()));
        let found = keys.iter().find(|kv| kv.key == key);
        let entry = found.and_then(|kv| RelayEntry::read(&key, &kv.value).ok());
        entry.is_some_and(|entry| entry.fenced && entry.session == self.session.number)
    }

    pub(super) fn went_back(&mut self) {
        self.restored();
        self.out.push(Command::ListAgain);
    }

    fn report_if_etcd_away(&mut self) {
        let is_late = self.beat.acked.is_some() && self.now >= self.beat.until;
        if !self.beat.is_etcd_away && is_late {
            self.beat.is_etcd_away = true;
            self.report(FleetEvent::EtcdAway);
        }
    }

    /// Until when this relay may forward what it holds.
    pub(super) fn deadline(&self) -> u64 {
        if !self.session.has_begun() {
            return 0;
        }
        match self.config.policy {
            OnIsolation::Stop => self.beat.until,
            OnIsolation::Peers => self.beat.until.max(self.until_peers()),
            OnIsolation::Hold => u64::MAX,
        }
    }
}
