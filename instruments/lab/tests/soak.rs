//! Hours of load, churn and faults, by `make soak`: nothing is lost without a known reason, and
//! memory stays flat. The results are written to `target/bench/soak.json`.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use api::request::Transaction;
use lab::control;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::load::{Account, Plan};
use lab::namespace::Namespace;
use lab::reliability::{Row, directory, record};
use lab::topology::Chain;
use lab::usage::{self, Usage};
use serde::Serialize;

use crate::faults::Random;

/// Packets a second, over four streams.
const RATE: u32 = 200_000;
const STREAMS: u8 = 4;
/// Packets of a stream that leave together: far enough apart that the senders sleep in between and
/// leave the machine to the relay and to other work.
const BURST: u8 = 64;
/// How often rules change.
const PACE: Duration = Duration::from_millis(100);
/// How often something worse happens.
const FAULT_EVERY: Duration = Duration::from_secs(10);
/// How often memory is read.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Variation of memory that is due to the allocator.
const SLACK_KIB: u64 = 8192;
/// Descriptors that requests open for a while.
const SLACK_DESCRIPTORS: u64 = 16;
/// Samples of a run before it counts as settled.
const SETTLED: usize = 2;

#[derive(Serialize)]
struct Results {
    seconds: u64,
    rate_pps: u32,
    achieved_pps: u64,
    seed: u64,
    account: Account,
    lost: u64,
    unexplained: u64,
    changes: u64,
    faults: Vec<(u64, String)>,
    samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    second: u64,
    /// Grows with each start of the daemon.
    run: u32,
    usage: Usage,
    /// Of all its workers together.
    workers: Usage,
    /// Entries of the daemon's directory of pins.
    pins: usize,
    /// Groups that the relay's host is in.
    memberships: usize,
    /// Packets on the way in and out of the bed: where a loss sits in time.
    sent: u64,
    arrived: u64,
}

/// For `MCR_TEST_SECONDS`, an hour if it is not set.
#[test]
#[ignore = "long: make soak"]
fn an_hour_of_load_and_faults() {
    let given = std::env::var("MCR_TEST_SECONDS").ok();
    let seconds = given.and_then(|text| text.parse().ok()).unwrap_or(3600);
    let chain = Chain::snooping().unwrap();
    let spare = Namespace::new("spare").unwrap();
    link::veth((&chain.relay, "spare0"), (&spare, "spare1")).unwrap();
    link::address((&chain.relay, "spare0"), "10.0.7.1/24").unwrap();
    let mut daemon = Daemon::start(&chain.relay, Options::path("kernel")).unwrap();
    let plan = Plan {
        burst: BURST,
        generators: 2,
        ..Plan::new(STREAMS, RATE / u32::from(STREAMS), 200)
    };
    daemon.apply(&plan.config()).unwrap();
    let switch = chain.switch.as_ref().unwrap();
    for number in 1..=STREAMS {
        link::wait_for_member((switch, "br0"), &format!("239.1.1.{number}")).unwrap();
    }
    let mut random = Random::new();
    let seed = random.seed();
    let load = crate::faults::load(&chain, plan).unwrap();
    let start = Instant::now();
    let (mut changes, mut run) = (0, 0);
    let (mut suffered, mut samples) = (Vec::new(), Vec::new());
    let (mut next_fault, mut next_sample) = (FAULT_EVERY, Duration::ZERO);
    while start.elapsed() < Duration::from_secs(seconds) {
        thread::sleep(PACE);
        control::transaction(&daemon.socket(), &change(changes, &mut random)).unwrap();
        changes += 1;
        let now = start.elapsed();
        if now >= next_sample {
            next_sample += SAMPLE_EVERY;
            let taken = sample(&daemon, &chain, now, run).unwrap();
            println!("{taken:?}");
            samples.push(taken);
        }
        if now >= next_fault {
            next_fault = now + FAULT_EVERY;
            let name = suffer(&mut daemon, &chain, &mut random, &mut run);
            println!("{} s: {name}", now.as_secs());
            suffered.push((now.as_secs(), name.to_owned()));
        }
    }
    let took = start.elapsed();
    let account = load.finish().unwrap();
    let results = Results {
        seconds,
        rate_pps: RATE,
        achieved_pps: (account.sent as f64 / took.as_secs_f64()) as u64,
        seed,
        lost: account.missing(),
        unexplained: account.unexplained(),
        account,
        changes,
        faults: suffered,
        samples,
    };
    report(&results).unwrap();
    results.account.check_nothing_lost().unwrap();
    assert_flat_in_each_run(&results.samples);
    assert_flat_from_run_to_run(&results.samples);
}

fn sample(daemon: &Daemon, chain: &Chain, now: Duration, run: u32) -> anyhow::Result<Sample> {
    let mut workers = Usage::default();
    for worker in daemon.stats()?.workers.iter().filter(|one| one.pid != 0) {
        // A process that ends meanwhile has none.
        let usage = usage::of(worker.pid).unwrap_or_default();
        workers.memory_kib += usage.memory_kib;
        workers.descriptors += usage.descriptors;
    }
    let groups = chain.relay.read_proc_net("igmp")?;
    Ok(Sample {
        second: now.as_secs(),
        run,
        usage: usage::of(daemon.id())?,
        workers,
        pins: fs::read_dir(daemon.pins())?.count(),
        memberships: groups.matches("\n\t").count(),
        sent: link::statistics((&chain.sender, "veth0"))?.sent,
        arrived: link::statistics((&chain.sink, "veth3"))?.received,
    })
}

/// Adds a rule, or takes out the one that was added 50 changes ago.
fn change(number: u64, random: &mut Random) -> Transaction {
    let name = |slot: u64| format!("churn{slot}");
    let slot = number % 50;
    let text = format!(
        r#"{{"name":"{}","input":"239.100.1.{}%veth1:5001",
            "outputs":["239.200.{}.1%veth2:6001","239.200.1.2%spare0:6001"]}}"#,
        name(slot),
        slot + 1,
        random.below(250) + 1,
    );
    Transaction {
        add: vec![serde_json::from_str(&text).unwrap()],
        remove: if number >= 50 {
            vec![name(slot)]
        } else {
            Vec::new()
        },
        ..Transaction::default()
    }
}

fn suffer(daemon: &mut Daemon, chain: &Chain, random: &mut Random, run: &mut u32) -> &'static str {
    let spare = (&chain.relay, "spare0");
    match random.below(6) {
        0 => {
            daemon.kill().unwrap();
            daemon.start_again().unwrap();
            *run += 1;
            "daemon killed"
        }
        1 => {
            link::down(spare).unwrap();
            link::up(spare).unwrap();
            "an output of other rules down and up"
        }
        2 => {
            chain.relay.ip("address flush dev spare0").unwrap();
            link::address(spare, "10.0.7.1/24").unwrap();
            "an address of other rules replaced"
        }
        3 => {
            let mtu = 600 + random.below(900);
            chain
                .relay
                .ip(&format!("link set spare0 mtu {mtu}"))
                .unwrap();
            "the MTU of other rules changed"
        }
        4 => {
            let stats = daemon.stats().unwrap();
            assert!(stats.rules.len() >= usize::from(STREAMS));
            "all counters read"
        }
        _ => {
            let finished = daemon.client(&["add", "nonsense", "nonsense"]).unwrap();
            assert!(!finished.status.success());
            "a rule that is refused"
        }
    }
}

fn report(results: &Results) -> anyhow::Result<()> {
    let directory = directory()?;
    fs::create_dir_all(&directory)?;
    fs::write(
        directory.join("soak.json"),
        serde_json::to_vec_pretty(results)?,
    )?;
    println!(
        "{} s, {} pps, {} changes, {} faults: {:?}",
        results.seconds,
        results.achieved_pps,
        results.changes,
        results.faults.len(),
        results.account
    );
    record(Row {
        fault: "soak: faults at random beside churn".to_owned(),
        relay: "mcr-kernel".to_owned(),
        rounds: results.faults.len() as u64,
        offered: results.account.sent,
        lost: results.lost,
        note: format!(
            "{} s at {} pps, {} rule changes; {} of the lost dropped by the bed's own links",
            results.seconds, results.achieved_pps, results.changes, results.account.bed_dropped
        ),
        ..Row::default()
    })
}

/// Compares the last sample of each run of the daemon with the run's middle.
fn assert_flat_in_each_run(samples: &[Sample]) {
    for run in runs(samples).filter(|run| run.len() >= 6) {
        let (middle, last) = (run[run.len() / 2], run[run.len() - 1]);
        assert_no_more(middle, last);
    }
}

/// Compares the middle one of the late runs with the middle one of the early runs: what a daemon
/// leaves behind for the next one does not show within one run. Settled samples only: a run's
/// first ones lack the rules of the churn.
fn assert_flat_from_run_to_run(samples: &[Sample]) {
    let settled = runs(samples).filter(|run| run.len() > SETTLED);
    let each: Vec<Sample> = settled.map(|run| middle(&run[SETTLED..])).collect();
    let quarter = each.len() / 4;
    if quarter > 0 {
        let (early, late) = each.split_at(each.len() - quarter);
        let (early, late) = (middle(&early[..quarter]), middle(late));
        println!("early: {early:?}\nlate: {late:?}");
        assert_no_more(early, late);
    }
}

fn runs(samples: &[Sample]) -> impl Iterator<Item = &[Sample]> {
    samples.chunk_by(|one, next| one.run == next.run)
}

/// Of each figure the median.
fn middle(samples: &[Sample]) -> Sample {
    fn median<T: Copy + Ord>(samples: &[Sample], of: impl Fn(&Sample) -> T) -> T {
        let mut all: Vec<T> = samples.iter().map(of).collect();
        all.sort_unstable();
        all[all.len() / 2]
    }
    let usage = |of: fn(&Sample) -> Usage| Usage {
        memory_kib: median(samples, |one| of(one).memory_kib),
        descriptors: median(samples, |one| of(one).descriptors),
    };
    Sample {
        usage: usage(|one| one.usage),
        workers: usage(|one| one.workers),
        pins: median(samples, |one| one.pins),
        memberships: median(samples, |one| one.memberships),
        ..samples[samples.len() / 2]
    }
}

fn assert_no_more(then: Sample, now: Sample) {
    let pairs = [(then.usage, now.usage), (then.workers, now.workers)];
    let is_flat = pairs.iter().all(|(then, now)| {
        now.memory_kib <= then.memory_kib + SLACK_KIB
            && now.descriptors <= then.descriptors + SLACK_DESCRIPTORS
    });
    assert!(is_flat, "what the daemon holds grew: {then:?} {now:?}");
    // The churn takes out what it adds; a leftover of each change would be hundreds.
    let is_flat = now.pins <= then.pins + 16 && now.memberships <= then.memberships + 100;
    assert!(is_flat, "what the kernel holds grew: {then:?} {now:?}");
}
