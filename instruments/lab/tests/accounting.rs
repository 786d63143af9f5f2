//! The accounting law holds while rules change, and while daemon and workers die, at full load.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use api::reply::{RuleStats, Stats, Traffic};
use lab::accounting;
use lab::daemon::{Daemon, Options};
use lab::socket::{self, Sender};
use lab::topology::Chain;
use lab::wait;

const ROUNDS: u32 = 12;
/// Datagrams of one send.
const SEGMENTS: u64 = 16;

lab::on_both_paths!(the_law_holds_under_rule_changes_and_deaths_at_full_load);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// `cam1` with an option that changes, a range, a rule with two inputs whose order changes, and some
/// rules that are added and removed.
fn rules(round: u32) -> String {
    let ttl = 5 + round % 3;
    let mut rules = format!(
        "version = 1\n[[rule]]\nname = \"cam1\"\ninput = \"239.1.1.1%veth1:5001\"\n\
         outputs = [\"239.10.1.1%veth2:6001,ttl={ttl}\", \"239.10.1.2%veth2:6002,limit=1kpps\", \
         \"239.10.1.3%veth9:6003\"]\n\
         [[rule]]\nname = \"range\"\ninput = \"239.1.2.0/24%veth1:5001\"\n\
         outputs = [\"239.9.2.0/24%veth2:6001\"]\nlimit = \"{}kpps\"\n",
        10 + round
    );
    let mut inputs = ["239.1.3.1%veth1:5001", "10.0.0.1@239.1.3.1%veth1:5002"];
    inputs.rotate_left(round as usize % 2);
    rules.push_str(&format!(
        "[[rule]]\nname = \"pair\"\ninputs = {inputs:?}\n\
         outputs = [\"239.10.3.1%veth2:6001,ttl={ttl}\"]\nlimit = \"{}kpps\"\n",
        10 + round
    ));
    for number in 0..round % 4 * 10 {
        rules.push_str(&format!(
            "[[rule]]\nname = \"more{number}\"\ninput = \"239.2.1.{number}%veth1:5001\"\n\
             outputs = [\"239.20.1.{number}%veth2:6001\"]\n"
        ));
    }
    rules
}

fn the_law_holds_under_rule_changes_and_deaths_at_full_load(path: &str) {
    let chain = Chain::plain().unwrap();
    let mut daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon.apply(&rules(0)).unwrap();
    let mut seen = Vec::new();
    load_while(&chain, || {
        for round in 1..=ROUNDS {
            daemon.apply(&rules(round)).unwrap();
            seen.push(daemon.stats().unwrap());
            if round % 4 == 0 {
                die(&mut daemon, path);
            }
        }
    });
    // Traffic has stopped: once nothing is in flight, the law holds.
    let mut broken = None;
    wait::until("the law holds", || {
        let stats = daemon.stats().unwrap();
        broken = accounting::check(&stats).err().or(of_inputs(&stats).err());
        // The law may hold for a moment between two batches that a worker still has in its ring.
        let is_still = stats.rules.iter().all(|rule| rule.rates.packets_1s == 0.0);
        is_still && broken.is_none()
    })
    .unwrap_or_else(|error| panic!("{error:#}: {broken:?}"));
    seen.push(daemon.stats().unwrap());
    for (before, after) in seen.iter().zip(seen.iter().skip(1)) {
        assert_grew(before, after);
    }
    let last = seen.last().unwrap();
    let cam1 = rule(last, "cam1");
    assert!(cam1.received.packets > 1000, "{cam1:?}");
    assert!(cam1.outputs[0].sent.packets > 0, "{cam1:?}");
    assert!(cam1.outputs[1].dropped["rate_limited"] > 0, "{cam1:?}");
    assert!(cam1.outputs[2].dropped["interface_missing"] > 0, "{cam1:?}");
    assert!(rule(last, "range").received.packets > 0);
    let pair = rule(last, "pair");
    assert!(pair.inputs.iter().all(|input| input.received.packets > 0));
    // No stream, no rate: two readings of the same.
    assert_eq!(counted(last), counted(&daemon.stats().unwrap()));
}

/// The kernel path continues without a daemon, the userspace path without a worker.
fn die(daemon: &mut Daemon, path: &str) {
    if path == "kernel" {
        daemon.kill().unwrap();
        daemon.start_again().unwrap();
        return;
    }
    let workers = daemon.stats().unwrap().workers;
    let restarts: u64 = workers.iter().map(|worker| worker.restarts).sum();
    daemon.kill_worker(workers[0].id).unwrap();
    wait::until("the worker is replaced", || {
        let workers = daemon.stats().unwrap().workers;
        workers.iter().all(|worker| worker.pid != 0)
            && workers.iter().map(|worker| worker.restarts).sum::<u64>() > restarts
    })
    .unwrap();
}

fn rule<'a>(stats: &'a Stats, name: &str) -> &'a RuleStats {
    stats.rules.iter().find(|rule| rule.name == name).unwrap()
}

/// The law of inputs that have been several from the start: they add up to their rule.
fn of_inputs(stats: &Stats) -> Result<()> {
    let pair = rule(stats, "pair");
    let mut sum = Traffic::default();
    for input in &pair.inputs {
        sum.packets += input.received.packets;
        sum.bytes += input.received.bytes;
    }
    ensure!(sum == pair.received, "{pair:?}");
    Ok(())
}

/// All counters of the rules that stay.
fn counted(stats: &Stats) -> Vec<u64> {
    let rules = ["cam1", "range", "pair"].map(|name| rule(stats, name));
    let outputs = rules.iter().flat_map(|rule| &rule.outputs);
    let sent = outputs
        .clone()
        .flat_map(|output| [output.sent.packets, output.sent.bytes]);
    let dropped = outputs.map(|output| output.dropped.values().sum());
    let received = rules
        .iter()
        .flat_map(|rule| [rule.received.packets, rule.received.bytes]);
    let before = rules.iter().map(|rule| rule.dropped.values().sum());
    // In the order of their texts, since their order in the rule changes.
    let mut inputs: Vec<_> = rules.iter().flat_map(|rule| &rule.inputs).collect();
    inputs.sort_by_key(|input| &input.at);
    let by_input = inputs
        .iter()
        .flat_map(|input| [input.received.packets, input.received.bytes]);
    let accepted = received.chain(by_input);
    accepted.chain(before).chain(sent).chain(dropped).collect()
}

fn assert_grew(before: &Stats, after: &Stats) {
    let (before, after) = (counted(before), counted(after));
    let shrunk = before
        .iter()
        .zip(&after)
        .any(|(before, after)| before > after);
    assert!(!shrunk, "counters shrank: {before:?}, then {after:?}");
}

/// Sends as fast as a socket takes it, datagrams and super-packets, for as long as `work` takes.
fn load_while(chain: &Chain, work: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let sender = Sender::open((&chain.sender, "veth0"), ip("10.0.0.1")).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                let payload = socket::payload(number, 500);
                // A full queue is what full load is about.
                let _ = sender.send(ip("239.1.1.1"), 5001, &payload);
                let group = format!("239.1.2.{}", number % 256);
                let _ = sender.send(ip(&group), 5001, &payload);
                if number % 16 == 0 {
                    let port = 5001 + (number / 16 % 2) as u16;
                    let _ = sender.send(ip("239.1.3.1"), port, &payload);
                }
                let _ = sender.send_segmented(ip("239.1.1.1"), 5001, number, SEGMENTS, 500);
                number += 1;
            }
        });
        let _stop = Stop(&stop);
        work();
    });
}
