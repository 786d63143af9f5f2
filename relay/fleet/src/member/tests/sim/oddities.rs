//! Odd hosts: with a hold, a name or an address for peers of their own, an etcd member that lags, a data
//! plane without a sign of life; and faults of several kinds at once.

use super::*;
use crate::keys::Beat;

/// The oddities of a host.
#[derive(Default)]
pub(in crate::member) struct Odd {
    /// Its own hold; 0: the common one.
    hold: u64,
    /// Until when it has a temporary name, and its original one.
    renamed: Option<(u64, String)>,
    /// Until when its configuration has another host's address for peers, and which host's.
    peer: Option<(u64, usize)>,
    /// Until when the member of etcd that it reads from lags, and by how much.
    behind: (u64, u64),
    /// Until when its data plane gives no sign of life.
    pub(in crate::member) numb_until: u64,
}

impl Sim {
    pub(super) fn hold_of(&self, host: usize) -> u64 {
        match self.hosts[host].odd.hold {
            0 => self.settings.hold,
            own => own,
        }
    }

    /// The longest hold that a relay has.
    pub(in crate::member) fn hold(&self) -> u64 {
        let holds = (0..self.hosts.len()).map(|host| self.hold_of(host));
        holds.max().unwrap_or(self.settings.hold)
    }

    /// Whether only an operator can fence a share's holder: it lists no awake relay as a monitor, and
    /// neither do the monitors that it lists.
    pub(super) fn takes_an_operator(&self, share: &str) -> bool {
        let hosts = (0..self.hosts.len()).filter(|host| !self.is_silent(*host));
        let awake: BTreeSet<&str> = hosts.map(|host| self.hosts[host].name.as_str()).collect();
        let is_awake = |name: &str| awake.contains(name);
        let beats = self.etcd.keys.values().filter_map(|kv| {
            let name = kv.key.strip_prefix("/mcr/plant/beats/")?;
            Some((name, Beat::read(&kv.key, &kv.value).ok()?))
        });
        let mut stuck: BTreeMap<&str, Beat> = beats
            .filter(|(name, beat)| !is_awake(name) && beat.policy == OnIsolation::Peers)
            .filter(|(_, beat)| !beat.monitors.iter().any(|m| is_awake(&m.relay)))
            .collect();
        let mut before = usize::MAX;
        while stuck.len() < before {
            before = stuck.len();
            let names: BTreeSet<&str> = stuck.keys().copied().collect();
            stuck.retain(|_, beat| beat.monitors.iter().any(|m| names.contains(&*m.relay)));
        }
        let kv = self.etcd.keys.get(&format!("/mcr/plant/shares/{share}"));
        let entry = kv.and_then(|kv| ShareEntry::read(&kv.key, &kv.value).ok());
        entry.is_some_and(|entry| stuck.contains_key(entry.relay.as_str()))
    }

    fn is_silent(&self, host: usize) -> bool {
        self.hosts[host].member.is_none() || self.is_stopped(host)
    }

    pub(super) fn peer_of(&self, host: usize) -> usize {
        self.hosts[host].odd.peer.map_or(host, |(_, other)| other)
    }

    pub(super) fn is_behind(&self, host: usize) -> bool {
        self.now < self.hosts[host].odd.behind.0
    }

    /// The revision of the member of etcd that a host reads from.
    pub(super) fn revision_seen(&mut self, host: usize) -> u64 {
        let (now, revision) = (self.now, self.etcd.revision);
        if self
            .revisions
            .back()
            .is_none_or(|(_, last)| *last != revision)
        {
            self.revisions.push_back((now, revision));
            if self.revisions.len() > 4000 {
                self.revisions.pop_front();
            }
        }
        if now < self.etcd_compacts_until {
            self.etcd.compacted = revision;
        }
        let (until, by) = self.hosts[host].odd.behind;
        if now >= until || now < self.etcd_changed + by {
            return revision;
        }
        let later = self.revisions.partition_point(|(at, _)| *at + by <= now);
        later
            .checked_sub(1)
            .map_or(0, |index| self.revisions[index].1)
    }

    /// Ends the oddities whose time has passed.
    pub(super) fn end_oddities(&mut self, host: usize) {
        let now = self.now;
        let odd = &mut self.hosts[host].odd;
        if odd.peer.take_if(|(until, _)| now >= *until).is_some() {
            self.kill(host, false, 50 * MS);
        }
        let odd = &mut self.hosts[host].odd;
        if let Some((_, name)) = odd.renamed.take_if(|(until, _)| now >= *until) {
            self.kill(host, true, 100 * MS);
            self.name(host, &name);
        }
    }

    /// Restarts a host with another hold.
    pub(in crate::member) fn change_hold(&mut self, host: usize) {
        let hold = [300, 700, 1200, 2000, 5000][self.random.range(0, 5) as usize];
        self.set_hold(host, hold * MS);
    }

    /// The same with a given one, in ns.
    pub(in crate::member) fn set_hold(&mut self, host: usize, hold: u64) {
        self.hosts[host].odd.hold = hold;
        let down = self.random.range(10, 400) * MS;
        self.kill(host, false, down);
    }

    /// Restarts a host with another name until then: a new one, or the next host's.
    pub(in crate::member) fn rename(&mut self, host: usize, until: u64, is_taken: bool) {
        let other = (host + 1) % self.hosts.len();
        let name = if is_taken {
            self.hosts[other].name.clone()
        } else {
            format!("relay-{host}b")
        };
        // Its files stay if it is the same host.
        self.kill(host, is_taken, 100 * MS);
        if self.hosts[host].odd.renamed.is_none() {
            self.hosts[host].odd.renamed = Some((until, self.hosts[host].name.clone()));
        }
        self.name(host, &name);
    }

    /// Restarts two hosts with each other's address for peers until then.
    pub(in crate::member) fn swap_peers(&mut self, host: usize, until: u64) {
        let other = (host + 1) % self.hosts.len();
        for (one, its) in [(host, other), (other, host)] {
            self.hosts[one].odd.peer = Some((until, its));
            self.kill(one, false, 50 * MS);
        }
    }

    pub(in crate::member) fn fall_behind(&mut self, host: usize, until: u64) {
        let by = self.random.range(10, 3000) * MS;
        self.hosts[host].odd.behind = (until, by);
    }

    /// A backup is restored with revisions ahead of all former ones, as etcdutl does.
    pub(in crate::member) fn restore_ahead(&mut self) -> u64 {
        let before = self.etcd.revision;
        let until = self.restore();
        if self.backup.is_none() {
            self.etcd.revision = before.max(self.etcd.revision) + 1_000_000;
            self.etcd.compacted = self.etcd.revision;
        }
        until
    }

    /// The keys of a relay and of its shares get invalid values.
    pub(in crate::member) fn garble_all_of(&mut self, host: usize) {
        let name = self.hosts[host].name.clone();
        let is_its = |kv: &crate::member::KeyValue| {
            let share = ShareEntry::read(&kv.key, &kv.value);
            kv.key.ends_with(&format!("s/{name}")) || share.is_ok_and(|entry| entry.relay == name)
        };
        let its = self.etcd.keys.values().filter(|kv| is_its(kv));
        let keys: Vec<String> = its.map(|kv| kv.key.clone()).collect();
        for key in keys {
            self.etcd.operator_put(&key, b"garbage".to_vec());
        }
        self.is_missing_keys = true;
    }

    /// The saved session is an older one, as if later ones could not be written.
    pub(in crate::member) fn save_older_session(&mut self, host: usize, down: u64) {
        self.kill(host, false, down);
        if let Some(saved) = &mut self.hosts[host].saved {
            saved.session = saved.session.saturating_sub(1 + self.random.range(0, 50));
        }
    }

    /// All hosts lose power; they come back one after another.
    pub(in crate::member) fn cut_power(&mut self) -> u64 {
        let mut last = self.now;
        for host in 0..self.hosts.len() {
            let down = self.random.range(50, 3000) * MS;
            self.kill(host, true, down);
            last = last.max(self.now + down);
        }
        let down = self.random.range(0, 3000) * MS;
        self.etcd_down_until = self.etcd_down_until.max(self.now + down);
        last.max(self.etcd_down_until)
    }
}
