//! Monitors: the relays that this one lists in its beats, which alone may fence it; their promises to it,
//! and its promises to others.

use std::collections::{BTreeMap, BTreeSet};

use config::OnIsolation;

use crate::keys::{BeatMonitor, SessionNumber};
use crate::member::{Answer, Command, Member, PhaseName, Question, faulty};
use crate::placement::{Candidate, order};

/// Up to this many relays all monitor each other.
const ALL_MONITOR: usize = 8;
/// How many monitors a relay has in a larger fleet.
const MONITORS: usize = 3;
/// After this time without a beat in etcd, in ns, a relay is given no more promises.
const SILENT_MAX: u64 = 10_000_000_000;
/// The promise asked of a monitor that has not answered recently, in ms, the shortest there is: a promise
/// whose answer gets lost must not keep the monitor from fencing a relay that receives nothing.
const FIRST_MS: u64 = 300;
/// How often monitors are asked while etcd answers, in ns.
const REST: u64 = 3_000_000_000;
/// How long a monitor may leave questions unanswered before that is reported, in ns.
const UNANSWERED_AFTER: u64 = 8_000_000_000;
/// Most questions without an answer.
const ASKED_MAX: usize = 256;

/// Questions and promises.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Monitors {
    nonce: u64,
    /// Questions without an answer.
    asked: BTreeMap<u64, Asked>,
    /// Until when each has promised not to fence this relay, and when the newest question that it answered
    /// was sent.
    promised: BTreeMap<BeatMonitor, Promise>,
    /// Since when each has left questions unanswered.
    unanswered: BTreeMap<String, u64>,
    next: u64,
    next_at_rest: u64,
    /// Until when this relay has promised others not to fence them, by [`Member::waited`].
    pub(super) promises: BTreeMap<String, u64>,
    /// The session and the number of the newest question of each relay that was answered.
    pub(super) answered: BTreeMap<String, (SessionNumber, u64)>,
}

#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
struct Asked {
    monitor: BeatMonitor,
    at: u64,
    /// How long the promise is to hold, in ns.
    hold: u64,
}

#[derive(Clone, Copy, Debug, Default, serde::Deserialize, serde::Serialize)]
struct Promise {
    asked: u64,
    until: u64,
}

impl Monitors {
    /// Forgets others' promises to a session that has ended; this relay's own promises stay.
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
    let names = chosen.into_iter().map(|index| candidates[index].name);
    names.map(monitor).collect()
}

impl Member {
    /// Chooses this relay's monitors, and the relays that it monitors.
    pub(super) fn plan_monitors(&mut self) {
        let entries = self.replica.live();
        let live: Vec<_> = entries
            .map(|(name, entry)| (name.to_owned(), entry.session))
            .collect();
        if live == self.plan.live {
            return;
        }
        let me = self.config.relay.as_str();
        let sessions = || live.iter().map(|(name, session)| (name.as_str(), *session));
        let lists_me = |relay: &&str| {
            let monitors = monitors_of(relay, sessions());
            *relay != me && monitors.iter().any(|m| m.relay == me)
        };
        let monitored = sessions().map(|(name, _)| name).filter(lists_me);
        self.plan.monitored = monitored.map(str::to_owned).collect();
        self.plan.monitors = monitors_of(me, sessions());
        self.plan.live = live;
    }

    /// Asks the monitors while etcd is late to answer, and now and then otherwise, to know whether they
    /// would answer. A relay that may not forward any more, or whose data plane hangs, does not ask: others
    /// are to fence it.
    pub(super) fn ask_monitors(&mut self) {
        if self.has_rival(self.now) {
            self.ask_rival();
        }
        let hold = self.config.hold_ns;
        let acked = self.beat.acked();
        let is_late = acked.is_some_and(|acked| self.now >= acked + hold / 3);
        let asks =
            self.config.policy == OnIsolation::Peers && self.session.phase == PhaseName::Joined;
        let due = if is_late {
            self.monitors.next
        } else {
            self.monitors.next_at_rest
        };
        let hangs = is_late && !self.is_alive();
        if !asks || hangs || self.now < due || self.now >= self.deadline() {
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
        // By the clock, so that the numbers grow throughout a session: a process that takes the session up
        // asks with greater ones, and replayed questions are not answered.
        self.monitors.nonce = self.now.max(self.monitors.nonce + 1);
        let nonce = self.monitors.nonce;
        let now = self.now;
        let hold = self.config.hold_ns;
        let promise = self.monitors.promised.get(&monitor);
        let has_answered = promise.is_some_and(|promise| now < promise.asked + hold / 2);
        let hold_ms = if has_answered {
            hold / 1_000_000
        } else {
            FIRST_MS
        };
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

    /// How long a monitor has not answered, in ms, if that is long enough to be reported. Time in which it
    /// is not asked any more does not make it longer.
    pub(super) fn unanswered_ms(&self, relay: &str, now: u64) -> Option<u64> {
        let since = *self.monitors.unanswered.get(relay)?;
        let asked = now.min(self.deadline()).saturating_sub(since);
        (asked >= UNANSWERED_AFTER).then(|| now.saturating_sub(since) / 1_000_000)
    }

    /// Whether a monitor answers this relay.
    pub(super) fn has_answered(&self, relay: &str, now: u64) -> bool {
        let promised = &self.monitors.promised;
        let mut promises = promised
            .iter()
            .filter(|(monitor, _)| monitor.relay == relay);
        promises.any(|(_, promise)| now < promise.asked + self.config.hold_ns)
    }

    /// Monitors whose promises have run out, if promises are asked for; once this relay has stopped asking,
    /// those whose promises had run out by then.
    pub(super) fn silent_monitors(&self) -> Vec<&str> {
        if self.config.policy != OnIsolation::Peers {
            return Vec::new();
        }
        let now = self.now.min(self.deadline());
        let margin = self.margin();
        let is_silent = |monitor: &&BeatMonitor| {
            let promised = self.monitors.promised.get(*monitor);
            promised.is_none_or(|promise| promise.until - margin <= now)
        };
        let silent = self.beat.lists().flatten().filter(is_silent);
        let names: BTreeSet<&str> = silent.map(|monitor| &*monitor.relay).collect();
        names.into_iter().collect()
    }

    /// Makes this process known to the other one with this relay's name, by a question.
    fn ask_rival(&mut self) {
        if self.session.has_begun() || self.now < self.monitors.next_at_rest {
            return;
        }
        self.monitors.next_at_rest = self.now + REST;
        let relay = self.config.relay.clone();
        if let Some(session) = self.replica.relay(&relay).map(|entry| entry.session) {
            self.ask(BeatMonitor { relay, session });
        }
    }

    /// Answers a question, if this relay can make the promise.
    pub(super) fn answer(&mut self, question: &Question) {
        if question.from == self.config.relay && question.to == self.config.relay {
            if self.session.has_begun() {
                self.note_rival();
            }
            return;
        }
        let is_for_me = question.to == self.config.relay
            && self.session.has_begun()
            && question.to_session == self.session.number
            && self.now < self.deadline();
        let is_valid = (300..=5000).contains(&question.hold_ms);
        if !is_for_me || !is_valid || !self.may_promise(question) {
            return;
        }
        let asked = (question.session, question.nonce);
        self.monitors.answered.insert(question.from.clone(), asked);
        let until = self.waited + self.required_wait(question.hold_ms * 1_000_000);
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
        let since = self.beat.answered_since(self.now);
        // Nobody forwards a share whose new holder has not seen that it was given to it.
        let patience = if self.is_given_unseen(&question.from, watched) {
            SILENT_MAX.min(2 * self.config.hold_ns)
        } else {
            SILENT_MAX
        };
        let is_silent = since.is_some_and(|since| self.now > since.max(watched.seen) + patience);
        let answered = self.monitors.answered.get(&question.from);
        let is_repeated = answered.is_some_and(|(session, nonce)| {
            *session == question.session && *nonce >= question.nonce
        });
        watched.session == question.session && lists_me && !is_silent && !is_repeated
    }
}
