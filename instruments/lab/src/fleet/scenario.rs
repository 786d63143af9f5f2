//! Faults that a fleet must survive, and the outcome of a round of one at the receiver.

mod inject;

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rules::named::named;

pub use self::inject::{ActiveFault, end, inject};
use super::bed::Bed;
use super::history::{self, Packet};
use super::traffic::{FRESH, Record, now_ns};
use crate::wait;

/// Packets a second of a round.
pub const RATE_PPS: u32 = 5_000;
/// A fault causes changes of owner for this long: etcd may have to recover first.
const CONSEQUENCE: Duration = Duration::from_secs(30);
/// Most holes reported of a round.
const HOLES: usize = 4;
/// Most repeated packets reported of a round.
const REPEATS: usize = 16;
/// A sender that stalled for so long makes a round void: its gap is the machine's.
const STALLED_MS: f64 = 300.0;

named! {
    /// A fault of a fleet. By default it affects the relay that forwards.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Fault {
        /// Its host dies: links down, processes killed.
        HostDeath = "host death",
        /// SIGKILL of the daemon; its programs or workers continue.
        Kill = "kill -9 of the daemon",
        /// SIGSTOP of the daemon, later SIGCONT.
        Stop = "SIGSTOP of the daemon, 3 s",
        /// It is cut off from the management network.
        Cut = "management network cut, 3 s",
        /// It is cut off from etcd, and from nothing else.
        CutFromEtcd = "cut from etcd alone, 3 s",
        /// SIGKILL of etcd's leader.
        LeaderKilled = "etcd's leader killed",
        /// etcd's leader is cut off.
        LeaderCut = "etcd's leader cut off, 3 s",
        /// SIGSTOP of etcd's leader, later SIGCONT.
        LeaderStopped = "etcd's leader stopped, 3 s",
        /// SIGKILL of all members of etcd.
        EtcdAway = "all of etcd killed, 3 s",
        /// Its host and etcd's leader die at once.
        HostAndLeader = "host and etcd's leader at once",
        /// The host of the standby relay dies, and joins again.
        StandbyDeath = "standby's host dies and rejoins",
        /// SIGTERM of the daemon.
        Terminated = "SIGTERM of the daemon",
        /// An operator drains it.
        Drained = "drain",
        /// An operator moves the rule.
        Moved = "move",
        /// The daemon is restarted as at an upgrade, SIGUSR1.
        Upgraded = "upgrade (SIGUSR1)",
        /// Its input receives nothing any more, though its port is up.
        InputSilent = "input silent, its port up",
        /// Its output is down.
        OutputDown = "output down",
        /// Nothing reaches it by the management network; its own packets arrive.
        NothingArrives = "nothing reaches the relay, what it sends arrives",
        /// Questions between it and the others do not arrive: UDP is blocked.
        PeersBlocked = "UDP between relays blocked, 12 s",
        /// etcd is killed and restarts empty.
        EtcdEmptied = "etcd comes back empty",
        /// Its beat's key is overwritten with an invalid value.
        BeatGarbled = "garbage in its beat's key",
        /// Its beat's key is deleted.
        BeatDeleted = "its beat's key deleted",
        /// The same, and its host dies.
        BeatDeletedAndDeath = "host death and its beat's key deleted",
        /// Its entry's key is deleted.
        EntryDeleted = "its entry's key deleted",
        /// Its beat's and its entry's keys are deleted.
        KeysDeleted = "its beat's and its entry's keys deleted",
        /// The same, and its host dies.
        KeysDeletedAndDeath = "host death and both its keys deleted",
        /// The share's key is overwritten with an invalid value.
        ShareGarbled = "garbage in the share's key",
        /// The same, and its host dies.
        ShareGarbledAndDeath = "garbage in the share's key and host death",
    }
}

/// How long the parts of a round take.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// From the first packet to the fault.
    pub before: Duration,
    /// How long the fault lasts, at least: until another relay forwards where one must.
    pub fault: Duration,
    /// How long the stream continues after the fault.
    pub after: Duration,
}

/// A round: one fault, and what the receiver observed.
#[derive(Clone, Debug)]
pub struct Round {
    /// The fault.
    pub fault: Fault,
    /// The fault of etcd meanwhile.
    pub second: Option<Fault>,
    /// Packets that never arrived.
    pub lost: u64,
    /// Packets that arrived again.
    pub twice: u64,
    /// The longest silence from just before the fault on, in milliseconds.
    pub gap_ms: f64,
    /// Changes of owner without a cause.
    pub flaps: usize,
    /// All changes of owner.
    pub changes: usize,
    /// From the fault to the first packet of another relay, in milliseconds.
    pub takeover_ms: Option<f64>,
    /// The sender's longest stall, in milliseconds.
    pub stalled_ms: f64,
    /// The largest holes in the stream: where, in milliseconds from the fault, how many packets, and
    /// the relays before and after.
    pub holes: Vec<(f64, u64, Ipv4Addr, Ipv4Addr)>,
    /// Of the first packets that arrived again: when each was sent, in milliseconds from the fault, and
    /// when and by which relay it arrived the first time and again.
    pub repeats: Vec<(f64, [(f64, Ipv4Addr); 2])>,
    /// How long after the fault a relay reported it in its status, in milliseconds, and the report.
    pub reported: Option<(f64, String)>,
    /// Why losses and gaps of the round do not count; duplicates count all the same.
    pub void: Option<&'static str>,
}

impl Fault {
    /// Those that affect only etcd.
    pub const OF_ETCD: [Self; 4] = [
        Self::LeaderKilled,
        Self::LeaderCut,
        Self::LeaderStopped,
        Self::EtcdAway,
    ];

    /// Whether another relay may forward in consequence. Where only etcd is unavailable it may with the
    /// policy `stop` only.
    pub fn may_move(self, on_isolation: &str) -> bool {
        match self {
            Self::StandbyDeath
            | Self::PeersBlocked
            | Self::BeatGarbled
            | Self::EntryDeleted
            | Self::ShareGarbled => false,
            Self::CutFromEtcd
            | Self::LeaderKilled
            | Self::LeaderCut
            | Self::LeaderStopped
            | Self::EtcdAway => on_isolation == "stop",
            _ => true,
        }
    }

    /// Whether another relay must forward in the end.
    pub const fn must_move(self) -> bool {
        matches!(
            self,
            Self::HostDeath
                | Self::Kill
                | Self::Stop
                | Self::HostAndLeader
                | Self::Terminated
                | Self::Drained
                | Self::Moved
                | Self::InputSilent
                | Self::OutputDown
                | Self::NothingArrives
                | Self::BeatDeletedAndDeath
                | Self::KeysDeletedAndDeath
                | Self::ShareGarbledAndDeath
        )
    }

    /// The report of it among a relay's problems while it lasts, if it lasts long enough to be reported: one
    /// problem has all of these words.
    #[must_use]
    pub const fn report(self) -> Option<&'static [&'static str]> {
        Some(match self {
            Self::HostDeath
            | Self::Kill
            | Self::Stop
            | Self::HostAndLeader
            | Self::NothingArrives
            | Self::BeatDeletedAndDeath
            | Self::KeysDeletedAndDeath
            | Self::ShareGarbledAndDeath => &["was silent and is fenced"],
            Self::StandbyDeath => &["was silent and is fenced"],
            Self::CutFromEtcd | Self::EtcdAway => &["etcd: "],
            Self::InputSilent => &["receives nothing of it, and"],
            Self::OutputDown => &["serves", "badly"],
            Self::PeersBlocked => &["has not answered at 10.73.0."],
            Self::EtcdEmptied => &["rules/current has gone"],
            _ => return None,
        })
    }
}

impl Pace {
    /// As quick as is meaningful.
    pub const QUICK: Self = Self {
        before: Duration::from_millis(500),
        fault: Duration::from_millis(1500),
        after: Duration::from_millis(1000),
    };
    /// Long enough to see relays recover.
    pub const LONG: Self = Self {
        before: Duration::from_millis(1200),
        fault: Duration::from_secs(3),
        after: Duration::from_millis(2300),
    };
}

/// Plays one round: a stream, the fault some time after its start, the end of the fault, and a while to
/// see whether the state is stable. `delay` varies the time of the fault relative to beats; `second` is a
/// fault of etcd that follows after that time, during the first.
///
/// # Errors
/// When a step fails, or nothing is relayed in the end; the message has all logs.
pub fn play(
    bed: &mut Bed,
    fault: Fault,
    second: Option<(Fault, Duration)>,
    pace: Pace,
    delay: Duration,
) -> Result<Round> {
    let playing = play_round(bed, fault, second, pace, delay);
    playing.with_context(|| format!("{}, {second:?}: {}", fault.as_str(), bed.log()))
}

fn play_round(
    bed: &mut Bed,
    fault: Fault,
    second: Option<(Fault, Duration)>,
    pace: Pace,
    delay: Duration,
) -> Result<Round> {
    bed.settle()?;
    let traffic = bed.start_traffic(RATE_PPS)?;
    thread::sleep(pace.before + delay);
    let holder = traffic
        .forwarder(Duration::from_secs(1))
        .context("nothing is relayed")?;
    let index = bed.relay_at(holder)?;
    let active = inject(bed, fault, index)?;
    // A relay without answers asks once in 3 s, and is reported after 8.
    let patience = match fault {
        Fault::PeersBlocked => Duration::from_secs(12),
        _ => pace.fault,
    };
    let mut reported = None;
    if let Some((second, after)) = second {
        thread::sleep(after);
        let second = inject(bed, second, index)?;
        thread::sleep(pace.fault);
        end(bed, &second)?;
        bed.etcd.wait_for_leader()?;
    } else {
        let end_ns = active.at_ns + patience.as_nanos() as u64;
        while now_ns() < end_ns {
            thread::sleep(Duration::from_millis(20));
            if let Some(words) = fault.report().filter(|_| reported.is_none()) {
                reported = problem(bed, words).map(|what| (ms(now_ns() - active.at_ns), what));
            }
        }
        print_diagnostics(bed, fault);
    }
    if fault.must_move() {
        let moved = || {
            traffic
                .forwarder(FRESH)
                .is_some_and(|relay| relay != holder)
        };
        wait::until("another relay forwards", moved)?;
    }
    end(bed, &active)?;
    thread::sleep(pace.after);
    wait::until("something is relayed", || {
        traffic.forwarder(FRESH).is_some()
    })?;
    let end_ns = now_ns();
    let record = traffic.finish()?;
    let may_move = fault.may_move(bed.on_isolation());
    let round = account(&record, &active, holder, may_move, end_ns);
    Ok(Round {
        second: second.map(|(second, _)| second),
        reported,
        ..round
    })
}

/// A problem that one of the relays reports, if it has these words.
fn problem(bed: &Bed, words: &[&str]) -> Option<String> {
    let statuses = bed.relays.iter().filter_map(|relay| relay.status().ok());
    let mut problems = statuses.flat_map(|status| status.problems);
    problems.find(|problem| words.iter().all(|word| problem.contains(word)))
}

/// With `MCR_TEST_WITNESSES`, prints what each relay's status, metrics, events and doctor report.
fn print_diagnostics(bed: &Bed, fault: Fault) {
    if std::env::var_os("MCR_TEST_WITNESSES").is_none() {
        return;
    }
    for relay in &bed.relays {
        let problems = relay.status().map(|status| status.problems);
        println!("{fault:?} at {}: {problems:?}", relay.name());
        for text in relay.diagnostics().into_iter().flatten() {
            println!("{text}\n");
        }
    }
}

/// The outcome of a round.
fn account(
    record: &Record,
    active: &ActiveFault,
    holder: Ipv4Addr,
    may_move: bool,
    end_ns: u64,
) -> Round {
    let (packets, fault) = (&record.packets, active.fault);
    let tenures = history::tenures(packets);
    let causes: &[u64] = if may_move { &[active.at_ns] } else { &[] };
    let first = history::first_of_another(packets, holder, active.at_ns);
    let since = active.at_ns - 50_000_000;
    let void = match record {
        Record {
            overflowed: 1.., ..
        } => Some("the receiver's socket overflowed"),
        record if record.stalled_ms > STALLED_MS => Some("the sender stood still"),
        _ => None,
    };
    Round {
        fault,
        second: None,
        lost: history::lost(packets, record.sent),
        twice: history::twice(packets),
        gap_ms: ms(history::longest_silence_ns(packets, since, end_ns)),
        flaps: history::without_cause(&tenures, causes, CONSEQUENCE.as_nanos() as u64),
        changes: tenures.len().saturating_sub(1),
        takeover_ms: first.map(|at| ms(at - active.at_ns)),
        stalled_ms: record.stalled_ms,
        holes: largest_holes(packets, active.at_ns),
        repeats: first_repeats(packets, active.at_ns),
        reported: None,
        void,
    }
}

fn largest_holes(packets: &[Packet], fault_ns: u64) -> Vec<(f64, u64, Ipv4Addr, Ipv4Addr)> {
    let holes = history::holes(packets).into_iter().take(HOLES);
    let reported = holes.map(|hole| {
        let from_fault_ms = (hole.after_ns as f64 - fault_ns as f64) / 1e6;
        (from_fault_ms, hole.lost, hole.between.0, hole.between.1)
    });
    reported.collect()
}

fn first_repeats(packets: &[Packet], fault_ns: u64) -> Vec<(f64, [(f64, Ipv4Addr); 2])> {
    let from_fault_ms = |ns: u64| (ns as f64 - fault_ns as f64) / 1e6;
    let repeats = history::repeats(packets).into_iter().take(REPEATS);
    let reported = repeats.map(|both| {
        let arrivals = both.map(|packet| (from_fault_ms(packet.arrived_ns), packet.relay));
        (from_fault_ms(both[0].sent_ns), arrivals)
    });
    reported.collect()
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
