//! Hundreds of rules are added and removed while steady streams run, which lose nothing; and the
//! daemon's resources afterwards.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::thread;
use std::time::{Duration, Instant};

use api::request::Transaction;
use lab::control;
use lab::daemon::{Daemon, Options};
use lab::load::Plan;
use lab::reliability::{Row, record};
use lab::topology::Chain;
use lab::usage::{self, Usage};
use lab::wait;

use crate::faults::Random;

/// Variation of memory that is due to the allocator.
const SLACK_KIB: u64 = 4096;

mod short {
    #[test]
    fn steady_streams_beside_churn_on_the_kernel_path() {
        super::churn("kernel", 3, false);
    }

    #[test]
    fn steady_streams_beside_churn_at_xdp() {
        super::churn("xdp", 3, false);
    }

    #[test]
    fn steady_streams_beside_churn_on_the_userspace_path() {
        super::churn("userspace", 3, false);
    }

    #[test]
    fn nothing_grows() {
        super::nothing_grows(500, 8);
    }
}

mod full {
    #[test]
    #[ignore = "long: make hitless"]
    fn steady_streams_beside_churn_on_the_kernel_path() {
        super::churn("kernel", 60, true);
    }

    #[test]
    #[ignore = "long: make hitless"]
    fn steady_streams_beside_churn_at_xdp() {
        super::churn("xdp", 60, true);
    }

    #[test]
    #[ignore = "long: make hitless"]
    fn steady_streams_beside_churn_on_the_userspace_path() {
        super::churn("userspace", 60, true);
    }

    #[test]
    #[ignore = "long: make hitless"]
    fn nothing_grows() {
        super::nothing_grows(10_000, 50);
    }
}

/// Makes 100 changes a second for so many seconds while 20 steady streams run.
fn churn(path: &str, seconds: u64, is_recorded: bool) {
    const PACE: u64 = 100;
    let chain = Chain::plain().unwrap().prepared_for(path).unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let plan = Plan::new(20, if is_recorded { 2_500 } else { 250 }, 200);
    daemon.apply(&plan.config()).unwrap();
    let load = crate::faults::load(&chain, plan).unwrap();
    let mut random = Random::new();
    let socket = daemon.socket();
    let start = Instant::now();
    let changes = seconds * PACE;
    let mut current: Vec<u64> = Vec::new();
    for number in 0..changes {
        let due = start + Duration::from_millis(number * 1000 / PACE);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut change = Transaction::default();
        match random.below(3) {
            0 if current.len() > 5 => {
                let removed = current.swap_remove(random.below(current.len() as u64) as usize);
                change.remove.push(name(removed));
            }
            1 if !current.is_empty() => {
                // Replaces a rule by one with other outputs.
                let changed = current[random.below(current.len() as u64) as usize];
                change.remove.push(name(changed));
                change.add.push(rule(changed, random.below(250) + 1));
            }
            _ => {
                current.push(number);
                change.add.push(rule(number, 1));
            }
        }
        control::transaction(&socket, &change).unwrap();
    }
    let took = start.elapsed();
    let account = load.finish().unwrap();
    println!("{changes} changes in {took:?}: {account:?}");
    if is_recorded {
        record(Row {
            fault: "100 rule changes a second beside 20 streams".to_owned(),
            relay: format!("mcr-{path}"),
            rounds: changes,
            offered: account.sent,
            lost: account.unexplained(),
            note: format!("20 streams of {} pps, {took:.0?}", plan.rate),
            ..Row::default()
        })
        .unwrap();
    }
    account.check_nothing_lost().unwrap();
    let each = account.sent / 20;
    assert!(account.streams.iter().all(|packets| *packets >= each / 2));
    assert_eq!(daemon.stats().unwrap().rules.len(), 20 + current.len());
    assert!(crate::xdp::is_as_wanted(&daemon, path));
}

/// Adds, lists, changes and removes so many rules, in each round.
fn nothing_grows(count: u64, rounds: usize) {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path("kernel")).unwrap();
    let socket = daemon.socket();
    let mut after: Vec<Usage> = Vec::new();
    for round in 0..rounds {
        let start = Instant::now();
        let names = || (0..count).map(name).collect();
        let rules = |last| (0..count).map(|number| rule(number, last)).collect();
        let add = Transaction {
            add: rules(1),
            ..Transaction::default()
        };
        control::transaction(&socket, &add).unwrap();
        let listed = control::read(&socket, "/v1/rules").unwrap();
        assert_eq!(listed.matches("\"churn").count() as u64, count);
        let change = Transaction {
            remove: names(),
            add: rules(2 + round as u64 % 100),
            ..Transaction::default()
        };
        control::transaction(&socket, &change).unwrap();
        let remove = Transaction {
            remove: names(),
            ..Transaction::default()
        };
        control::transaction(&socket, &remove).unwrap();
        wait::until("nothing is left of the rules", || {
            daemon.stats().is_ok_and(|stats| stats.rules.is_empty())
        })
        .unwrap();
        after.push(usage::of(daemon.id()).unwrap());
        println!(
            "round {round} took {:.2?}: {:?}",
            start.elapsed(),
            after[round]
        );
    }
    println!("{count} rules: {after:?}");
    // The first rounds fill caches.
    let (settled, last) = (&after[rounds / 4..rounds / 2], &after[rounds * 3 / 4..]);
    // Separately: the round with the least memory need not have the fewest descriptors.
    let settled_most = |what: fn(&Usage) -> u64| settled.iter().map(what).max().unwrap();
    let most = settled_most(|usage| usage.memory_kib);
    let least = last.iter().map(|usage| usage.memory_kib).min().unwrap();
    assert!(
        least <= most + most / 10 + SLACK_KIB,
        "memory grows: {after:?}"
    );
    // A file that is being written is open for a moment.
    let most = settled_most(|usage| usage.descriptors);
    wait::until(
        "no more descriptors are open than after the first rounds",
        || usage::of(daemon.id()).unwrap().descriptors <= most,
    )
    .unwrap();
}

fn name(number: u64) -> String {
    format!("churn{number}")
}

fn rule(number: u64, last: u64) -> rules::document::RuleDocument {
    let (high, low) = (number / 250, number % 250 + 1);
    let text = format!(
        r#"{{"name":"churn{number}","input":"239.{}.{}.{low}%veth1:5001",
            "outputs":["239.200.{last}.{low}%veth2:6001"]}}"#,
        100 + high / 250,
        high % 250,
    );
    serde_json::from_str(&text).unwrap()
}
