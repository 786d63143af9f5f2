//! Passes changes in etcd to the engine: of the fleet's keys, and of the beats that the member watches.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use etcd::{
    Client, Error, Event, KeyRange, RangeOptions, RangeReply, Watch, WatchBatch, WatchTarget,
};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::received::Received;
use super::transactions::{key_value, unsigned};
use crate::keys::{Key, Keys};
use crate::member::{Change, Input};

/// How long listing may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long reading a beat may take: enough to ask a second member of etcd.
const BEAT: Duration = Duration::from_millis(1500);
/// How long to wait before etcd is asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// Keys in one reply.
const PAGE: u32 = 1000;
/// The id of the target for the fleet's keys; those for beats follow.
const FLEET: i64 = 1;

/// A command of the member that concerns the watches.
#[derive(Debug)]
pub(super) enum WatchCommand {
    /// Watch the beat of a relay.
    Watch(String),
    Unwatch(String),
    /// List everything anew.
    ListAgain,
}

/// Follows etcd for as long as the engine runs.
pub(super) struct Follower {
    pub(super) client: Client,
    pub(super) keys: Keys,
    pub(super) relay: String,
    pub(super) commands: mpsc::UnboundedReceiver<WatchCommand>,
    pub(super) engine: mpsc::UnboundedSender<Received>,
    /// Whether everything is to be listed anew, even if the watch could resume.
    pub(super) lists_again: bool,
}

/// The targets of the watch, each with the revision up to which it was reported.
struct Watched {
    fleet: WatchTarget,
    /// By relay; `None`: its beat was not read yet.
    beats: BTreeMap<String, Option<WatchTarget>>,
    next_id: i64,
}

impl Watched {
    fn targets(&self) -> Vec<WatchTarget> {
        let beats = self.beats.values().flatten().cloned();
        [self.fleet.clone()].into_iter().chain(beats).collect()
    }

    fn relay_of(&self, id: i64) -> Option<&String> {
        let mut beats = self.beats.iter();
        let has_id = |target: &Option<WatchTarget>| target.as_ref().is_some_and(|it| it.id == id);
        beats
            .find(|(_, target)| has_id(target))
            .map(|(relay, _)| relay)
    }

    /// Notes the revisions from which to resume.
    fn note(&mut self, targets: Vec<WatchTarget>) {
        for target in targets {
            if target.id == FLEET {
                self.fleet = target;
                continue;
            }
            let beats = self.beats.values_mut().flatten();
            for beat in beats.filter(|beat| beat.id == target.id) {
                *beat = target.clone();
            }
        }
    }
}

impl Follower {
    /// Ends when the engine does.
    pub(super) async fn run(mut self) {
        let mut relays = BTreeSet::new();
        loop {
            let fleet = match self.list().await {
                Ok(fleet) => fleet,
                Err(error) => {
                    self.send(Received::Away(error));
                    if !self.pause(&mut relays).await {
                        return;
                    }
                    continue;
                }
            };
            let mut watched = Watched {
                fleet,
                beats: relays.iter().map(|relay| (relay.clone(), None)).collect(),
                next_id: FLEET + 1,
            };
            if !self.follow(&mut watched).await {
                return;
            }
            relays = watched.beats.into_keys().collect();
        }
    }

    /// Pauses, and takes commands meanwhile; `false`: the engine has ended.
    async fn pause(&mut self, relays: &mut BTreeSet<String>) -> bool {
        let pause = sleep(PAUSE);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return true,
                command = self.commands.recv() => match command {
                    Some(WatchCommand::Watch(relay)) => drop(relays.insert(relay)),
                    Some(WatchCommand::Unwatch(relay)) => drop(relays.remove(&relay)),
                    // The list follows after the pause.
                    Some(WatchCommand::ListAgain) => self.lists_again = true,
                    None => return false,
                },
            }
        }
    }

    fn send(&self, received: Received) {
        let _ = self.engine.send(received);
    }

    /// Lists all watched keys, and passes them on.
    async fn list(&mut self) -> Result<WatchTarget, Error> {
        self.lists_again = false;
        let cluster = self.cluster().await?;
        let (from, to) = (self.keys.watch_from(), self.keys.watch_to());
        let range = KeyRange::between(from, to);
        let options = RangeOptions {
            limit: PAGE,
            ..RangeOptions::default()
        };
        let listed = self.client.list(range.clone(), options, PATIENCE).await?;
        let own = KeyRange::key(self.keys.text(&Key::Beat(self.relay.clone())));
        let options = RangeOptions {
            revision: listed.revision,
            ..RangeOptions::default()
        };
        let own = self.client.range(own, options, PATIENCE).await?;
        let keys = listed.keys.iter().chain(&own.keys);
        self.send(Received::Input(Input::Listed {
            cluster,
            revision: unsigned(listed.revision),
            keys: keys.filter_map(key_value).collect(),
        }));
        Ok(WatchTarget {
            id: FLEET,
            range,
            start_revision: listed.revision + 1,
        })
    }

    /// The cluster's id, from the first member that answers.
    async fn cluster(&self) -> Result<u64, Error> {
        let mut last = None;
        for endpoint in self.client.endpoints() {
            match self.client.status(endpoint, PATIENCE / 4).await {
                Ok(status) => return Ok(status.cluster_id),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or(Error::Unavailable {
            reason: "no endpoint is given".to_owned(),
        }))
    }

    /// Watches until everything has to be listed again; `false`: the engine has ended.
    async fn follow(&mut self, watched: &mut Watched) -> bool {
        loop {
            let error = match self.client.watch(watched.targets(), PATIENCE).await {
                Ok(mut watch) => match self.receive(&mut watch, watched).await {
                    Some(error) => error,
                    None => return self.lists_again,
                },
                Err(error) => error,
            };
            self.send(Received::Input(Input::WatchLost));
            if matches!(error, Error::Compacted { .. }) {
                return true;
            }
            // Either that member lags, or this is another etcd: a list decides.
            self.lists_again |= matches!(error, Error::Behind { .. });
            self.send(Received::Away(error));
            let mut relays = watched.beats.keys().cloned().collect();
            if !self.pause(&mut relays).await {
                return false;
            }
            watched.beats.retain(|relay, _| relays.contains(relay));
            for relay in relays {
                watched.beats.entry(relay).or_default();
            }
            if self.lists_again {
                return true;
            }
        }
    }

    /// Passes on what a watch reports until it breaks; `None`: the engine has ended, or everything is to be
    /// listed anew. Beats are read concurrently: a read that fails is repeated, and the watch goes on.
    async fn receive(&mut self, watch: &mut Watch, watched: &mut Watched) -> Option<Error> {
        let mut reads = FuturesUnordered::new();
        let unread = watched.beats.iter().filter(|(_, target)| target.is_none());
        reads.extend(unread.map(|(relay, _)| self.read_beat(relay.clone(), Duration::ZERO)));
        loop {
            tokio::select! {
                batch = watch.next() => match batch {
                    Ok(batch) => {
                        self.send_batch(batch, watched);
                        watched.note(watch.targets());
                    }
                    Err(error) => {
                        watched.note(watch.targets());
                        return Some(error);
                    }
                },
                Some((relay, read)) = reads.next() => match (watched.beats.get(&relay), read) {
                    (Some(None), Ok(read)) => watch.add(self.take_beat(relay, &read, watched)),
                    (Some(None), Err(_)) => reads.push(self.read_beat(relay, PAUSE)),
                    // It is no longer watched, or another read was faster.
                    _ => {}
                },
                command = self.commands.recv() => match command? {
                    WatchCommand::Watch(relay) => {
                        watched.beats.entry(relay.clone()).or_default();
                        reads.push(self.read_beat(relay, Duration::ZERO));
                    }
                    WatchCommand::Unwatch(relay) => {
                        if let Some(Some(target)) = watched.beats.remove(&relay) {
                            watch.cancel(target.id);
                        }
                    }
                    WatchCommand::ListAgain => {
                        self.lists_again = true;
                        return None;
                    }
                },
            }
        }
    }

    /// Reads a relay's beat from any member of etcd: the reply of one that lags was true at its revision,
    /// and the watch resumes from there.
    fn read_beat(
        &self,
        relay: String,
        after: Duration,
    ) -> impl Future<Output = (String, Result<RangeReply, Error>)> + use<> {
        let (client, range) = (self.client.clone(), self.beat(&relay));
        let options = RangeOptions {
            serializable: true,
            ..RangeOptions::default()
        };
        async move {
            sleep(after).await;
            let read = client.range(range, options, BEAT).await;
            (relay, read)
        }
    }

    fn beat(&self, relay: &str) -> KeyRange {
        KeyRange::key(self.keys.text(&Key::Beat(relay.to_owned())))
    }

    /// Passes on a beat that was read, and returns the target to watch from then on.
    fn take_beat(&self, relay: String, read: &RangeReply, watched: &mut Watched) -> WatchTarget {
        let target = WatchTarget {
            id: watched.next_id,
            range: self.beat(&relay),
            start_revision: read.revision + 1,
        };
        watched.next_id += 1;
        watched.beats.insert(relay.clone(), Some(target.clone()));
        self.send(Received::Input(Input::BeatSeen {
            relay,
            revision: unsigned(read.revision),
            beat: read.keys.first().and_then(key_value),
        }));
        target
    }

    fn send_batch(&self, batch: WatchBatch, watched: &Watched) {
        if batch.target == FLEET {
            let changes = batch.events.iter().filter_map(change).collect();
            let revision = unsigned(batch.revision);
            self.send(Received::Input(Input::Changed { revision, changes }));
            return;
        }
        let Some(relay) = watched.relay_of(batch.target) else {
            return;
        };
        for event in &batch.events {
            let (revision, beat) = match event {
                Event::Put(kv) => (kv.mod_revision, key_value(kv)),
                Event::Delete { mod_revision, .. } => (*mod_revision, None),
            };
            self.send(Received::Input(Input::BeatSeen {
                relay: relay.clone(),
                revision: unsigned(revision),
                beat,
            }));
        }
    }
}

fn change(event: &Event) -> Option<Change> {
    Some(match event {
        Event::Put(kv) => Change::Put(key_value(kv)?),
        Event::Delete { key, mod_revision } => Change::Deleted {
            key: String::from_utf8(key.clone()).ok()?,
            revision: unsigned(*mod_revision),
        },
    })
}
