//! Others' beats as observed, and the fencing of sessions that are silent.

mod watching;

use std::collections::{BTreeMap, BTreeSet};

use config::OnIsolation;

use crate::keys::{Beat, BeatMonitor, HOLD_MAX_MS, Key, RelayEntry, SessionNumber, Value};
use crate::member::{
    FleetEvent, KeyValue, Member, Outcome, PhaseName, Purpose, Txn, faulty, modified,
};

/// What a beat key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
enum Content {
    Beat,
    Garbage,
    Nothing,
}

/// A relay's beats, as watched.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Watched {
    /// The session of the key; without a key, all sessions up to this one have ended.
    pub(super) session: SessionNumber,
    modified: u64,
    /// When this relay first saw it, and [`Member::waited`] then.
    pub(super) seen: u64,
    waited: u64,
    /// The last valid one.
    beat: Beat,
    content: Content,
    /// Whether more than one beat was seen: then none of them can be one that a former process of this
    /// relay has tried to delete.
    moving: bool,
}

impl Watched {
    /// The process that wrote the key, and the revision; `None` without a key.
    pub(super) fn written(&self) -> Option<(u64, u64)> {
        (self.content != Content::Nothing).then_some((self.beat.process, self.modified))
    }

    /// Whether the beat lists `relay` with `session`.
    pub(super) fn lists(&self, relay: &str, session: SessionNumber) -> bool {
        self.beat
            .monitors
            .iter()
            .any(|m| m.relay == relay && m.session == session)
    }
}

/// What this relay has observed of others' beats.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Fencing {
    /// Whose beats are watched. `None`: nothing reported yet.
    watched: BTreeMap<String, Option<Watched>>,
    /// Up to which revision each was reported.
    reported: BTreeMap<String, u64>,
    /// The last session of each relay that was seen to have ended, and when, by [`Member::waited`].
    ended: BTreeMap<String, (SessionNumber, u64)>,
    /// Fences that were sent: the revision that each would delete. No promise from then on.
    begun: BTreeMap<String, u64>,
    retry: BTreeMap<String, u64>,
    /// Relays that have not beaten for a hold, though etcd has answered this one for as long, and those
    /// without a beat key whose session nobody has ended.
    silent: BTreeSet<String>,
    /// In a large fleet, one more relay whose beats are watched, and until when.
    audit: Option<(String, u64)>,
}

impl Fencing {
    /// What the watch of `relay`'s beat key reported last; `None` if it has reported nothing yet.
    pub(super) fn observed(&self, relay: &str) -> Option<&Watched> {
        self.watched.get(relay)?.as_ref()
    }

    /// The beats of a relay, if it may be given a promise.
    pub(super) fn may_promise(&self, relay: &str) -> Option<&Watched> {
        let watched = self.watched(relay)?;
        let is_being_fenced = self
            .begun
            .get(relay)
            .is_some_and(|at| *at >= watched.modified);
        (watched.moving && !is_being_fenced && watched.content == Content::Beat).then_some(watched)
    }

    /// Whether a relay's beat key holds an invalid value.
    pub(super) fn is_garbled(&self, relay: &str) -> bool {
        self.watched(relay)
            .is_some_and(|watched| watched.content == Content::Garbage)
    }

    pub(super) fn is_silent(&self, relay: &str) -> bool {
        self.silent.contains(relay)
    }

    /// Whether more than one beat of a relay was seen, and the last recently.
    pub(super) fn beats(&self, relay: &str) -> bool {
        self.watched(relay).is_some_and(|watched| watched.moving) && !self.is_silent(relay)
    }

    pub(super) fn watched(&self, relay: &str) -> Option<&Watched> {
        self.observed(relay)
            .filter(|watched| watched.content != Content::Nothing)
    }

    /// Relays whose watches have reported something.
    fn all_observed(&self) -> impl Iterator<Item = (&str, &Watched)> {
        let watched = self.watched.iter();
        watched.filter_map(|(relay, watched)| Some((relay.as_str(), watched.as_ref()?)))
    }

    /// Forgets the beats of another cluster. Returns the relays whose watch is to end.
    pub(super) fn forget(&mut self) -> Vec<String> {
        std::mem::take(self).watched.into_keys().collect()
    }

    fn end(&mut self, relay: &str, session: SessionNumber, now: u64) {
        match self.ended.get_mut(relay) {
            Some((last, _)) if *last >= session => {}
            Some(ended) => *ended = (session, now),
            None => drop(self.ended.insert(relay.to_owned(), (session, now))),
        }
    }

    fn ended_for(&self, monitor: &BeatMonitor, hold: u64, now: u64) -> bool {
        let ended = self.ended.get(&monitor.relay);
        ended.is_some_and(|(session, at)| *session >= monitor.session && now >= at + hold)
    }
}

/// The assumption for a beat that is invalid or was deleted: the longest hold, and anybody may fence it.
fn unknown_beat() -> Beat {
    Beat {
        number: 0,
        process: 0,
        hold_ms: HOLD_MAX_MS,
        policy: OnIsolation::Stop,
        monitors: Vec::new(),
    }
}

impl Member {
    /// Takes the report of a watch of a beat key.
    pub(super) fn beat_seen(&mut self, relay: &str, revision: u64, key: Option<KeyValue>) {
        let (now, waited) = (self.now, self.waited);
        self.note_revision(revision);
        let reported = self.fencing.reported.entry(relay.to_owned()).or_default();
        let Some(watched) = self.fencing.watched.get_mut(relay) else {
            return;
        };
        if revision < *reported {
            return;
        }
        *reported = revision;
        let (content, read, error) = match key.as_ref().map(|kv| Beat::read(&kv.key, &kv.value)) {
            Some(Ok(beat)) => (Content::Beat, Some(beat), None),
            Some(Err(error)) => (Content::Garbage, None, Some(error)),
            None => (Content::Nothing, None, None),
        };
        // Without a key, the last one was of the session in the relay's entry.
        let of_entry = self.replica.relay(relay).map_or(0, |entry| entry.session);
        let last_session = key.as_ref().map_or(of_entry, |kv| kv.created);
        let (session, modified) = key.map_or((revision, revision), |kv| (kv.created, kv.modified));
        let previous = watched.take();
        let was_garbled = previous
            .as_ref()
            .is_some_and(|w| w.content == Content::Garbage);
        let previous = previous.filter(|w| w.content != Content::Nothing);
        let same = previous.as_ref().filter(|w| w.modified == modified);
        let is_new = previous.is_some() && same.is_none();
        let new = (now, waited, previous.is_some());
        let (seen, since, moving) = same.map_or(new, |w| (w.seen, w.waited, w.moving));
        let of_session = previous.filter(|w| w.session == last_session);
        let last_beat = || of_session.map_or_else(unknown_beat, |w| w.beat);
        let beat = read.unwrap_or_else(last_beat);
        let is_others = is_new && content == Content::Beat && beat.process != self.config.process;
        *watched = Some(Watched {
            session,
            modified,
            seen,
            waited: since,
            beat,
            content,
            moving,
        });
        self.stale |= was_garbled != (content == Content::Garbage);
        // A key's session is its create revision: all earlier sessions have ended.
        let is_present = u64::from(content != Content::Nothing);
        self.fencing
            .end(relay, session.saturating_sub(is_present), waited);
        match error {
            None => drop(self.replica.refused.remove(&self.beat_key(relay))),
            Some(error) => self.refuse(error),
        }
        if is_others && relay == self.config.relay {
            self.note_rival();
        }
    }

    /// Notes that another process takes part, or wants to, under this relay's name.
    pub(super) fn note_rival(&mut self) {
        if !self.has_rival(self.now) {
            self.status_version += 1;
            self.report(FleetEvent::NameTaken);
        }
        self.session.rival = Some(self.now);
    }

    /// Notes which relays are silent: they would not learn that a share is given to them.
    pub(super) fn note_silent(&mut self) {
        let since = self.beat.answered_since(self.now);
        let is_silent = |(relay, watched): &(&str, &Watched)| {
            let hold = watched.beat.hold_ms * 1_000_000;
            match watched.content {
                Content::Nothing => self.lives(relay),
                _ => since.is_some_and(|since| self.now > since.max(watched.seen) + hold),
            }
        };
        let observed = self.fencing.all_observed().filter(is_silent);
        let silent: BTreeSet<String> = observed.map(|(relay, _)| relay.to_owned()).collect();
        self.stale |= silent != self.fencing.silent;
        self.fencing.silent = silent;
        self.restart_waits();
    }

    /// Restarts the wait for each relay with unknown monitors while a live relay sends no beats: that one
    /// may be among the monitors, and may go on promising without etcd.
    fn restart_waits(&mut self) {
        let relays: Vec<String> = self.with_unknown_monitors().map(str::to_owned).collect();
        for relay in relays {
            let sends_no_beats = |name: &str| match self.fencing.watched.get(name) {
                Some(Some(watched)) => watched.content == Content::Beat && self.is_late(watched),
                _ => true,
            };
            let mut live = self.replica.live().map(|(name, _)| name);
            let is_unsure =
                live.any(|name| name != relay && name != self.config.relay && sends_no_beats(name));
            if let Some(Some(watched)) = self.fencing.watched.get_mut(&relay).filter(|_| is_unsure)
            {
                watched.waited = self.waited;
            }
        }
    }

    /// Relays that may have listed other monitors than those observed.
    fn with_unknown_monitors(&self) -> impl Iterator<Item = &str> {
        self.fencing
            .all_observed()
            .filter(|(relay, watched)| !self.has_known_monitors(relay, watched))
            .map(|(relay, _)| relay)
            .filter(|relay| *relay == self.config.relay || self.lives(relay))
    }

    /// Whether the monitors of a relay are known: a beat that was overwritten with an invalid value, or
    /// deleted, may have listed others, whose promises count.
    fn has_known_monitors(&self, relay: &str, watched: &Watched) -> bool {
        let lists_me = || watched.lists(&self.config.relay, self.session.number);
        watched.content == Content::Beat || lists_me() && self.plan.monitored.contains(relay)
    }

    /// Whether a relay has, by its entry, a session that nobody has ended: another relay, or another
    /// process of this name.
    pub(super) fn lives(&self, relay: &str) -> bool {
        let is_own = |session| relay == self.config.relay && self.session.is_own(session);
        let entry = self.replica.relay(relay).filter(|entry| !entry.fenced);
        entry.is_some_and(|entry| !is_own(entry.session))
    }

    /// The longest hold of this relay and of those whose sessions may go on, in ns.
    pub(super) fn longest_hold_ns(&self) -> u64 {
        self.fencing
            .all_observed()
            .filter(|(relay, watched)| watched.content != Content::Nothing || self.lives(relay))
            .map(|(_, watched)| watched.beat.hold_ms * 1_000_000)
            .fold(self.config.hold_ns, u64::max)
    }

    fn is_late(&self, watched: &Watched) -> bool {
        self.now > watched.seen + watched.beat.hold_ms * 1_000_000
    }

    /// Whether a relay was given a share after its last beat.
    pub(super) fn is_given_unseen(&self, relay: &str, watched: &Watched) -> bool {
        let mut shares = self.replica.shares.values();
        shares.any(|entry| entry.value.relay == relay && entry.modified > watched.modified)
    }

    /// Ends the sessions of those that are silent.
    pub(super) fn fence(&mut self) {
        if matches!(
            self.session.phase,
            PhaseName::Starting | PhaseName::Resting | PhaseName::Left
        ) || !self.may_fence_at_all()
        {
            return;
        }
        let retry = |relay: &str| self.fencing.retry.get(relay).copied().unwrap_or(0);
        let due: Vec<_> = self
            .fencing
            .all_observed()
            .filter(|(relay, watched)| self.may_fence(relay, watched) && self.now >= retry(relay))
            .map(|(relay, watched)| (relay.to_owned(), watched.clone()))
            .collect();
        for (relay, watched) in due {
            self.send_fence(relay, &watched);
        }
    }

    /// Whether etcd has answered this relay for long enough that it can have seen others' beats too. A
    /// relay without a session has watched since its start.
    fn may_fence_at_all(&self) -> bool {
        if !self.session.has_begun() {
            return true;
        }
        let since = self.beat.answered_since(self.now);
        since.is_some_and(|since| self.now >= since + self.config.hold_ns / 2)
    }

    fn may_fence(&self, relay: &str, watched: &Watched) -> bool {
        let me = &self.config.relay;
        if watched.content == Content::Nothing && !self.lives(relay) {
            return false;
        }
        let has_known_monitors = self.has_known_monitors(relay, watched);
        let hold_ms = if has_known_monitors {
            watched.beat.hold_ms
        } else {
            HOLD_MAX_MS
        };
        let hold = hold_ms * 1_000_000;
        if self.waited < watched.waited + self.required_wait(hold) {
            return false;
        }
        let is_own_session = relay == me && self.session.has_begun();
        if is_own_session || self.waited < self.monitors.promised_until(relay) {
            return false;
        }
        let monitors = &watched.beat.monitors;
        let anybody_may = !has_known_monitors || watched.beat.policy != OnIsolation::Peers;
        let has_ended = |m: &BeatMonitor| {
            self.fencing
                .ended_for(m, self.required_wait(hold), self.waited)
        };
        // The promises of another process of this name are not known here.
        let is_own = |m: &BeatMonitor| m.session == self.session.number || self.session.is_alone();
        let is_me = |m: &BeatMonitor| m.relay == *me && (is_own(m) || has_ended(m));
        anybody_may || monitors.iter().any(is_me) || monitors.iter().all(has_ended)
    }

    fn send_fence(&mut self, relay: String, watched: &Watched) {
        let (session, at) = (watched.session, watched.modified);
        let is_present = watched.content != Content::Nothing;
        let key = self.beat_key(&relay);
        let compare = if faulty!(self, FenceUnseen) {
            super::created(key.clone(), session)
        } else {
            modified(key.clone(), if is_present { at } else { 0 })
        };
        let mut txn = Txn {
            compares: vec![compare],
            deletes: vec![key.clone()],
            reads: vec![key],
            ..Txn::default()
        };
        if let Some(entry) = self.fenced_entry(&relay, session) {
            let key = self.key(Key::Relay(relay.clone()));
            // A relay that has written its entry since is alive, or has left in order.
            if !is_present && !self.replica.refused.contains_key(&key) {
                let current = self.replica.relays.get(&relay);
                let at = current.map_or(0, |entry| entry.modified);
                txn.compares.push(modified(key.clone(), at));
            }
            txn.puts.push((key, entry.write()));
        }
        let hold = self.config.hold_ns;
        self.fencing.begun.insert(relay.clone(), at);
        self.fencing.retry.insert(relay.clone(), self.now + hold);
        self.send(txn, Purpose::Fence { relay }, hold);
    }

    /// A relay's entry as it is written when its session is ended.
    pub(super) fn fenced_entry(&self, relay: &str, session: SessionNumber) -> Option<RelayEntry> {
        let entry = self.replica.relay(relay)?;
        Some(RelayEntry {
            session: session.max(entry.session),
            fenced: true,
            since: self.calendar(),
            unfit: Default::default(),
            heard: Default::default(),
            ..entry.clone()
        })
    }

    pub(super) fn fence_answered(&mut self, relay: &str, outcome: Outcome) {
        match outcome {
            Outcome::Applied { revision } => {
                let watched = self.fencing.observed(relay);
                let session = watched.map_or(0, |watched| watched.session);
                if let Some(entry) = self.fenced_entry(relay, session) {
                    self.learn_own(Key::Relay(relay.to_owned()), entry.write(), revision);
                }
                self.beat_seen(relay, revision, None);
                self.report(FleetEvent::RelayFenced {
                    relay: relay.to_owned(),
                });
            }
            Outcome::Refused { revision, found } => {
                self.fencing.retry.remove(relay);
                let key = self.beat_key(relay);
                let beat = found.into_iter().find(|kv| kv.key == key);
                self.beat_seen(relay, revision, beat);
            }
            Outcome::NotSent => {
                let retry = self.now + self.config.hold_ns / 6;
                self.fencing.retry.insert(relay.to_owned(), retry);
            }
            Outcome::Unknown => {}
        }
    }
}
