//! The driver: passes the reports of watches to a member, and carries out its commands.

use super::*;
use crate::member::KeyValue;

impl Sim {
    /// Polls the watches.
    pub(super) fn poll(&mut self, host: usize) {
        let stalled_until = self.hosts[host].watch_stalled_until;
        let is_stalled = self.now < stalled_until.max(self.etcd_stuck_until);
        let is_dead = self.hosts[host].member.is_none() || self.is_stopped(host);
        if is_stalled || is_dead || !self.reaches_etcd(host) || self.is_deaf(host) {
            return;
        }
        if !self.has_rules(host) {
            self.read_rules(host);
        }
        // An etcd that ends breaks its watches.
        let began = self.etcd_changed.max(self.etcd_down_until);
        if self.hosts[host].watched_at < began {
            self.input(host, Input::WatchLost);
        }
        self.hosts[host].watched_at = self.now;
        let at = self.hosts[host].watch_at;
        let revision = self.revision_seen(host);
        let polled = Some((revision, self.etcd_changed));
        if self.hosts[host].listed && at == revision && self.hosts[host].polled == polled {
            return;
        }
        if !self.hosts[host].listed || self.etcd.revision < at {
            return self.list(host);
        }
        if revision < at {
            return;
        }
        let Some(changes) = self.etcd.since(at) else {
            self.input(host, Input::WatchLost);
            return self.list(host);
        };
        let (from, to) = (self.keys.watch_from(), self.keys.watch_to());
        let is_watched = |change: &&Change| {
            let (Change::Put(KeyValue { key, .. }) | Change::Deleted { key, .. }) = change;
            *key >= from && *key < to
        };
        let until_revision = changes.iter().take_while(|(at, _)| *at <= revision);
        let watched = until_revision.map(|(_, change)| change).filter(is_watched);
        let changes: Vec<Change> = watched.cloned().collect();
        self.hosts[host].watch_at = revision;
        if !changes.is_empty() {
            self.input(host, Input::Changed { revision, changes });
        }
        self.hosts[host].polled = polled;
        self.poll_beats(host, revision);
    }

    pub(super) fn poll_beats(&mut self, host: usize, revision: u64) {
        let mut key = "/mcr/plant/beats/".to_owned();
        let prefix = key.len();
        let mut change = |(relay, reported): (&String, &Option<u64>)| {
            key.truncate(prefix);
            key.push_str(relay);
            let (modified, beat) = self.etcd.last(&key, revision);
            let is_new = *reported != Some(modified);
            is_new.then(|| (relay.clone(), modified, beat.cloned()))
        };
        let beats = self.hosts[host].beats.iter();
        let changed: Vec<_> = beats.filter_map(&mut change).collect();
        for (relay, modified, beat) in changed {
            self.hosts[host].beats.insert(relay.clone(), Some(modified));
            self.input(
                host,
                Input::BeatSeen {
                    relay,
                    revision,
                    beat,
                },
            );
        }
    }

    pub(super) fn list(&mut self, host: usize) {
        let (from, to) = (self.keys.watch_from(), self.keys.watch_to());
        let own = format!("/mcr/plant/beats/{}", self.hosts[host].name);
        let is_listed = |kv: &&KeyValue| (kv.key >= from && kv.key < to) || kv.key == own;
        let keys = self.etcd.keys.values().filter(is_listed).cloned().collect();
        let revision = self.etcd.revision;
        self.hosts[host].listed = true;
        self.hosts[host].watch_at = revision;
        self.input(
            host,
            Input::Listed {
                cluster: CLUSTER,
                revision,
                keys,
            },
        );
    }

    pub(in crate::member) fn input(&mut self, host: usize, input: Input) {
        if self.is_stopped(host) || !self.hosts[host].stuck.is_empty() {
            if self.hosts[host].member.is_some() {
                self.hosts[host].inbox.push_back(input);
            }
            return;
        }
        self.steps += 1;
        let local = self.local(host);
        let it = &mut self.hosts[host];
        let Some(member) = &mut it.member else {
            return;
        };
        if let Some(recorder) = &mut it.recorder {
            recorder.took(local, &input);
        }
        member.take(local, input);
        // A driver may pass several inputs before it asks for commands.
        if self.lossy && self.random.chance(8) {
            return;
        }
        let commands = member.decide(local);
        if let Some(recorder) = &mut it.recorder {
            recorder.decided(local, &commands);
        }
        for command in commands {
            let stops = self.lossy && self.random.range(0, 4000) == 0;
            if stops {
                self.hosts[host].stopped_until = self.now + self.random.range(1, 3000) * MS;
            }
            if self.is_stopped(host) {
                self.hosts[host].stuck.push_back(command);
            } else {
                self.carry_out(host, command);
            }
        }
    }

    pub(super) fn carry_out(&mut self, host: usize, command: Command) {
        match command {
            Command::Txn {
                id,
                txn,
                give_up_ns,
            } => self.send(host, id, txn, give_up_ns),
            Command::WatchBeat { relay } => {
                self.hosts[host].beats.insert(relay, None);
                self.hosts[host].polled = None;
            }
            Command::UnwatchBeat { relay } => {
                self.hosts[host].beats.remove(&relay);
            }
            Command::Ask { peer, question } => {
                let to = usize::from(peer.port()) - 1000;
                if self.peers_reach(host, to) {
                    let at = self.now + self.delay();
                    self.at(
                        at,
                        Event::Ask {
                            from: host,
                            to,
                            question,
                        },
                    );
                }
            }
            Command::Answer(answer) => {
                let has_name = |host: &usize| self.hosts[*host].name == answer.to;
                let requester = self.requester.filter(has_name);
                let Some(to) = requester.or_else(|| (0..self.hosts.len()).find(has_name)) else {
                    return;
                };
                if self.peers_reach(host, to) {
                    let at = self.now + self.delay();
                    let process = self.hosts[to].process;
                    self.at(
                        at,
                        Event::Answer {
                            to,
                            process,
                            answer,
                        },
                    );
                }
            }
            Command::Gate { share, until } => self.gate(host, share, until),
            Command::Install { shares } => {
                self.hosts[host].install = shares;
                let at = self.now + self.random.range(1, 30) * MS;
                let process = self.hosts[host].process;
                self.at(at, Event::Installed { host, process });
            }
            Command::SaveSession(session) => self.hosts[host].saved = session,
            Command::ListAgain => self.hosts[host].listed = false,
            Command::Event(FleetEvent::Left) => {
                let down = self.random.range(1, 2000) * MS;
                self.kill(host, false, down);
            }
            Command::Event(event) => self.reported.push((self.now, host, event)),
        }
    }

    pub(super) fn peers_reach(&mut self, from: usize, to: usize) -> bool {
        let is_cut = |host: usize| self.now < self.hosts[host].peers_cut_until;
        let is_blocked = is_cut(from) || is_cut(to) || self.is_deaf(to) || self.is_peers_mute(from);
        !(is_blocked || self.lossy && self.random.chance(50))
    }

    pub(super) fn send(&mut self, host: usize, id: TxnId, txn: Txn, give_up_ns: u64) {
        let sent = self.local(host);
        let process = self.hosts[host].process;
        self.hosts[host].waiting.insert(id, sent);
        let patience = give_up_ns.saturating_sub(sent);
        let timeout = self.now + patience;
        self.at(
            timeout,
            Event::Answered {
                host,
                process,
                id,
                outcome: None,
            },
        );
        let reaches = self.writes_etcd(host);
        let late = self.lossy && {
            let loss = self.settings.loss;
            self.random.chance(loss)
        };
        if !reaches && !late || self.lossy && self.random.chance(10) {
            return;
        }
        if self.now < self.etcd_full_until {
            let at = self.now + self.delay();
            let outcome = Some(Outcome::NotSent);
            let refused = Event::Answered {
                host,
                process,
                id,
                outcome,
            };
            return self.at(at, refused);
        }
        let delay = if self.now < self.etcd_slow_until {
            self.random.range(100, 1500) * MS
        } else if late {
            self.random.range(MS, 4000 * MS)
        } else {
            self.delay()
        };
        let answer = !(self.lossy && {
            let loss = self.settings.loss;
            self.random.chance(loss)
        });
        let at = self.now + delay;
        self.at(
            at,
            Event::Commit {
                host,
                process,
                id,
                txn,
                answer,
            },
        );
    }

    pub(super) fn gate(&mut self, host: usize, share: String, until: u64) {
        let before = self.hosts[host]
            .gates
            .insert(share.clone(), until)
            .unwrap_or(0);
        let local = self.local(host);
        if until <= local {
            return;
        }
        if before <= local {
            self.opened.insert(share.clone(), self.now);
        }
        let others = (0..self.hosts.len()).filter(|other| *other != host);
        for other in others {
            if self.is_open(other, &share) {
                let at = self.now / MS;
                let (a, b) = (&self.hosts[host].name, &self.hosts[other].name);
                self.violation = Some(format!("{share} opens at {a}, open at {b}, at {at} ms"));
            }
        }
    }
}
