//! Monitors: the relays that this one lists in its beats and that alone may fence it, what they have
//! promised it, and what it promises others.

use std::collections::{BTreeMap, BTreeSet};

use config::OnIsolation;

use crate::keys::{BeatMonitor, SessionNumber};
use crate::member::{Answer, Command, Member, PhaseName, Question, faulty};
use crate::placement::{Candidate, order};

/// Up to so many relays all monitor each other.
const ALL_MONITOR: usize = 8;
/// How many monitors a relay has in a larger fleet.
const MONITORS: usize = 3;
/// A relay from which etcd has had nothing for so long is promised nothing more, in ns.
const SILENT_MAX: u64 = 10_000_000_000;
/// What is asked of a monitor that has not answered of late, in ms, the shortest promise there is: one
/// that does not arrive is not to keep it from fencing a relay that hears nothing.
const FIRST_MS: u64 = 300;
/// How often monitors are asked while etcd answers, and how long one may be silent before people are
/// told, in ns.
const REST: u64 = 3_000_000_000;
const DEAF_AFTER: u64 = 8_000_000_000;
/// Questions that may be without an answer.
const ASKED_MAX: usize = 256;

/// Questions and promises.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Monitors {
    nonce: u64,
    /// Questions without an answer.
    asked: BTreeMap<u64, Asked>,
    /// Until when each has promised not to fence this relay, and the sending time of the newest question
    /// that it answered.
    promised: BTreeMap<BeatMonitor, Promise>,
    /// Since when each has answered nothing.
    unanswered: BTreeMap<String, u64>,
    next: u64,
    next_at_rest: u64,
    /// Until when this relay has promised others not to fence them, by [`Member::waited`].
    pub(super) promises: BTreeMap<String, u64>,
    /// The session and the number of the newest question that each was promised something for.
    pub(super) heeded: BTreeMap<String, (SessionNumber, u64)>,
}

#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
struct Asked {
    monitor: BeatMonitor,
    at: u64,
    /// For how long.
    hold: u64,
}

#[derive(Clone, Copy, Debug, Default, serde::Deserialize, serde::Serialize)]
struct Promise {
    asked: u64,
    until: u64,
}

impl Monitors {
    /// Forgets what others promised to a session that is over; what was promised to them stays.
    pub(super) fn forget(&mut self) {
        self.asked.clear();
        self.promised.clear();
        self.unanswered.clear();
    }

    pub(super) fn promised(&mut self, answer: &Answer, me: &str) {
        let Some(Asked { monitor, at, hold }) = self.asked.get(&answer.nonce) else {
            return;
        };
        if answer.to != me || answer.from != monitor.relay || answer.session != monitor.session {
            return;
        }
        let newest = self.promised.entry(monitor.clone()).or_default();
        newest.asked = newest.asked.max(*at);
        newest.until = newest.until.max(at + hold);
        self.unanswered.remove(&monitor.relay);
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
        let live = self.replica.live();
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

    /// Asks the monitors as long as etcd is late to answer, and at rest now and then, to know whether
    /// they would. Who may not forward any more, or whose data plane does not answer, asks for nothing: others
    /// are to fence it.
    pub(super) fn ask_monitors(&mut self) {
        if self.has_rival(self.now) {
            self.tell_rival();
        }
        let hold = self.config.hold_ns;
        let late = self
            .beat
            .acked()
            .is_some_and(|acked| self.now >= acked + hold / 3);
        let wanted =
            self.config.policy == OnIsolation::Peers && self.session.phase == PhaseName::Joined;
        let due = if late {
            self.monitors.next
        } else {
            self.monitors.next_at_rest
        };
        let hangs = late && !self.is_alive();
        if !wanted || hangs || self.now < due || self.now >= self.deadline() {
            return;
        }
        self.monitors.next = self.now + hold / 6;
        self.monitors.next_at_rest = self.now + REST;
        let mut monitors: Vec<BeatMonitor> = self.beat.lists().flatten().cloned().collect();
        monitors.sort_unstable();
        monitors.dedup();
        let is_asked = |relay: &String| monitors.iter().any(|monitor| monitor.relay == *relay);
        self.monitors.unanswered.retain(|relay, _| is_asked(relay));
        for monitor in monitors {
            self.ask(monitor);
        }
    }

    fn ask(&mut self, monitor: BeatMonitor) {
        let peer = self.replica.relay(&monitor.relay).map(|entry| entry.peer);
        let Some(peer) = peer.filter(|peer| peer.port() != 0) else {
            return;
        };
        // By the clock, so that the numbers grow for as long as a session can: a process that takes it
        // up asks with greater ones, and whoever has recorded questions of before is not heeded.
        self.monitors.nonce = self.now.max(self.monitors.nonce + 1);
        let nonce = self.monitors.nonce;
        let now = self.now;
        let hold = self.config.hold_ns;
        let answers = self
            .monitors
            .promised
            .get(&monitor)
            .is_some_and(|promise| now < promise.asked + hold / 2);
        let hold_ms = if answers { hold / 1_000_000 } else { FIRST_MS };
        let question = Question {
            from: self.config.relay.clone(),
            session: self.session.number,
            to: monitor.relay.clone(),
            to_session: monitor.session,
            hold_ms,
            nonce,
        };
        self.monitors.asked.retain(|_, asked| now < asked.at + hold);
        if self.monitors.asked.len() < ASKED_MAX {
            let unanswered = &mut self.monitors.unanswered;
            unanswered.entry(monitor.relay.clone()).or_insert(now);
            let asked = Asked {
                monitor,
                at: now,
                hold: hold_ms * 1_000_000,
            };
            self.monitors.asked.insert(nonce, asked);
            self.out.push(Command::Ask { peer, question });
        }
    }

    /// Until when all monitors that may be in force have promised not to fence this relay.
    pub(super) fn until_peers(&self) -> u64 {
        let margin = self.margin();
        let promise = |monitor: &BeatMonitor| {
            let promised = self.monitors.promised.get(monitor);
            promised.map_or(0, |promise| promise.until - margin)
        };
        let of_list = |list: &[BeatMonitor]| list.iter().map(promise).min().unwrap_or(0);
        self.beat.lists().map(of_list).min().unwrap_or(0)
    }

    /// For how long a monitor has not answered, in ms, where that is long enough to be told: what it
    /// is not asked any more, it need not answer.
    pub(super) fn unanswered_ms(&self, relay: &str, now: u64) -> Option<u64> {
        let since = *self.monitors.unanswered.get(relay)?;
        let asked = now.min(self.deadline()).saturating_sub(since);
        (asked >= DEAF_AFTER).then(|| now.saturating_sub(since) / 1_000_000)
    }

    /// Monitors whose promises have run out, where those are asked for; once this relay asks no more,
    /// those that had when it stopped.
    pub(super) fn silent_monitors(&self) -> Vec<&str> {
        let now = self.now.min(self.deadline());
        let monitors = self.beat.lists().flatten();
        let monitors = monitors.filter(|_| self.config.policy == OnIsolation::Peers);
        let margin = self.margin();
        let is_silent = |monitor: &&BeatMonitor| {
            let promised = self.monitors.promised.get(*monitor);
            promised.is_none_or(|promise| promise.until - margin <= now)
        };
        let silent: BTreeSet<&str> = monitors.filter(is_silent).map(|m| &*m.relay).collect();
        silent.into_iter().collect()
    }

    /// Tells the process that has this relay's name of this one.
    fn tell_rival(&mut self) {
        if self.session.has_begun() || self.now < self.monitors.next_at_rest {
            return;
        }
        self.monitors.next_at_rest = self.now + REST;
        let relay = self.config.relay.clone();
        if let Some(session) = self.replica.relay(&relay).map(|entry| entry.session) {
            self.ask(BeatMonitor { relay, session });
        }
    }

    /// Answers a question, if the promise can be kept.
    pub(super) fn answer(&mut self, question: &Question) {
        if question.from == self.config.relay && question.to == self.config.relay {
            if self.session.has_begun() {
                self.note_rival();
            }
            return;
        }
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
        let until = self.waited + self.surely(question.hold_ms * 1_000_000);
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
        // What it does not know of nobody forwards.
        let patience = if self.is_given_unseen(&question.from, watched) {
            SILENT_MAX.min(2 * self.config.hold_ns)
        } else {
            SILENT_MAX
        };
        let silent = has_etcd.is_some_and(|since| self.now > since.max(watched.seen) + patience);
        let heeded = self.monitors.heeded.get(&question.from);
        let repeated = heeded.is_some_and(|(session, nonce)| {
            *session == question.session && *nonce >= question.nonce
        });
        watched.session == question.session && lists_me && !silent && !repeated
    }
}
