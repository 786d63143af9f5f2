//! A relay's part in the fleet: what it decides from what it receives, without I/O and without a clock.
//!
//! [`Member::take`] accepts an input and the time, CLOCK_BOOTTIME of this host in ns;
//! [`Member::decide`] returns the commands that follow. Invariant: the gates of two relays are never
//! open for one share at the same instant (policies `stop` and `peers`), whatever is delayed, lost,
//! repeated or stopped.

mod beat;
mod claims;
mod event;
mod fence;
mod fitness;
mod gates;
mod handover;
mod io;
mod monitors;
mod plan;
mod replica;
mod session;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use config::OnIsolation;

pub use event::FleetEvent;
pub use io::{
    Adopted, Answer, Change, Command, Compare, Fitness, Input, KeyValue, Outcome, Question,
    Session, Target, Txn, TxnId,
};
pub use status::{PhaseName, RelayStatus, Status};

use crate::keys::{Key, Keys, ShareEntry};

/// Whether a test has disabled a guard; never true in a build.
macro_rules! faulty {
    ($member:expr, $fault:ident) => {{
        #[cfg(test)]
        let faulty = $member.fault == Some($crate::member::Fault::$fault);
        #[cfg(not(test))]
        let faulty = false;
        faulty
    }};
}
use faulty;

/// The longest time between two inputs of a driver that is not held up, in ns.
pub(crate) const TICK_NS: u64 = 20_000_000;

/// This many small jumps of the clock within one hold open nothing twice, and the margin covers one more.
const LEAPS: u64 = 3;

/// The configuration of a member.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Config {
    /// The fleet's keys.
    pub keys: Keys,
    /// The fleet's name.
    pub fleet: String,
    /// This relay's name.
    pub relay: String,
    /// A number that no other process of this relay has: random.
    pub process: u64,
    /// What to do while etcd does not answer.
    pub policy: OnIsolation,
    /// How long a beat counts, in ns.
    pub hold_ns: u64,
    /// Where peers ask this relay.
    pub peer: SocketAddr,
    /// Interface roles that it has.
    pub roles: BTreeSet<String>,
    /// Its part of the shares, against the other relays'.
    pub weight: u32,
    /// Version of the program.
    pub version: String,
    /// How long a share is served badly before it is given away, in ns: with its output down, and with
    /// its input silent. A cause that makes both relays unfit, a source that ends, has been reported by
    /// both by then.
    pub patience_ns: Patience,
    /// The calendar's time when this host's CLOCK_BOOTTIME was 0, in ms since 1970: for `at` and
    /// `since`, on which no decision depends.
    pub boot_unix_ms: u64,
}

/// How long a share is served badly before it is given away, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Patience {
    /// An output is down, or an input is not joined.
    pub down: u64,
    /// An input is silent that another relay receives.
    pub silent: u64,
}

/// A relay's part in the fleet.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
pub struct Member {
    config: Config,
    /// Time of the input that is being handled.
    now: u64,
    /// How long this relay has waited for others, in ns: grows as time passes, but by no more than
    /// [`Self::leap`] at once, and by less if more than a margin has passed. A jump of the clock, or a
    /// stop of the process, does not count as waiting.
    waited: u64,
    /// When the first input arrived; promises of former processes are older.
    started: Option<u64>,
    session: session::State,
    beat: beat::OwnBeat,
    monitors: monitors::Monitors,
    fencing: fence::Fencing,
    replica: replica::Replica,
    rules: Rules,
    plan: plan::Plan,
    claims: claims::Claims,
    handover: handover::HandOver,
    gates: gates::Gates,
    /// Whether something changed that the plan depends on.
    stale: bool,
    /// Counts the changes of the status.
    status_version: u64,
    etcd_reachable: bool,
    /// When the data plane last gave a sign of life.
    alive: Option<u64>,
    /// The newest revision that etcd has reported.
    newest: u64,
    /// Transactions without an answer, and [`Self::newest`] when each was sent; `None`: sent to another
    /// etcd.
    pending: BTreeMap<TxnId, (Purpose, Option<u64>)>,
    last_id: u64,
    /// Commands that go out first, and transactions, which may go only after the gates.
    /// Both are empty after [`Self::decide`].
    #[serde(skip)]
    out: Vec<Command>,
    #[serde(skip)]
    transactions: Vec<Command>,
    #[cfg(test)]
    #[serde(skip)]
    fault: Option<Fault>,
}

/// The rules as this relay has them, and how well it serves them.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
struct Rules {
    generation: u64,
    /// Counts the changes of the rules and of the installed set.
    changes: u64,
    /// The shares and the roles that each needs.
    shares: BTreeMap<String, BTreeSet<String>>,
    installed: BTreeSet<String>,
    failed: BTreeMap<String, String>,
    fitness: Fitness,
    /// Shares that this relay was not fit for when they were taken away from it.
    marks: BTreeMap<String, fitness::Mark>,
    /// Shares of which the holder reports to receive less than this relay: since when, and whether that is
    /// certain.
    contested: BTreeMap<String, (u64, bool)>,
}

/// Why a transaction was sent.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
enum Purpose {
    Beat,
    Join,
    Discard,
    Leave,
    Fence { relay: String },
    Claim { shares: Vec<(String, ShareEntry)> },
    HandOver { shares: Vec<(String, ShareEntry)> },
}

/// A guard that tests disable on purpose.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The gate stays open for as long as a fencer waits.
    NoMargin,
    /// A fencer does not wait until its promise ends.
    ForgetPromise,
    /// A fence deletes a beat that it has not seen.
    FenceUnseen,
    /// A silent holder's shares are taken without ending its session.
    ClaimUnfenced,
    /// A share is given away with its gate open.
    HandOverOpen,
    /// A missing answer is taken for a refusal.
    UnknownIsRefused,
    /// A beat counts from its answer.
    CountFromAnswer,
}

impl Member {
    /// A member that has received nothing yet. `adopted` is what a former process of this boot
    /// left behind; if it is `None`, the driver has already shut all gates.
    #[must_use]
    pub fn new(config: Config, adopted: Option<Adopted>) -> Self {
        let is_ours = |Adopted { session, .. }: &Adopted| {
            session.fleet == config.fleet && session.relay == config.relay
        };
        let inherited = adopted.iter().flat_map(|it| it.gates.clone()).collect();
        let adopted = adopted.filter(is_ours);
        Self {
            now: 0,
            waited: 0,
            started: None,
            session: session::State::new(adopted.map(|adopted| adopted.session)),
            beat: beat::OwnBeat::default(),
            monitors: monitors::Monitors::default(),
            fencing: fence::Fencing::default(),
            replica: replica::Replica::new(config.keys.clone()),
            rules: Rules::default(),
            plan: plan::Plan::default(),
            claims: claims::Claims::default(),
            handover: handover::HandOver::default(),
            gates: gates::Gates::new(inherited),
            stale: true,
            status_version: 0,
            etcd_reachable: false,
            alive: None,
            newest: 0,
            pending: BTreeMap::new(),
            last_id: 0,
            out: Vec::new(),
            transactions: Vec::new(),
            #[cfg(test)]
            fault: None,
            config,
        }
    }

    /// Takes an input. `now` is the time of this call or a little earlier, never later.
    pub fn take(&mut self, now: u64, input: Input) {
        self.advance_clock(now);
        if self.started.is_none() {
            self.started = Some(self.now);
            self.gates.begin(self.now);
        }
        self.note(input);
        let (me, session) = (&self.config.relay, &self.session);
        let is_own = |relay: &str, number| relay == me && session.is_own(number);
        self.replica.note_missing(is_own);
    }

    /// Returns the commands that follow from all inputs so far, to be carried out in this order. `now` as
    /// for [`Self::take`].
    pub fn decide(&mut self, now: u64) -> Vec<Command> {
        self.advance_clock(now);
        self.step();
        self.out.append(&mut self.transactions);
        std::mem::take(&mut self.out)
    }

    fn advance_clock(&mut self, now: u64) {
        let passed = now.saturating_sub(self.now);
        self.now += passed;
        let margin = self.margin_ns();
        self.waited += if passed > margin {
            margin / 4
        } else {
            passed.min(self.leap())
        };
    }

    /// The most that a jump of the clock, which looks like a late tick, adds to [`Self::waited`].
    fn leap(&self) -> u64 {
        (self.margin_ns() / 2).max(TICK_NS)
    }

    /// By how much [`Self::waited`] must grow before `time` has surely passed: jumps add up, and
    /// [`LEAPS`] of them within it do no harm. The rest of the margin is for the drift.
    fn required_wait(&self, time: u64) -> u64 {
        if faulty!(self, NoMargin) {
            return time;
        }
        time + LEAPS * self.leap()
    }

    fn note(&mut self, input: Input) {
        if matches!(
            input,
            Input::Listed { .. } | Input::Changed { .. } | Input::BeatSeen { .. }
        ) {
            self.replica.watch_goes_on(self.now);
        }
        match input {
            Input::Listed {
                cluster,
                revision,
                keys,
            } => self.listed(cluster, revision, keys),
            Input::Changed { revision, changes } => self.changed(revision, changes),
            Input::BeatSeen {
                relay,
                revision,
                beat,
            } => self.beat_seen(&relay, revision, beat),
            Input::Answered {
                id,
                sent_ns,
                outcome,
            } => self.answered(id, sent_ns, outcome),
            Input::Question(question) => self.answer(&question),
            Input::Answer(answer) => self.monitors.promised(&answer, &self.config.relay),
            Input::Installed { shares, failed } => {
                self.rules.changes += 1;
                self.rules.installed = shares;
                self.rules.failed = failed;
                self.stale = true;
            }
            Input::Rules { generation, shares } => {
                self.rules.changes += 1;
                self.rules.generation = generation;
                self.rules.shares = shares;
                self.plan.has_rules = false;
                self.stale = true;
            }
            Input::Fitness(fitness) => self.update_fitness(fitness),
            Input::Leave => {
                self.session.leaving = true;
                self.stale = true;
                self.plan.rests_until = 0;
            }
            Input::Own(peer) => self.config.peer = peer,
            Input::Calendar(boot_unix_ms) => self.config.boot_unix_ms = boot_unix_ms,
            Input::Alive => self.alive = Some(self.now),
            Input::EtcdReachable(reachable) => {
                self.status_version += u64::from(self.etcd_reachable != reachable);
                self.etcd_reachable = reachable;
            }
            Input::WatchLost => {
                self.replica.doubt();
                // Without a session there is no beat that would reveal another etcd.
                if !self.session.has_begun() {
                    self.out.push(Command::ListAgain);
                }
            }
            Input::Tick => {}
        }
    }

    /// Derives the commands from the state alone, however it came about.
    fn step(&mut self) {
        let phase = self.session.phase;
        self.drop_marks();
        self.note_silent();
        if self.stale && self.now >= self.plan.rests_until {
            self.stale = false;
            self.status_version += 1;
            self.replan();
        }
        self.watch_beats();
        self.fence();
        self.keep_session();
        self.keep_beating();
        self.ask_monitors();
        self.claim();
        self.hand_over();
        self.set_gates();
        self.install();
        self.status_version += u64::from(self.session.phase != phase);
    }

    fn answered(&mut self, id: TxnId, sent: u64, outcome: Outcome) {
        let Some((purpose, newest)) = self.pending.remove(&id) else {
            return;
        };
        if let Some(newest) = newest {
            self.compare_history(newest, &outcome);
        }
        match purpose {
            Purpose::Beat => self.beat_answered(id, sent, outcome),
            Purpose::Join => self.join_answered(sent, outcome),
            Purpose::Discard => self.discard_answered(outcome),
            Purpose::Leave => self.leave_answered(outcome),
            Purpose::Fence { relay } => self.fence_answered(&relay, outcome),
            Purpose::Claim { shares } => self.claim_answered(shares, outcome),
            Purpose::HandOver { shares } => self.hand_over_answered(id, shares, outcome),
        }
    }

    fn send(&mut self, txn: Txn, purpose: Purpose, patience: u64) -> TxnId {
        self.last_id += 1;
        let id = TxnId(self.last_id);
        self.pending.insert(id, (purpose, Some(self.newest)));
        self.transactions.push(Command::Txn {
            id,
            txn,
            give_up_ns: self.now + patience,
        });
        id
    }

    fn report(&mut self, event: FleetEvent) {
        self.out.push(Command::Event(event));
    }

    fn key(&self, key: Key) -> String {
        self.config.keys.text(&key)
    }

    fn beat_key(&self, relay: &str) -> String {
        self.key(Key::Beat(relay.to_owned()))
    }

    /// The condition that this relay's session has not ended.
    fn session_lives(&self) -> Compare {
        created(self.beat_key(&self.config.relay), self.session.number)
    }

    /// The calendar's time, in ms since 1970.
    fn calendar(&self) -> u64 {
        self.config.boot_unix_ms + self.now / 1_000_000
    }

    /// How long before anybody may fence this relay its gates shut: covers the drift of clocks within a
    /// hold, and the time from reading the clock to sending the packet.
    fn margin(&self) -> u64 {
        if faulty!(self, NoMargin) {
            return 0;
        }
        self.margin_ns()
    }

    fn margin_ns(&self) -> u64 {
        (self.config.hold_ns / 24).max(30_000_000)
    }
}

fn created(key: String, revision: u64) -> Compare {
    Compare {
        key,
        target: Target::Created,
        equal: true,
        revision,
    }
}

fn modified(key: String, revision: u64) -> Compare {
    Compare {
        key,
        target: Target::Modified,
        equal: true,
        revision,
    }
}

fn not_created(key: String, revision: u64) -> Compare {
    Compare {
        key,
        target: Target::Created,
        equal: false,
        revision,
    }
}

#[cfg(test)]
mod tests;
