//! The status that a relay reports: the member's, and what the engine adds to it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::reply::FleetEtcd;
use sys::clock::boottime_ns;

use super::Status;
use crate::error::Error;
use crate::host::Event;
use crate::member::{self, FleetEvent, Outcome};
use crate::rules::Rules;

/// The engine's part of the status.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// How many shares this relay began to forward.
    pub(super) takeovers: u64,
    /// How long the last answered transaction took.
    answer: Option<Duration>,
    /// When etcd last answered, in ns of `CLOCK_BOOTTIME`.
    answered_ns: Option<u64>,
    /// Why etcd does not answer, if it does not.
    away: Option<String>,
    /// Why the rules that etcd names are not used, if so.
    pub(super) unused_rules: Option<String>,
}

impl Tally {
    pub(super) fn away(&mut self, why: String) {
        self.away = Some(why);
    }

    /// Why no beat was acknowledged.
    pub(super) fn why_unacknowledged(&self) -> String {
        let text = "no beat was acknowledged for a hold";
        self.away
            .as_ref()
            .map_or(text.to_owned(), |why| format!("{text}: {why}"))
    }

    pub(super) fn reason(&self) -> Option<&str> {
        self.away.as_deref()
    }

    pub(super) fn back(&mut self) {
        self.away = None;
        self.answered_ns = Some(boottime_ns());
    }

    /// Notes an answer; returns whether it is the first since etcd was away.
    pub(super) fn answered(&mut self, sent_ns: u64, outcome: &Outcome) -> bool {
        if !matches!(outcome, Outcome::Applied { .. } | Outcome::Refused { .. }) {
            return false;
        }
        let now = boottime_ns();
        self.answered_ns = Some(now);
        self.answer = Some(Duration::from_nanos(now.saturating_sub(sent_ns)));
        self.away.take().is_some()
    }
}

/// The whole status.
pub(super) fn of(member: member::Status, rules: &Rules, tally: &Tally) -> Status {
    Status {
        etcd: FleetEtcd {
            reachable: member.etcd_reachable,
            reason: tally.away.clone(),
            beat_ms: tally.answer.map(|took| took.as_secs_f64() * 1e3),
            last_ack_ms: member.last_ack_ms,
            last_answer_ms: tally.answered_ns.map(ms_since),
            ..FleetEtcd::default()
        },
        member,
        unused_rules: tally.unused_rules.clone(),
        rules: rules.names(),
        takeovers: tally.takeovers,
        counters: BTreeMap::new(),
    }
}

fn ms_since(at_ns: u64) -> u64 {
    boottime_ns().saturating_sub(at_ns) / 1_000_000
}

/// Why etcd is unavailable, for people.
pub(super) fn away(error: &etcd::Error) -> String {
    match error {
        etcd::Error::Unavailable { reason } => reason.clone(),
        error => Error::from(error.clone()).to_string(),
    }
}

/// The event of the daemon's log for an event of the member, if there is one.
pub(super) fn event(event: FleetEvent, own: String) -> Option<Event> {
    let refused = |what: &str, why: &str| Event::RulesRefused {
        what: what.to_owned(),
        why: why.to_owned(),
    };
    Some(match event {
        FleetEvent::RelayFenced { relay } => Event::RelayFenced {
            relay,
            why: "it was silent for longer than its hold".to_owned(),
        },
        FleetEvent::Fenced => Event::RelayFenced {
            relay: own,
            why: "another relay ended this one's session; it begins anew and stands by".to_owned(),
        },
        FleetEvent::Restored => Event::RelayFenced {
            relay: own,
            why: "etcd went back in time or is another cluster; all shares are shut for a hold"
                .to_owned(),
        },
        FleetEvent::ShareShut { share, why } => Event::ShareShut { share, why },
        FleetEvent::ShareOpened { share } => Event::ShareOpened {
            share,
            why: String::new(),
        },
        FleetEvent::Refused { key, problem } => Event::RulesRefused {
            what: key,
            why: problem,
        },
        FleetEvent::RulesMissing => refused(
            "rules/current",
            "has gone from etcd; the rules stay as they are; apply them again",
        ),
        FleetEvent::NameTaken => refused(
            &own,
            "another process takes part under this relay's name; give one of them another",
        ),
        // The status shows these for as long as they last.
        FleetEvent::Sole { .. }
        | FleetEvent::EtcdAway
        | FleetEvent::EtcdBack
        | FleetEvent::Joined { .. }
        | FleetEvent::Left => return None,
    })
}

/// Names in a sentence.
pub(super) fn listed(names: impl IntoIterator<Item = String>) -> String {
    let names: BTreeSet<String> = names.into_iter().collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}
