//! Watching the beats of others, and ending the session of one that is silent.

use std::collections::{BTreeMap, BTreeSet};

use config::OnIsolation;

use crate::keys::{Beat, BeatMonitor, HOLD_MAX_MS, Key, RelayEntry, SessionNumber, Value};
use crate::member::{
    Command, FleetEvent, KeyValue, Member, Outcome, PhaseName, Purpose, Txn, faulty, modified,
};

/// A relay's beats, as watched.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Watched {
    pub(super) session: SessionNumber,
    modified: u64,
    /// When this beat was first seen here, and [`Member::waited`] then.
    pub(super) seen: u64,
    waited: u64,
    /// The last one that made sense.
    beat: Beat,
    /// Whether what stands there makes none.
    garbled: bool,
    /// Whether more than one beat was seen: none of them can be one that a former process of this
    /// relay has tried to delete.
    moving: bool,
}

impl Watched {
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
    /// Whose beats are watched. `None`: nothing told yet; `Some(None)`: there is no beat.
    watched: BTreeMap<String, Option<Option<Watched>>>,
    /// Up to which revision that is known.
    heard: BTreeMap<String, u64>,
    /// When it became known here that a session has ended, by [`Member::waited`].
    ended: BTreeMap<String, (SessionNumber, u64)>,
    /// Fences that were sent: the revision that each would delete. No promise from then on.
    begun: BTreeMap<String, u64>,
    retry: BTreeMap<String, u64>,
    /// Relays that have not beaten for a hold, though etcd has answered this one for as long.
    silent: BTreeSet<String>,
    /// In a large fleet, one more that is looked at, and until when.
    audit: Option<(String, u64)>,
}

impl Fencing {
    /// What the watch of `relay`'s beat key tells: who wrote it and its revision. `None` if it has
    /// told nothing yet.
    pub(super) fn seen(&self, relay: &str) -> Option<Option<(Option<u64>, u64)>> {
        let told = self.watched.get(relay)?.as_ref()?;
        Some(told.as_ref().map(|w| (Some(w.beat.process), w.modified)))
    }

    /// The beats of a relay that can be promised something.
    pub(super) fn may_promise(&self, relay: &str) -> Option<&Watched> {
        let watched = self.watched(relay)?;
        let fencing = self
            .begun
            .get(relay)
            .is_some_and(|at| *at >= watched.modified);
        (watched.moving && !fencing).then_some(watched)
    }

    /// Whether a relay's beat key is known to hold what makes no sense.
    pub(super) fn is_garbled(&self, relay: &str) -> bool {
        self.watched(relay).is_some_and(|watched| watched.garbled)
    }

    pub(super) fn is_silent(&self, relay: &str) -> bool {
        self.silent.contains(relay)
    }

    /// Whether more than one beat of a relay was seen, and the last just now.
    pub(super) fn beats(&self, relay: &str) -> bool {
        self.watched(relay).is_some_and(|watched| watched.moving) && !self.is_silent(relay)
    }

    pub(super) fn watched(&self, relay: &str) -> Option<&Watched> {
        self.watched.get(relay)?.as_ref()?.as_ref()
    }

    /// Another cluster's beats tell nothing. Names those whose watch is to end.
    pub(super) fn forget(&mut self) -> Vec<String> {
        let watched = std::mem::take(self).watched;
        watched.into_keys().collect()
    }

    fn end(&mut self, relay: &str, session: SessionNumber, now: u64) {
        let ended = self.ended.entry(relay.to_owned()).or_insert((session, now));
        if session > ended.0 {
            *ended = (session, now);
        }
    }

    fn ended_for(&self, monitor: &BeatMonitor, hold: u64, now: u64) -> bool {
        let ended = self.ended.get(&monitor.relay);
        ended.is_some_and(|(session, at)| *session >= monitor.session && now >= at + hold)
    }
}

/// What may stand behind a beat that makes no sense: the longest hold, and anybody may end it.
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
        let before = told.take().flatten();
        let was_garbled = before.as_ref().is_some_and(|watched| watched.garbled);
        let Some(kv) = beat else {
            *told = Some(None);
            self.stale |= was_garbled;
            self.replica.refused.remove(&self.beat_key(relay));
            // Whatever session there was up to this revision is over.
            return self.fencing.end(relay, revision, waited);
        };
        let read = Beat::read(&kv.key, &kv.value);
        let same = before.as_ref().filter(|w| w.modified == kv.modified);
        let is_new = before.is_some() && same.is_none();
        let new = (now, waited, before.is_some());
        let (seen, waited, moving) = same.map_or(new, |w| (w.seen, w.waited, w.moving));
        let garbled = read.is_err();
        let of_session = before.filter(|before| before.session == kv.created);
        let last = of_session.map_or_else(unknown_beat, |before| before.beat);
        let beat = read.as_ref().map_or(last, Beat::clone);
        let beats = is_new && !garbled && beat.process != self.config.process;
        *told = Some(Some(Watched {
            session: kv.created,
            modified: kv.modified,
            seen,
            waited,
            beat,
            garbled,
            moving,
        }));
        self.stale |= garbled != was_garbled;
        // A key created at this revision is the first after all earlier sessions.
        let ended = kv.created.saturating_sub(1);
        self.fencing.end(relay, ended, self.waited);
        match read {
            Ok(_) => drop(self.replica.refused.remove(&kv.key)),
            Err(error) => self.refuse(error),
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
        let is_silent = |watched: &Watched| {
            let hold = watched.beat.hold_ms * 1_000_000;
            since.is_some_and(|since| self.now > since.max(watched.seen) + hold)
        };
        let watched = { self.fencing.watched.iter() }
            .filter_map(|(relay, told)| Some((relay, told.as_ref()?.as_ref()?)));
        let silent = watched.filter(|(_, watched)| is_silent(watched));
        let silent: BTreeSet<String> = silent.map(|(relay, _)| relay.clone()).collect();
        self.stale |= silent != self.fencing.silent;
        self.fencing.silent = silent;
    }

    /// Watches the beats of those that this relay may have to fence, or gives something to.
    pub(super) fn watch_beats(&mut self) {
        let wanted = self.beats_to_watch();
        let now: BTreeSet<String> = self.fencing.watched.keys().cloned().collect();
        for relay in now.difference(&wanted) {
            self.fencing.watched.remove(relay);
            self.out.push(Command::UnwatchBeat {
                relay: relay.clone(),
            });
        }
        for relay in wanted.difference(&now) {
            self.fencing.watched.insert(relay.clone(), None);
            self.out.push(Command::WatchBeat {
                relay: relay.clone(),
            });
        }
    }

    fn beats_to_watch(&mut self) -> BTreeSet<String> {
        if matches!(self.session.phase, PhaseName::Starting | PhaseName::Left) {
            return BTreeSet::new();
        }
        let me = self.config.relay.clone();
        self.choose_audit();
        let mut wanted = self.plan.monitored.clone();
        for (relay, told) in &self.fencing.watched {
            let lists = |w: &Watched| w.beat.monitors.iter().any(|m| m.relay == me);
            let lists_me = told.as_ref().and_then(Option::as_ref).is_some_and(lists);
            if lists_me && self.replica.relay(relay).is_some_and(|entry| !entry.fenced) {
                wanted.insert(relay.clone());
            }
        }
        if let Some((relay, _)) = &self.fencing.audit {
            wanted.insert(relay.clone());
        }
        let silent = |w: &&Watched| self.now > w.seen + w.beat.hold_ms * 1_000_000;
        let silent: Vec<_> = self
            .fencing
            .watched
            .values()
            .flatten()
            .flatten()
            .filter(silent)
            .collect();
        let monitors = silent.iter().flat_map(|w| &w.beat.monitors);
        wanted.extend(
            monitors
                .map(|m| m.relay.clone())
                .filter(|relay| *relay != me),
        );
        wanted.extend(self.replica.unread_relays().filter(|relay| *relay != me));
        if !self.session.has_begun() {
            wanted.insert(me);
        }
        wanted.extend(self.targets().cloned());
        // Who is not listened to any more would be next again.
        wanted.extend(self.fencing.silent.iter().cloned());
        wanted
    }

    /// Looks at one relay after another, lest all monitors of one be dead with it.
    fn choose_audit(&mut self) {
        let due = self
            .fencing
            .audit
            .as_ref()
            .is_none_or(|(_, until)| self.now >= *until);
        if !due {
            return;
        }
        let last = self.fencing.audit.take();
        let last = last
            .as_ref()
            .map_or(self.config.relay.as_str(), |(relay, _)| relay);
        let others = || {
            self.replica
                .live()
                .map(|(n, _)| n)
                .filter(|n| *n != self.config.relay)
        };
        let next = others()
            .find(|name| *name > last)
            .or_else(|| others().next());
        let until = self.now + 3 * self.config.hold_ns;
        self.fencing.audit = next.map(|name| (name.to_owned(), until));
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
        let relays: Vec<String> = self.fencing.watched.keys().cloned().collect();
        for relay in relays {
            let retry = self.fencing.retry.get(&relay).copied().unwrap_or(0);
            let Some(watched) = self.fencing.watched(&relay) else {
                continue;
            };
            if self.now >= retry && self.may_fence(&relay, watched) {
                let (session, modified) = (watched.session, watched.modified);
                self.send_fence(relay, session, modified);
            }
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
        let own_session = relay == me && self.session.has_begun();
        let hold = watched.beat.hold_ms * 1_000_000;
        let silent = self.waited >= watched.waited + self.surely(hold);
        let promised = self.waited < self.monitors.promised_until(relay);
        if own_session || !silent || promised {
            return false;
        }
        let monitors = &watched.beat.monitors;
        let anybody = watched.beat.policy != OnIsolation::Peers;
        let listed = monitors.iter().any(|m| m.relay == *me);
        let ended = |m: &BeatMonitor| self.fencing.ended_for(m, self.surely(hold), self.waited);
        anybody || listed || monitors.iter().all(ended)
    }

    fn send_fence(&mut self, relay: String, session: SessionNumber, at: u64) {
        let key = self.beat_key(&relay);
        let compare = if faulty!(self, FenceUnseen) {
            super::created(key.clone(), session)
        } else {
            modified(key.clone(), at)
        };
        let mut txn = Txn {
            compares: vec![compare],
            deletes: vec![key.clone()],
            reads: vec![key],
            ..Txn::default()
        };
        if let Some(entry) = self.fenced_entry(&relay, session) {
            txn.puts
                .push((self.key(Key::Relay(relay.clone())), entry.write()));
        }
        let hold = self.config.hold_ns;
        self.fencing.begun.insert(relay.clone(), at);
        self.fencing.retry.insert(relay.clone(), self.now + hold);
        self.send(txn, Purpose::Fence { relay }, hold);
    }

    /// A relay's entry as it stands once its session is ended.
    fn fenced_entry(&self, relay: &str, session: SessionNumber) -> Option<RelayEntry> {
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
                let session = self.fencing.watched(relay).map_or(0, |w| w.session);
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
