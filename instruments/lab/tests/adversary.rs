//! An adversary: faults of every kind, hostile clients and foreign programs in a random order, while
//! clients change rules and streams flow. At the end the state is compared with what was promised:
//! the acknowledged rules and no others, all counters consistent, nothing lost where nothing may be
//! lost. By `make adversary`.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod attack;
mod own_run;
mod storm;

use std::thread;
use std::time::{Duration, Instant};

use api::reply::State;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::load::{Account, Plan};
use lab::namespace::Namespace;
use lab::reliability::{Row, record};
use lab::topology::Chain;
use lab::{accounting, usage, wait};

use crate::faults::{self, Random};
use attack::Attack;
use own_run::OwnRun;
use storm::Storm;

lab::on_both_paths!(a_round_of_everything);

/// Steady streams, and the packets a second of each.
const STREAMS: u8 = 4;
const RATE: u32 = 1_000;
/// Attacks per round; each round has its own account.
const ATTACKS: usize = 8;
/// Variation of memory due to the allocator, and what hostile clients may cost.
const SLACK_KIB: u64 = 64 << 10;
/// Entries of the directory of pins beyond those of a daemon at rest.
const SLACK_PINS: usize = 16;

/// A relay between a sender behind a switch and a sink, and an interface for the rules of others.
struct World {
    // Dropped first: it runs in the namespaces.
    daemon: Daemon,
    chain: Chain,
    spare: Namespace,
    run: OwnRun,
    path: &'static str,
}

/// The results of a run.
#[derive(Debug, Default)]
struct Outcome {
    rounds: u64,
    attacks: u64,
    changes: u64,
    offered: u64,
    lost_where_none_may_be: u64,
    lost_where_some_may_be: u64,
}

fn a_round_of_everything(path: &'static str) {
    let mut random = Random::new();
    let world = World::new(path);
    let attacks = Attack::ALL.into_iter().filter(|attack| attack.is_quick());
    let outcome = world.run(&mut random, Duration::ZERO, attacks.collect());
    println!("{path}: {outcome:?}");
}

/// A third of `MCR_TEST_SECONDS` on each path and at XDP, an hour in all if it is not set.
#[test]
#[ignore = "long: make adversary"]
fn an_hour_of_everything() {
    let given = std::env::var("MCR_TEST_SECONDS").ok();
    let seconds = given.and_then(|text| text.parse().ok()).unwrap_or(3600);
    let mut random = Random::new();
    for path in ["kernel", "xdp", "userspace"] {
        let world = World::new(path);
        let time = Duration::from_secs(seconds) / 3;
        let outcome = world.run(&mut random, time, Attack::ALL.to_vec());
        println!("{path}: {outcome:?}");
        record(Row {
            fault: "adversary: everything at once, in an order of chance".to_owned(),
            relay: format!("mcr-{path}"),
            rounds: outcome.rounds,
            offered: outcome.offered,
            lost: outcome.lost_where_none_may_be,
            note: format!(
                "{} attacks, {} rule changes in {} s; {} lost where a process died that a stream \
                 needs",
                outcome.attacks,
                outcome.changes,
                time.as_secs(),
                outcome.lost_where_some_may_be
            ),
            ..Row::default()
        })
        .unwrap();
    }
}

impl World {
    fn new(path: &'static str) -> Self {
        let chain = Chain::snooping().unwrap().prepared_for(path).unwrap();
        let spare = Namespace::new("spare").unwrap();
        link::veth((&chain.relay, "spare0"), (&spare, "spare1")).unwrap();
        link::address((&chain.relay, "spare0"), attack::SPARE_ADDRESS).unwrap();
        let run = OwnRun::mount().unwrap();
        let options = Options {
            config: Some(plan().config()),
            under: run.under(),
            ..Options::path(path)
        };
        let daemon = Daemon::start(&chain.relay, options).unwrap();
        let world = Self {
            daemon,
            chain,
            spare,
            run,
            path,
        };
        world.recovered("at first");
        world
    }

    /// Attacks in rounds until the time is over, every one of `attacks` at least once.
    fn run(mut self, random: &mut Random, time: Duration, attacks: Vec<Attack>) -> Outcome {
        let start = Instant::now();
        let mut outcome = Outcome::default();
        let (mut memory, mut pins) = (None, None);
        let mut storm = Storm::start(&self.daemon.socket(), random);
        let mut waiting = Vec::new();
        while outcome.rounds == 0 || !waiting.is_empty() || start.elapsed() < time {
            if waiting.is_empty() {
                waiting = shuffled(&attacks, random);
            }
            // One kind of round at a time, so that its account has one judgement.
            let is_lossless = waiting[0].is_lossless(self.path);
            let (these, later): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .partition(|attack| attack.is_lossless(self.path) == is_lossless);
            let (now, later_too) = these.split_at(these.len().min(ATTACKS));
            waiting = [later_too, &later].concat();
            let account = self.round(now, random);
            outcome.rounds += 1;
            outcome.attacks += now.len() as u64;
            outcome.offered += account.sent;
            assert_eq!(account.duplicated, 0, "{now:?}: {account:?}");
            if is_lossless {
                outcome.lost_where_none_may_be += account.unexplained();
                let checked = account.check_nothing_lost();
                checked.unwrap_or_else(|error| panic!("{now:?}: {error:#}\n{}", self.account()));
            } else {
                outcome.lost_where_some_may_be += account.unexplained();
            }
            storm.pause(|| self.accounts_add_up());
            let usage = usage::of(self.daemon.id()).unwrap().memory_kib;
            let most = *memory.get_or_insert(usage) + SLACK_KIB;
            assert!(usage <= most, "{usage} KiB, {most} expected at most");
            let count = std::fs::read_dir(self.daemon.pins()).map_or(0, Iterator::count);
            let most = *pins.get_or_insert(count) + SLACK_PINS;
            assert!(count <= most, "{count} pins, {most} expected at most");
        }
        outcome.changes = storm.finish();
        assert!(crate::xdp::is_as_wanted(&self.daemon, self.path));
        self.is_as_promised();
        outcome
    }

    fn round(&mut self, attacks: &[Attack], random: &mut Random) -> Account {
        println!("{}: {attacks:?}", self.path);
        let load = faults::load(&self.chain, plan()).unwrap();
        for attack in attacks {
            attack.carry_out(self, random);
            self.recovered(&format!("after {attack:?}"));
        }
        load.finish().unwrap()
    }

    /// Waits until the daemon answers and every stream has all it needs.
    fn recovered(&self, when: &str) {
        let mut last = None;
        let is_well = wait::until(&format!("all is well {when}"), || {
            last = self.daemon.stats().ok();
            let rules = last.iter().flat_map(|stats| &stats.rules);
            let steady = rules.filter(|rule| rule.name.starts_with("steady"));
            let well = steady.filter(|rule| rule.state == State::Up && rule.inputs[0].joined);
            well.count() == usize::from(STREAMS)
        });
        is_well.unwrap_or_else(|error| panic!("{error:#}: {last:?}\n{}", self.daemon.log()));
        let switch = self.chain.switch.as_ref().unwrap();
        for number in 1..=STREAMS {
            link::wait_for_member((switch, "br0"), &format!("239.1.1.{number}")).unwrap();
        }
    }

    /// What the relay itself has counted.
    fn account(&self) -> String {
        let Ok(stats) = self.daemon.stats() else {
            return "the daemon does not answer".to_owned();
        };
        let rules = stats.rules.iter();
        let steady = rules.filter(|rule| rule.name.starts_with("steady"));
        let counters: Vec<_> = steady
            .map(|rule| {
                let output = &rule.outputs[0];
                let sent = output.sent.packets;
                (rule.received.packets, &rule.dropped, sent, &output.dropped)
            })
            .collect();
        format!(
            "received, dropped, sent, dropped: {counters:?}; {:?}",
            stats.workers
        )
    }

    fn accounts_add_up(&self) {
        let mut broken = None;
        let hold = wait::until("the accounting law holds", || {
            let stats = self.daemon.stats();
            broken = stats.and_then(|stats| accounting::check(&stats)).err();
            broken.is_none()
        });
        hold.unwrap_or_else(|error| panic!("{error:#}: {broken:?}"));
    }

    /// Each group that a rule asks for is joined once, and no other.
    fn is_as_promised(&self) {
        let stats = self.daemon.stats().unwrap();
        let expected = stats.rules.len();
        let mut joined = 0;
        let same = wait::until("the memberships are those of the rules", || {
            let groups = self.chain.relay.read_proc_net("igmp").unwrap_or_default();
            let is_relayed = |line: &&str| {
                // 239.0.0.0/8, written in the host's byte order.
                let group = line.split_whitespace().next().unwrap_or_default();
                line.starts_with('\t') && group.ends_with("EF")
            };
            joined = groups.lines().filter(is_relayed).count();
            joined == expected
        });
        same.unwrap_or_else(|error| panic!("{error:#}: {joined} for {expected} rules"));
    }
}

const fn plan() -> Plan {
    Plan {
        burst: 8,
        ..Plan::new(STREAMS, RATE, 200)
    }
}

fn shuffled(attacks: &[Attack], random: &mut Random) -> Vec<Attack> {
    let mut attacks = attacks.to_vec();
    for last in (1..attacks.len()).rev() {
        attacks.swap(last, random.below(last as u64 + 1) as usize);
    }
    attacks
}

/// Waits a while of chance.
fn rest(random: &mut Random, most: Duration) {
    thread::sleep(most.mul_f64(random.below(1000) as f64 / 1000.0));
}
