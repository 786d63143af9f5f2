//! The contents of etcd, as far as this relay has read them. A key never returns to an older state.

mod versioned;

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::{
    self, Current, Drained, FleetSettings, Key, Keys, Move, RelayEntry, SessionNumber, ShareEntry,
    Value,
};
use crate::member::{Change, FleetEvent, KeyValue, Member, Outcome, Purpose};

pub(super) use versioned::Versioned;
use versioned::{learn, unlearn};

/// The watched keys.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Replica {
    pub(super) keys: Keys,
    /// Newest revision that lists and watches have reported.
    pub(super) revision: u64,
    /// The same without the watches of beats.
    read_to: u64,
    pub(super) relays: BTreeMap<String, Versioned<RelayEntry>>,
    /// Relays without an entry whose sessions may not have ended: see [`Self::note_missing`].
    missing: BTreeSet<String>,
    /// Whether `missing` may be out of date.
    unsure: bool,
    pub(super) shares: BTreeMap<String, Versioned<ShareEntry>>,
    /// Shares whose keys are invalid and whose previous values are unknown here, and the keys' revisions.
    pub(super) unclear: BTreeMap<String, u64>,
    /// Shares whose keys are not in a list, and when that arrived, by [`Member::waited`]: they may have
    /// changed hands unread before somebody deleted them. A relay that has read the change writes the key
    /// again.
    pub(super) unlisted: BTreeMap<String, u64>,
    /// Counts the changes of shares.
    pub(super) share_changes: u64,
    pub(super) moves: BTreeMap<String, Versioned<Move>>,
    pub(super) drained: BTreeMap<String, Versioned<Drained>>,
    pub(super) current: Option<Versioned<Current>>,
    /// Keys that are invalid or have invalid values, and why.
    pub(super) refused: BTreeMap<String, String>,
    /// A beat that is sent after this time and succeeds proves that etcd is still the same; 0: nothing is
    /// in doubt; `u64::MAX`: the watch broke and has reported nothing since.
    doubt: u64,
    /// Shares that were reported while in doubt, and when: they open once a later beat succeeds.
    doubted: BTreeMap<String, u64>,
}

impl Replica {
    pub(super) fn new(keys: Keys) -> Self {
        Self {
            keys,
            ..Self::default()
        }
    }

    /// The watch broke: its next reports may be of another etcd, with sessions of the same numbers.
    pub(super) fn doubt(&mut self) {
        self.doubt = u64::MAX;
    }

    /// The watch reports something at `now`.
    pub(super) fn watch_goes_on(&mut self, now: u64) {
        self.doubt = self.doubt.min(now);
    }

    /// Whether a share's key may be of another etcd.
    pub(super) fn is_doubted(&self, share: &str) -> bool {
        self.doubted.contains_key(share)
    }

    /// A beat that was sent at `sent` succeeded: it confirms everything that was reported before.
    pub(super) fn believe(&mut self, sent: u64) {
        if sent > self.doubt {
            self.doubt = 0;
        }
        let before = self.doubted.len();
        self.doubted.retain(|_, reported| *reported >= sent);
        self.share_changes += u64::from(self.doubted.len() != before);
    }

    /// An empty replica in place of this one.
    pub(super) fn emptied(&self) -> Self {
        Self {
            share_changes: self.share_changes + 1,
            ..Self::new(self.keys.clone())
        }
    }

    /// The entry of a relay, if it has one.
    pub(super) fn relay(&self, name: &str) -> Option<&RelayEntry> {
        let entry = self.relays.get(name)?;
        (entry.is_present() || self.is_missing(name)).then_some(&entry.value)
    }

    /// Whether a relay counts as live though it has no entry.
    pub(super) fn is_missing(&self, name: &str) -> bool {
        self.missing.contains(name)
    }

    /// Counts relays as live whose entries somebody may have deleted: those that hold a share by its key,
    /// or may hold one whose key cannot be read. A relay that leaves holds nothing, or says that it has
    /// left. Sessions of this process itself are excluded.
    pub(super) fn note_missing(&mut self, is_own: impl Fn(&str, SessionNumber) -> bool) {
        if !std::mem::take(&mut self.unsure) {
            return;
        }
        self.missing.clear();
        for share in self.shares.values() {
            let ShareEntry {
                relay, session, at, ..
            } = &share.value;
            if !self.relays.contains_key(relay) {
                let unknown = Versioned {
                    value: RelayEntry::unknown(*session, *at),
                    modified: 0,
                    as_of: 0,
                };
                self.relays.insert(relay.clone(), unknown);
            }
            let Some(holder) = self.relays.get_mut(relay).filter(|it| !it.is_present()) else {
                continue;
            };
            let entry = &mut holder.value;
            if *session > entry.session {
                entry.session = *session;
                entry.fenced = false;
            }
            if *session == entry.session && !entry.fenced && !is_own(relay, *session) {
                self.missing.insert(relay.clone());
            }
        }
        if !self.unclear.is_empty() {
            let is_missing = |(name, entry): &(&String, &Versioned<RelayEntry>)| {
                !entry.is_present() && !entry.value.fenced && !is_own(name, entry.value.session)
            };
            let missing = self.relays.iter().filter(is_missing);
            self.missing.extend(missing.map(|(name, _)| name.clone()));
        }
    }

    /// Has the missing relays determined anew.
    pub(super) fn doubt_missing(&mut self) {
        self.unsure = true;
    }

    /// Relays that have an entry, and those that are missing, by name.
    pub(super) fn relays(&self) -> impl Iterator<Item = (&str, &RelayEntry)> + Clone {
        self.relays
            .iter()
            .filter(|(name, entry)| entry.is_present() || self.is_missing(name))
            .map(|(name, entry)| (name.as_str(), &entry.value))
    }

    /// Relays whose session has not ended, as far as this relay has read.
    pub(super) fn live(&self) -> impl Iterator<Item = (&str, &RelayEntry)> {
        self.relays().filter(|(_, entry)| !entry.fenced)
    }

    pub(super) fn is_drained(&self, relay: &str) -> bool {
        self.drained.get(relay).is_some_and(Versioned::is_present)
    }

    pub(super) fn moved_to(&self, share: &str) -> Option<&Versioned<Move>> {
        self.moves.get(share).filter(|entry| entry.is_present())
    }

    /// Whether a session has ended, as far as this relay has read.
    pub(super) fn has_ended(&self, relay: &str, session: SessionNumber) -> bool {
        self.relay(relay).is_none_or(|entry| {
            entry.session > session || (entry.session == session && entry.fenced)
        })
    }

    /// Takes a value that was read or written at its revision. Returns false if it does not affect the plan.
    ///
    /// # Errors
    ///
    /// What is wrong with the key or the value.
    pub(super) fn put(&mut self, kv: &KeyValue) -> Result<bool, crate::keys::Error> {
        let (key, value, at) = (kv.key.as_str(), kv.value.as_slice(), kv.modified);
        match self.keys.parse(key)? {
            Key::Relay(name) => {
                let entry: RelayEntry = Value::read(key, value)?;
                let is_alike = self
                    .relay(&name)
                    .is_some_and(|before| before.plans_alike(&entry));
                self.unsure |= self.is_missing(&name);
                learn(&mut self.relays, name, entry, at);
                return Ok(!is_alike);
            }
            Key::Share(name) => {
                let value: ShareEntry = Value::read(key, value)?;
                self.unsure |= !self.missing.is_empty() || self.relay(&value.relay).is_none();
                self.unclear.remove(&name);
                self.unlisted.remove(&name);
                learn(&mut self.shares, name, value, at);
                self.share_changes += 1;
            }
            Key::Move(name) => learn(&mut self.moves, name, Value::read(key, value)?, at),
            Key::Drained(name) => learn(&mut self.drained, name, Value::read(key, value)?, at),
            Key::Rules => {
                let value = Value::read(key, value)?;
                self.current = Some(Versioned {
                    value,
                    modified: at,
                    as_of: at,
                });
            }
            Key::Settings => {
                FleetSettings::read(key, value)?;
                return Ok(false);
            }
            Key::Beat(_) | Key::Blob { .. } | Key::Counters(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Notes that a share's key holds an invalid value. If the previous value is known (`is_certain`), it
    /// stays in force, and the next writer replaces the invalid one.
    fn spoil(&mut self, name: String, kv: &KeyValue, is_certain: bool) {
        self.unsure = true;
        // Of a share that was unclear before, changes may be missing until a watch has caught up.
        let unclear = self.unclear.get(&name).copied();
        let is_certain = is_certain && unclear.is_none_or(|at| at >= kv.modified);
        match self.shares.get_mut(&name) {
            Some(entry) if is_certain && entry.as_of < kv.modified => {
                if unclear == Some(kv.modified) {
                    self.unclear.remove(&name);
                }
                entry.modified = kv.modified;
                entry.as_of = kv.modified;
                self.share_changes += 1;
            }
            Some(entry) if entry.as_of >= kv.modified => {}
            _ => drop(self.unclear.insert(name, kv.modified)),
        }
    }

    /// Relays that may hold a share whose key was invalid at `revision`: those with a session of that time
    /// that have not reported that they do not.
    pub(super) fn may_hold(&self, share: &str, revision: u64) -> impl Iterator<Item = &str> {
        let not_held = RelayEntry::not_held(revision);
        let may_hold = move |(_, entry): &(&str, &RelayEntry)| {
            entry.session <= revision && entry.unfit.get(share) != Some(&not_held)
        };
        self.live().filter(may_hold).map(|(name, _)| name)
    }

    /// Relays whose entries are invalid.
    pub(super) fn unread_relays(&self) -> impl Iterator<Item = &str> {
        let is_relay = |key: &&String| matches!(self.keys.parse(key), Ok(Key::Relay(_)));
        let keys = self.refused.keys().filter(is_relay);
        keys.filter_map(|key| Some(key.rsplit_once('/')?.1))
    }

    /// Removes a key that does not exist at `revision`. Returns true if that removes the rules.
    pub(super) fn delete(&mut self, key: &Key, revision: u64) -> bool {
        self.unsure = true;
        match key {
            Key::Relay(name) => unlearn(&mut self.relays, name, revision),
            Key::Share(name) => {
                self.unclear.remove(name);
                unlearn(&mut self.shares, name, revision);
                self.share_changes += 1;
            }
            Key::Move(name) => unlearn(&mut self.moves, name, revision),
            Key::Drained(name) => unlearn(&mut self.drained, name, revision),
            Key::Rules => return self.current.take().is_some(),
            _ => {}
        }
        false
    }

    /// Deletes the keys that a whole list at `revision` does not have. Returns true if that removes the
    /// rules.
    fn delete_missing(&mut self, keys: &[KeyValue], revision: u64, waited: u64) -> bool {
        let parsed = keys.iter().filter_map(|kv| self.keys.parse(&kv.key).ok());
        let listed: BTreeSet<Key> = parsed.collect();
        let shares = self.shares.keys().chain(self.unclear.keys());
        let mut missing: Vec<Key> = self.relays.keys().cloned().map(Key::Relay).collect();
        missing.extend(shares.cloned().map(Key::Share));
        missing.extend(self.moves.keys().cloned().map(Key::Move));
        missing.extend(self.drained.keys().cloned().map(Key::Drained));
        missing.push(Key::Rules);
        missing.retain(|key| !listed.contains(key));
        for key in &missing {
            if let Key::Share(name) = key
                && self.shares.get(name).is_some_and(Versioned::is_present)
            {
                self.unlisted.insert(name.clone(), waited);
            }
        }
        missing
            .iter()
            .fold(false, |rules, key| self.delete(key, revision) | rules)
    }
}

impl Replica {
    /// Whether a key as of `revision` cannot follow from the state of this replica.
    fn contradicts(&self, kv: &KeyValue, revision: u64) -> bool {
        fn as_of<T>(map: &BTreeMap<String, Versioned<T>>, name: &str) -> Option<u64> {
            map.get(name).map(|entry| entry.as_of)
        }
        let as_of = match self.keys.parse(&kv.key) {
            Ok(Key::Relay(name)) => as_of(&self.relays, &name),
            Ok(Key::Share(name)) => as_of(&self.shares, &name),
            Ok(Key::Move(name)) => as_of(&self.moves, &name),
            Ok(Key::Drained(name)) => as_of(&self.drained, &name),
            Ok(Key::Rules) => self.current.as_ref().map(|current| current.as_of),
            _ => None,
        };
        as_of.is_some_and(|as_of| kv.modified < as_of && as_of <= revision)
    }
}

impl Member {
    /// Compares an answer with etcd's history, `newest` being the newest revision when the transaction was
    /// sent: an etcd that does not continue from there is another one. A backup was restored, or it came
    /// back empty.
    pub(super) fn compare_history(&mut self, newest: u64, outcome: &Outcome) {
        let (revision, least, keys) = match outcome {
            Outcome::Applied { revision } => (*revision, newest + 1, &[][..]),
            Outcome::Refused { revision, found } => (*revision, newest, &found[..]),
            Outcome::Unknown | Outcome::NotSent => return,
        };
        let contradicts = |kv| self.replica.contradicts(kv, revision);
        if revision < least || keys.iter().any(contradicts) {
            self.went_back();
        }
        self.newest = self.newest.max(revision);
    }

    pub(super) fn listed(&mut self, cluster: u64, revision: u64, keys: Vec<KeyValue>) {
        self.stale = true;
        let went_back = revision < self.replica.revision
            || keys.iter().any(|kv| self.replica.contradicts(kv, revision));
        if self.session.is_other_cluster(cluster) || went_back {
            self.restored();
        }
        self.session.cluster = Some(cluster);
        self.note_read_revision(revision);
        let own = self.beat_key(&self.config.relay);
        let beat = keys.iter().find(|kv| kv.key == own).cloned();
        self.replica.refused.clear();
        keys.iter().for_each(|kv| self.learn(kv, false));
        if self.replica.delete_missing(&keys, revision, self.waited) {
            self.report(FleetEvent::RulesMissing);
        }
        self.session_listed(revision, beat);
    }

    /// Notes a revision that a watch or a list has reported.
    pub(super) fn note_revision(&mut self, revision: u64) {
        self.replica.revision = self.replica.revision.max(revision);
        self.newest = self.newest.max(revision);
    }

    fn note_read_revision(&mut self, revision: u64) {
        self.note_revision(revision);
        self.replica.read_to = self.replica.read_to.max(revision);
    }

    /// Shares with invalid keys that this relay does not hold, nor will by anything written before: it has
    /// read all of that, and no transaction for them is pending.
    pub(super) fn not_held(&self) -> impl Iterator<Item = (String, String)> + '_ {
        let is_pending = move |share: &String| {
            self.pending.values().any(|(purpose, _)| match purpose {
                Purpose::Claim { shares } | Purpose::HandOver { shares } => {
                    shares.iter().any(|(name, _)| name == share)
                }
                _ => false,
            })
        };
        let is_not_held = move |(share, at): &(&String, &u64)| {
            **at <= self.replica.read_to && self.holds(share).is_none() && !is_pending(share)
        };
        let not_held = self.replica.unclear.iter().filter(is_not_held);
        not_held.map(|(share, at)| (share.clone(), RelayEntry::not_held(*at)))
    }

    pub(super) fn changed(&mut self, revision: u64, changes: Vec<Change>) {
        self.note_read_revision(revision);
        for change in changes {
            match change {
                Change::Put(kv) => self.learn(&kv, true),
                Change::Deleted { key, revision } => {
                    self.stale = true;
                    self.replica.refused.remove(&key);
                    let Ok(key) = self.config.keys.parse(&key) else {
                        continue;
                    };
                    if self.replica.delete(&key, revision) {
                        self.report(FleetEvent::RulesMissing);
                    }
                }
            }
        }
    }

    /// Takes a key that was read or that this relay wrote. `follows`: the key had no other value since the
    /// last report, as a watch reports every change.
    pub(super) fn learn(&mut self, kv: &KeyValue, follows: bool) {
        self.status_version += 1;
        if self.replica.doubt > 0
            && let Ok(Key::Share(share)) = self.config.keys.parse(&kv.key)
        {
            self.replica.doubted.insert(share, self.now);
            self.beat.hasten();
        }
        match self.replica.put(kv) {
            Ok(affects_plan) => {
                self.stale |= affects_plan;
                self.replica.refused.remove(&kv.key);
            }
            Err(error) => {
                self.stale = true;
                if let Ok(Key::Share(share)) = self.config.keys.parse(&kv.key) {
                    // Nobody else can have taken a share that this relay holds and did not give away.
                    let is_own =
                        self.holds(&share).is_some() && !self.handover.may_be_given(&share);
                    self.replica.spoil(share, kv, follows || is_own);
                }
                self.refuse(error);
            }
        }
    }

    /// Notes that a key or its value is invalid, and reports it once.
    pub(super) fn refuse(&mut self, error: keys::Error) {
        self.status_version += 1;
        let keys::Error { key, problem } = error;
        let parsed = self.config.keys.parse(&key);
        if parsed.as_ref() == Ok(&Key::Relay(self.config.relay.clone())) {
            self.beat.write_entry_anew();
        }
        let problem = format!("{problem}; {}", keys::remedy(parsed.ok().as_ref()));
        let before = self.replica.refused.insert(key.clone(), problem.clone());
        if before.as_ref() != Some(&problem) {
            self.report(FleetEvent::Refused { key, problem });
        }
    }

    /// Shares of this relay whose keys are invalid.
    pub(super) fn spoilt_shares(&self) -> impl Iterator<Item = String> + '_ {
        let refused = self.replica.refused.keys();
        let shares = refused.filter_map(|key| match self.config.keys.parse(key) {
            Ok(Key::Share(share)) => Some(share),
            _ => None,
        });
        shares.filter(|share| {
            self.holds(share).is_some() && !self.replica.unclear.contains_key(share)
        })
    }

    /// Takes a value that a committed transaction of this relay wrote.
    pub(super) fn learn_own(&mut self, key: Key, value: Vec<u8>, revision: u64) {
        let written = KeyValue {
            key: self.key(key),
            value,
            created: revision,
            modified: revision,
        };
        self.learn(&written, false);
    }
}
