//! What one rule more, another or one less costs the daemon among thousands, by `make change-cost`:
//! processor time of the whole process. The figures are written to `target/bench/change_cost.json`,
//! and none is asserted.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use api::request::Transaction;
use lab::control;
use lab::daemon::{Daemon, Options};
use lab::reliability::directory;
use lab::topology::Chain;
use lab::usage::processor_time;
use rules::document::RuleDocument;
use serde::Serialize;

/// How many rules there are meanwhile; the kernel path has room for 16,384 routes.
const RULES: [u16; 3] = [1_000, 10_000, 16_000];
/// Changes of each kind.
const ROUNDS: u16 = 60;
/// After a change, until the daemon has done all that follows from it.
const SETTLE: Duration = Duration::from_millis(5);
/// Until the memory of many rules that were read is given back.
const CALM: Duration = Duration::from_secs(3);

/// The cost of changes with so many rules: medians, in milliseconds.
#[derive(Debug, Serialize)]
struct Cost {
    rules: u16,
    /// All rules at once, until the daemon has answered.
    accepted_ms: f64,
    /// Of one change, processor time.
    added_cpu_ms: f64,
    replaced_cpu_ms: f64,
    removed_cpu_ms: f64,
    /// Of one change, until the daemon has answered.
    added_ms: f64,
    replaced_ms: f64,
    removed_ms: f64,
}

#[test]
#[ignore = "long: make change-cost"]
fn changes_among_thousands_of_rules() {
    let costs: Vec<Cost> = RULES.into_iter().map(cost).collect();
    let directory = directory().unwrap();
    fs::create_dir_all(&directory).unwrap();
    let text = serde_json::to_vec_pretty(&costs).unwrap();
    fs::write(directory.join("change_cost.json"), text).unwrap();
}

fn cost(rules: u16) -> Cost {
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path("kernel")).unwrap();
    let socket = daemon.socket();
    let change = |remove: &[u16], add: Vec<RuleDocument>| {
        let remove = remove.iter().map(|number| name(*number)).collect();
        timed(
            &daemon,
            &socket,
            &Transaction {
                add,
                remove,
                ..Transaction::default()
            },
        )
    };
    let all = (0..rules).map(|number| rule(number, 6001)).collect();
    let (_, accepted_ms) = change(&[], all);
    std::thread::sleep(CALM);

    let (mut added, mut replaced, mut removed) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let middle = round * (rules / ROUNDS);
        added.push(change(&[], vec![rule(rules, 6001)]));
        replaced.push(change(&[middle], vec![rule(middle, 6002)]));
        // Once the last rule, once one in the middle, which is then added at the end.
        removed.push(change(&[rules], Vec::new()));
        removed.push(change(&[middle], Vec::new()));
        added.push(change(&[], vec![rule(middle, 6001)]));
    }
    let [
        (added_cpu_ms, added_ms),
        (replaced_cpu_ms, replaced_ms),
        (removed_cpu_ms, removed_ms),
    ] = [added, replaced, removed].map(medians);
    let cost = Cost {
        rules,
        accepted_ms,
        added_cpu_ms,
        replaced_cpu_ms,
        removed_cpu_ms,
        added_ms,
        replaced_ms,
        removed_ms,
    };
    println!("{cost:?}");
    cost
}

/// Carries out a change; returns the daemon's processor time and the time until the answer.
fn timed(daemon: &Daemon, socket: &Path, change: &Transaction) -> (f64, f64) {
    let (before, start) = (processor_time(daemon.id()).unwrap(), Instant::now());
    control::transaction(socket, change).unwrap();
    let answered = start.elapsed();
    std::thread::sleep(SETTLE);
    let cpu = processor_time(daemon.id()).unwrap() - before;
    (cpu.as_secs_f64() * 1e3, answered.as_secs_f64() * 1e3)
}

fn medians(costs: Vec<(f64, f64)>) -> (f64, f64) {
    let (mut cpu, mut wall): (Vec<f64>, Vec<f64>) = costs.into_iter().unzip();
    cpu.sort_by(f64::total_cmp);
    wall.sort_by(f64::total_cmp);
    (cpu[cpu.len() / 2], wall[wall.len() / 2])
}

fn name(number: u16) -> String {
    format!("rule{number}")
}

fn rule(number: u16, port: u16) -> RuleDocument {
    let [high, low] = number.to_be_bytes();
    RuleDocument {
        name: name(number),
        inputs: vec![format!("239.1.{high}.{low}%veth1:5001")],
        outputs: vec![format!("239.10.{high}.{low}%veth2:{port}").as_str().into()],
        ..RuleDocument::default()
    }
}
