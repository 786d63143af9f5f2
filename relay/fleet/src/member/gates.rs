//! Until when each share's packets pass: derived anew at each step.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::SessionNumber;
use crate::member::{Command, FleetEvent, Member, PhaseName, faulty};

/// The gates as the data plane was given them.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Gates {
    until: BTreeMap<String, u64>,
    /// Shares that people were told to be open, and when the first of them may have run out.
    open: BTreeSet<String>,
    runs_out: u64,
    /// What the data plane was asked to prepare.
    pub(super) installing: Option<BTreeSet<String>>,
    /// What the deadlines were derived from last.
    basis: Option<Basis>,
}

/// All that a gate depends on: without a change of it, none changes.
#[derive(Debug, PartialEq, Eq, Clone, serde::Deserialize, serde::Serialize)]
struct Basis {
    deadline: u64,
    session: SessionNumber,
    going: bool,
    rests: bool,
    handing: Vec<String>,
    /// Changes so far of who holds what, of the rules, and of what is to be prepared.
    changes: [u64; 3],
}

impl Gates {
    pub(super) fn new(until: BTreeMap<String, u64>) -> Self {
        Self {
            open: until.keys().cloned().collect(),
            runs_out: 0,
            until,
            installing: None,
            basis: None,
        }
    }

    pub(super) fn until(&self, share: &str) -> u64 {
        self.until.get(share).copied().unwrap_or(0)
    }
}

impl Member {
    /// Tells the data plane what has changed. Within a session a deadline never goes back: whoever
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
            going: self.session.going,
            rests: self.session.rests(self.waited),
            handing: self.handover.handing().cloned().collect(),
            changes: [
                self.replica.share_changes,
                self.rules.changes,
                self.plan.made,
            ],
        }
    }

    /// Shares whose gates are to change, with the deadlines of before and from now on.
    fn changed_gates(&self, deadline: u64) -> Vec<(String, u64, u64)> {
        let told = self.gates.until.keys();
        let new = self.plan.install.iter();
        let new = new.filter(|share| !self.gates.until.contains_key(*share));
        let changed = |share: &String| {
            let before = self.gates.until(share);
            let until = self.gate(share, before, deadline);
            (until != before).then(|| (share.clone(), before, until))
        };
        told.chain(new).filter_map(changed).collect()
    }

    fn gate(&self, share: &str, before: u64, deadline: u64) -> u64 {
        let held = self.holds(share).is_some() && !self.session.going;
        let handing = self.handover.is_handing(share) && !faulty!(self, HandOverOpen);
        if !held || handing || !self.rules.shares.contains_key(share) && self.rules.generation > 0 {
            return 0;
        }
        // Left open by a process whose policy was another.
        let too_far = before > deadline.max(self.now + self.config.hold_ns);
        let before = if too_far { 0 } else { before };
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
            self.news += 1;
        }
        if until > self.now {
            self.gates.runs_out = self.gates.runs_out.min(until);
            if self.gates.open.insert(share.clone()) {
                self.tell(FleetEvent::ShareOpened { share });
            }
        } else if self.gates.open.remove(&share) {
            self.tell_shut(share);
        }
    }

    /// Tells of gates that nobody shut and whose deadline has passed.
    fn note_run_out(&mut self) {
        if self.now < self.gates.runs_out {
            return;
        }
        let open = std::mem::take(&mut self.gates.open);
        let (open, shut) = open
            .into_iter()
            .partition(|share| self.gates.until(share) > self.now);
        self.gates.open = open;
        let ends = self.gates.open.iter().map(|share| self.gates.until(share));
        self.gates.runs_out = ends.min().unwrap_or(u64::MAX);
        let shut: BTreeSet<String> = shut;
        self.news += shut.len() as u64;
        shut.into_iter().for_each(|share| self.tell_shut(share));
    }

    fn tell_shut(&mut self, share: String) {
        let why = self.why_shut(&share);
        self.tell(FleetEvent::ShareShut { share, why });
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
