//! What etcd holds, as far as this relay has read it. A key never returns to an older state.

mod known;

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::{
    self, Current, Drained, FleetSettings, Key, Keys, Move, RelayEntry, SessionNumber, ShareEntry,
    Value,
};
use crate::member::{Change, FleetEvent, KeyValue, Member, Outcome, Purpose};

pub(super) use known::Known;
use known::{learn, unlearn};

/// The watched keys.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Replica {
    pub(super) keys: Keys,
    /// Newest revision that lists and watches have reported.
    pub(super) revision: u64,
    /// The same without what watches of beats have.
    read_to: u64,
    pub(super) relays: BTreeMap<String, Known<RelayEntry>>,
    /// Relays without an entry whose sessions are not known to be over: see [`Self::note_missing`].
    missing: BTreeSet<String>,
    /// Whether others may be missing than those.
    unsure: bool,
    pub(super) shares: BTreeMap<String, Known<ShareEntry>>,
    /// Keys of shares that make no sense where nobody can tell here what they said before, and their
    /// revisions.
    pub(super) unclear: BTreeMap<String, u64>,
    /// Shares whose keys are not in a list, and when that came, by [`Member::waited`]: they may have changed
    /// hands unread before somebody deleted them. Who has read it writes them anew.
    pub(super) unlisted: BTreeMap<String, u64>,
    /// How often one of those was told.
    pub(super) share_changes: u64,
    pub(super) moves: BTreeMap<String, Known<Move>>,
    pub(super) drained: BTreeMap<String, Known<Drained>>,
    pub(super) current: Option<Known<Current>>,
    /// Keys that are not believed, and why.
    pub(super) refused: BTreeMap<String, String>,
    /// Whether etcd is the one that it was is known by the first beat sent after this that stands; 0: it
    /// is known. The watch broke, and has not told anything yet: the end of time.
    doubt: u64,
    /// Shares that were told meanwhile, and when: they open once a later beat stands.
    doubted: BTreeMap<String, u64>,
}

impl Replica {
    pub(super) fn new(keys: Keys) -> Self {
        Self {
            keys,
            ..Self::default()
        }
    }

    /// The watch broke: what it tells next may be of another etcd, with sessions of the same numbers.
    pub(super) fn doubt(&mut self) {
        self.doubt = u64::MAX;
    }

    /// The watch tells something at `now`.
    pub(super) fn watch_goes_on(&mut self, now: u64) {
        self.doubt = self.doubt.min(now);
    }

    /// Whether what a share's key says may be of another etcd.
    pub(super) fn is_doubted(&self, share: &str) -> bool {
        self.doubted.contains_key(share)
    }

    /// A beat that was sent at `sent` follows all that was known then.
    pub(super) fn believe(&mut self, sent: u64) {
        if sent > self.doubt {
            self.doubt = 0;
        }
        let before = self.doubted.len();
        self.doubted.retain(|_, told| *told >= sent);
        self.share_changes += u64::from(self.doubted.len() != before);
    }

    /// One that knows nothing.
    pub(super) fn emptied(&self) -> Self {
        Self {
            share_changes: self.share_changes + 1,
            ..Self::new(self.keys.clone())
        }
    }

    /// The entry of a relay, if it has one.
    pub(super) fn relay(&self, name: &str) -> Option<&RelayEntry> {
        let known = self.relays.get(name)?;
        (known.stands() || self.is_missing(name)).then_some(&known.value)
    }

    /// Whether a relay counts as living though it has no entry.
    pub(super) fn is_missing(&self, name: &str) -> bool {
        self.missing.contains(name)
    }

    /// Has relays whose entries somebody may have deleted count as living: who holds a share by its key, or
    /// may where one cannot be read. Who leaves holds nothing, or says that it has left. Sessions that are
    /// this process's own it knows.
    pub(super) fn note_missing(&mut self, is_own: impl Fn(&str, SessionNumber) -> bool) {
        if !std::mem::take(&mut self.unsure) {
            return;
        }
        self.missing.clear();
        for known in self.shares.values() {
            let ShareEntry {
                relay, session, at, ..
            } = &known.value;
            if !self.relays.contains_key(relay) {
                let known = Known {
                    value: RelayEntry::unknown(*session, *at),
                    modified: 0,
                    heard: 0,
                };
                self.relays.insert(relay.clone(), known);
            }
            let Some(known) = self.relays.get_mut(relay).filter(|k| !k.stands()) else {
                continue;
            };
            if *session > known.value.session {
                known.value.session = *session;
                known.value.fenced = false;
            }
            if *session == known.value.session && !known.value.fenced && !is_own(relay, *session) {
                self.missing.insert(relay.clone());
            }
        }
        if !self.unclear.is_empty() {
            let gone = self
                .relays
                .iter()
                .filter(|(_, k)| !k.stands() && !k.value.fenced);
            let others = gone.filter(|(name, known)| !is_own(name, known.value.session));
            let others = others.map(|(name, _)| name.clone());
            self.missing.extend(others);
        }
    }

    /// Who is missing is to be seen anew.
    pub(super) fn doubt_missing(&mut self) {
        self.unsure = true;
    }

    /// Relays that have an entry, and those that are missing, by name.
    pub(super) fn relays(&self) -> impl Iterator<Item = (&str, &RelayEntry)> + Clone {
        self.relays
            .iter()
            .filter(|(name, known)| known.stands() || self.is_missing(name))
            .map(|(name, known)| (name.as_str(), &known.value))
    }

    /// Relays whose session has not ended, as far as is known.
    pub(super) fn live(&self) -> impl Iterator<Item = (&str, &RelayEntry)> {
        self.relays().filter(|(_, entry)| !entry.fenced)
    }

    pub(super) fn is_drained(&self, relay: &str) -> bool {
        self.drained.get(relay).is_some_and(Known::stands)
    }

    pub(super) fn moved_to(&self, share: &str) -> Option<&Known<Move>> {
        self.moves.get(share).filter(|known| known.stands())
    }

    /// Whether a session is over, as far as is known.
    pub(super) fn has_ended(&self, relay: &str, session: SessionNumber) -> bool {
        self.relay(relay).is_none_or(|entry| {
            entry.session > session || (entry.session == session && entry.fenced)
        })
    }

    /// Takes a value that was read or written at its revision. False if no plan rests on what it changes.
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
                self.current = Some(Known {
                    value,
                    modified: at,
                    heard: at,
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

    /// Takes in that a share's key holds what makes no sense: what it held, if that is known for `certain`,
    /// counts on, and who writes it next does so in the place of that.
    fn spoil(&mut self, name: String, kv: &KeyValue, certain: bool) {
        self.unsure = true;
        // What came between is not known of one that was unclear before, until a watch has caught up.
        let unclear = self.unclear.get(&name).copied();
        let certain = certain && unclear.is_none_or(|at| at >= kv.modified);
        match self.shares.get_mut(&name) {
            Some(known) if certain && known.heard < kv.modified => {
                if unclear == Some(kv.modified) {
                    self.unclear.remove(&name);
                }
                known.modified = kv.modified;
                known.heard = kv.modified;
                self.share_changes += 1;
            }
            Some(known) if known.heard >= kv.modified => {}
            _ => drop(self.unclear.insert(name, kv.modified)),
        }
    }

    /// Relays that may hold a share whose key made no sense at `revision`: those with a session of that time
    /// that have not said that they do not.
    pub(super) fn may_hold(&self, share: &str, revision: u64) -> impl Iterator<Item = &str> {
        let not_held = RelayEntry::not_held(revision);
        let may_hold = move |entry: &RelayEntry| {
            entry.session <= revision && entry.unfit.get(share) != Some(&not_held)
        };
        let live = self.live().filter(move |(_, entry)| may_hold(entry));
        live.map(|(name, _)| name)
    }

    /// Relays whose entries make no sense.
    pub(super) fn unread_relays(&self) -> impl Iterator<Item = &str> {
        let is_relay = |key: &&String| matches!(self.keys.parse(key), Ok(Key::Relay(_)));
        let keys = self.refused.keys().filter(is_relay);
        keys.filter_map(|key| Some(key.rsplit_once('/')?.1))
    }

    /// Forgets a key that is not there at `revision`. True if the rules have gone.
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

    /// Deletes what a whole list at `revision` does not have.
    fn delete_missing(&mut self, keys: &[KeyValue], revision: u64, waited: u64) -> bool {
        let parsed = keys.iter().filter_map(|kv| self.keys.parse(&kv.key).ok());
        let there: BTreeSet<Key> = parsed.collect();
        let names = |kind: fn(String) -> Key, known: Vec<String>| {
            known.into_iter().map(kind).collect::<Vec<_>>()
        };
        let mut all = names(Key::Relay, self.relays.keys().cloned().collect());
        let shares = self.shares.keys().chain(self.unclear.keys());
        all.extend(names(Key::Share, shares.cloned().collect()));
        all.extend(names(Key::Move, self.moves.keys().cloned().collect()));
        all.extend(names(Key::Drained, self.drained.keys().cloned().collect()));
        all.push(Key::Rules);
        let gone: Vec<Key> = all.into_iter().filter(|key| !there.contains(key)).collect();
        for key in &gone {
            if let Key::Share(name) = key
                && self.shares.get(name).is_some_and(Known::stands)
            {
                self.unlisted.insert(name.clone(), waited);
            }
        }
        gone.into_iter()
            .fold(false, |rules, key| self.delete(&key, revision) | rules)
    }
}

impl Replica {
    /// Whether a key as it stood at `revision` cannot follow from what is known.
    fn contradicts(&self, kv: &KeyValue, revision: u64) -> bool {
        fn heard<T>(map: &BTreeMap<String, Known<T>>, name: &str) -> Option<u64> {
            map.get(name).map(|known| known.heard)
        }
        let heard = match self.keys.parse(&kv.key) {
            Ok(Key::Relay(name)) => heard(&self.relays, &name),
            Ok(Key::Share(name)) => heard(&self.shares, &name),
            Ok(Key::Move(name)) => heard(&self.moves, &name),
            Ok(Key::Drained(name)) => heard(&self.drained, &name),
            Ok(Key::Rules) => self.current.as_ref().map(|known| known.heard),
            _ => None,
        };
        heard.is_some_and(|heard| kv.modified < heard && heard <= revision)
    }
}

impl Member {
    /// Notes what an answer says of etcd's history, sent when `known` was its newest revision: an etcd
    /// that does not go on from there is not the one that it was. A backup was restored, or it came back
    /// empty.
    pub(super) fn compare_history(&mut self, known: u64, outcome: &Outcome) {
        let (revision, least, found) = match outcome {
            Outcome::Applied { revision } => (*revision, known + 1, &[][..]),
            Outcome::Refused { revision, found } => (*revision, known, &found[..]),
            Outcome::Unknown | Outcome::NotSent => return,
        };
        let contradicts = |kv| self.replica.contradicts(kv, revision);
        if revision < least || found.iter().any(contradicts) {
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
        self.read_up_to(revision);
        let own = self.beat_key(&self.config.relay);
        let beat = keys.iter().find(|kv| kv.key == own).cloned();
        self.replica.refused.clear();
        keys.iter().for_each(|kv| self.learn(kv, false));
        if self.replica.delete_missing(&keys, revision, self.waited) {
            self.tell(FleetEvent::RulesMissing);
        }
        self.session_listed(revision, beat);
    }

    /// Notes a revision that a watch or a list has reported.
    pub(super) fn heard_up_to(&mut self, revision: u64) {
        self.replica.revision = self.replica.revision.max(revision);
        self.newest = self.newest.max(revision);
    }

    fn read_up_to(&mut self, revision: u64) {
        self.heard_up_to(revision);
        self.replica.read_to = self.replica.read_to.max(revision);
    }

    /// Shares whose keys make no sense, and that this relay does not hold and never will by what was written
    /// before: it has read all of that, and no transaction is on its way.
    pub(super) fn not_held(&self) -> impl Iterator<Item = (String, String)> + '_ {
        let asked = move |share: &String| {
            self.pending.values().any(|(purpose, _)| match purpose {
                Purpose::Claim { shares } | Purpose::HandOver { shares } => {
                    shares.iter().any(|(name, _)| name == share)
                }
                _ => false,
            })
        };
        let unclear = self.replica.unclear.iter();
        let unclear = unclear.filter(move |(share, at)| {
            **at <= self.replica.read_to && self.holds(share).is_none() && !asked(share)
        });
        unclear.map(|(share, at)| (share.clone(), RelayEntry::not_held(*at)))
    }

    pub(super) fn changed(&mut self, revision: u64, changes: Vec<Change>) {
        self.read_up_to(revision);
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
                        self.tell(FleetEvent::RulesMissing);
                    }
                }
            }
        }
    }

    /// Takes a key that was read or that this relay wrote. `follows`: it had no other value between this
    /// one and the last that was told, as a watch tells all.
    pub(super) fn learn(&mut self, kv: &KeyValue, follows: bool) {
        self.news += 1;
        if self.replica.doubt > 0
            && let Ok(Key::Share(share)) = self.config.keys.parse(&kv.key)
        {
            self.replica.doubted.insert(share, self.now);
            self.beat.hasten();
        }
        match self.replica.put(kv) {
            Ok(is_news) => {
                self.stale |= is_news;
                self.replica.refused.remove(&kv.key);
            }
            Err(error) => {
                self.stale = true;
                if let Ok(Key::Share(share)) = self.config.keys.parse(&kv.key) {
                    // What this relay holds nobody else can have taken, unless it gave it away.
                    let own = self.holds(&share).is_some() && !self.handover.may_be_given(&share);
                    self.replica.spoil(share, kv, follows || own);
                }
                self.refuse(error);
            }
        }
    }

    /// Notes that a key is not believed, and tells it once.
    pub(super) fn refuse(&mut self, error: keys::Error) {
        self.news += 1;
        let keys::Error { key, problem } = error;
        let parsed = self.config.keys.parse(&key);
        if parsed.as_ref() == Ok(&Key::Relay(self.config.relay.clone())) {
            self.beat.write_entry_anew();
        }
        let problem = format!("{problem}; {}", keys::remedy(parsed.ok().as_ref()));
        let known = self.replica.refused.insert(key.clone(), problem.clone());
        if known.as_ref() != Some(&problem) {
            self.tell(FleetEvent::Refused { key, problem });
        }
    }

    /// Shares of this relay whose keys make no sense.
    pub(super) fn spoilt_shares(&self) -> impl Iterator<Item = String> + '_ {
        let keys = self
            .replica
            .refused
            .keys()
            .filter_map(|key| self.config.keys.parse(key).ok());
        let shares = keys.filter_map(|key| match key {
            Key::Share(share) => Some(share),
            _ => None,
        });
        shares.filter(|share| {
            self.holds(share).is_some() && !self.replica.unclear.contains_key(share)
        })
    }

    /// Takes what a committed transaction of this relay wrote.
    pub(super) fn learn_own(&mut self, key: Key, value: Vec<u8>, revision: u64) {
        let key = self.key(key);
        let written = KeyValue {
            key,
            value,
            created: revision,
            modified: revision,
        };
        self.learn(&written, false);
    }
}
