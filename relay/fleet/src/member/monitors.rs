//! Monitors: whom this relay lists, what they have promised it, and what it promises others.

use std::collections::BTreeMap;

use crate::keys::{BeatMonitor, Policy, SessionNumber};
use crate::member::{Answer, Command, Member, PhaseName, Question, faulty};
use crate::placement::{Candidate, order};

/// Up to so many relays all monitor each other.
const ALL_MONITOR: usize = 8;
/// How many monitors a relay has in a larger fleet.
const MONITORS: usize = 3;
/// A relay that etcd has not heard for so long is promised nothing more, in ns.
const SILENT_MAX: u64 = 10_000_000_000;
/// Questions that may be without an answer.
const ASKED_MAX: usize = 256;

/// Questions and promises.
#[derive(Debug)]
pub(super) struct Monitors {
    nonce: u64,
    /// Questions without an answer: who was asked, and when.
    asked: BTreeMap<u64, (BeatMonitor, u64)>,
    /// Sending time of the newest question that a monitor answered.
    promised: BTreeMap<BeatMonitor, u64>,
    next: u64,
    /// Until when this relay has promised others not to fence them.
    pub(super) promises: BTreeMap<String, u64>,
    /// The session and the number of the newest question that each was promised something for.
    heeded: BTreeMap<String, (SessionNumber, u64)>,
}

impl Monitors {
    pub(super) fn new() -> Self {
        Self {
            nonce: 0,
            asked: BTreeMap::new(),
            promised: BTreeMap::new(),
            next: 0,
            promises: BTreeMap::new(),
            heeded: BTreeMap::new(),
        }
    }

    /// Forgets what others promised to a session that is over; what was promised to them stays.
    pub(super) fn forget(&mut self) {
        self.asked.clear();
        self.promised.clear();
    }

    pub(super) fn promised(&mut self, answer: &Answer, me: &str) {
        let Some((monitor, at)) = self.asked.get(&answer.nonce) else {
            return;
        };
        if answer.to != me || answer.from != monitor.relay || answer.session != monitor.session {
            return;
        }
        let at = *at;
        let newest = self.promised.entry(monitor.clone()).or_default();
        *newest = (*newest).max(at);
        self.asked.remove(&answer.nonce);
    }

    /// Until when this relay has promised `relay` not to fence it.
    pub(super) fn promised_until(&self, relay: &str) -> u64 {
        self.promises.get(relay).copied().unwrap_or(0)
    }
}

/// Who monitors `relay` among `live` (names and sessions).
pub(super) fn monitors_of<'a>(
    relay: &str,
    live: impl IntoIterator<Item = (&'a str, SessionNumber)>,
) -> Vec<BeatMonitor> {
    let others: BTreeMap<&str, _> = live
        .into_iter()
        .filter(|(name, _)| *name != relay)
        .collect();
    let monitor = |name: &str| BeatMonitor {
        relay: name.to_owned(),
        session: others[name],
    };
    if others.len() < ALL_MONITOR {
        return others.keys().map(|name| monitor(name)).collect();
    }
    let candidates: Vec<_> = others
        .keys()
        .map(|name| Candidate { name, weight: 1 })
        .collect();
    let mut chosen = order(relay, &candidates);
    chosen.truncate(MONITORS);
    chosen.sort_unstable();
    let names = chosen.into_iter().map(|place| candidates[place].name);
    names.map(monitor).collect()
}

impl Member {
    /// Whom this relay lists, and who is to list this relay.
    pub(super) fn plan_monitors(&mut self) {
        let live = self.book.live();
        let live: Vec<_> = live
            .map(|(name, entry)| (name.to_owned(), entry.session))
            .collect();
        if live == self.plan.live {
            return;
        }
        let me = self.config.relay.as_str();
        let live_names = || live.iter().map(|(name, session)| (name.as_str(), *session));
        let monitors = monitors_of(me, live_names());
        let mine = |relay: &&str| {
            let monitors = monitors_of(relay, live_names());
            monitors.iter().any(|m| m.relay == me)
        };
        let others = live_names().map(|(name, _)| name);
        let others = others.filter(|name| *name != me);
        let monitored = others.filter(mine).map(str::to_owned).collect();
        self.plan.monitors = monitors;
        self.plan.monitored = monitored;
        self.plan.live = live;
    }

    /// Asks the monitors as long as etcd is late to answer.
    pub(super) fn ask_monitors(&mut self) {
        let hold = self.config.hold_ns;
        let acked = self.beat.acked();
        let late = acked.is_some_and(|acked| self.now >= acked + hold / 3);
        let wanted = self.config.policy == Policy::Peers && self.session.phase == PhaseName::Joined;
        if !wanted || !late || self.now < self.monitors.next {
            return;
        }
        self.monitors.next = self.now + hold / 6;
        let mut monitors: Vec<BeatMonitor> =
            self.beat.lists().into_iter().flatten().cloned().collect();
        monitors.sort_unstable();
        monitors.dedup();
        for monitor in monitors {
            self.ask(monitor);
        }
    }

    fn ask(&mut self, monitor: BeatMonitor) {
        let Some(peer) = self.book.relay(&monitor.relay).map(|entry| entry.peer) else {
            return;
        };
        // By the clock, so that the numbers grow for as long as a session can: a process that takes it
        // up asks with greater ones, and whoever has recorded questions of before is not heeded.
        self.monitors.nonce = self.now.max(self.monitors.nonce + 1);
        let nonce = self.monitors.nonce;
        let question = Question {
            from: self.config.relay.clone(),
            session: self.session.number,
            to: monitor.relay.clone(),
            to_session: monitor.session,
            hold_ms: self.config.hold_ns / 1_000_000,
            nonce,
        };
        let now = self.now;
        let hold = self.config.hold_ns;
        self.monitors.asked.retain(|_, (_, at)| now < *at + hold);
        if self.monitors.asked.len() < ASKED_MAX {
            self.monitors.asked.insert(nonce, (monitor, now));
            self.out.push(Command::Ask { peer, question });
        }
    }

    /// Until when all monitors that may be in force have promised not to fence this relay.
    pub(super) fn until_peers(&self) -> u64 {
        let counts_for = self.config.hold_ns - self.margin();
        let promise = |monitor: &BeatMonitor| {
            let asked = self.monitors.promised.get(monitor);
            asked.map_or(0, |asked| asked + counts_for)
        };
        let of_list = |list: &[BeatMonitor]| list.iter().map(promise).min().unwrap_or(0);
        self.beat
            .lists()
            .into_iter()
            .map(of_list)
            .min()
            .unwrap_or(0)
    }

    /// Answers a question, if the promise can be kept.
    pub(super) fn answer(&mut self, question: &Question) {
        let own = question.to == self.config.relay
            && self.session.has_begun()
            && question.to_session == self.session.number
            && self.now < self.deadline();
        let hold_ok = (300..=5000).contains(&question.hold_ms);
        if !own || !hold_ok || !self.may_promise(question) {
            return;
        }
        let asked = (question.session, question.nonce);
        self.monitors.heeded.insert(question.from.clone(), asked);
        let until = self.now + question.hold_ms * 1_000_000;
        if !faulty!(self, ForgetPromise) {
            let promise = self
                .monitors
                .promises
                .entry(question.from.clone())
                .or_default();
            *promise = (*promise).max(until);
        }
        self.out.push(Command::Answer(Answer {
            from: self.config.relay.clone(),
            session: self.session.number,
            to: question.from.clone(),
            nonce: question.nonce,
        }));
    }

    fn may_promise(&self, question: &Question) -> bool {
        let Some(watched) = self.fencing.may_promise(&question.from) else {
            return false;
        };
        let lists_me = watched.lists(&self.config.relay, self.session.number);
        let has_etcd = self.beat.answered_since(self.now);
        let silent = has_etcd.is_some_and(|since| self.now > since.max(watched.seen) + SILENT_MAX);
        let heeded = self.monitors.heeded.get(&question.from);
        let repeated = heeded.is_some_and(|(session, nonce)| {
            *session == question.session && *nonce >= question.nonce
        });
        watched.session == question.session && lists_me && !silent && !repeated
    }
}
