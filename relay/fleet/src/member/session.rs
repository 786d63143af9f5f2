//! Sessions: how one begins, is taken up again, and ends.

use crate::keys::{Beat, HOLD_MAX_MS, Key, RelayEntry, SessionNumber, Value};
use crate::member::{
    FleetEvent, KeyValue, Member, Outcome, PhaseName, Purpose, Session, Txn, created, modified,
};

/// How long a process with this relay's name is reported after it was seen last, in ns.
const RIVAL_FOR: u64 = 10_000_000_000;

/// Where this relay stands with its session.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct State {
    pub(super) phase: PhaseName,
    /// The session; 0 is none.
    pub(super) number: SessionNumber,
    /// The last that this process had, or one before it on this boot.
    last: SessionNumber,
    /// Since when.
    pub(super) since: u64,
    pub(super) cluster: Option<u64>,
    pub(super) leaving: bool,
    /// What a former process kept.
    adopted: Option<Session>,
    /// The last word was sent: nothing opens again.
    pub(super) going: bool,
    /// When another process that has the name was seen last.
    pub(super) rival: Option<u64>,
    /// Not before this time is anything asked of etcd again.
    retry: u64,
    /// Until when it rests where a backup was restored, or may have been, by [`Member::waited`].
    rests_until: u64,
    /// Not before this, by [`Member::waited`], does this relay take what etcd knows nobody to have held: the
    /// session of the process before has gone, and with it perhaps all that etcd knew.
    pub(super) unheld_from: u64,
    busy: bool,
}

impl State {
    pub(super) fn new(adopted: Option<Session>) -> Self {
        Self {
            cluster: adopted.as_ref().map(|kept| kept.cluster),
            adopted,
            ..Self::default()
        }
    }

    pub(super) fn is_other_cluster(&self, cluster: u64) -> bool {
        self.cluster.is_some_and(|known| known != cluster)
    }

    pub(super) fn rests(&self, waited: u64) -> bool {
        waited < self.rests_until
    }

    /// Whether a session of this relay's name is, or was, that of this process, whose gates it knows.
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
    /// Takes this relay's own beat key from a list: the first tells whether a session goes on.
    pub(super) fn session_listed(&mut self, revision: u64, own: Option<KeyValue>) {
        if self.session.phase != PhaseName::Starting {
            return;
        }
        self.session.phase = PhaseName::Waiting;
        let kept = self.session.adopted.take();
        self.session.last = kept.as_ref().map_or(0, |kept| kept.session);
        if kept.is_some() && own.is_none() {
            self.session.unheld_from = self.waited + self.surely(HOLD_MAX_MS * 1_000_000);
        }
        let Some((kept, own)) = kept.zip(own) else {
            return;
        };
        let number = kept.session;
        // Who cannot read a share's key does not know whether it is its own.
        let clear = self.replica.unclear.is_empty();
        if clear && own.created == number && revision >= own.modified {
            self.begin(number, own.modified);
            let (relay, now) = (&self.config.relay, self.now);
            let handover = &mut self.handover;
            if handover.settle_inherited(&self.gates, &self.replica, relay, number, now) {
                // If etcd was restored, it does not say who has taken that since: they get the time to
                // see it.
                self.rest();
            }
        }
    }

    /// Opens nothing for the longest hold that is known: whoever has it open sees meanwhile that etcd is
    /// another.
    pub(super) fn rest(&mut self) {
        self.session.rests_until = self.waited + self.surely(self.longest_hold_ns());
    }

    /// Whether another process has this relay's name, as far as was seen of late.
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

    /// Asks for a session if no key stands in its way; deletes the key if it is this process's own,
    /// which nothing rests on: all gates are shut. What its session held, as in an older backup, is free.
    fn join_or_discard(&mut self) {
        let relay = self.config.relay.clone();
        let Some(told) = self.fencing.told(&relay) else {
            return;
        };
        let key = self.beat_key(&relay);
        let hold = self.config.hold_ns;
        match told.written() {
            // Somebody has deleted the key of one that may forward: it is fenced first.
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
                let session = self.fencing.watched(&relay).map_or(0, |w| w.session);
                let entry = self.fenced_entry(&relay, session);
                let entry = entry.map(|entry| (self.key(Key::Relay(relay)), entry.write()));
                let txn = Txn {
                    compares: vec![modified(key.clone(), at)],
                    puts: entry.into_iter().collect(),
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
            // What was asked for then is not wanted now; if it is there, it will be discarded.
            return;
        }
        self.session.phase = PhaseName::Waiting;
        match outcome {
            Outcome::Applied { revision } => {
                self.begin(revision, revision);
                self.beat
                    .confirmed(sent, self.config.hold_ns - self.margin(), self.now);
            }
            // The watch of the own beat key tells what stands there.
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
        let kept = Session {
            fleet: self.config.fleet.clone(),
            relay: self.config.relay.clone(),
            session: number,
            cluster: self.session.cluster.unwrap_or_default(),
        };
        self.out.push(super::Command::SaveSession(Some(kept)));
        self.tell(FleetEvent::Joined { session: number });
    }

    /// The session is over by another's doing. Nothing that rested on it is open after this step.
    pub(super) fn lost_session(&mut self) {
        if !self.session.has_begun() {
            return;
        }
        self.end_session();
        self.session.phase = PhaseName::Waiting;
        // Where etcd is another one, what it holds contradicts what is known.
        self.out.push(super::Command::ListAgain);
        self.tell(FleetEvent::Fenced);
    }

    /// etcd is not the one that it was: what rests on it is shut, and others get the time to see it.
    pub(super) fn restored(&mut self) {
        let held = self
            .replica
            .shares
            .keys()
            .filter(|share| self.holds(share).is_some());
        let held: Vec<String> = held.cloned().collect();
        self.claims.held_before(held);
        self.end_session();
        self.session.phase = PhaseName::Resting;
        self.session.adopted = None;
        self.rest();
        self.replica = self.replica.emptied();
        // Sessions are counted anew, and a relay that has booted counts its questions anew.
        self.monitors.heeded.clear();
        self.newest = 0;
        for (_, known) in self.pending.values_mut() {
            *known = None;
        }
        for relay in self.fencing.forget() {
            self.out.push(super::Command::UnwatchBeat { relay });
        }
        self.tell(FleetEvent::Restored);
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
        // Where nobody could take something, others are to know that it is free.
        if self
            .replica
            .shares
            .keys()
            .any(|share| self.holds(share).is_some())
        {
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
        self.session.going = true;
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
        self.tell(FleetEvent::Left);
    }
}
