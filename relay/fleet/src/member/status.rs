//! The fleet as one relay sees it.

use std::collections::BTreeMap;

use api::reply::{FleetRelay, FleetRelayState, FleetShare, FleetShareState};
use config::OnIsolation;
use rules::named::named;
use serde::{Deserialize, Serialize};

use crate::keys::{Key, RelayEntry, SessionNumber};
use crate::member::Member;
use crate::member::plan::Planned;

/// The fleet as one relay sees it.
#[derive(Clone, Debug)]
pub struct Status {
    /// The fleet.
    pub fleet: String,
    /// The relay that reports.
    pub relay: String,
    /// What it does while etcd does not answer.
    pub policy: OnIsolation,
    /// Its session; 0 if it has none.
    pub session: SessionNumber,
    /// Whether it takes part.
    pub phase: PhaseName,
    /// Whether a connection to etcd stands.
    pub etcd_reachable: bool,
    /// Time since etcd acknowledged a beat, in milliseconds.
    pub last_ack_ms: Option<u64>,
    /// How long it may still forward without another answer from anybody, in milliseconds.
    pub deadline_ms: u64,
    /// Generation of its rules.
    pub generation: u64,
    /// All relays, by name.
    pub relays: BTreeMap<String, RelayStatus>,
    /// All shares, by name, as in the API, without their rules and counters.
    pub shares: BTreeMap<String, FleetShare>,
    /// Keys of etcd that are invalid or have invalid values, and why.
    pub refused: BTreeMap<String, String>,
    /// Problems of no single relay or share.
    pub wrong: Vec<String>,
}

named! {
    /// The phase of a relay's session.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum PhaseName {
        /// It has not read the fleet's keys yet.
        #[default]
        Starting = "starting",
        /// It waits until an earlier session of its name has ended.
        Waiting = "waiting",
        /// It has asked for a session.
        Joining = "joining",
        /// It has a session.
        Joined = "joined",
        /// It gives its shares away and leaves.
        Leaving = "leaving",
        /// It has left.
        Left = "left",
        /// It waits for `hold` after a backup of etcd was restored.
        Resting = "resting",
    }
}

/// A relay as another sees it.
#[derive(Clone, Debug)]
pub struct RelayStatus {
    /// Its session.
    pub session: SessionNumber,
    /// Its status as in the API, without its rules and counters.
    pub reported: FleetRelay,
}

impl Member {
    /// The fleet as this relay sees it at `now`.
    #[must_use]
    pub fn status(&self, now: u64) -> Status {
        let ms = |ns: u64| ns / 1_000_000;
        let held = self.held();
        let relay = |(name, entry): (&str, &RelayEntry)| {
            let holds = held.get(name).copied().unwrap_or(0);
            (name.to_owned(), self.relay_status(name, entry, holds, now))
        };
        let share = |(name, planned): (&String, &Planned)| {
            (name.clone(), self.share_status(name, planned, now))
        };
        let relays = self.replica.relays().filter(|(_, entry)| !entry.has_left());
        // A former process may have left gates open that have not been read yet.
        let gates = self.plan.shares.keys().map(|share| self.gates.until(share));
        let inherited = gates.max().unwrap_or(0);
        Status {
            fleet: self.config.fleet.clone(),
            relay: self.config.relay.clone(),
            policy: self.config.policy,
            session: self.session.number,
            phase: self.session.phase,
            etcd_reachable: self.etcd_reachable,
            last_ack_ms: self.beat.acked().map(|acked| ms(now.saturating_sub(acked))),
            deadline_ms: ms(self.deadline().max(inherited).saturating_sub(now)),
            generation: self.rules.generation,
            relays: relays.map(relay).collect(),
            shares: self.plan.shares.iter().map(share).collect(),
            refused: self.replica.refused.clone(),
            wrong: self.wrong(now),
        }
    }

    /// Problems of no single relay or share.
    fn wrong(&self, now: u64) -> Vec<String> {
        let me = &self.config.relay;
        let rival = self.has_rival(now).then(|| {
            format!("another process takes part under the name {me}; give one of them another name")
        });
        let has_read = !matches!(self.session.phase, PhaseName::Starting | PhaseName::Resting);
        let rules = self.config.keys.text(&Key::Rules);
        let is_missing = has_read
            && self.rules.generation > 0
            && self.replica.current.is_none()
            && !self.replica.refused.contains_key(&rules);
        let missing = is_missing.then(|| {
            format!("etcd key {rules} has gone, the rules stay as they are; apply them again")
        });
        rival.into_iter().chain(missing).collect()
    }

    /// Why a share last changed hands; cheap, as it is called for each share that opens.
    #[must_use]
    pub fn why_held(&self, share: &str) -> &str {
        let entry = self.replica.shares.get(share);
        entry.map_or("", |entry| entry.value.why.as_str())
    }

    /// Counts the changes of [`Member::status`] other than the passing of time.
    #[must_use]
    pub fn status_version(&self) -> u64 {
        self.status_version
    }

    /// The phase of this relay's session.
    #[must_use]
    pub fn phase(&self) -> PhaseName {
        self.session.phase
    }

    /// How many shares each relay holds, without those that hold none.
    fn held(&self) -> BTreeMap<&str, usize> {
        let mut held = BTreeMap::new();
        let shares = self.plan.shares.values();
        for holder in shares.filter_map(|share| share.holder.as_deref()) {
            *held.entry(holder).or_default() += 1;
        }
        held
    }

    fn relay_status(&self, name: &str, entry: &RelayEntry, holds: usize, now: u64) -> RelayStatus {
        let seen = self.fencing.watched(name).map(|watched| watched.seen);
        let is_other = self.is_of_another_process(name, now);
        let unfit = if is_other {
            entry.unfit.clone()
        } else {
            self.unfit_for(name, entry)
        };
        let state = match entry {
            RelayEntry { fenced: true, .. } => FleetRelayState::Fenced,
            RelayEntry { session: 0, .. } => FleetRelayState::Silent,
            _ if self.replica.is_missing(name) => FleetRelayState::Silent,
            _ if !self.is_known(name, now) => FleetRelayState::Unknown,
            _ if self.replica.is_drained(name) => FleetRelayState::Drained,
            _ if unfit.is_empty() => FleetRelayState::Up,
            _ => FleetRelayState::Unfit,
        };
        let relay = FleetRelay {
            name: name.to_owned(),
            state,
            since_ms: entry.since,
            last_beat_ms: seen.map(|seen| now.saturating_sub(seen) / 1_000_000),
            shares: holds,
            weight: entry.weight,
            roles: entry.roles.iter().cloned().collect(),
            version: entry.version.clone(),
            generation: entry.generation,
            unfit,
            peer: entry.peer.to_string(),
            unanswered_ms: self.unanswered_ms(name, now).filter(|_| !is_other),
            ..FleetRelay::default()
        };
        RelayStatus {
            session: entry.session,
            reported: relay,
        }
    }

    /// Whether the state of a relay is known now: while etcd does not answer, only what answers this relay is.
    fn is_known(&self, relay: &str, now: u64) -> bool {
        let answers = self.etcd_reachable || now < self.beat.until;
        answers || relay == self.config.relay || self.has_answered(relay, now)
    }

    /// Shares that a relay serves badly, by its own report or compared with others.
    fn unfit_for(&self, name: &str, entry: &RelayEntry) -> BTreeMap<String, String> {
        let lacks = |(share, planned): (&String, &Planned)| {
            Some((share.clone(), planned.lacking.get(name)?.clone()))
        };
        let mut unfit: BTreeMap<_, _> = self.plan.shares.iter().filter_map(lacks).collect();
        unfit.extend(entry.unfit.clone());
        unfit
    }

    /// Whether the entries under a name in etcd are of a process that had the name before this one.
    fn is_of_another_process(&self, relay: &str, now: u64) -> bool {
        relay == self.config.relay && self.has_rival(now) && !self.session.has_begun()
    }

    fn share_status(&self, name: &str, planned: &Planned, now: u64) -> FleetShare {
        let entry = self.replica.shares.get(name).map(|entry| &entry.value);
        if let Some(entry) = entry
            && self.is_of_another_process(&entry.relay, now)
        {
            return FleetShare {
                name: name.to_owned(),
                state: FleetShareState::Elsewhere,
                relay: Some(entry.relay.clone()),
                since_ms: Some(entry.at),
                why: entry.why.clone(),
                ..FleetShare::default()
            };
        }
        let state = self.share_state(name, planned, now);
        FleetShare {
            name: name.to_owned(),
            state,
            relay: planned.holder.as_deref().map(str::to_owned),
            since_ms: entry.map(|entry| entry.at),
            why: entry.map_or_else(String::new, |entry| entry.why.clone()),
            standby: planned.standby.as_deref().map(str::to_owned),
            problem: self.share_problem(name, planned, state),
            ..FleetShare::default()
        }
    }

    fn share_state(&self, name: &str, planned: &Planned, now: u64) -> FleetShareState {
        if self.holds(name).is_none() {
            return match planned.holder.as_deref() {
                None if now < self.gates.until(name) => FleetShareState::Open,
                Some(holder) if !self.is_known(holder, now) => FleetShareState::Unknown,
                Some(_) => FleetShareState::Elsewhere,
                None => FleetShareState::Vacant,
            };
        }
        if self.handover.is_handing(name) {
            return FleetShareState::Handing;
        }
        if now < self.gates.until(name) {
            return FleetShareState::Open;
        }
        FleetShareState::Shut
    }

    fn share_problem(
        &self,
        name: &str,
        planned: &Planned,
        state: FleetShareState,
    ) -> Option<String> {
        let rules = &self.rules;
        let own = rules
            .failed
            .get(name)
            .or_else(|| rules.fitness.down.get(name))
            .or_else(|| rules.fitness.silent.get(name));
        let holder = planned.holder.as_ref();
        let lacks = holder.and_then(|holder| planned.lacking.get_key_value(holder));
        let entry = self.replica.shares.get(name);
        let held_since = entry.map_or(0, |entry| entry.modified);
        let wish = self
            .replica
            .moved_to(name)
            .filter(|wish| wish.modified > held_since)
            .map(|wish| wish.value.relay.as_str())
            .filter(|wish| Some(*wish) != planned.holder.as_deref());
        match state {
            _ if self.session.phase == PhaseName::Starting => {
                Some("who holds it is not known before etcd answers".to_owned())
            }
            FleetShareState::Shut => Some(self.why_shut(name)),
            FleetShareState::Unknown => {
                let holder = holder.map_or("-", |holder| holder);
                Some(format!(
                    "{holder} held it; neither etcd answers nor {holder}"
                ))
            }
            FleetShareState::Open if own.is_some() => own.cloned(),
            _ if lacks.is_some() => lacks.map(|(holder, what)| format!("{holder} {what}")),
            FleetShareState::Vacant if planned.standby.is_none() => {
                let roles = self.rules.shares.get(name).into_iter().flatten();
                let names: Vec<_> = roles.map(String::as_str).collect();
                Some(format!("no relay can take it (roles {})", names.join(", ")))
            }
            FleetShareState::Vacant => Some(self.why_vacant(name)),
            _ if wish.is_some() => wish.map(|wish| format!("waits until {wish} can take it")),
            _ if planned.sole => Some("one relay alone can serve it".to_owned()),
            _ if planned.standby.is_none() => Some("nobody stands by".to_owned()),
            _ => None,
        }
    }

    fn why_vacant(&self, share: &str) -> String {
        let unclear = self.replica.unclear.get(share);
        let may_hold = unclear.map(|at| self.replica.may_hold(share, *at).collect::<Vec<_>>());
        match may_hold.filter(|relays| !relays.is_empty()) {
            Some(relays) => format!(
                "its key makes no sense, and {} may hold it: restart who does not forward it",
                relays.join(", ")
            ),
            None => "nobody holds it".to_owned(),
        }
    }
}
