//! Until when each share's packets pass, derived anew at each step.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::SessionNumber;
use crate::member::{Command, FleetEvent, Member, PhaseName, faulty};

/// The gates as last set in the data plane.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Gates {
    until: BTreeMap<String, u64>,
    /// Shares that were reported open, and when the first of their gates may have run out.
    open: BTreeSet<String>,
    runs_out: u64,
    /// The shares that the data plane was asked to prepare.
    pub(super) installing: Option<BTreeSet<String>>,
    /// What the deadlines were last derived from.
    basis: Option<Basis>,
}

/// Everything that a gate depends on: while it is the same, no gate changes.
#[derive(Debug, PartialEq, Eq, Clone, serde::Deserialize, serde::Serialize)]
struct Basis {
    deadline: u64,
    session: SessionNumber,
    has_sent_leave: bool,
    is_resting: bool,
    handing: Vec<String>,
    /// Counts of the changes of holders, of the rules, and of what is to be prepared.
    changes: [u64; 3],
}

impl Gates {
    pub(super) fn new(until: BTreeMap<String, u64>) -> Self {
        Self {
            open: BTreeSet::new(),
            runs_out: 0,
            until,
            installing: None,
            basis: None,
        }
    }

    /// Counts the gates as open that a former process left open; those that were shut or have run out before
    /// `now` were not this process's to shut.
    pub(super) fn begin(&mut self, now: u64) {
        let open = self.until.iter().filter(|(_, until)| **until > now);
        self.open = open.map(|(share, _)| share.clone()).collect();
        self.runs_out = 0;
    }

    pub(super) fn until(&self, share: &str) -> u64 {
        self.until.get(share).copied().unwrap_or(0)
    }
}

impl Member {
    /// Sends the changed gates to the data plane. Within a session a deadline never goes back: whoever
    /// may end the session waits from a later time on.
    pub(super) fn set_gates(&mut self) {
        self.note_run_out();
        if self.session.phase == PhaseName::Starting {
            return;
        }
        let basis = self.basis();
        if self.gates.basis.as_ref() == Some(&basis) {
            #[cfg(test)]
            assert_eq!(
                self.changed_gates(basis.deadline),
                [],
                "a gate depends on more"
            );
            return;
        }
        for (share, before, until) in self.changed_gates(basis.deadline) {
            self.set_gate(share, before, until);
        }
        self.gates.basis = Some(basis);
    }

    fn basis(&self) -> Basis {
        Basis {
            deadline: self.deadline(),
            session: self.session.number,
            has_sent_leave: self.session.has_sent_leave,
            is_resting: self.session.rests(self.waited),
            handing: self.handover.handing().cloned().collect(),
            changes: [
                self.replica.share_changes,
                self.rules.changes,
                self.plan.made,
            ],
        }
    }

    /// Shares whose gates are to change, with their previous and their new deadlines.
    fn changed_gates(&self, deadline: u64) -> Vec<(String, u64, u64)> {
        let gates = &self.gates.until;
        let install = self.plan.install.iter();
        let added = install.filter(|share| !gates.contains_key(*share));
        let changed = |share: &String| {
            let before = self.gates.until(share);
            let until = self.gate(share, before, deadline);
            (until != before).then(|| (share.clone(), before, until))
        };
        gates.keys().chain(added).filter_map(changed).collect()
    }

    fn gate(&self, share: &str, before: u64, deadline: u64) -> u64 {
        let is_held = self.holds(share).is_some() && !self.session.has_sent_leave;
        let is_handing = self.handover.is_handing(share) && !faulty!(self, HandOverOpen);
        let is_in_rules = self.rules.shares.contains_key(share) || self.rules.generation == 0;
        if !is_held || is_handing || !is_in_rules {
            return 0;
        }
        // Such a gate was left open by a process with another policy.
        let is_too_far = before > deadline.max(self.now + self.config.hold_ns);
        let before = if is_too_far { 0 } else { before };
        let waits = self.session.rests(self.waited) || self.replica.is_doubted(share);
        let may_open = before > self.now || !waits;
        if self.rules.installed.contains(share) && may_open {
            return deadline.max(before);
        }
        before
    }

    fn set_gate(&mut self, share: String, before: u64, until: u64) {
        if until == 0 {
            self.gates.until.remove(&share);
        } else {
            self.gates.until.insert(share.clone(), until);
        }
        self.out.push(Command::Gate {
            share: share.clone(),
            until,
        });
        if (before > self.now) != (until > self.now) {
            self.status_version += 1;
        }
        if until > self.now {
            self.gates.runs_out = self.gates.runs_out.min(until);
            if self.gates.open.insert(share.clone()) {
                self.report(FleetEvent::ShareOpened { share });
            }
        } else if self.gates.open.remove(&share) {
            self.report_shut(share);
        }
    }

    /// Reports gates that nobody shut and whose deadline has passed.
    fn note_run_out(&mut self) {
        if self.now < self.gates.runs_out {
            return;
        }
        let (open, shut): (BTreeSet<_>, BTreeSet<_>) = std::mem::take(&mut self.gates.open)
            .into_iter()
            .partition(|share| self.gates.until(share) > self.now);
        self.gates.open = open;
        let ends = self.gates.open.iter().map(|share| self.gates.until(share));
        self.gates.runs_out = ends.min().unwrap_or(u64::MAX);
        self.status_version += shut.len() as u64;
        shut.into_iter().for_each(|share| self.report_shut(share));
    }

    fn report_shut(&mut self, share: String) {
        let why = self.why_shut(&share);
        self.report(FleetEvent::ShareShut { share, why });
    }

    pub(super) fn why_shut(&self, share: &str) -> String {
        let why = if !self.session.has_begun() {
            "this relay has no session"
        } else if self.handover.is_handing(share) {
            "it is given away"
        } else if self.holds(share).is_none() {
            "another relay holds it"
        } else if !self.rules.installed.contains(share) {
            "its rules are not in the data plane"
        } else if !self.is_alive() {
            "its data plane does not answer"
        } else if self.session.rests(self.waited) {
            "it waits a hold, in case etcd is back from a backup"
        } else {
            return match self.silent_monitors() {
                silent if silent.is_empty() => "etcd does not answer".to_owned(),
                silent => format!("neither etcd answers nor {}", silent.join(" nor ")),
            };
        };
        why.to_owned()
    }
}
