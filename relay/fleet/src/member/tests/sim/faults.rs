//! Faults beyond those of hosts and links: of etcd's data, of the source, and of what relays receive of
//! it.

use super::*;
use crate::keys::Beat;
use crate::member::KeyValue;

/// How often a daemon reads its counters, and after how long without a packet it reports silence.
const READ: u64 = 500 * MS;
const SILENT: u64 = 1000 * MS;

/// A relay's input as its daemon sees it.
#[derive(Default)]
pub(super) struct InputState {
    next_read: u64,
    last_packet: u64,
    /// Since when each share is installed.
    since: BTreeMap<String, u64>,
    reported: Fitness,
}

/// The faults of a host's lines.
#[derive(Default)]
pub(in crate::member) struct Line {
    /// Until when its messages do not reach etcd, though etcd's reach it, and the same for peers.
    pub(in crate::member) mute_until: u64,
    pub(in crate::member) peers_mute_until: u64,
    /// Until when its output is down; 0: it never was.
    pub(in crate::member) down_until: u64,
    /// The rules that it has read.
    generation: u64,
}

impl Sim {
    /// Reads the rules, as the driver does beside the member.
    pub(super) fn read_rules(&mut self, host: usize) {
        let generation = self.generation;
        self.hosts[host].line.generation = generation;
        let roles: BTreeSet<String> = ["red".to_owned()].into();
        let names = self.shares().into_iter();
        let shares = names.map(|share| (share, roles.clone())).collect();
        self.input(host, Input::Rules { generation, shares });
    }

    pub(super) fn has_rules(&self, host: usize) -> bool {
        self.hosts[host].line.generation == self.generation
    }

    /// Whether its writes reach an etcd that accepts them.
    pub(super) fn writes_etcd(&self, host: usize) -> bool {
        let mute_until = self.hosts[host].line.mute_until.max(self.etcd_stuck_until);
        self.now >= mute_until && self.reaches_etcd(host)
    }

    pub(super) fn is_peers_mute(&self, host: usize) -> bool {
        self.now < self.hosts[host].line.peers_mute_until
    }

    /// All inputs of a host since its process began.
    pub(in crate::member) fn record(&self, host: usize) -> Vec<u8> {
        self.hosts[host].recorder.as_ref().unwrap().file(0)
    }

    /// The same since its last checkpoint.
    pub(in crate::member) fn recent_record(&self, host: usize) -> Vec<u8> {
        let now = self.local(host);
        self.hosts[host].recorder.as_ref().unwrap().file(now)
    }

    pub(in crate::member) fn checkpoint(&mut self, host: usize) {
        let now = self.local(host);
        let it = &mut self.hosts[host];
        let (member, recorder) = (it.member.as_ref().unwrap(), it.recorder.as_mut().unwrap());
        recorder.checkpoint(now, member);
    }

    /// Has every relay report what it receives from now on.
    pub(in crate::member) fn report_fitness(&mut self) {
        self.reports_fitness = true;
    }

    fn receives(&self, host: usize) -> bool {
        self.now >= self.source_off_until && self.now >= self.hosts[host].input_dead_until
    }

    /// How many relays run that receive nothing.
    pub(in crate::member) fn receiving_nothing(&self) -> usize {
        let hosts = 0..self.hosts.len();
        let is_idle = |host: &usize| self.hosts[*host].member.is_some() && !self.receives(*host);
        hosts.filter(is_idle).count()
    }

    /// What a daemon does twice a second.
    pub(super) fn read_counters(&mut self, host: usize) {
        if !self.reports_fitness || self.now < self.hosts[host].input_state.next_read {
            return;
        }
        let (now, receives) = (self.now, self.receives(host));
        let it = &mut self.hosts[host];
        let state = &mut it.input_state;
        state.next_read = now + READ;
        if receives {
            state.last_packet = now;
        }
        let is_down = now < it.line.down_until;
        let installed = it.install.clone();
        state.since.retain(|share, _| installed.contains(share));
        let mut fitness = Fitness::default();
        for share in installed {
            if is_down {
                let why = "output is down".to_owned();
                fitness.down.insert(share.clone(), why);
            }
            let since = *state.since.entry(share.clone()).or_insert(now);
            if state.last_packet < since && now < since + 2 * SILENT {
                continue;
            }
            let is_silent = now > state.last_packet + SILENT;
            fitness.heard.insert(share.clone(), u32::from(!is_silent));
            if is_silent && state.last_packet > 0 {
                fitness.silent.insert(share, "nothing comes".to_owned());
            }
        }
        if fitness != state.reported {
            state.reported = fitness.clone();
            self.input(host, Input::Fitness(fitness));
        }
    }

    pub(super) fn forget_input(&mut self, host: usize) {
        self.hosts[host].input_state = InputState::default();
        self.hosts[host].install.clear();
    }

    /// etcd ends, and comes back with nothing.
    pub(in crate::member) fn wipe(&mut self) -> u64 {
        self.replace_etcd(Etcd::default());
        self.etcd_down_until
    }

    /// etcd ends, and comes back with an older state.
    pub(in crate::member) fn restore(&mut self) -> u64 {
        match self.backup.take() {
            Some(backup) => self.replace_etcd(backup),
            None => {
                self.backup = Some(self.etcd.clone());
                return self.now;
            }
        }
        self.etcd_down_until
    }

    pub(in crate::member) fn replace_etcd(&mut self, other: Etcd) {
        let is_invalid =
            |kv: &KeyValue| kv.key.contains("/beats/") && Beat::read(&kv.key, &kv.value).is_err();
        self.is_missing_keys |= other.keys.values().any(is_invalid);
        self.etcd = other;
        self.etcd_changed = self.now;
        self.etcd_down_until = self.now + self.random.range(1, 3000) * MS;
    }

    /// Writes an invalid value into a random key.
    pub(in crate::member) fn garble(&mut self) {
        let keys: Vec<String> = self.etcd.keys.keys().cloned().collect();
        if keys.is_empty() {
            return;
        }
        let key = &keys[self.random.range(0, keys.len() as u64) as usize];
        let value = &self.etcd.keys[key].value;
        let half = value[..value.len() / 2].to_vec();
        let garbage = [half, b"garbage".to_vec(), b"{}".to_vec()];
        let which = self.random.range(0, 3) as usize;
        self.etcd.operator_put(key, garbage[which].clone());
        // If no relay has joined this etcd yet, none knows the value of before, nor does one that starts
        // later.
        let is_new = self.etcd_changed > 0 && self.now < self.etcd_down_until + 2 * self.hold();
        self.is_missing_keys |= is_new || self.hosts.iter().any(|it| it.member.is_none());
    }

    /// Deletes a relay's key of a kind (`beats`, `relays`).
    pub(in crate::member) fn delete(&mut self, kind: &str, host: usize) {
        let key = format!("/mcr/plant/{kind}/{}", self.hosts[host].name);
        self.etcd.operator_delete(&key);
        self.is_missing_keys = true;
    }

    /// Deletes all keys of a kind; with an empty `kind`, all of the fleet.
    pub(in crate::member) fn delete_all(&mut self, kind: &str) {
        let prefix = format!("/mcr/plant/{kind}");
        self.etcd.operator_delete_prefix(&prefix);
        self.is_missing_keys = true;
    }

    pub(in crate::member) fn drain(&mut self, host: usize, on: bool) {
        let key = format!("/mcr/plant/drained/relay-{host}");
        if on {
            self.etcd.operator_put(&key, Drained { at: 0 }.write());
        } else if self.etcd.keys.contains_key(&key) {
            self.etcd.operator_delete(&key);
        }
    }

    pub(in crate::member) fn move_share(&mut self, share: &str, host: usize) {
        let relay = format!("relay-{host}");
        let key = format!("/mcr/plant/moves/{share}");
        self.etcd.operator_put(&key, Move { relay, at: 0 }.write());
    }

    /// A host's clock jumps ahead.
    pub(in crate::member) fn jump(&mut self, host: usize, time: u64) {
        self.hosts[host].offset += time;
    }

    /// A host's input receives nothing until then; half of the hosts restart, so have never received any.
    pub(in crate::member) fn deafen(&mut self, host: usize, until: u64) {
        self.hosts[host].input_dead_until = until;
        if self.random.chance(500) {
            self.kill(host, true, 100 * MS);
        }
    }

    pub(in crate::member) fn pause_source(&mut self, until: u64) {
        self.source_off_until = until;
    }

    /// Whether etcd accepts writes in time.
    pub(in crate::member) fn etcd_works(&self) -> bool {
        self.now >= self.etcd_down_until
            && self.now >= self.etcd_full_until
            && self.now >= self.etcd_slow_until
            && self.now >= self.etcd_stuck_until
    }

    /// Whether etcd has just lost its data.
    pub(in crate::member) fn is_another_etcd(&self) -> bool {
        self.now < self.etcd_changed + 50 * MS
    }

    /// Whether nothing but etcd is faulty.
    pub(in crate::member) fn hosts_are_well(&self) -> bool {
        (0..self.hosts.len()).all(|host| self.is_well(host) && self.reaches_peers(host))
    }

    fn reaches_peers(&self, host: usize) -> bool {
        let is_swapped = self.peer_of(host) != host;
        self.now >= self.hosts[host].peers_cut_until && !self.is_peers_mute(host) && !is_swapped
    }

    fn is_well(&self, host: usize) -> bool {
        let it = &self.hosts[host];
        let runs = it.member.is_some() && !self.is_stopped(host);
        let receives_etcd = self.now >= it.etcd_cut_until && !self.is_deaf(host);
        let is_connected = receives_etcd && self.now >= it.line.mute_until;
        let is_odd = self.is_behind(host) || self.now < it.odd.numb_until;
        runs && is_connected && self.now >= it.watch_stalled_until && self.receives(host) && !is_odd
    }

    /// Whether a relay that is well may take shares, and its output never was down: one whose output comes
    /// back stays out of the order for a while.
    fn takes(&self, host: usize) -> bool {
        let it = &self.hosts[host];
        let drained = format!("/mcr/plant/drained/{}", it.name);
        it.line.down_until == 0 && !self.etcd.keys.contains_key(&drained) && self.is_well(host)
    }

    /// The shares that are not forwarded by a relay that receives them; `None` if no relay could.
    pub(in crate::member) fn unserved(&self) -> Option<Vec<String>> {
        let is_stalled =
            |host: usize| self.now < self.hosts[host].watch_stalled_until || self.is_behind(host);
        let takes = (0..self.hosts.len()).any(|host| self.takes(host));
        let stalls = (0..self.hosts.len()).any(is_stalled);
        if !self.etcd_works() || !takes || stalls {
            return None;
        }
        let has_etcd = |host: usize| self.writes_etcd(host) && !self.is_deaf(host);
        let is_down = |host: usize| self.now < self.hosts[host].line.down_until;
        let serves = |host: usize| self.receives(host) && !is_down(host) || !has_etcd(host);
        let is_unserved = |share: &String| {
            let is_served = matches!(self.open(share)[..], [host] if serves(host));
            !is_served && !self.takes_an_operator(share)
        };
        Some(self.shares().into_iter().filter(is_unserved).collect())
    }

    /// Whether a share is about to be relieved: its holder is cut off from etcd, but not from its peers.
    pub(in crate::member) fn is_relieved(&self, share: &str) -> bool {
        let kv = self.etcd.keys.get(&format!("/mcr/plant/shares/{share}"));
        let entry = kv.and_then(|kv| ShareEntry::read(&kv.key, &kv.value).ok());
        // If the key is invalid, the others know.
        let reported = |host: usize| {
            let member = self.hosts[host].member.as_ref()?;
            let mut shares = member.status(self.local(host)).shares;
            shares.remove(share)?.relay
        };
        let by_others = || {
            (0..self.hosts.len())
                .filter(|host| self.is_well(*host))
                .find_map(reported)
        };
        let holder = entry.map(|entry| entry.relay).or_else(by_others);
        let is_holder = |host: &usize| Some(&self.hosts[*host].name) == holder.as_ref();
        let is_cut = |host: usize| !self.writes_etcd(host) && self.reaches_peers(host);
        self.open(share).is_empty() && (0..self.hosts.len()).filter(is_holder).any(is_cut)
    }

    /// The error describes a share that is not open.
    pub(in crate::member) fn is_open_somewhere(&self) -> Result<(), String> {
        let shut = self
            .shares()
            .into_iter()
            .find(|share| self.open(share).len() != 1);
        shut.map_or(Ok(()), |share| Err(self.describe(&share)))
    }

    pub(in crate::member) fn describe(&self, share: &str) -> String {
        let open = self.open(share);
        let view = |host: usize| {
            let it = &self.hosts[host];
            let member = it.member.as_ref()?.status(self.local(host));
            let beat = self
                .etcd
                .keys
                .get(&format!("/mcr/plant/beats/{}", it.name))
                .map(|kv| (kv.created, kv.modified));
            Some(format!(
                "{}: {:?} session {} deadline {} hears {} well {} beat {beat:?} {:?} refused {:?}\n",
                it.name,
                member.phase,
                member.session,
                member.deadline_ms,
                self.receives(host),
                self.is_well(host),
                member.shares.get(share),
                member.refused
            ))
        };
        let views: Vec<_> = (0..self.hosts.len())
            .map(|host| view(host).unwrap_or_default())
            .collect();
        format!(
            "{share} is open at {open:?} at {} ms\n{}",
            self.now / MS,
            views.concat()
        )
    }
}
