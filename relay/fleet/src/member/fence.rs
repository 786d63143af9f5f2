//! What is known of others' beats, and the end of a session that is silent.

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
    /// Where there is no key, no session up to this one lives.
    pub(super) session: SessionNumber,
    modified: u64,
    /// When this was first seen here, and [`Member::waited`] then.
    pub(super) seen: u64,
    waited: u64,
    /// The last one that made sense.
    beat: Beat,
    content: Content,
    /// Whether more than one beat was seen: none of them can be one that a former process of this
    /// relay has tried to delete.
    moving: bool,
}

impl Watched {
    /// Which process wrote the key that is there, and at which revision.
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

/// What this relay knows of others' beats.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Fencing {
    /// Whose beats are watched. `None`: nothing told yet.
    watched: BTreeMap<String, Option<Watched>>,
    /// Up to which revision that is known.
    heard: BTreeMap<String, u64>,
    /// When it became known here that a session has ended, by [`Member::waited`].
    ended: BTreeMap<String, (SessionNumber, u64)>,
    /// Fences that were sent: the revision that each would delete. No promise from then on.
    begun: BTreeMap<String, u64>,
    retry: BTreeMap<String, u64>,
    /// Relays that have not beaten for a hold, though etcd has answered this one for as long, and those
    /// without a beat key whose session nobody has ended.
    silent: BTreeSet<String>,
    /// In a large fleet, one more that is looked at, and until when.
    audit: Option<(String, u64)>,
}

impl Fencing {
    /// What the watch of `relay`'s beat key tells; `None` if it has told nothing yet.
    pub(super) fn told(&self, relay: &str) -> Option<&Watched> {
        self.watched.get(relay)?.as_ref()
    }

    /// The beats of a relay that can be promised something.
    pub(super) fn may_promise(&self, relay: &str) -> Option<&Watched> {
        let watched = self.watched(relay)?;
        let fencing = self
            .begun
            .get(relay)
            .is_some_and(|at| *at >= watched.modified);
        (watched.moving && !fencing && watched.content == Content::Beat).then_some(watched)
    }

    /// Whether a relay's beat key is known to hold what makes no sense.
    pub(super) fn is_garbled(&self, relay: &str) -> bool {
        self.watched(relay)
            .is_some_and(|watched| watched.content == Content::Garbage)
    }

    pub(super) fn is_silent(&self, relay: &str) -> bool {
        self.silent.contains(relay)
    }

    /// Whether more than one beat of a relay was seen, and the last just now.
    pub(super) fn beats(&self, relay: &str) -> bool {
        self.watched(relay).is_some_and(|watched| watched.moving) && !self.is_silent(relay)
    }

    pub(super) fn watched(&self, relay: &str) -> Option<&Watched> {
        self.told(relay)
            .filter(|watched| watched.content != Content::Nothing)
    }

    /// Relays of whose beat keys something is known.
    fn known(&self) -> impl Iterator<Item = (&str, &Watched)> {
        let watched = self.watched.iter();
        watched.filter_map(|(relay, told)| Some((relay.as_str(), told.as_ref()?)))
    }

    /// Another cluster's beats tell nothing. Names those whose watch is to end.
    pub(super) fn forget(&mut self) -> Vec<String> {
        let watched = std::mem::take(self).watched;
        watched.into_keys().collect()
    }

    fn end(&mut self, relay: &str, session: SessionNumber, now: u64) {
        match self.ended.get_mut(relay) {
            Some((known, _)) if *known >= session => {}
            Some(ended) => *ended = (session, now),
            None => drop(self.ended.insert(relay.to_owned(), (session, now))),
        }
    }

    fn ended_for(&self, monitor: &BeatMonitor, hold: u64, now: u64) -> bool {
        let ended = self.ended.get(&monitor.relay);
        ended.is_some_and(|(session, at)| *session >= monitor.session && now >= at + hold)
    }
}

/// What may stand behind a beat that makes no sense or has gone: the longest hold, and anybody may end it.
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
    /// Takes what a watch of a beat key tells.
    pub(super) fn beat_seen(&mut self, relay: &str, revision: u64, beat: Option<KeyValue>) {
        let (now, waited) = (self.now, self.waited);
        self.heard_up_to(revision);
        let heard = self.fencing.heard.entry(relay.to_owned()).or_default();
        let Some(told) = self.fencing.watched.get_mut(relay) else {
            return;
        };
        if revision < *heard {
            return;
        }
        *heard = revision;
        let (content, read, error) = match beat.as_ref().map(|kv| Beat::read(&kv.key, &kv.value)) {
            Some(Ok(beat)) => (Content::Beat, Some(beat), None),
            Some(Err(error)) => (Content::Garbage, None, Some(error)),
            None => (Content::Nothing, None, None),
        };
        // Where nothing stands, the last that did was of the session that is known.
        let known = self.replica.relay(relay).map_or(0, |entry| entry.session);
        let known = beat.as_ref().map_or(known, |kv| kv.created);
        let at = beat.map_or((revision, revision), |kv| (kv.created, kv.modified));
        let (session, modified) = at;
        let before = told.take();
        let was_garbled = before
            .as_ref()
            .is_some_and(|w| w.content == Content::Garbage);
        let before = before.filter(|before| before.content != Content::Nothing);
        let same = before.as_ref().filter(|w| w.modified == modified);
        let is_new = before.is_some() && same.is_none();
        let new = (now, waited, before.is_some());
        let (seen, since, moving) = same.map_or(new, |w| (w.seen, w.waited, w.moving));
        let of_session = before.filter(|before| before.session == known);
        let last = || of_session.map_or_else(unknown_beat, |before| before.beat);
        let beat = read.unwrap_or_else(last);
        let beats = is_new && content == Content::Beat && beat.process != self.config.process;
        *told = Some(Watched {
            session,
            modified,
            seen,
            waited: since,
            beat,
            content,
            moving,
        });
        self.stale |= was_garbled != (content == Content::Garbage);
        // A key created at its revision is the first after all earlier sessions.
        let is_there = u64::from(content != Content::Nothing);
        self.fencing
            .end(relay, session.saturating_sub(is_there), waited);
        match error {
            None => drop(self.replica.refused.remove(&self.beat_key(relay))),
            Some(error) => self.refuse(error),
        }
        if beats && relay == self.config.relay {
            self.note_rival();
        }
    }

    /// Notes that another process takes part, or wants to, under this relay's name.
    pub(super) fn note_rival(&mut self) {
        if !self.has_rival(self.now) {
            self.news += 1;
            self.tell(FleetEvent::NameTaken);
        }
        self.session.rival = Some(self.now);
    }

    /// Notes who is silent: it learns of nothing that is given to it.
    pub(super) fn note_silent(&mut self) {
        let since = self.beat.answered_since(self.now);
        let is_silent = |(relay, watched): &(&str, &Watched)| {
            let hold = watched.beat.hold_ms * 1_000_000;
            match watched.content {
                Content::Nothing => self.lives(relay),
                _ => since.is_some_and(|since| self.now > since.max(watched.seen) + hold),
            }
        };
        let silent = self.fencing.known().filter(is_silent);
        let silent: BTreeSet<String> = silent.map(|(relay, _)| relay.to_owned()).collect();
        self.stale |= silent != self.fencing.silent;
        self.fencing.silent = silent;
        self.wait_for_unheard();
    }

    /// Whom it listed of which that is not known, may promise it on without a word from etcd: where one that
    /// lives is not heard, the wait for it begins anew.
    fn wait_for_unheard(&mut self) {
        let unknown: Vec<String> = self.unknown().map(str::to_owned).collect();
        for relay in unknown {
            let others = self.replica.live().map(|(name, _)| name);
            let mut others = others.filter(|name| *name != relay && *name != self.config.relay);
            let is_unheard = |name: &str| match self.fencing.watched.get(name) {
                Some(Some(told)) => told.content == Content::Beat && self.is_late(told),
                _ => true,
            };
            let is_unheard = others.any(is_unheard);
            if let Some(Some(told)) = self.fencing.watched.get_mut(&relay).filter(|_| is_unheard) {
                told.waited = self.waited;
            }
        }
    }

    /// Relays that may have listed others than those that are known.
    fn unknown(&self) -> impl Iterator<Item = &str> {
        let unknown = self
            .fencing
            .known()
            .filter(|(relay, told)| !self.is_known(relay, told));
        let unknown = unknown.map(|(relay, _)| relay);
        unknown.filter(|relay| *relay == self.config.relay || self.lives(relay))
    }

    /// Whether it is known whom a relay has listed: what was overwritten by what makes no sense, or deleted,
    /// may have listed others, whose promises count.
    fn is_known(&self, relay: &str, watched: &Watched) -> bool {
        let lists_me = || watched.lists(&self.config.relay, self.session.number);
        watched.content == Content::Beat || lists_me() && self.plan.monitored.contains(relay)
    }

    /// Whether a relay has a session that nobody has ended, by its entry: another one, or another process
    /// of this name.
    pub(super) fn lives(&self, relay: &str) -> bool {
        let is_own = |session| relay == self.config.relay && self.session.is_own(session);
        let entry = self.replica.relay(relay).filter(|entry| !entry.fenced);
        entry.is_some_and(|entry| !is_own(entry.session))
    }

    /// The longest hold of this relay and of those whose sessions may go on, in ns.
    pub(super) fn longest_hold_ns(&self) -> u64 {
        let live = self
            .fencing
            .known()
            .filter(|(relay, told)| told.content != Content::Nothing || self.lives(relay));
        let holds = live.map(|(_, told)| told.beat.hold_ms * 1_000_000);
        holds.fold(self.config.hold_ns, u64::max)
    }

    fn is_late(&self, watched: &Watched) -> bool {
        self.now > watched.seen + watched.beat.hold_ms * 1_000_000
    }

    /// Whether a relay got a share after its last beat.
    pub(super) fn is_given_unseen(&self, relay: &str, watched: &Watched) -> bool {
        let mut given = self
            .replica
            .shares
            .values()
            .filter(|known| known.value.relay == relay);
        given.any(|known| known.modified > watched.modified)
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
        let due = self
            .fencing
            .known()
            .filter(|(relay, watched)| self.may_fence(relay, watched) && self.now >= retry(relay));
        let due: Vec<_> = due
            .map(|(relay, watched)| (relay.to_owned(), watched.clone()))
            .collect();
        for (relay, watched) in due {
            self.send_fence(relay, &watched);
        }
    }

    /// A relay that etcd answers may, when it has done so for long enough that others can have
    /// been heard too. One without a session has listened for as long as it lives.
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
        let is_known = self.is_known(relay, watched);
        let hold_ms = if is_known {
            watched.beat.hold_ms
        } else {
            HOLD_MAX_MS
        };
        let hold = hold_ms * 1_000_000;
        if self.waited < watched.waited + self.surely(hold) {
            return false;
        }
        let own_session = relay == me && self.session.has_begun();
        if own_session || self.waited < self.monitors.promised_until(relay) {
            return false;
        }
        let monitors = &watched.beat.monitors;
        let anybody = !is_known || watched.beat.policy != OnIsolation::Peers;
        let ended = |m: &BeatMonitor| self.fencing.ended_for(m, self.surely(hold), self.waited);
        // What another process of this name has promised is not known here.
        let own = |m: &BeatMonitor| m.session == self.session.number || self.session.is_alone();
        let listed = |m: &BeatMonitor| m.relay == *me && (own(m) || ended(m));
        anybody || monitors.iter().any(listed) || monitors.iter().all(ended)
    }

    fn send_fence(&mut self, relay: String, watched: &Watched) {
        let (session, at) = (watched.session, watched.modified);
        let is_there = watched.content != Content::Nothing;
        let key = self.beat_key(&relay);
        let compare = if faulty!(self, FenceUnseen) {
            super::created(key.clone(), session)
        } else {
            modified(key.clone(), if is_there { at } else { 0 })
        };
        let mut txn = Txn {
            compares: vec![compare],
            deletes: vec![key.clone()],
            reads: vec![key],
            ..Txn::default()
        };
        if let Some(entry) = self.fenced_entry(&relay, session) {
            let key = self.key(Key::Relay(relay.clone()));
            let known = self.replica.relays.get(&relay);
            // Who says anything of itself lives, and who left has said so.
            if !is_there && !self.replica.refused.contains_key(&key) {
                let at = known.map_or(0, |known| known.modified);
                txn.compares.push(modified(key.clone(), at));
            }
            txn.puts.push((key, entry.write()));
        }
        let hold = self.config.hold_ns;
        self.fencing.begun.insert(relay.clone(), at);
        self.fencing.retry.insert(relay.clone(), self.now + hold);
        self.send(txn, Purpose::Fence { relay }, hold);
    }

    /// A relay's entry as it stands once its session is ended.
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
                let known = self.fencing.watched.get(relay).and_then(Option::as_ref);
                let session = known.map_or(0, |watched| watched.session);
                if let Some(entry) = self.fenced_entry(relay, session) {
                    self.learn_own(Key::Relay(relay.to_owned()), entry.write(), revision);
                }
                self.beat_seen(relay, revision, None);
                self.tell(FleetEvent::RelayFenced {
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
