//! Sessions: how they begin, resume and end.

use crate::keys::{Beat, HOLD_MAX_MS, Key, RelayEntry, SessionNumber, Value};
use crate::member::{
    FleetEvent, KeyValue, Member, Outcome, PhaseName, Purpose, Session, Txn, created, modified,
};

/// How long a process with this relay's name is reported after it was seen last, in ns.
const RIVAL_FOR: u64 = 10_000_000_000;

/// The state of this relay's session.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct State {
    pub(super) phase: PhaseName,
    /// The session; 0 is none.
    pub(super) number: SessionNumber,
    /// The last session of this process, or of one before it on this boot.
    last: SessionNumber,
    /// When the session began here.
    pub(super) since: u64,
    pub(super) cluster: Option<u64>,
    pub(super) leaving: bool,
    /// The session that a former process saved.
    adopted: Option<Session>,
    /// Whether the transaction that leaves was sent: no gate opens again.
    pub(super) has_sent_leave: bool,
    /// When another process of this name was last seen.
    pub(super) rival: Option<u64>,
    /// When etcd may be asked again.
    retry: u64,
    /// Until when this relay rests because a backup was or may have been restored, by [`Member::waited`].
    rests_until: u64,
    /// From when on, by [`Member::waited`], this relay takes shares without a former holder in etcd: the
    /// session of the process before has disappeared, and all else that etcd held may have too.
    pub(super) unheld_from: u64,
    busy: bool,
}

impl State {
    pub(super) fn new(adopted: Option<Session>) -> Self {
        Self {
            cluster: adopted.as_ref().map(|session| session.cluster),
            adopted,
            ..Self::default()
        }
    }

    pub(super) fn is_other_cluster(&self, cluster: u64) -> bool {
        self.cluster.is_some_and(|current| current != cluster)
    }

    pub(super) fn rests(&self, waited: u64) -> bool {
        waited < self.rests_until
    }

    /// Whether a session of this relay's name is or was this process's own, whose gates it controls.
    pub(super) fn is_own(&self, session: SessionNumber) -> bool {
        self.has_begun() || session == self.last
    }

    /// Whether no other process of this name was seen.
    pub(super) fn is_alone(&self) -> bool {
        self.rival.is_none()
    }

    pub(super) fn has_begun(&self) -> bool {
        self.number != 0
    }
}

impl Member {
    /// Takes this relay's own beat key from a list: the first list decides whether a saved session resumes.
    pub(super) fn session_listed(&mut self, revision: u64, own: Option<KeyValue>) {
        if self.session.phase != PhaseName::Starting {
            return;
        }
        self.session.phase = PhaseName::Waiting;
        let adopted = self.session.adopted.take();
        self.session.last = adopted.as_ref().map_or(0, |saved| saved.session);
        if adopted.is_some() && own.is_none() {
            self.session.unheld_from = self.waited + self.required_wait(HOLD_MAX_MS * 1_000_000);
        }
        let Some((Session { session, .. }, own)) = adopted.zip(own) else {
            return;
        };
        // A relay that cannot read a share's key cannot tell whether the share is its own.
        let is_clear = self.replica.unclear.is_empty();
        if is_clear && own.created == session && revision >= own.modified {
            self.begin(session, own.modified);
            let (relay, now) = (&self.config.relay, self.now);
            let handover = &mut self.handover;
            if handover.settle_inherited(&self.gates, &self.replica, relay, session, now) {
                // If etcd was restored, it does not show who has taken those shares since: that relay gets
                // the time to notice.
                self.rest();
            }
        }
    }

    /// Opens nothing for the longest known hold: a relay with an open gate notices meanwhile that this is
    /// another etcd.
    pub(super) fn rest(&mut self) {
        self.session.rests_until = self.waited + self.required_wait(self.longest_hold_ns());
    }

    /// Whether another process of this relay's name was seen recently.
    pub(super) fn has_rival(&self, now: u64) -> bool {
        self.session
            .rival
            .is_some_and(|seen| now < seen + RIVAL_FOR)
    }

    /// Does what the phase asks for.
    pub(super) fn keep_session(&mut self) {
        if self.session.busy || self.now < self.session.retry {
            return;
        }
        match self.session.phase {
            PhaseName::Resting if self.session.rests(self.waited) => {}
            PhaseName::Resting => self.session.phase = PhaseName::Waiting,
            PhaseName::Waiting if self.session.leaving => self.has_left(),
            PhaseName::Waiting => self.join_or_discard(),
            PhaseName::Joined if self.session.leaving && !self.holds_any() => self.leave(),
            _ => {}
        }
    }

    /// Asks for a session if there is no beat key; deletes the key if this process wrote it, as nothing
    /// depends on it: all gates are shut. Shares that its session held, as in an older backup, become free.
    fn join_or_discard(&mut self) {
        let relay = self.config.relay.clone();
        let Some(watched) = self.fencing.observed(&relay) else {
            return;
        };
        let key = self.beat_key(&relay);
        let hold = self.config.hold_ns;
        match watched.written() {
            // Somebody has deleted the key of a relay that may forward: it is fenced first.
            None if self.lives(&relay) => {}
            None => {
                let value = self.first_beat().write();
                let txn = Txn {
                    compares: vec![created(key.clone(), 0)],
                    puts: vec![(key, value)],
                    ..Txn::default()
                };
                self.session.phase = PhaseName::Joining;
                self.session.busy = true;
                self.send(txn, Purpose::Join, hold);
            }
            Some((process, at)) if process == self.config.process => {
                let entry = self.fenced_entry(&relay, watched.session);
                let put = entry.map(|entry| (self.key(Key::Relay(relay)), entry.write()));
                let txn = Txn {
                    compares: vec![modified(key.clone(), at)],
                    puts: put.into_iter().collect(),
                    deletes: vec![key],
                    ..Txn::default()
                };
                self.session.busy = true;
                self.send(txn, Purpose::Discard, hold);
            }
            Some(_) => {}
        }
    }

    /// The beat that begins a session lists nobody, so that anybody may end it.
    fn first_beat(&self) -> Beat {
        Beat {
            number: 0,
            process: self.config.process,
            hold_ms: self.config.hold_ns / 1_000_000,
            policy: self.config.policy,
            monitors: Vec::new(),
        }
    }

    pub(super) fn join_answered(&mut self, sent: u64, outcome: Outcome) {
        self.session.busy = false;
        if self.session.phase != PhaseName::Joining {
            // The session is no longer wanted; if it was created, it will be discarded.
            return;
        }
        self.session.phase = PhaseName::Waiting;
        match outcome {
            Outcome::Applied { revision } => {
                self.begin(revision, revision);
                self.beat
                    .confirmed(sent, self.config.hold_ns - self.margin(), self.now);
            }
            // The watch of the own beat key reports what it holds.
            _ => self.session.retry = self.now + self.config.hold_ns / 6,
        }
    }

    pub(super) fn discard_answered(&mut self, _: Outcome) {
        self.session.busy = false;
        self.session.retry = self.now + self.config.hold_ns / 6;
    }

    fn begin(&mut self, number: SessionNumber, modified: u64) {
        self.session.phase = PhaseName::Joined;
        self.session.number = number;
        self.session.last = number;
        self.session.since = self.now;
        self.beat.begin(modified);
        self.monitors.forget();
        self.stale = true;
        let saved = Session {
            fleet: self.config.fleet.clone(),
            relay: self.config.relay.clone(),
            session: number,
            cluster: self.session.cluster.unwrap_or_default(),
        };
        self.out.push(super::Command::SaveSession(Some(saved)));
        self.report(FleetEvent::Joined { session: number });
    }

    /// Another relay has ended the session. No gate that depended on it is open after this step.
    pub(super) fn lost_session(&mut self) {
        if !self.session.has_begun() {
            return;
        }
        self.end_session();
        self.session.phase = PhaseName::Waiting;
        // If this is another etcd, its contents contradict the replica.
        self.out.push(super::Command::ListAgain);
        self.report(FleetEvent::Fenced);
    }

    /// etcd is another one: all gates that depend on it shut, and others get the time to notice.
    pub(super) fn restored(&mut self) {
        let shares = self.replica.shares.keys();
        let held = shares.filter(|share| self.holds(share).is_some());
        let held_before: Vec<String> = held.cloned().collect();
        self.claims.held_before(held_before);
        self.end_session();
        self.session.phase = PhaseName::Resting;
        self.session.adopted = None;
        self.rest();
        self.replica = self.replica.emptied();
        // Sessions are numbered anew, and so are the questions of a relay that has booted.
        self.monitors.answered.clear();
        self.newest = 0;
        for (_, newest) in self.pending.values_mut() {
            *newest = None;
        }
        for relay in self.fencing.forget() {
            self.out.push(super::Command::UnwatchBeat { relay });
        }
        self.report(FleetEvent::Restored);
    }

    fn end_session(&mut self) {
        self.session.number = 0;
        self.replica.doubt_missing();
        self.beat.begin(0);
        self.monitors.forget();
        self.handover.forget();
        self.stale = true;
        self.out.push(super::Command::SaveSession(None));
    }

    fn leave(&mut self) {
        let relay = self.config.relay.clone();
        let key = self.beat_key(&relay);
        let entry = self.key(Key::Relay(relay));
        let mut txn = Txn {
            compares: vec![self.session_lives()],
            deletes: vec![key],
            ..Txn::default()
        };
        // If nobody could take some of the shares, others must learn that those are free.
        let mut shares = self.replica.shares.keys();
        if shares.any(|share| self.holds(share).is_some()) {
            let left = RelayEntry {
                fenced: true,
                ..RelayEntry::unknown(self.session.number, self.calendar())
            };
            txn.puts.push((entry, left.write()));
        } else {
            txn.deletes.push(entry);
        }
        self.session.busy = true;
        self.session.phase = PhaseName::Leaving;
        self.session.has_sent_leave = true;
        self.send(txn, Purpose::Leave, self.config.hold_ns);
    }

    pub(super) fn leave_answered(&mut self, outcome: Outcome) {
        self.session.busy = false;
        if self.session.phase != PhaseName::Leaving {
            return;
        }
        match outcome {
            Outcome::Applied { .. } | Outcome::Refused { .. } => self.has_left(),
            Outcome::Unknown | Outcome::NotSent => {
                self.session.phase = PhaseName::Joined;
                self.session.retry = self.now + self.config.hold_ns / 6;
            }
        }
    }

    fn has_left(&mut self) {
        self.end_session();
        self.session.phase = PhaseName::Left;
        self.report(FleetEvent::Left);
    }
}
