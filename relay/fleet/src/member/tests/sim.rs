//! Relays, their clocks, a network and etcd in virtual time, all from one seed.
//!
//! Time is real time in ns; each host has its own clock. A stopped process keeps its gates, and can
//! stop between two commands of one step.

mod driver;
mod faults;
mod oddities;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};

use config::OnIsolation;

use super::etcd::Etcd;
use crate::keys::{Drained, Keys, Move, ShareEntry, Value};
use crate::member::{
    Adopted, Answer, Change, Command, Config, Fault, Fitness, FleetEvent, Input, Member, Outcome,
    Patience, Question, Session, Txn, TxnId,
};

use crate::record::Recorder;

pub(super) const MS: u64 = 1_000_000;
const CLUSTER: u64 = 7;

/// A small random number generator (SplitMix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from).max(1)
    }

    pub(super) fn chance(&mut self, of_1000: u64) -> bool {
        self.next() % 1000 < of_1000
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) relays: usize,
    pub(super) shares: usize,
    pub(super) policy: OnIsolation,
    pub(super) hold: u64,
    /// Largest drift of a clock, in millionths.
    pub(super) drift_ppm: u64,
    pub(super) fault: Option<Fault>,
    /// How many of 1000 transactions are late, and how many of 1000 answers are lost.
    pub(super) loss: u64,
    /// Whether operators cause most of the faults.
    pub(super) moving: bool,
}

pub(super) struct Host {
    name: String,
    pub(super) member: Option<Member>,
    process: u64,
    offset: u64,
    ppm: i64,
    pub(super) gates: BTreeMap<String, u64>,
    saved: Option<Session>,
    /// The shares that the data plane was last asked to prepare.
    pub(super) install: BTreeSet<String>,
    pub(super) etcd_cut_until: u64,
    pub(super) peers_cut_until: u64,
    /// Until when it receives nothing, though its own messages arrive.
    pub(super) deaf_until: u64,
    pub(super) line: faults::Line,
    pub(super) odd: oddities::Odd,
    pub(super) watch_stalled_until: u64,
    pub(super) stopped_until: u64,
    pub(super) down_until: u64,
    listed: bool,
    /// When its watch was last polled.
    watched_at: u64,
    watch_at: u64,
    /// Up to where its watches have reported: a revision, and when that etcd began.
    polled: Option<(u64, u64)>,
    beats: BTreeMap<String, Option<u64>>,
    /// Until when its input receives nothing.
    input_dead_until: u64,
    input_state: faults::InputState,
    recorder: Option<Recorder>,
    inbox: VecDeque<Input>,
    /// Commands that were not carried out before a stop.
    stuck: VecDeque<Command>,
    waiting: BTreeMap<TxnId, u64>,
}

/// What happens next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Poll(usize),
    Tick(usize),
    Event,
}

enum Event {
    Commit {
        host: usize,
        process: u64,
        id: TxnId,
        txn: Txn,
        answer: bool,
    },
    Answered {
        host: usize,
        process: u64,
        id: TxnId,
        outcome: Option<Outcome>,
    },
    Ask {
        from: usize,
        to: usize,
        question: Question,
    },
    Answer {
        to: usize,
        process: u64,
        answer: Answer,
    },
    Installed {
        host: usize,
        process: u64,
    },
}

pub(super) struct Sim {
    pub(super) settings: Settings,
    pub(super) now: u64,
    pub(super) random: Random,
    pub(super) etcd: Etcd,
    pub(super) etcd_down_until: u64,
    pub(super) etcd_full_until: u64,
    pub(super) etcd_slow_until: u64,
    /// Until when it has no majority: it accepts no writes, and its watches report nothing.
    pub(super) etcd_stuck_until: u64,
    /// When it lost its data.
    etcd_changed: u64,
    /// Until when it compacts its history at once.
    pub(super) etcd_compacts_until: u64,
    /// Its revisions, and when each was first seen.
    revisions: VecDeque<(u64, u64)>,
    /// The sender of the question that is being answered.
    requester: Option<usize>,
    backup: Option<Etcd>,
    source_off_until: u64,
    /// Generation of the rules: those with an even number do not have cam0.
    pub(super) generation: u64,
    /// Whether keys were deleted, so that some relays may be known only by the shares that they hold.
    pub(super) is_missing_keys: bool,
    /// Whether relays report what they receive.
    reports_fitness: bool,
    /// How many kinds of faults happen.
    pub(super) kinds: u64,
    /// Whether the inputs of members are recorded.
    pub(super) records: bool,
    pub(super) hosts: Vec<Host>,
    keys: Keys,
    /// By their times, and in the order in which they were made.
    due: BinaryHeap<Reverse<(u64, u64, Due)>>,
    events: HashMap<u64, Event>,
    sequence: u64,
    /// Whether transactions may lose their answers or be late.
    pub(super) lossy: bool,
    pub(super) steps: u64,
    pub(super) violation: Option<String>,
    /// When each fault ends.
    pub(super) ends: Vec<u64>,
    /// The faults, in words.
    pub(super) harms: Vec<String>,
    /// When each share was last opened.
    pub(super) opened: BTreeMap<String, u64>,
    pub(super) reported: Vec<(u64, usize, FleetEvent)>,
}

impl Sim {
    pub(super) fn new(seed: u64, settings: Settings) -> Self {
        let mut random = Random(seed);
        let ppm = settings.drift_ppm;
        let host = |index: usize, random: &mut Random| Host {
            name: format!("relay-{index}"),
            member: None,
            process: 0,
            offset: random.range(1, 1_000_000) * MS,
            ppm: random.range(0, 2 * ppm + 1) as i64 - ppm as i64,
            gates: BTreeMap::new(),
            saved: None,
            install: BTreeSet::new(),
            etcd_cut_until: 0,
            peers_cut_until: 0,
            deaf_until: 0,
            line: faults::Line::default(),
            odd: oddities::Odd::default(),
            watch_stalled_until: 0,
            stopped_until: 0,
            down_until: random.range(0, 300) * MS,
            listed: false,
            watch_at: 0,
            polled: None,
            beats: BTreeMap::new(),
            watched_at: 0,
            input_dead_until: 0,
            input_state: faults::InputState::default(),
            recorder: None,
            inbox: VecDeque::new(),
            stuck: VecDeque::new(),
            waiting: BTreeMap::new(),
        };
        let hosts = (0..settings.relays)
            .map(|index| host(index, &mut random))
            .collect();
        let mut sim = Self {
            settings,
            now: 0,
            random,
            etcd: Etcd::default(),
            etcd_down_until: 0,
            etcd_full_until: 0,
            etcd_slow_until: 0,
            etcd_stuck_until: 0,
            etcd_changed: 0,
            etcd_compacts_until: 0,
            revisions: VecDeque::new(),
            requester: None,
            backup: None,
            source_off_until: 0,
            generation: 1,
            is_missing_keys: false,
            reports_fitness: false,
            kinds: 0,
            records: true,
            hosts,
            keys: Keys::new("plant").unwrap(),
            due: BinaryHeap::new(),
            events: HashMap::new(),
            sequence: 0,
            lossy: false,
            steps: 0,
            violation: None,
            ends: Vec::new(),
            harms: Vec::new(),
            opened: BTreeMap::new(),
            reported: Vec::new(),
        };
        for host in 0..settings.relays {
            sim.due(1, Due::Poll(host));
            sim.due(1, Due::Tick(host));
        }
        sim
    }

    pub(super) fn shares(&self) -> Vec<String> {
        let first = usize::from(self.generation.is_multiple_of(2));
        (first..self.settings.shares)
            .map(|n| format!("cam{n}"))
            .collect()
    }

    fn at(&mut self, time: u64, event: Event) {
        self.due(time, Due::Event);
        self.events.insert(self.sequence, event);
    }

    fn due(&mut self, time: u64, what: Due) {
        self.sequence += 1;
        let at = time.max(self.now);
        self.due.push(Reverse((at, self.sequence, what)));
    }

    fn delay(&mut self) -> u64 {
        match self.random.range(0, 100) {
            0..60 => self.random.range(20_000, MS),
            60..97 => self.random.range(MS, 8 * MS),
            _ if self.lossy => self.random.range(8 * MS, 300 * MS),
            _ => self.random.range(8 * MS, 20 * MS),
        }
    }

    pub(super) fn local(&self, host: usize) -> u64 {
        let host = &self.hosts[host];
        let drift = self.now as i64 * host.ppm / 1_000_000;
        (host.offset + self.now).saturating_add_signed(drift)
    }

    pub(super) fn run_until(&mut self, time: u64) {
        while let Some(Reverse((at, sequence, what))) = self.due.peek().copied() {
            if at > time || self.violation.is_some() {
                break;
            }
            self.due.pop();
            self.now = at;
            match what {
                Due::Tick(host) => self.tick(host),
                Due::Poll(host) => {
                    self.poll(host);
                    let next = self.now + self.delay();
                    self.due(next, Due::Poll(host));
                }
                Due::Event => {
                    let event = self.events.remove(&sequence).unwrap();
                    self.event(event);
                }
            }
        }
        self.now = self.now.max(time);
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Commit {
                host,
                process,
                id,
                txn,
                answer,
            } => {
                let outcome = self.etcd.apply(&txn);
                if answer {
                    let at = self.now + self.delay();
                    let outcome = Some(outcome);
                    self.at(
                        at,
                        Event::Answered {
                            host,
                            process,
                            id,
                            outcome,
                        },
                    );
                }
            }
            Event::Answered {
                host,
                process,
                id,
                outcome,
            } => {
                if outcome.is_some() && (!self.reaches_etcd(host) || self.is_deaf(host)) {
                    return;
                }
                if self.hosts[host].process == process
                    && let Some(sent_ns) = self.hosts[host].waiting.remove(&id)
                {
                    let outcome = outcome.unwrap_or(Outcome::Unknown);
                    self.input(
                        host,
                        Input::Answered {
                            id,
                            sent_ns,
                            outcome,
                        },
                    );
                }
            }
            Event::Ask { from, to, question } => {
                self.requester = Some(from);
                self.input(to, Input::Question(question));
                self.requester = None;
            }
            Event::Answer {
                to,
                process,
                answer,
            } => {
                if self.hosts[to].process == process || self.random.chance(500) {
                    self.input(to, Input::Answer(answer));
                }
            }
            Event::Installed { host, process } => {
                if self.hosts[host].process == process {
                    let shares = self.hosts[host].install.clone();
                    let failed = BTreeMap::new();
                    self.input(host, Input::Installed { shares, failed });
                }
            }
        }
    }

    fn is_stopped(&self, host: usize) -> bool {
        self.now < self.hosts[host].stopped_until
    }

    fn is_deaf(&self, host: usize) -> bool {
        self.now < self.hosts[host].deaf_until
    }

    fn reaches_etcd(&self, host: usize) -> bool {
        self.now >= self.hosts[host].etcd_cut_until && self.now >= self.etcd_down_until
    }

    fn tick(&mut self, host: usize) {
        let next = self.now + self.random.range(10, 20) * MS;
        self.due(next, Due::Tick(host));
        if self.is_stopped(host) {
            return;
        }
        self.end_oddities(host);
        if self.hosts[host].member.is_none() {
            if self.now >= self.hosts[host].down_until {
                self.start(host);
            }
            return;
        }
        while let Some(command) = self.hosts[host].stuck.pop_front() {
            self.carry_out(host, command);
        }
        while !self.is_stopped(host)
            && let Some(input) = self.hosts[host].inbox.pop_front()
        {
            self.input(host, input);
        }
        if self.now >= self.hosts[host].odd.numb_until {
            self.input(host, Input::Alive);
        }
        self.read_counters(host);
        self.input(host, Input::Tick);
    }

    fn start(&mut self, host: usize) {
        self.forget_input(host);
        self.hosts[host].process = self.random.next();
        let config = Config {
            keys: self.keys.clone(),
            fleet: "plant".to_owned(),
            relay: self.hosts[host].name.clone(),
            process: self.hosts[host].process,
            policy: self.settings.policy,
            hold_ns: self.hold_of(host),
            peer: format!("127.0.0.1:{}", 1000 + self.peer_of(host))
                .parse()
                .unwrap(),
            roles: ["red".to_owned()].into(),
            weight: 100,
            version: "1".to_owned(),
            patience_ns: Patience {
                down: 500 * MS,
                silent: 1000 * MS,
            },
            boot_unix_ms: 0,
        };
        let gates = self.hosts[host].gates.clone();
        let saved = self.hosts[host].saved.clone();
        if saved.is_none() {
            self.hosts[host].gates.clear();
        }
        let adopted = saved.map(|session| Adopted { session, gates });
        if self.records {
            self.hosts[host].recorder = Some(Recorder::new(config.clone(), adopted.clone()));
        }
        let mut member = Member::new(config, adopted);
        member.fault = self.settings.fault;
        self.hosts[host].member = Some(member);
        self.read_rules(host);
    }

    /// The process dies; its gates stay, except with `host_dies`.
    pub(super) fn kill(&mut self, host: usize, host_dies: bool, down_for: u64) {
        let down_until = self.now + down_for;
        let it = &mut self.hosts[host];
        it.member = None;
        it.process = 0;
        it.inbox.clear();
        it.stuck.clear();
        it.waiting.clear();
        it.beats.clear();
        it.listed = false;
        it.down_until = down_until;
        it.stopped_until = 0;
        if host_dies {
            it.gates.clear();
            it.saved = None;
            it.offset /= 2;
        }
    }

    pub(super) fn name(&mut self, host: usize, name: &str) {
        name.clone_into(&mut self.hosts[host].name);
    }

    pub(super) fn is_open(&self, host: usize, share: &str) -> bool {
        let until = self.hosts[host].gates.get(share).copied().unwrap_or(0);
        self.local(host) < until
    }

    /// The hosts that forward a share now.
    pub(super) fn open(&self, share: &str) -> Vec<usize> {
        (0..self.hosts.len())
            .filter(|host| self.is_open(*host, share))
            .collect()
    }

    pub(super) fn leave(&mut self, host: usize) {
        self.input(host, Input::Leave);
    }

    /// All faults end now; hosts that are down come back.
    pub(super) fn heal(&mut self) {
        self.lossy = false;
        self.etcd_down_until = 0;
        for host in 0..self.hosts.len() {
            let it = &mut self.hosts[host];
            it.etcd_cut_until = 0;
            it.peers_cut_until = 0;
            it.deaf_until = 0;
            it.watch_stalled_until = 0;
            it.stopped_until = it.stopped_until.min(self.now);
            it.down_until = it.down_until.min(self.now);
            self.drain(host, false);
            self.input(host, Input::Fitness(Fitness::default()));
        }
    }
}
